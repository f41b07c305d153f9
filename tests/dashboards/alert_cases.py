"""Stories for promtool: what happens minute by minute, and when the alert fires.

Every alert has at least one story in which it fires and recovers, and one in which all is well and it stays quiet.
Values are in promtool's notation: ``0+2x30`` grows by 2 a minute for 30 minutes. Unless a story says otherwise, every
scrape of every target succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from connector import names
from dashboards import collector_metrics as collector
from dashboards import engine_metrics as engines
from dashboards import exporter_metrics as exporter
from dashboards import prometheus_metrics as prometheus
from dashboards import router_metrics as router
from dashboards import vllm_metrics as vllm
from dashboards.metric import Metric

P = {"job": "prefill", "instance": "p:8000"}
D = {"job": "decode", "instance": "d:8000"}
ROUTER = {"job": "router", "instance": "router:8000"}
COLLECTOR = {"job": "collector", "instance": "collector:8888"}
PUSH, PULL, REUSE = ({"mode": mode} for mode in (names.MODE_PUSH, names.MODE_PULL, names.MODE_REUSE))
DONE, EXPIRED, ABORTED = (
    {"reason": reason} for reason in (names.RELEASE_DONE, names.RELEASE_LEASE_EXPIRED, names.RELEASE_ABORTED)
)
SENT = {"direction": "sent"}
READ = {"operation": names.OPERATION_READ, "outcome": engines.DONE}


def series(name: str, *labels: Mapping[str, str]) -> str:
    merged = {key: value for part in labels for key, value in part.items()}
    return name + "{" + ", ".join(f'{key}="{value}"' for key, value in merged.items()) + "}"


SCRAPED = {series(prometheus.UP.value, target): "1x500" for target in (P, D, ROUTER, COLLECTOR)}


def observed(histogram: Metric, bounds: Mapping[str, str], *labels: Mapping[str, str]) -> dict[str, str]:
    """A histogram's buckets, by upper bound, and its count."""
    buckets = {series(histogram.bucket, *labels, {"le": bound}): values for bound, values in bounds.items()}
    return buckets | {series(histogram.count, *labels): bounds["+Inf"]}


@dataclass(frozen=True)
class Story:
    """``firing`` are the minutes at which the alert fires among those that are looked at; the others it must not."""

    alert: str
    what: str
    happens: Mapping[str, str]
    quiet: tuple[int, ...] = ()
    firing: tuple[int, ...] = ()


_loading = series(vllm.KV_FETCH.value, D, {"stage": vllm.FETCH_IN_PROGRESS})
_first_steps = series(engines.STAGE_SECONDS.count, D, PUSH, {"stage": "first_step"})
_sent, _received = series(engines.REGISTRATIONS.total, D, SENT), series(engines.COMPLETIONS.total, D, PUSH)
_expected = series(engines.COMPLETIONS_EXPECTED.total, D, PUSH)
_leases = series(engines.LEASES_EXPIRED.total, P, PULL)
_released = series(engines.BLOCKS_HELD_SECONDS.count, P, PULL, DONE)
_p_usage, _d_usage = series(vllm.KV_USAGE.value, P), series(vllm.KV_USAGE.value, D)
_failed = series(engines.TRANSFERS.total, P, PUSH, {"operation": names.OPERATION_WRITE, "outcome": "timeout"})
_p_up = series(prometheus.UP.value, P)
_bytes = series(engines.TRANSFERRED_BYTES.total, D, PULL, {"operation": names.OPERATION_READ})
_seconds = series(engines.TRANSFER_SECONDS.total, D, PULL, {"operation": names.OPERATION_READ})
_reads = series(engines.TRANSFERS.total, D, PULL, READ)
_low = series(exporter.DIFFERENCE.value, {"job": "exporter", "instance": "e", "bound": "low"})
_healthy = series(router.ENGINE_HEALTHY.value, ROUTER, {"engine_id": "decode-0", "role": "decode"})
_lost = series(engines.TELEMETRY_LOST.total, P, {"kind": "evicted"})
_dropped = series(router.TELEMETRY_SPANS.total, ROUTER, {"outcome": router.DROPPED})
_not_sent = series(collector.NOT_SENT.total, COLLECTOR, {"exporter": "otlphttp/tempo"})
_lag = series(exporter.LAG.value, {"job": "exporter", "instance": "e"})
_pinned, _limit = series(engines.BLOCKS_PINNED.value, D), series(engines.BLOCKS_PINNED_LIMIT.value, D)


def _lookups(outcome: str) -> str:
    return series(router.REUSE_LOOKUPS.total, ROUTER, {"outcome": outcome})


def _kept(reason: Mapping[str, str]) -> str:
    return series(engines.BLOCKS_HELD_SECONDS.count, D, REUSE, reason)


def _held(seconds_at_most: str, values: str, reason: Mapping[str, str] = DONE) -> dict[str, str]:
    bounds = {bound: values if float(bound) >= float(seconds_at_most) else "0x99" for bound in ("5", "30", "+Inf")}
    return observed(engines.BLOCKS_HELD_SECONDS, bounds, P, PULL, reason)


def _ttft(mode: Mapping[str, str], half_a_second: str, two_seconds: str) -> dict[str, str]:
    """Requests of which ``half_a_second`` took 0.5 s at most, and ``two_seconds`` all of them, 2 s at most."""
    bounds = {"0.25": "0x900", "0.5": half_a_second, "2": two_seconds, "+Inf": two_seconds}
    return observed(router.TTFT, bounds, ROUTER, mode)


FIRST_FAILURE = Story(
    "KvpathTransfersFailing",
    "the first failure there ever was, and no other",
    {_failed: "_x5 1x40"},
    quiet=(4, 20),
    firing=(6, 12),
)
FAILURE_AFTER_RESTART = Story(
    "KvpathTransfersFailing",
    "P failed once, long ago, restarts, and fails once again",
    {_p_up: "1x20 0 1x40", _failed: "1x20 stale _x3 1x40"},
    quiet=(20, 24, 40),
    firing=(25, 30),
)

STORIES = (
    Story(
        "KvpathTransfersStuck",
        "no first step for ten minutes while requests wait, then it goes on",
        {_loading: "1x9 3x30 0x20", _first_steps: "0+5x9 45x30 45+5x20"},
        quiet=(8, 15, 50),
        firing=(22, 30),
    ),
    Story(
        "KvpathTransfersStuck",
        "stuck from the very first request",
        {_loading: "0 1x20"},
        quiet=(4,),
        firing=(8, 15),
    ),
    Story(
        "KvpathTransfersStuck",
        "under load somebody always waits",
        {_loading: "4x40", _first_steps: "0+5x40"},
        quiet=(10, 20, 40),
    ),
    Story(
        "KvpathTransfersStuck",
        "stuck, with a vLLM that only says that requests are deferred",
        {series(vllm.WAITING.value, D, {"reason": vllm.DEFERRED}): "0 1x20"},
        quiet=(4,),
        firing=(8, 15),
    ),
    Story(
        "KvpathTransfersStuck",
        "P's requests wait for something else",
        {series(vllm.WAITING.value, P, {"reason": vllm.DEFERRED}): "1x20"},
        quiet=(4, 15),
    ),
    Story("KvpathTransfersStuck", "idle", {_loading: "0x40", _first_steps: "5x40"}, quiet=(10, 20, 40)),
    Story(
        "KvpathRegistrationsUnanswered",
        "half of them, those to one P, are never answered; then all are",
        {_sent: "0+10x60", _received: "0+10x10 105+5x29 260+10x20"},
        quiet=(10, 18, 59),
        firing=(30, 40),
    ),
    Story(
        "KvpathRegistrationsUnanswered",
        "two of many, seen when traffic pauses",
        {_sent: "0+10x20 200x40", _received: "0+10x19 188 198x40"},
        quiet=(10, 20, 50),
        firing=(28, 32),
    ),
    Story(
        "KvpathRegistrationsUnanswered",
        "nothing is ever answered",
        {_sent: "0 1x40"},
        quiet=(5,),
        firing=(10, 15),
    ),
    Story(
        "KvpathRegistrationsUnanswered",
        "the first that there ever was is not answered, and there is no other",
        {_sent: "0x5 1x40", _received: "0x46"},
        quiet=(5, 10, 35),
        firing=(14, 20),
    ),
    Story(
        "KvpathRegistrationsUnanswered",
        "all are answered, the newest within a minute; then idle",
        {_sent: "0+10x20 200x40", _received: "0+10x19 190 200x40"},
        quiet=(10, 20, 22, 30, 50),
    ),
    Story(
        "KvpathRegistrationsUnanswered",
        "D restarts: its counters begin again, absent until the first request",
        {_sent: "0+10x20 _x3 0+1x40", _received: "0+10x20 _x3 0+1x40"},
        quiet=(20, 21, 23, 25, 27, 30, 50),
    ),
    Story(
        "KvpathRegistrationsUnanswered",
        "several ranks answer each registration",
        {_sent: "0+10x40", _received: "0+20x40"},
        quiet=(10, 20, 40),
    ),
    Story(
        "KvpathLeasesExpiring",
        "a third of the leases expires for twenty minutes, and far more prefills are aborted, which have none",
        {
            _leases: "0x10 0+1x20 20x40",
            _released: "0+2x70",
            series(engines.BLOCKS_HELD_SECONDS.count, P, PULL, EXPIRED): "0x10 0+1x20 20x40",
            series(engines.BLOCKS_HELD_SECONDS.count, P, PULL, ABORTED): "0+100x70",
        },
        quiet=(9, 60),
        firing=(25, 30),
    ),
    Story(
        "KvpathLeasesExpiring",
        "one in a hundred, as when D has the whole prompt already",
        {_leases: "0+1x70", _released: "0+100x70"},
        quiet=(10, 30, 60),
    ),
    Story(
        "KvpathBlocksHeldTooLong",
        "P's blocks are held for half a minute while its cache fills, then no longer; aborted ones are free at once",
        _held("30", "0+10x30 300x40") | _held("5", "0+1000x70", ABORTED) | {_p_usage: "0.8x70"},
        quiet=(9, 60),
        firing=(20, 30),
    ),
    Story("KvpathBlocksHeldTooLong", "soon released", _held("5", "0+10x60") | {_p_usage: "0.8x60"}, quiet=(20, 50)),
    Story(
        "KvpathBlocksHeldTooLong",
        "an idle P notices late, and nobody needs the memory",
        _held("30", "0+1x60") | {_p_usage: "0.1x60"},
        quiet=(20, 50),
    ),
    FIRST_FAILURE,
    FAILURE_AFTER_RESTART,
    Story(
        "KvpathTransfersFailing",
        "P fails and is first scraped half an hour later",
        {_p_up: "_x29 1x30", _failed: "_x29 1x30"},
        quiet=(30, 35, 45),
    ),
    Story(
        "KvpathTransfersFailing",
        "a scrape of P does not succeed, long after a failure",
        {_p_up: "1x20 0 1x30", _failed: "1x20 stale 1x30"},
        quiet=(20, 22, 31, 33),
    ),
    Story("KvpathTransfersFailing", "one more", {_failed: "1x20 2x30"}, quiet=(5, 15, 40), firing=(22, 28)),
    Story("KvpathTransfersFailing", "none", {series(engines.TRANSFERS.total, D, PULL, READ): "0+9x40"}, quiet=(9, 40)),
    Story(
        "KvpathCompletionsMissing",
        "one of ten is lost for ten minutes",
        {_expected: "0+10x70", _received: "0+10x10 109+9x9 191+10x50"},
        quiet=(10, 60),
        firing=(22, 25),
    ),
    Story(
        "KvpathCompletionsMissing",
        "all are counted, some before the transfer has ended",
        {_expected: "0+10x70", _received: "3+10x70"},
        quiet=(10, 30, 60),
    ),
    Story(
        "KvpathTransferRateCollapsed",
        "from 5 GB/s to 0.5 for an hour, then as before",
        {
            _bytes: "0+5000000000x120 600500000000+500000000x60 630000000000+5000000000x60",
            _seconds: "0+1x240",
            _reads: "0+5x240",
        },
        quiet=(60, 119, 215),
        firing=(160, 175),
    ),
    Story(
        "KvpathTransferRateCollapsed",
        "fewer bytes in as much less time",
        {_bytes: "0+5000000000x120 600500000000+500000000x120", _seconds: "0+1x120 120.1+0.1x120", _reads: "0+5x240"},
        quiet=(60, 150, 239),
    ),
    Story(
        "KvpathTransferRateCollapsed",
        "slow, but hardly any transfers: chance",
        {_bytes: "0+5000000000x120 600500000000+500000000x60", _seconds: "0+1x180", _reads: "0+1x180"},
        quiet=(60, 160, 179),
    ),
    Story(
        "KvpathEngineNotReady",
        "D is away for ten minutes",
        {series("up", D): "1x10 0x10 1x20", series("up", P): "1x40"},
        quiet=(9, 12, 25),
        firing=(14, 20),
    ),
    Story("KvpathEngineNotReady", "the router is away, not an engine", {series("up", ROUTER): "0x40"}, quiet=(9, 30)),
    Story(
        "KvpathEngineAvoided",
        "one of two routers cannot reach D",
        {
            _healthy: "1x10 0x10 1x20",
            series(router.ENGINE_HEALTHY.value, {"engine_id": "decode-0", "role": "decode"}): "1x40",
        },
        quiet=(9, 12, 25),
        firing=(14, 20),
    ),
    Story("KvpathEngineAvoided", "healthy", {_healthy: "1x40"}, quiet=(9, 39)),
    Story(
        "KvpathTtftRegressed",
        "push becomes slower while pull stays, then is as before",
        _ttft(PUSH, "0+10x240 2400x120 2400+10x120", "0+10x480") | _ttft(PULL, "0+10x480", "0+10x480"),
        quiet=(60, 230, 470),
        firing=(300, 350),
    ),
    Story(
        "KvpathTtftRegressed",
        "pull becomes slower while push stays",
        _ttft(PULL, "0+10x240 2400x120", "0+10x360") | _ttft(PUSH, "0+10x360", "0+10x360"),
        quiet=(60, 230),
        firing=(300, 350),
    ),
    Story(
        "KvpathTtftRegressed",
        "both become slower: that is the load",
        _ttft(PUSH, "0+10x240 2400x120", "0+10x360") | _ttft(PULL, "0+10x240 2400x120", "0+10x360"),
        quiet=(60, 230, 300, 350),
    ),
    Story(
        "KvpathTtftRegressed",
        "only push is served",
        _ttft(PUSH, "0+10x240 2400x120", "0+10x360"),
        quiet=(60, 300, 350),
    ),
    Story(
        "KvpathPushSlower",
        "the whole interval lies above zero for an hour",
        {_low: "-0.1x10 0.02x60 -0.1x20"},
        quiet=(9, 30, 85),
        firing=(45, 69),
    ),
    Story("KvpathPushSlower", "the interval holds zero", {_low: "-0.01x60"}, quiet=(9, 59)),
    Story("KvpathPushSlower", "too few requests for an interval", {_low: " ".join(["NaN"] * 60)}, quiet=(9, 59)),
    Story(
        "KvpathTelemetryDropped",
        "an engine loses facts for half an hour",
        {_lost: "_x5 1+1x30 31x40"},
        quiet=(4, 10, 60),
        firing=(20, 35),
    ),
    Story("KvpathTelemetryDropped", "the router drops spans", {_dropped: "0x5 0+9x30"}, quiet=(4,), firing=(20, 30)),
    Story("KvpathTelemetryDropped", "the Collector cannot deliver", {_not_sent: "5+9x30"}, quiet=(4,), firing=(20, 30)),
    Story("KvpathTelemetryDropped", "one fact, once", {_lost: "0x5 1x60", _dropped: "7x60"}, quiet=(4, 10, 18, 50)),
    Story(
        "KvpathTargetDown",
        "the Collector is away",
        {series("up", COLLECTOR): "1x10 0x20 1x20"},
        quiet=(9, 13, 40),
        firing=(17, 29),
    ),
    Story("KvpathTargetDown", "an engine is away: another alert", {series("up", P): "0x40"}, quiet=(9, 39)),
    Story("KvpathExporterBehind", "it falls behind and catches up", {_lag: "5x10 900x30 5x20"}, (9, 15, 55), (25, 39)),
    Story("KvpathExporterBehind", "late spans are waited for", {_lag: "30x60"}, quiet=(30, 59)),
    Story(
        "KvpathReuseHitsRare",
        "D restarts and everything is gone, until new turns are kept",
        {
            _lookups(names.REUSE_HIT): "0+4x60 240x60 240+8x80",
            _lookups(names.REUSE_GONE): "0x60 0+4x60 240x80",
            _lookups(names.REUSE_MISS): "0+1x200",
        },
        quiet=(59, 70, 190),
        firing=(100, 118),
    ),
    Story("KvpathReuseHitsRare", "never a hit", {_lookups(names.REUSE_EXPIRED): "0+4x80"}, quiet=(3,), firing=(30, 79)),
    Story(
        "KvpathReuseHitsRare",
        "most are first turns",
        {_lookups(names.REUSE_MISS): "0+50x80", _lookups(names.REUSE_HIT): "0+4x80"},
        quiet=(30, 79),
    ),
    Story(
        "KvpathReuseExpiring",
        "clients stop coming back, and come again",
        {_kept(EXPIRED): "0x30 0+3x60 180x60", _kept(DONE): "0+3x30 90x60 90+3x60"},
        quiet=(29, 45, 145),
        firing=(80, 90),
    ),
    Story(
        "KvpathReuseExpiring",
        "half of them come back",
        {_kept(EXPIRED): "0+3x90", _kept(DONE): "0+3x90"},
        quiet=(30, 89),
    ),
    Story(
        "KvpathKeptBlocksAtLimit",
        "all that may be kept is, until clients come back",
        {_pinned: "100x10 480x30 100x20", _limit: "500x60"},
        quiet=(9, 15, 50),
        firing=(25, 39),
    ),
    Story("KvpathKeptBlocksAtLimit", "half of it", {_pinned: "250x60", _limit: "500x60"}, quiet=(30, 59)),
    Story("KvpathKeptBlocksAtLimit", "nothing may be kept", {_pinned: "0x60", _limit: "0x60"}, quiet=(30, 59)),
    Story(
        "KvpathKeptBlocksCrowdDecode",
        "kept blocks and a full cache",
        {_d_usage: "0.5x10 0.95x30 0.5x20", _pinned: "400x60"},
        quiet=(9, 15, 50),
        firing=(25, 39),
    ),
    Story(
        "KvpathKeptBlocksCrowdDecode",
        "full of running requests",
        {_d_usage: "0.97x60", _pinned: "0x60"},
        quiet=(30, 59),
    ),
    Story("KvpathKeptBlocksCrowdDecode", "room enough", {_d_usage: "0.4x60", _pinned: "400x60"}, quiet=(30, 59)),
)
