from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from connector import contract
from connector.contract import ContractError

CONNECTOR = Path(contract.__file__).parent
NEEDS_VLLM = {"nixl", "switch"}
MODULES = sorted(path.stem for path in CONNECTOR.glob("*.py") if path.stem not in NEEDS_VLLM)

BLOCKER = """
import sys, importlib
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("vllm", "nixl", "torch"):
            raise ImportError(name + " is blocked")
sys.meta_path.insert(0, Blocker())
for module in sys.argv[1:]:
    importlib.import_module("connector." + module)
"""


def test_everything_but_the_connectors_imports_without_vllm() -> None:
    modules = [module for module in MODULES if module != "__init__"]
    assert {"tap", "worker_story", "metrics", "bootstrap", "contract"} <= set(modules)
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER, *modules], cwd=CONNECTOR.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_blocker_blocks() -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER, "nixl"], cwd=CONNECTOR.parent, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "is blocked" in done.stderr


def test_without_vllm_everything_is_missing_and_said_in_one_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract, "_first_module", lambda alternatives: None)
    contract.check.cache_clear()
    with pytest.raises(ContractError) as raised:
        contract.check()
    message = str(raised.value)
    for module, wanted in contract.NAMES.items():
        for name in wanted:
            assert f"{module}.{name}" in message
    assert contract.SUPPORTED in message
    contract.check.cache_clear()


@pytest.mark.usefixtures("vllm")
class TestOnTheInstalledVllm:
    def test_the_contract_holds(self) -> None:
        assert contract.mismatches() == []
        assert contract.vllm_version() != "unknown"

    def test_one_missing_name_is_one_clear_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl import connector

        monkeypatch.delattr(connector.NixlBaseConnector, "update_state_after_alloc")
        # the base class declares it: what is missing is upstream's own
        monkeypatch.delattr(connector.KVConnectorBase_V1, "update_state_after_alloc")
        contract.check.cache_clear()
        with pytest.raises(ContractError, match=r"NixlPushConnector\.update_state_after_alloc") as raised:
            contract.check()
        assert str(raised.value).count("update_state_after_alloc") == 2, "push and pull"
        contract.check.cache_clear()

    def test_a_missing_word_in_a_source_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        key = ("vllm.v1.request", "Request")
        monkeypatch.setitem(contract.SOURCE_WORDS, key, ("self.kv_transfer_params", "self.of_the_future"))
        assert contract.mismatches() == ["'self.of_the_future' in vllm.v1.request.Request"]

    def test_another_registration_prefix_is_seen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from vllm.distributed.kv_transfer.kv_connector.v1.nixl import metadata

        monkeypatch.setattr(metadata, "PUSH_REG_NOTIF_PREFIX", b"REG2:")
        assert any("PUSH_REG_NOTIF_PREFIX" in line for line in contract.mismatches())
