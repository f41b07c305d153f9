"""Mode reuse in the pull connector's scheduler: D keeps finished requests' blocks, P reads them on the next turn.

Both are upstream's bidirectional transfer (``bidirectional_kv_xfer``), which knows no modes: with it D would keep the
blocks of every request. Here the flag counts for requests of mode reuse alone. What D keeps it tells the router through
the kept service and not in the response. This is serving, not telemetry. Engine core thread only.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from connector import names
from connector.kept import Kept, KeptLedger
from connector.kept_service import KeptService
from connector.reuse_offer import Offer, OfferDesk, cut, text_only, withdraw
from connector.token_marks import ends_of, marks_of

logger = logging.getLogger(__name__)

OPTION_HOST = "kvpath_kept_host"
OPTION_PORT = "kvpath_kept_port"  # absent: D keeps nothing
OPTION_SHARE = "kvpath_kept_share"  # of D's blocks that may be kept at most, so that new requests find room
DEFAULT_HOST = "127.0.0.1"
DEFAULT_SHARE = 0.5


class ReuseScheduler:
    """Mixed in before upstream's pull connector. Until :meth:`start_reuse` is called nothing is kept or taken."""

    connector_scheduler: Any
    _keeper: Keeper | None = None
    _service: KeptService | None = None
    _desk: OfferDesk | None = None

    def start_reuse(
        self,
        options: Mapping[str, Any],
        kv_cache_config: Any,
        *,
        instance: str,
        rank: int,
        pinned: Callable[[int, int], None],
    ) -> None:
        """Turns reuse on as far as ``options`` and the engine allow it.

        ``rank`` is the data-parallel rank (its kept service listens that many ports above the configured one);
        ``pinned`` is told how many blocks are kept, and how many may be. Raises ``KeptServiceError`` when that port is
        taken.
        """
        scheduler = self.connector_scheduler
        if not scheduler.is_bidirectional_kv_xfer_enabled:
            return
        if scheduler.use_host_buffer:
            logger.info("mode reuse is off: KV is moved through host buffers, which D's decoding does not fill")
            return
        self._desk = OfferDesk(scheduler.block_size, len(kv_cache_config.kv_cache_groups))
        if options.get(OPTION_PORT) is None:
            return
        capacity = int(kv_cache_config.num_blocks * float(options.get(OPTION_SHARE, DEFAULT_SHARE)))
        ledger = KeptLedger(capacity, lambda blocks: pinned(blocks, capacity))
        self._service = KeptService(ledger, options.get(OPTION_HOST, DEFAULT_HOST), int(options[OPTION_PORT]) + rank)
        self._keeper = Keeper(ledger, scheduler.block_size, instance)

    # --- hooks --------------------------------------------------------------------------------------------------
    def judge_offer(self, request: Any) -> Offer | None:
        """P: called after upstream's ``on_new_request``, which may shorten the prompt."""
        if not _is(request, prefill=True):
            return None
        if self._desk is None:
            withdraw(request.kv_transfer_params)
            return None
        return self._desk.judge(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        matched: tuple[int | None, bool] = super().get_num_new_matched_tokens(request, num_computed_tokens)  # type: ignore[misc]
        params = request.kv_transfer_params or {}
        if params.get("do_remote_decode") and (not self._serves(request) or params.get("_remote_blocks_processed")):
            return 0, False  # read once already (preempted, or the read failed): upstream would wait for a second
        return matched

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> Any:
        with _bidirectional(self.connector_scheduler, self._serves(request)):
            return super().update_state_after_alloc(request, blocks, num_external_tokens)  # type: ignore[misc]

    def request_finished(self, request: Any, block_ids: list[int]) -> Any:
        finish = super().request_finished  # type: ignore[misc]
        return self._finish(request, len(block_ids), lambda: finish(request, block_ids))

    def request_finished_all_groups(self, request: Any, block_ids: tuple[list[int], ...]) -> Any:
        finish = super().request_finished_all_groups  # type: ignore[misc]
        return self._finish(request, sum(map(len, block_ids)), lambda: finish(request, block_ids))

    def _finish(self, request: Any, blocks: int, finish: Callable[[], tuple[bool, Any]]) -> tuple[bool, Any]:
        serves, keeper = self._serves(request), self._keeper
        if keeper is None or not serves or _is(request, prefill=True):
            with _bidirectional(self.connector_scheduler, serves):
                return finish()
        room = keeper.ledger.has_room(blocks)
        with _bidirectional(self.connector_scheduler, room):
            kept, answered = finish()
        if not room:  # as upstream says it of a request that it does not keep: the worker forgets it
            self.connector_scheduler._reqs_not_processed.add(request.request_id)
        if kept and answered:
            keeper.keep(request, answered, blocks)
        return kept, None  # D's positions are for the router alone, not for the client's response

    def update_connector_output(self, connector_output: Any) -> None:
        super().update_connector_output(connector_output)  # type: ignore[misc]
        if self._keeper is not None and connector_output.finished_sending:
            self._keeper.ledger.forget(connector_output.finished_sending)

    def shutdown(self) -> None:
        try:
            super().shutdown()  # type: ignore[misc]
        finally:
            if self._service is not None:
                self._service.close()

    def _serves(self, request: Any) -> bool:
        if _is(request, prefill=True):
            return self._desk is not None
        if self._keeper is None or not _is(request, prefill=False):
            return False
        return request.kv_transfer_params.get(names.PARAM_KEEP, True) is not False and text_only(request)


class Keeper:
    """D: writes into the ledger what upstream answers about a request whose blocks it keeps."""

    def __init__(self, ledger: KeptLedger, block_size: int, instance: str) -> None:
        self.ledger = ledger
        self._block_size = block_size
        self._instance = instance

    def keep(self, request: Any, answered: dict[str, Any], blocks: int) -> None:
        try:
            self._keep(request, answered, blocks)
        except Exception:  # the blocks are freed when their time is over, as those that nobody asks for
            logger.exception("what D keeps of request %s could not be written down", request.request_id)

    def _keep(self, request: Any, answered: dict[str, Any], blocks: int) -> None:
        # The KV of the last token is computed, if at all, by a step that may not have ended yet.
        tokens = min(answered["remote_num_tokens"], request.num_tokens - 1)
        ends = ends_of(request.num_prompt_tokens, tokens)
        params = {
            **answered,
            "remote_block_ids": cut(answered["remote_block_ids"], tokens, self._block_size),
            "remote_num_tokens": tokens,
            names.PARAM_TOKEN_MARKS: marks_of(request.all_token_ids[:tokens], ends),
            names.PARAM_BLOCK_SIZE: self._block_size,
            names.PARAM_INSTANCE: self._instance,
        }
        expires_s = answered["remote_blocks_expiry_time"]
        router_request = request.kv_transfer_params.get(names.PARAM_REQUEST_ID, request.request_id)
        self.ledger.add(request.request_id, Kept(router_request, params, tokens, blocks, expires_s))


@contextlib.contextmanager
def _bidirectional(scheduler: Any, on: bool) -> Iterator[None]:
    """Inside, upstream's flag is what it was and ``on``."""
    was = scheduler.is_bidirectional_kv_xfer_enabled
    scheduler.is_bidirectional_kv_xfer_enabled = was and on
    try:
        yield
    finally:
        scheduler.is_bidirectional_kv_xfer_enabled = was


def _is(request: Any, *, prefill: bool) -> bool:
    """Whether it is a request of mode reuse, and P's (``prefill``) or D's."""
    params = request.kv_transfer_params or {}
    return params.get(names.PARAM_MODE) == names.MODE_REUSE and bool(params.get("do_remote_decode")) is prefill
