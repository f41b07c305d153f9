"""*Transfer*: how the KV cache moves, from registration to release."""

from __future__ import annotations

from dashboards.model import ENGINE, MODE, Board, Panel, Query, Row, View
from dashboards.queries import transfer as ask

MEETING = Row(
    "Registration and rendezvous (push)",
    (
        Panel(
            "Do all registrations arrive?",
            "Sent by D and received by P. The lines lie on each other; when `received` is below `sent`, P does not "
            "take notifications: is P up, and is its side channel reachable from D?",
            "ops",
            (Query(ask.REGISTRATIONS, "{{direction}}"),),
        ),
        Panel(
            "What do the two wait for, registration or prefill?",
            "Share of rendezvous by what came last. `prefill` last is push at its best: D was ready in time. Much "
            "`registration`: D has no free blocks in time, or prompts are too short to hide it.",
            "percentunit",
            (Query(ask.RENDEZVOUS_SHARE, "{{last_arrival}} last"),),
            View.STACK,
            maximum=1,
        ),
        Panel(
            "How long does the first wait for the second?",
            "Time between the two arrivals. With `registration` last it is on the critical path: look at D's waiting "
            "requests and KV usage on Engines and routing.",
            "s",
            tuple(
                Query(ask.rendezvous_wait(q), f"{{{{last_arrival}}}} last, p{q * 100:.0f}", exemplars=False)
                for q in (0.5, 0.99)
            ),
        ),
    ),
)


def _stage(stage: str, question: str, description: str) -> Panel:
    return Panel(
        question,
        description,
        "s",
        tuple(Query(ask.stage(stage, q), f"{{{{mode}}}} p{q * 100:.0f}") for q in (0.5, 0.99)),
        width=6,
    )


STEPS = Row(
    "Prepare, submit, flight",
    (
        _stage(
            "prepare",
            "How long does preparing a transfer take?",
            "Until the descriptor list is with NIXL. It grows with descriptors: when it is long, raise the block "
            "size, or lower fragmentation.",
        ),
        _stage(
            "submit",
            "How long does posting a transfer take?",
            "The post call. About 10 µs a descriptor on fragmented blocks; with zero-copy over shared memory the copy "
            "itself. When it rivals `flight`: raise the block size.",
        ),
        _stage(
            "flight",
            "How long is a transfer on the wire?",
            "Posted to ended. Compare with what `kvpath probe` measures on this link; far above it: the link is "
            "shared or the transport changed.",
        ),
        Panel(
            "How often do engines have to connect?",
            "Handshakes. Normal when engines start; a steady rate means that peers lose each other: look for restarts "
            "and at NIXL's log.",
            "ops",
            (Query(ask.stages_of("handshake"), "{{mode}}"),),
            width=6,
        ),
    ),
)

AMOUNT = Row(
    "How much and how fast",
    (
        Panel(
            "How fast do bytes move while they move?",
            "Bytes over submit and flight, WRITE and READ apart. A factor of two between them makes push against pull "
            "a comparison of transports: see `UCX_PROTO_INFO=y` and `kvpath probe`.",
            "Bps",
            (Query(ask.BYTES_WHILE_MOVING, "{{operation}} in {{mode}}"),),
        ),
        Panel(
            "How many bytes move between engines?",
            "By the engine that posts the transfer. Near the link's capacity, transfers wait for each other: add "
            "links or engines.",
            "Bps",
            (Query(ask.BYTES, "{{operation}} by {{instance}}"),),
        ),
        Panel(
            "How large is a transfer?",
            "Mean bytes. It follows prompt length; when it falls while prompts do not, prefix hits on D leave less to "
            "move.",
            "bytes",
            (Query(ask.BYTES_EACH, "{{operation}} in {{mode}}"),),
        ),
        Panel(
            "Into how many pieces does a transfer fall?",
            "Descriptors and contiguous runs, means. As many runs as descriptors: blocks are scattered, and each costs "
            "its own submission. Restarting or emptying an engine joins them again; larger blocks need fewer.",
            "short",
            (
                Query(ask.DESCRIPTORS_EACH, "descriptors, {{operation}} in {{mode}}"),
                Query(ask.RUNS_EACH, "runs, {{operation}} in {{mode}}"),
            ),
            width=12,
        ),
        Panel(
            "Does D count every completion that it expects?",
            "Notifications counted by D, and those expected for transfers that ended. Fewer counted than expected: "
            "notifications get lost, see alert KvpathCompletionsMissing.",
            "ops",
            (
                Query(ask.COMPLETIONS_COUNTED, "counted, {{mode}}"),
                Query(ask.COMPLETIONS_EXPECTED, "expected, {{mode}}"),
            ),
            width=12,
        ),
    ),
)

TROUBLE = Row(
    "Failures, leases, blocks",
    (
        Panel(
            "Which transfers fail?",
            "Failed WRITEs and READs by type in the last minutes; nothing is good. One peer: has it restarted? All: "
            "the network. The error's traces are on Trace exploration.",
            "short",
            (
                Query(ask.FAILURES, "{{operation}} in {{mode}}: {{outcome}}", expects_data=False),
                Query(ask.NIXL_FAILED_TRANSFERS, "NIXL transfers on {{instance}}"),
                Query(ask.NIXL_FAILED_NOTIFICATIONS, "NIXL notifications on {{instance}}"),
            ),
            View.EVENTS,
            width=12,
        ),
        Panel(
            "Do leases expire, do notifications come too late?",
            "P gave blocks free although nobody said done; a notification after that may mean that D read blocks "
            "which were in use again. Nothing is good; else look for D's restarts and for long queues on D.",
            "short",
            (
                Query(ask.LEASES_EXPIRED, "lease expired, {{mode}} on {{instance}}", expects_data=False),
                Query(ask.LATE_NOTIFICATIONS, "late notification on {{instance}}"),
            ),
            View.EVENTS,
            width=12,
        ),
        Panel(
            "How long do engines keep blocks for their peer?",
            "P after prefill, and D in reuse after the answer, until they let go, by why. Seconds on P in push or "
            "pull: D comes late, or an idle P has no step in which to notice; they are missing for prefill meanwhile.",
            "s",
            (
                Query(ask.blocks_held(0.5), "{{job}} {{mode}} {{reason}} p50"),
                Query(ask.blocks_held(0.99), "{{job}} {{mode}} {{reason}} p99"),
            ),
            width=12,
        ),
        Panel(
            "Why do engines let blocks go?",
            "Requests whose blocks were given back, by why: the peer has them, nobody said so in time, or the prefill "
            "was aborted. In reuse D's expire when nobody goes on with the conversation.",
            "ops",
            (Query(ask.BLOCKS_RELEASED, "{{job}} {{mode}} {{reason}}"),),
            width=12,
        ),
    ),
)

BOARD = Board(
    "transfer",
    "kvpath-transfer",
    "kvpath: transfer",
    "How the KV cache moves between engines, from registration to release, and what goes wrong there.",
    (MEETING, STEPS, AMOUNT, TROUBLE),
    (MODE, ENGINE),
)
