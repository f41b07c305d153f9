"""*Trace exploration*: tables of traces and spans; a click on an id opens the trace.

Tempo answers a search with the newest that match, not with the slowest: the tables ask for what is slower than a
limit that one chooses, and sort what they get.
"""

from __future__ import annotations

from connector import names
from dashboards import router_metrics
from dashboards.model import MODE, Board, Panel, Row, TraceQuery, Variable, View
from dashboards.queries import traces as ask

SLOWER = Variable(
    "slower", "Slower than", values=("100ms", "0ms", "1ms", "10ms", "500ms", "1s", "5s", "10s"), sample="1ms"
)
STAGE = Variable("stage", "Stage", values=ask.STAGE_CHOICES, everything="kvpath[.].+")
ENGINE = Variable("engine", "Engine", label_of=(router_metrics.ENGINE_HEALTHY.value, "engine_id"), everything=".+")
SERVICE = Variable(
    "service", "Service", values=(names.SERVICE_ROUTER, names.SERVICE_PREFILL, names.SERVICE_DECODE), everything=".+"
)
HOST = Variable("host", "Host (a name, or .+)", values=(".+",))


def _table(title: str, description: str, traceql: str, spans: bool = True, width: int = 12) -> Panel:
    return Panel(title, description, "none", (TraceQuery(traceql, spans),), View.TRACES, width, minimum=None)


SLOW = Row(
    "The slow ones",
    (
        _table(
            "Which requests took longer than $slower?",
            "The newest that did, slowest first. Open one: the widest gap between its spans is where it waited.",
            ask.REQUESTS,
            spans=False,
        ),
        _table(
            "Which stages took longer than $slower?",
            "Spans of the chosen stage on any engine. Many of one engine: look at it on Engines and routing.",
            ask.STAGES,
        ),
        _table(
            "Where did the registration come last, by more than $slower?",
            "Push requests in which P had to wait for D: D had no free blocks, or was busy. Many: push gains little.",
            ask.REGISTRATION_LAST,
        ),
        _table(
            "Which spans of one engine took longer than $slower?",
            "The chosen stage on the chosen engine, as `kvpath.engine_id` names it. Compare with another of its role.",
            ask.ON_ENGINE,
        ),
    ),
)

WRONG = Row(
    "The ones that went wrong",
    (
        _table(
            "Which requests have failed spans?",
            "The span says `error.type`. A failed WRITE or READ names its peer: has that engine restarted?",
            ask.ERRORS,
        ),
        _table(
            "Which traces lack D's part?",
            "D's leg ended well, yet no first step is under it: D's spans were lost (Telemetry health says where). "
            "Uses TraceQL's `!<`, which Tempo calls experimental.",
            ask.INCOMPLETE,
        ),
        _table(
            "Which spans does an engine know only in part?",
            "`kvpath.incomplete` says what is lost of the span: its start, its end, when it was posted, its size, the "
            "reason of a release. Facts were dropped, or something had not ended after 15 minutes.",
            ask.HALF_KNOWN,
        ),
        _table(
            "Where were fewer completions counted than expected?",
            "A notification got lost, or came after the request had ended. See alert KvpathCompletionsMissing.",
            ask.COMPLETIONS_MISSING,
        ),
        _table(
            "Which leases expired on P?",
            "D never said that it was done: it died, gave the request up, or had the whole prompt in its prefix cache.",
            ask.LEASES_EXPIRED,
        ),
        _table(
            "Which requests fell back to D alone?",
            "Mode `plain`, with the reason in `kvpath.fallback`. Unexpected ones hide the cost of a broken prefill.",
            ask.FALLBACKS,
            spans=False,
        ),
        _table(
            "Which later turns could not reuse their history?",
            "The outcome says why; see the reuse row on Engines and routing for how often.",
            ask.NOT_REUSED,
            width=24,
        ),
    ),
)

DRILL_DOWN = Row(
    "By service and host",
    (
        _table(
            "What took longer than $slower on this service and host?",
            "Choose a service and type a host above. One host only: look at its load, network and clock.",
            ask.ON_HOST,
            width=24,
        ),
    ),
)

BOARD = Board(
    "traces",
    "kvpath-traces",
    "kvpath: trace exploration",
    "Tables of traces: slow by stage, failed, registration last, incomplete; by service, host and engine.",
    (SLOW, WRONG, DRILL_DOWN),
    (MODE, STAGE, ENGINE, SERVICE, HOST, SLOWER),
)
