"""A pair of in-process engines that serves turns of a conversation in mode reuse. Import it after vLLM.

D keeps blocks ``D_BLOCKS`` of a first turn over ``PROMPT``; P reads into ``NEXT_BLOCKS``.
"""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.connector import upstream

PROMPT = list(range(500, 500 + 3 * upstream.BLOCK_SIZE))
ANSWER = [7, 8, 9]
P_BLOCKS, D_BLOCKS, NEXT_BLOCKS = [4, 5, 6], [1, 2, 3, 8], [9, 10, 11, 12]
TRACED = {"kv_connector_module_path": "connector.nixl", "kv_buffer_device": "cpu"}


class Pair:
    """A prefill and a decode engine; D tells what it keeps over HTTP. ``switch``: behind the switch connector."""

    def __init__(self, model: str, *, switch: bool = False, **options: Any) -> None:
        self.model = model
        self.switch = switch
        self.port = upstream.free_port(2)
        self.p = self.engine("kv_producer", "prefill-0", upstream.free_port(2), fill=10.0)
        self.d = self.engine("kv_consumer", "decode-boot-1", self.port, kvpath_kept_port=0, **options)
        self.count = 0

    def engine(self, role: str, engine_id: str, port: int, fill: float = 0.0, **options: Any) -> Any:
        extra = {"bidirectional_kv_xfer": True, **options}
        connector, module = "TracedPullConnector", "connector.nixl"
        if self.switch:
            push, pull = (
                {**TRACED, "kv_connector": f"TracedP{mode}Connector", "kv_role": role} for mode in ("ush", "ull")
            )
            extra = {"connectors": [push, {**pull, "kv_connector_extra_config": extra}]}
            connector, module = "SwitchConnector", "connector.switch"
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VLLM_NIXL_SIDE_CHANNEL_HOST", "127.0.0.1")
            patch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(port))
            config = upstream.vllm_config(self.model, connector, module, role, engine_id, **extra)
            return upstream.InProcessEngine(config, fill)

    def request(self, engine_request: str, prompt: list[int], params: dict[str, Any]) -> Any:
        made = upstream.new_request(engine_request, params, tokens=len(prompt))
        for ids in (made.prompt_token_ids, made._all_token_ids):
            ids[:] = prompt
        return made

    def prefill(self, rid: str, prompt: list[int], kept: dict[str, Any] | None = None, mode: str = "reuse") -> Any:
        """A request on P, received; what its scheduler would be told of D's blocks comes with it."""
        own = {"do_remote_decode": True, "do_remote_prefill": False, **upstream.legs(rid, mode, 1)}
        request = self.request(f"cmpl-{rid}-0-aaaaaaaa", prompt, {**(kept or {}), **own})
        self.p.receive(request)
        return request

    def prefilled(self, mode: str = "reuse") -> tuple[str, Any, Any]:
        """A first turn that P has computed: the router's id, P's request, and what P answers."""
        self.count += 1
        rid = f"rid-{self.count}"
        prefill = self.prefill(rid, PROMPT, mode=mode)
        assert self.p.allocate(prefill, P_BLOCKS) == 0
        self.p.step(prefill.request_id)
        self.p.token(prefill)
        _, answered = self.p.finish(prefill, P_BLOCKS)
        return rid, prefill, answered

    def first_turn(self, mode: str = "reuse", **params: Any) -> tuple[str, Any]:
        """Computed by P, pulled by D: the router's id, and D's request before it finishes."""
        rid, prefill, answered = self.prefilled(mode)
        decode = self.request(f"cmpl-{rid}-0-bbbbbbbb", PROMPT, {**answered, **upstream.legs(rid, mode, 2), **params})
        self.d.receive(decode)
        assert self.d.allocate(decode, D_BLOCKS[:3]) == len(PROMPT)
        upstream.run_until(lambda: decode.request_id in self.d.received, self.p, self.d)
        upstream.run_until(lambda: prefill.request_id in self.p.sent, self.p, self.d)
        return rid, decode

    def say(self, decode: Any, tokens: list[int]) -> None:
        """D's answer. As in vLLM, the last token's KV is not computed."""
        for token in tokens:
            decode.append_output_token_ids(token)
        self.d.step()

    def finish(self, decode: Any, status: str = "FINISHED_STOPPED") -> Any:
        decode.status = upstream.RequestStatus[status]
        decode.num_computed_tokens = decode.num_tokens - 1
        result = self.d.scheduler.request_finished_all_groups(decode, (D_BLOCKS,))
        self.d.step()
        return result

    def kept(self, rid: str) -> httpx.Response:
        return httpx.get(f"http://127.0.0.1:{pull_of(self.d.scheduler)._service.port}/kept/{rid}", trust_env=False)

    @property
    def pinned(self) -> int:
        blocks: int = pull_of(self.d.scheduler)._keeper.ledger.blocks
        return blocks

    def close(self) -> None:
        self.d.close()
        self.p.close()

    def kept_turn(self) -> tuple[str, Any]:
        """A first turn whose blocks D keeps."""
        rid, decode = self.first_turn()
        self.say(decode, ANSWER)
        assert self.finish(decode) == (True, None), "D keeps the blocks, and the client hears nothing of it"
        return rid, decode

    def conversation(self) -> None:
        """Two turns: P reads what D kept of the first, and D then frees it."""
        rid, decode = self.kept_turn()
        prefill = self.prefill(f"{rid}000", [*PROMPT, *ANSWER, 1], self.kept(rid).json()["params"])
        assert self.p.allocate(prefill, NEXT_BLOCKS) == len(PROMPT) + 2
        upstream.run_until(lambda: prefill.request_id in self.p.received, self.p, self.d)
        self.same_kv(NEXT_BLOCKS, D_BLOCKS)
        self.p.step(prefill.request_id, computed=len(PROMPT) + 2)
        self.p.token(prefill)
        self.p.finish(prefill, NEXT_BLOCKS, "FINISHED_ABORTED")
        upstream.run_until(lambda: decode.request_id in self.d.sent, self.p, self.d)

    def same_kv(self, on_p: list[int], on_d: list[int]) -> None:
        for layer in upstream.LAYERS:
            assert upstream.torch.equal(self.p.kv[layer][on_p], self.d.kv[layer][on_d])


def pull_of(connector: Any) -> Any:
    """The pull connector itself, or the switch's pull child."""
    return getattr(connector, "_connectors", [connector])[-1]


def forgotten(pair: Pair, decode: Any) -> bool:
    """Whether D's worker has nothing left of the request, neither to be sent nor to be watched."""
    pair.d.step()
    worker = pull_of(pair.d.worker).connector_worker
    return decode.request_id not in worker._reqs_to_send and decode.request_id not in worker._reqs_to_process
