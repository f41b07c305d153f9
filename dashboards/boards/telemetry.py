"""*Telemetry health*: whether the figures of the other dashboards can be believed."""

from __future__ import annotations

from dashboards.model import MODE, Board, Panel, Query, Row, View
from dashboards.queries import telemetry as ask

SCRAPES = Row(
    "Scrapes",
    (
        Panel(
            "Does Prometheus reach every part?",
            "Share of each job's targets that answer. Below 1: see Prometheus' targets page for the address and the "
            "error. A job that is missing here is not configured.",
            "percentunit",
            (Query(ask.SCRAPED, "{{job}}"),),
            View.FIGURES,
            width=12,
            height=6,
        ),
        Panel(
            "How long does a scrape take?",
            "The slowest of each job. Near the scrape timeout, points get lost: a starved engine, or too many series.",
            "s",
            (Query(ask.SCRAPE_SECONDS, "{{job}}"),),
            width=12,
            height=6,
        ),
    ),
)

SPANS = Row(
    "Spans and facts",
    (
        Panel(
            "Do the router's spans arrive?",
            "Sampled spans by what became of them; `exported` follows `ended`. When it does not: is the Collector up?",
            "ops",
            (Query(ask.ROUTER_SPANS, "{{outcome}}"),),
        ),
        Panel(
            "What does telemetry lose?",
            "Facts dropped, evicted or unmatched and spans lost, by engine; and the router's. Serving is unaffected, "
            "but traces lack something and are called incomplete. Steady: the drain thread or the Collector is too "
            "slow; sample fewer traces.",
            "short",
            (
                Query(ask.LOST, "{{kind}} on {{job}} {{instance}}", expects_data=False),
                Query(ask.ROUTER_DROPPED, "spans dropped by router {{instance}}"),
                Query(ask.ROUTER_FAILED, "spans not exported by router {{instance}}"),
            ),
            View.EVENTS,
        ),
        Panel(
            "Does telemetry itself fail?",
            "Exceptions inside telemetry that were swallowed: a fault of kvpath's, or a vLLM that it does not know; "
            "the log of that process has the first one. Changes of the split that are not marked here: try `kvpath "
            "grafana check`.",
            "short",
            (
                Query(ask.ROUTER_ERRORS, "router {{instance}}"),
                Query(ask.ENGINE_ERRORS, "{{job}} {{instance}}", expects_data=False),
                Query(ask.NOT_ANNOTATED, "change of the split not marked by {{instance}}", expects_data=False),
            ),
            View.EVENTS,
        ),
    ),
)

COLLECTOR = Row(
    "The Collector",
    (
        Panel(
            "Do spans leave the Collector as they come?",
            "Accepted from router and engines, and sent on to Tempo. `sent` below `accepted` for minutes: Tempo is "
            "slow or down; see the queue.",
            "ops",
            (
                Query(ask.COLLECTOR_IN, "accepted by {{instance}}"),
                Query(ask.COLLECTOR_OUT, "sent by {{instance}}", expects_data=False),
            ),
        ),
        Panel(
            "How full is the Collector's queue?",
            "1 is full: from then on spans are thrown away. Rising: Tempo does not take them fast enough.",
            "percentunit",
            (Query(ask.COLLECTOR_QUEUE, "{{exporter}} of {{instance}}"),),
            maximum=1,
        ),
        Panel(
            "Which spans does the Collector lose?",
            "Refused (memory is short: raise its limit) or not delivered to Tempo. Any is a gap in traces.",
            "short",
            (
                Query(ask.COLLECTOR_REFUSED, "refused by {{instance}}"),
                Query(ask.COLLECTOR_NOT_SENT, "not delivered by {{instance}}", expects_data=False),
            ),
            View.EVENTS,
        ),
    ),
)

TRACES = Row(
    "Traces and the critical-path exporter",
    (
        Panel(
            "How many traces tell the whole story?",
            "Share of finished traces that lack nothing. Below 1: the reasons are beside; incomplete traces are still "
            "counted when their critical path is known.",
            "percentunit",
            (Query(ask.COMPLETE_SHARE, "{{mode}}"),),
            width=6,
            maximum=1,
        ),
        Panel(
            "What do incomplete traces lack?",
            "By reason. A span of one engine only: its telemetry loses something. `clock`: hosts whose messages do "
            "not bound their clocks.",
            "short",
            (Query(ask.INCOMPLETE, "{{reason}}", expects_data=False),),
            View.EVENTS,
            width=6,
        ),
        Panel(
            "How many traces are counted?",
            "By mode and outcome. Fewer than the router answers: sampling, or the exporter lags.",
            "ops",
            (Query(ask.TRACES, "{{mode}} {{outcome}}"),),
            View.STACK,
            width=6,
        ),
        Panel(
            "How uncertain are times between hosts?",
            "Bound on the error of stages that span two hosts; 0 on one host. Larger than the stages themselves: "
            "believe sums, not single stages, and check NTP or PTP.",
            "s",
            (Query(ask.clock(0.5), "{{mode}} p50"), Query(ask.clock(0.99), "{{mode}} p99")),
            width=6,
        ),
        Panel(
            "How far behind is the exporter?",
            "Age of the instant up to which every finished request is counted. Seconds are normal, because late spans "
            "are waited for; growing: too many traces for one exporter, add another.",
            "s",
            (Query(ask.LAG, "{{instance}}"),),
            width=8,
        ),
        Panel(
            "How many traces wait to be counted?",
            "Found and not yet counted. Growing with the lag: see there. Growing alone: traces whose root never ends.",
            "short",
            (Query(ask.WAITING, "{{instance}}"),),
            width=8,
        ),
        Panel(
            "Does the exporter reach the trace store?",
            "Polls that failed. Any: is Tempo up, and does it answer searches in time?",
            "short",
            (Query(ask.POLL_ERRORS, "{{instance}}"),),
            View.EVENTS,
            width=8,
        ),
    ),
)

BOARD = Board(
    "telemetry",
    "kvpath-telemetry",
    "kvpath: telemetry health",
    "Whether the figures of the other dashboards can be believed: what is scraped, lost, late or uncertain.",
    (SCRAPES, SPANS, COLLECTOR, TRACES),
    (MODE,),
)
