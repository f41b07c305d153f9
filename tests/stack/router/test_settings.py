from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from connector import names
from stack.router.settings import RouterSettings, configured_modes, split_problem

P = {"url": "http://p:1", "role": "prefill", "engine_id": "P", "side_channel_host": "h", "side_channel_port": 5600}
D = {"url": "http://d:1/", "role": "decode", "engine_id": "D"}
REUSING_P = {**P, "modes": ["push", "pull", "reuse"]}
KEEPING_D = {**D, "modes": ["push", "pull", "reuse"], "kept_url": "http://d:5620/"}
PULL_ONLY = {"url": "http://p:1", "role": "prefill", "engine_id": "P", "modes": ["pull"]}


def test_defaults_listen_on_loopback_with_admin_and_tracing_off():
    settings = RouterSettings(engines=[P, D])
    assert (settings.host, settings.port) == ("127.0.0.1", 8000)
    assert settings.admin_token is None
    assert settings.otlp_endpoint is None
    assert settings.engines[1].url == "http://d:1"
    assert configured_modes(settings) == (names.MODE_PUSH, names.MODE_PULL, names.MODE_PLAIN)
    with pytest.raises(ValidationError):
        settings.port = 1


def test_the_environment_configures_everything(monkeypatch):
    monkeypatch.setenv("KVPATH_ROUTER_ENGINES", json.dumps([P, D]))
    monkeypatch.setenv("KVPATH_ROUTER_SPLIT", '{"push": 50, "pull": 50}')
    monkeypatch.setenv("KVPATH_ROUTER_ADMIN_TOKEN", "secret")
    settings = RouterSettings()
    assert settings.split == {names.MODE_PUSH: 50, names.MODE_PULL: 50}
    assert "secret" not in repr(settings)


def test_reuse_is_served_where_engines_say_so():
    settings = RouterSettings(engines=[REUSING_P, KEEPING_D], default_mode="reuse", split={"reuse": 1, "pull": 1})
    assert settings.engines[1].kept_url == "http://d:5620"
    assert names.MODE_REUSE in configured_modes(settings)
    assert names.MODE_REUSE not in configured_modes(RouterSettings(engines=[P, KEEPING_D]))


def test_the_url_of_shared_memory_is_a_secret():
    settings = RouterSettings(engines=[P, D], reuse_store_url="redis://:password@h:6379/0")
    assert "password" not in repr(settings)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"engines": [P]}, "no decode engine"),
        ({"engines": [P, D, D]}, "unique"),
        ({"engines": [{**P, "side_channel_port": None}, D]}, "side_channel"),
        ({"engines": [PULL_ONLY, D]}, "mode 'push' needs"),
        ({"engines": [PULL_ONLY, D], "default_mode": "pull", "split": {"push": 1}}, "mode 'push' needs"),
        ({"engines": [P, D], "split": {"push": 0}}, "must not all be 0"),
        ({"engines": [P, D], "split": {"reuse": 1}}, "mode 'reuse' needs"),
        ({"engines": [P, {**KEEPING_D, "kept_url": None}]}, "no kept_url"),
        ({"engines": [P, D], "reuse_margin_s": 480}, "less than reuse_ttl_s"),
        ({"engines": [P, D], "reuse_store_url": "http://x"}, "must begin with redis://"),
        ({"engines": [P, D], "default_mode": "fast"}, "not one of"),
        ({"engines": [P, D], "admin_token": ""}, "admin_token is empty"),
        ({"engines": [P, {**D, "url": "d:1"}]}, "pattern"),
        ({"engines": [P, D], "prot": 1}, "Extra inputs"),
        ({}, "Field required"),
    ],
)
def test_what_makes_no_sense_is_refused_in_words(given, problem):
    with pytest.raises(ValidationError, match=problem):
        RouterSettings(**given)


def test_a_split_may_be_empty_but_not_unserved():
    settings = RouterSettings(engines=[PULL_ONLY, D], default_mode="pull")
    assert split_problem(settings, {}) is None
    assert split_problem(settings, {names.MODE_PULL: 1, names.MODE_PUSH: 0}) is None
    assert "push" in split_problem(settings, {names.MODE_PULL: 1, names.MODE_PUSH: 1})
