from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from pydantic import ValidationError

from stack.engines import up
from stack.engines.launch import router_config
from stack.engines.settings import DeploymentSettings, engine_specs
from stack.router.settings import RouterSettings, configured_modes


def settings(**values: object) -> DeploymentSettings:
    return DeploymentSettings.model_validate({"cpu_threads": 1, **values})


def test_the_routers_configuration_is_one_that_the_router_takes() -> None:
    chosen = settings(router_port=18000, prefill_side_channel_port=15600)
    config = json.loads(json.dumps(router_config(chosen, *engine_specs(chosen, Path("/m")))))
    read = RouterSettings(**config)
    assert read.port == 18000
    assert read.allow_mode_header
    assert configured_modes(read) == ("push", "pull", "plain")
    assert {engine.engine_id for engine in read.engines} == {"prefill-0", "decode-0"}
    assert read.engines[0].side_channel_port == 15600


@pytest.mark.parametrize(("connector", "modes"), [("push", ("push", "plain")), ("upstream-pull", ("pull", "plain"))])
def test_one_way_connectors_are_offered_as_such(connector: str, modes: tuple[str, ...]) -> None:
    chosen = settings(connector=connector)
    config = json.loads(json.dumps(router_config(chosen, *engine_specs(chosen, Path("/m")))))
    assert configured_modes(RouterSettings(**config)) == modes


def test_engines_of_one_deployment_share_no_port() -> None:
    prefill, decode = engine_specs(settings(), Path("/m"))
    assert not set(prefill.ports) & set(decode.ports)


def test_the_random_model_is_not_loaded_from_weights() -> None:
    assert {spec.load_format for spec in engine_specs(settings(model="random"), Path("/m"))} == {"dummy"}


def parsed(*argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    return parser.parse_args(list(argv))


def test_flags_are_stronger_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPATH_ROUTER_PORT", "1111")
    monkeypatch.setenv("KVPATH_STORE_PORT", "2222")
    chosen = up.settings_from(parsed("--router-port", "3333"))
    assert (chosen.router_port, chosen.store_port) == (3333, 2222)


def test_a_wrong_value_is_one_line() -> None:
    with pytest.raises(ValidationError) as caught:
        up.settings_from(parsed("--router-port", "0"))
    problem = up.usage_problem(caught.value)
    assert "router_port" in problem
    assert "\n" not in problem
