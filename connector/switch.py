"""The switch connector: one engine that serves push, pull and reuse, request by request.

Built on upstream's ``MultiConnector`` with one traced push and one traced pull child. Upstream's fans every request
out to all children; this one hands a request to the child that its ``kv_transfer_params["transfer_mode"]`` names,
and to no other; reuse is the pull child's. Both children keep the engine's id; the pull child's side channel listens
on the next free port (push: the configured one; pull: that plus the data-parallel size), because each child has a NIXL
agent of its own.

Load with ``--kv-transfer-config``; :func:`stack.engines.command_line.kv_transfer_config` writes it::

    {"kv_connector": "SwitchConnector", "kv_connector_module_path": "connector.switch", "kv_role": "kv_producer",
     "engine_id": "prefill-0", "kv_connector_extra_config": {
       "kvpath_otlp_endpoint": "http://127.0.0.1:4318",
       "connectors": [
         {"kv_connector": "TracedPushConnector", "kv_connector_module_path": "connector.nixl", "kv_role": ...},
         {"kv_connector": "TracedPullConnector", "kv_connector_module_path": "connector.nixl", "kv_role": ...,
          "kv_connector_extra_config": {"bidirectional_kv_xfer": true, "kvpath_kept_port": 5620}}]}}

The last line is for reuse, and its port for D alone. D then leaves ``engine_id`` out, which makes it a new one at every
start, and is called by ``kvpath_instance``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from connector import contract, names
from connector.nixl import (
    KVConnectorHandshakeMetadata,
    KVConnectorRole,
    MultiConnector,
    TracedMetrics,
    on_few_cores,
    runtime_of,
)


@dataclass
class SwitchHandshakeMetadata(KVConnectorHandshakeMetadata):
    """The children's handshake metadata, in the order of the children."""

    children: tuple[KVConnectorHandshakeMetadata | None, ...]


class SwitchConnector(TracedMetrics, MultiConnector):
    """Serves each request by the child that its transfer mode names; requests without one are not transferred."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        contract.check()
        # Taken before the children take it: the process's telemetry follows the engine's own options.
        self.runtime_use = runtime_of(vllm_config)
        with on_few_cores(vllm_config):
            super().__init__(vllm_config=vllm_config, role=role, kv_cache_config=kv_cache_config)
        self._by_mode = {child.mode: index for index, child in enumerate(self._connectors)}  # type: ignore[attr-defined]
        if set(self._by_mode) != {names.MODE_PUSH, names.MODE_PULL} or len(self._connectors) != 2:
            raise ValueError(
                f"SwitchConnector needs exactly one traced push and one traced pull child, not {list(self._by_mode)}; "
                "see kv_connector_extra_config.connectors"
            )
        if role == KVConnectorRole.SCHEDULER:
            pull = self._connectors[self._by_mode[names.MODE_PULL]].connector_scheduler  # type: ignore[attr-defined]
            pull.side_channel_port += vllm_config.parallel_config.data_parallel_size

    def _child_of(self, request: Any) -> int | None:
        mode = (request.kv_transfer_params or {}).get(names.PARAM_MODE)
        if not isinstance(mode, str):
            return None  # whatever a client put there: never a reason for the engine to fail
        return self._by_mode.get(names.MODE_PULL if mode == names.MODE_REUSE else mode)

    # --- scheduler ----------------------------------------------------------------------------------------------
    def on_new_request(self, request: Any) -> None:
        index = self._child_of(request)
        if index is not None:
            self._connectors[index].on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        index = self._child_of(request)
        if index is None:
            return 0, False
        tokens, asynchronous = self._connectors[index].get_num_new_matched_tokens(request, num_computed_tokens)
        if tokens:
            self._requests_to_connector[request.request_id] = index
        return tokens, asynchronous

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        index = self._child_of(request)
        if index is not None:
            self._connectors[index].update_state_after_alloc(request, blocks, num_external_tokens)

    def request_finished(self, request: Any, blocks: Any) -> Any:
        index = self._finish(request)
        return (False, None) if index is None else self._connectors[index].request_finished(request, blocks)

    def request_finished_all_groups(self, request: Any, block_ids: Any) -> Any:
        index = self._finish(request)
        if index is None:
            return False, None
        return self._connectors[index].request_finished_all_groups(request, block_ids)  # type: ignore[attr-defined]

    def _finish(self, request: Any) -> int | None:
        self._requests_to_connector.pop(request.request_id, None)
        return self._child_of(request)

    def take_events(self) -> Iterable[Any]:
        # A list, not upstream's generator: the children must see the end of every step, consumed or not.
        return [event for child in self._connectors for event in child.take_events()]

    def set_xfer_handshake_metadata(self, metadata: Any) -> None:
        for index, child in enumerate(self._connectors):
            child.set_xfer_handshake_metadata(_part(metadata, index))

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Any) -> None:
        for index, child in enumerate(self._connectors):
            child.set_xfer_handshake_metadata_pp_aware(_part(metadata, index))

    # --- worker -------------------------------------------------------------------------------------------------
    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        children = tuple(child.get_handshake_metadata() for child in self._connectors)
        return SwitchHandshakeMetadata(children) if any(children) else None

    # --- both ---------------------------------------------------------------------------------------------------
    def get_kv_connector_stats(self) -> Any:
        total = None
        for child in self._connectors:
            stats = child.get_kv_connector_stats()
            if stats is not None:
                total = stats if total is None else total.aggregate(stats)
        return total

    def shutdown(self) -> None:
        try:
            super().shutdown()
        finally:
            self.runtime_use.release()


def _part(metadata: dict[Any, SwitchHandshakeMetadata], index: int) -> dict[Any, Any]:
    parts = {rank: both.children[index] for rank, both in metadata.items()}
    return {rank: part for rank, part in parts.items() if part is not None}
