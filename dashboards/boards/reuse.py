"""The row on mode reuse: what D keeps between turns, and what it saves."""

from __future__ import annotations

from connector import names
from dashboards.boards.path import path_over_time
from dashboards.model import Panel, Query, Row, View
from dashboards.queries import reuse as ask


def _query(expr: str, legend: str, expects_data: bool = True) -> Query:
    return Query(expr, legend, expects_data, mode=names.MODE_REUSE)


ROW = Row(
    "Reuse: the KV that D keeps between turns",
    (
        Panel(
            "How often is a turn's history still on D?",
            "Hits among all lookups, and among those of later turns (first turns cannot hit). Low on later turns: see "
            "the outcomes beside it.",
            "percentunit",
            (_query(ask.HIT_RATE, "of all"), _query(ask.HIT_RATE_OF_LATER_TURNS, "of later turns", False)),
            width=6,
            maximum=1,
        ),
        Panel(
            "What becomes of the lookups?",
            "`expired`: turns come later than the 480 s that D keeps blocks. `gone`: D restarted or gave them up. "
            "`edited`: clients rewrite history. `too_short`: below 64 tokens. `miss`: first turns, or another router "
            "without the shared table.",
            "ops",
            (_query(ask.LOOKUPS, "{{outcome}}"),),
            View.STACK,
            width=6,
        ),
        Panel(
            "How old is the history when it is used?",
            "Since the turn before ended. Near 480 s most turns are about to come too late: reuse saves little there.",
            "s",
            (_query(ask.age(0.5), "p50", False), _query(ask.age(0.99), "p99", False)),
            width=6,
        ),
        Panel(
            "Which turns leave nothing to reuse, and why?",
            "Turns of conversations after which D kept nothing, by reason, and shared tables that did not answer. "
            "`not_kept`: D had no room left for it, or the answer ended in a way that cannot be continued. "
            "`no_answer`: the request failed. `answer_unfinished`: the client left before the last token. Errors of "
            "the store: is Redis or Valkey up?",
            "short",
            (_query(ask.NOT_KEPT, "{{reason}}", False), _query(ask.STORE_ERRORS, "store error on {{instance}}", False)),
            View.EVENTS,
            width=6,
        ),
        Panel(
            "How many prompt tokens need not be computed again?",
            "Tokens a second of requests in mode reuse: offered by the router to P, and on P read from D (`reused`) or "
            "computed (`recomputed`). `reused` far below `offered`: P's own prefix cache has them, or its reads fail.",
            "short",
            (_query(ask.OFFERED, "offered"), _query(ask.TOKENS, "{{outcome}}")),
            width=6,
        ),
        Panel(
            "How many blocks does D keep for later turns?",
            "Blocks of finished turns. Compare with KV usage beside it: they are part of it. When they crowd out "
            "requests, lower `kvpath_kept_share` or the time that D keeps them.",
            "short",
            (_query(ask.PINNED, "{{instance}}"),),
            View.STACK,
            width=6,
        ),
        Panel(
            "How much of what D may keep is in use?",
            "1: the share of its cache that D may keep (`kvpath_kept_share`) is used up, and further turns leave "
            "nothing. Near 1 with hits: raise it. Near 1 while most of it expires: reuse is not for these clients.",
            "percentunit",
            (_query(ask.PINNED_SHARE, "{{instance}}"),),
            width=6,
            maximum=1,
        ),
        Panel(
            "How full is the cache of engines that keep blocks?",
            "1 is full: new requests wait for blocks. With many kept blocks at the same time, they are why.",
            "percentunit",
            (Query(ask.KV_USAGE, "{{instance}}"),),
            width=6,
            maximum=1,
        ),
        Panel(
            "How many kept blocks does nobody come back for?",
            "Share of releases on D by expiry. Near 1, conversations end or pause longer than D waits: reuse holds "
            "memory for nothing.",
            "percentunit",
            (_query(ask.EXPIRED_SHARE, "expired", False),),
            width=8,
            maximum=1,
        ),
        Panel(
            "How many conversations does the router remember?",
            "Entries in each router's table. Absent with a shared table. Evicted: the table was full; give it more.",
            "short",
            (
                _query(ask.CONVERSATIONS, "{{instance}}"),
                _query(ask.EVICTED, "evicted on {{instance}}", False),
            ),
            width=8,
        ),
        Panel(
            "How much memory does that take?",
            "Bytes of the router's table. It holds positions, never tensors or text: some hundred bytes an entry. "
            "Growing without conversations growing would be a fault.",
            "decbytes",
            (_query(ask.CONVERSATIONS_BYTES, "{{instance}}"),),
            width=8,
        ),
        path_over_time(names.MODE_REUSE, width=24),
    ),
    collapsed=True,
)
