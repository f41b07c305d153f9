"""*Push against pull*: does push bring the first token sooner, by how much, and which stage is it?"""

from __future__ import annotations

from connector import names
from dashboards.boards.path import path_over_time
from dashboards.model import MODE, STAGE, Board, Panel, Query, Row, View
from dashboards.queries import push_pull as ask

ANSWER = Row(
    "The answer",
    (
        Panel(
            "How much later does push bring the first token than pull?",
            "Push minus pull: median of the last traces, and the 95 % interval. Below 0, push is the sooner one. When "
            "low and high lie on either side of 0, there is no difference to speak of: let more requests run, or run "
            "`kvpath ab`. When push is later: look at the difference by stage, then at the Transfer dashboard.",
            "s",
            (
                Query(ask.difference("low"), "low", expects_data=False),
                Query(ask.difference("median"), "median", expects_data=False),
                Query(ask.difference("high"), "high", expects_data=False),
            ),
            View.FIGURES,
            height=6,
            minimum=None,
        ),
        Panel(
            "How many requests does that rest on?",
            "Requests of each mode in the exporter's window. Below some hundred of each, believe only large "
            "differences. One mode at 0: give it a share with `kvpath mode push=50 pull=50`.",
            "short",
            (Query(ask.SAMPLES, "{{mode}}"),),
            View.FIGURES,
            height=6,
        ),
        Panel(
            "What share of the traffic does each mode serve?",
            "Share of answered requests. `plain` means that D computed the prompt itself: above a few per cent, look "
            "at the fallbacks on Engines and routing. It follows the split below with some delay.",
            "percentunit",
            (Query(ask.TRAFFIC_SHARE, "{{mode}}"),),
            View.STACK,
            height=6,
            maximum=1,
        ),
    ),
)

TIMES = Row(
    "Time to first token, time per output token, throughput",
    (
        Panel(
            "When does the first token reach the client?",
            "Request in to first content chunk out, measured by the router on every streamed answer; one in one piece "
            "has no first token of its own. p99 far above p50 means queueing or a stalled transfer: follow an exemplar "
            "to its trace.",
            "s",
            tuple(Query(ask.ttft(q), f"{{{{mode}}}} p{q * 100:.0f}", exemplars=True) for q in (0.5, 0.9, 0.99)),
            width=12,
        ),
        Panel(
            "How long does each further token take?",
            "First to last token of a stream over the tokens between. It should not depend on the mode: when it does, "
            "one mode's transfers disturb decode; compare blocks held, and running requests on Engines and routing.",
            "s",
            tuple(Query(ask.tpot(q), f"{{{{mode}}}} p{q * 100:.0f}") for q in (0.5, 0.99)),
            width=6,
        ),
        Panel(
            "How many requests are answered?",
            "Answers with a 2xx status. Only modes with like shares of the traffic are comparable. Lower than what "
            "clients send: look at router errors on Engines and routing.",
            "reqps",
            (Query(ask.THROUGHPUT, "{{mode}}"),),
            width=6,
        ),
        Panel(
            "How is the traffic meant to be split?",
            "The router's weights. Nothing here: no split is set and the default mode serves all. Change it with "
            "`kvpath mode`; every change is an annotation.",
            "percentunit",
            (Query(ask.SPLIT_SHARE, "{{mode}}", expects_data=False),),
            View.STACK,
            width=24,
            height=4,
            maximum=1,
        ),
    ),
)


PATH = Row(
    "The critical path",
    (
        Panel(
            "Where does the time go, mode beside mode?",
            "Mean seconds of each stage over the time shown; a bar's length is mean TTFT. A stage that a mode does "
            "not have is 0. Bars that differ in `prefill` compare different loads or prompts, not protocols.",
            "s",
            (Query(ask.STAGES_SIDE_BY_SIDE, instant=True, columns=True),),
            View.STACKED_BARS,
            width=12,
            height=10,
            stages=True,
        ),
        Panel(
            "Which stages make push differ from pull?",
            "Mean seconds a stage takes in push, less what it takes in pull. Below 0, push saves that much. `flight` "
            "above 0 while `handoff` is below: the link is slower at WRITE than at READ; run `kvpath probe`.",
            "s",
            (Query(ask.STAGE_DIFFERENCE, instant=True, columns=True),),
            View.BARS,
            width=12,
            height=10,
            minimum=None,
        ),
        path_over_time(names.MODE_PUSH),
        path_over_time(names.MODE_PULL),
        Panel(
            "How long do the chosen stages take at worst?",
            "p50 and p99 of the stages chosen above. A p99 that leaves p50 behind is a stall, not a slow link: open "
            "one of its exemplars.",
            "s",
            tuple(
                Query(ask.stage(q), f"{{{{mode}}}} {{{{stage}}}} p{q * 100:.0f}", exemplars=True) for q in (0.5, 0.99)
            ),
            width=12,
        ),
        Panel(
            "How much work does prefill hide?",
            "Mean time of registration, connecting and descriptor work that ran beside prefill. In push this is the "
            "gain; near 0 in push: registrations come late, see the rendezvous on Transfer.",
            "s",
            (Query(ask.OVERLAPPED, "{{mode}}"),),
            width=6,
        ),
        Panel(
            "How much of it can nobody explain?",
            "Share of TTFT that no stage covers: HTTP and tokenisation, mostly. Above 10 %: long prompts on a busy API "
            "server, or clocks of hosts that disagree; see clock uncertainty on Telemetry health.",
            "percentunit",
            (Query(ask.UNEXPLAINED_SHARE, "{{mode}}"),),
            width=6,
        ),
    ),
)

BOARD = Board(
    "push-pull",
    "kvpath-push-pull",
    "kvpath: push against pull",
    "Does pushing the KV cache bring the first token sooner than pulling it, by how much, and in which stage?",
    (ANSWER, TIMES, PATH),
    (MODE, STAGE),
)
