"""*Engines and routing*: load and memory of the engines, what the router chose, and whether it was right."""

from __future__ import annotations

from dashboards.boards import reuse
from dashboards.model import ENGINE, MODE, Board, Panel, Query, Row, View
from dashboards.queries import engines as ask
from dashboards.queries import transfer

LOAD = Row(
    "Load of the engines",
    (
        Panel(
            "Which engines may get requests?",
            "1 when the router's probes succeed. 0: it sends nothing there; its log and `/health` say why.",
            "bool_yes_no",
            (Query(ask.READY, "{{engine_id}} ({{role}})"),),
            View.FIGURES,
            width=6,
        ),
        Panel(
            "How many requests run?",
            "In execution batches. All on one of several engines: look at the choices below.",
            "short",
            (Query(ask.RUNNING, "{{job}} {{instance}}"),),
            width=6,
        ),
        Panel(
            "How many requests wait, and for what?",
            "`capacity`: no room, add engines. `deferred` on D: waits for its KV, which is normal for as long as a "
            "prefill takes; growing: transfers are stuck, see alert KvpathTransfersStuck.",
            "short",
            (Query(ask.WAITING, "{{job}} {{instance}}: {{reason}}"),),
            width=6,
        ),
        Panel(
            "How long do requests queue in an engine?",
            "p99. On P it delays the first token at once; on D only when it lasts longer than prefill.",
            "s",
            (Query(ask.queue(0.99), "{{job}} {{instance}}"),),
            width=6,
        ),
        Panel(
            "How many prompt tokens does prefill process?",
            "Prompt tokens a second by engine. Flat while requests wait: that engine is saturated.",
            "short",
            (Query(ask.PROMPT_TOKENS, "{{job}} {{instance}}"),),
            width=6,
        ),
        Panel(
            "How many tokens does decode generate?",
            "Generated tokens a second by engine. P generates one a request.",
            "short",
            (Query(ask.GENERATED_TOKENS, "{{job}} {{instance}}"),),
            width=6,
        ),
        Panel(
            "At which step is KV that D waits for?",
            "Waiting requests of D by step of their load. `in_progress` that never falls: transfers are stuck. "
            "Nothing here with vLLM 0.26.",
            "short",
            (Query(ask.FETCHING, "{{instance}}: {{stage}}"),),
            width=6,
        ),
        Panel(
            "How often does an engine throw work away?",
            "Preemptions: memory ran out and a request starts over. Any are too many: lower the load, or give the KV "
            "cache more memory.",
            "short",
            (Query(ask.PREEMPTIONS, "{{job}} {{instance}}"),),
            View.EVENTS,
            width=6,
        ),
    ),
)

MEMORY = Row(
    "KV cache",
    (
        Panel(
            "How full is the KV cache?",
            "1 is full. P above 0.9: it keeps blocks for D too long (see beside). D above 0.9: registrations come "
            "late, push loses its gain.",
            "percentunit",
            (Query(ask.KV_USAGE, "{{job}} {{instance}}"),),
            maximum=1,
        ),
        Panel(
            "How much of the prompts is cached already?",
            "Share of prompt tokens found in the engine's own prefix cache. A push with a full hit on D moves nothing "
            "and P's lease expires: expected.",
            "percentunit",
            (Query(ask.PREFIX_HITS, "{{job}} {{instance}}", expects_data=False),),
            maximum=1,
        ),
        Panel(
            "How long are blocks held after an engine is done?",
            "p99, by why they were let go. Seconds on P: D comes late, or an idle P has no step in which to notice.",
            "s",
            (Query(transfer.blocks_held(0.99), "{{job}} {{mode}} {{reason}}"),),
        ),
    ),
)

CHOICES = Row(
    "What the router chose",
    (
        Panel(
            "Which engines get the legs?",
            "Choices a second. Engines of a role should share alike; one that gets little is slow or unhealthy.",
            "reqps",
            (Query(ask.CHOSEN, "{{engine_id}} ({{role}})"),),
            View.STACK,
            width=6,
        ),
        Panel(
            "How many legs are in flight on each engine?",
            "As the routers count them. One far above the others does not finish its work.",
            "short",
            (Query(ask.OUTSTANDING_REQUESTS, "{{engine_id}} ({{role}})"),),
            width=6,
        ),
        Panel(
            "How much work is outstanding on each engine?",
            "Tokens; the router chooses the least. Lines that stay apart: requests of very different length.",
            "short",
            (Query(ask.OUTSTANDING_WORK, "{{engine_id}} ({{role}})"),),
            width=6,
        ),
        Panel(
            "How often does push regret its early choice of D?",
            "Share of push requests for which the router would have chosen another D when P had finished. The price "
            "of choosing early; above 0.3 with several Ds, pull may place requests better. 0 with one D.",
            "percentunit",
            (Query(ask.REGRET, "regretted"),),
            width=6,
            maximum=1,
        ),
    ),
)

ROUTER = Row(
    "The router",
    (
        Panel(
            "How long does a whole request take?",
            "Request in to last byte out, streamed or not. It grows with the length of answers; compare TTFT on Push "
            "against pull.",
            "s",
            tuple(Query(ask.duration(q), f"{{{{mode}}}} p{q * 100:.0f}") for q in (0.5, 0.99)),
            width=6,
        ),
        Panel(
            "How many requests are in flight?",
            "At the routers together. It climbs when engines do not keep up.",
            "short",
            (Query(ask.IN_FLIGHT, "in flight"),),
            width=6,
        ),
        Panel(
            "How are requests answered?",
            "By HTTP status. 503: no engine is healthy. 502 or 504: an engine failed or was too slow. 4xx: clients.",
            "reqps",
            (Query(ask.ANSWERS, "{{status}}"),),
            View.STACK,
            width=6,
        ),
        Panel(
            "What goes wrong, and what is worked around?",
            "Failed requests by type, requests that D served alone (`plain`) by reason, and legs sent again because an "
            "engine had closed an idle connection. Fallbacks make modes incomparable: find the reason first.",
            "short",
            (
                Query(ask.ERRORS, "failed: {{type}}", expects_data=False),
                Query(ask.FALLBACKS, "plain: {{reason}}", expects_data=False),
                Query(ask.RETRIES, "sent again by {{instance}}"),
                Query(ask.DROPPED_PARAMS, "a client's own transfer parameters dropped by {{instance}}"),
            ),
            View.EVENTS,
            width=6,
        ),
    ),
)

BOARD = Board(
    "engines",
    "kvpath-engines",
    "kvpath: engines and routing",
    "Load and memory of the engines, what the router chose and whether it was right, and what D keeps for reuse.",
    (LOAD, MEMORY, CHOICES, ROUTER, reuse.ROW),
    (MODE, ENGINE),
)
