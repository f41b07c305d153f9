"""A push between several workers, and the connections that they make first."""

from __future__ import annotations

from connector import metrics, names
from connector.clock import now
from tests.connector.conftest import DECODE_LEG, PREFILL_LEG
from tests.connector.pair import D_REQUEST, NOTHING_LOST, P_REQUEST, Pair, attributes, link_ids, two_decode_workers


def test_two_producer_ranks_write_into_one_decode_worker(pair: Pair) -> None:
    second = pair.p.worker("agent-p1", pair.network, rank=1, world_size=2)
    producers = [pair.pw, second]
    for rank, producer in enumerate(producers):
        pair.connect(pair.dw, producer)
        pair.connect(producer, pair.dw)
        pair.dw.ranks[producer.agent.name] = rank
    pair.stage()
    for producer in producers:
        pair.register(pw=producer)
        producer.tap.get_new_notifs()
        pair.finish_prefill(pw=producer)
    for producer in producers:
        handle = pair.write(pw=producer, world=2)
        producer.agent.complete(handle)
        pair.poll(producer, handle)
        pair.dw.tap.get_new_notifs()
        pair.sent(P_REQUEST, pw=producer)
    pair.received(D_REQUEST)
    assert pair.losses == NOTHING_LOST
    awaiting = pair.d.span(names.SPAN_AWAIT)
    events = [dict(event.attributes or {}) for event in awaiting.events]
    assert events == [
        {names.ATTR_PRODUCER_RANK: 0, names.ATTR_COMPLETION_COUNT: 1, names.ATTR_COMPLETION_EXPECTED: 2},
        {names.ATTR_PRODUCER_RANK: 1, names.ATTR_COMPLETION_COUNT: 2, names.ATTR_COMPLETION_EXPECTED: 2},
    ]
    writes = pair.p.spans(names.SPAN_WRITE)
    assert link_ids(awaiting) == [write.context.span_id for write in writes]
    assert [attributes(write)[names.ATTR_RANK] for write in writes] == [0, 1]
    assert len(pair.d.spans(names.SPAN_REGISTER)) == 1, "one registration span, sent to two ranks"
    assert pair.d.samples(metrics.COMPLETIONS_EXPECTED) == [[2, "push"]]
    assert len(pair.p.spans(names.SPAN_BLOCKS_HELD)) == 1, "every rank holds its share; one span a request"


def test_one_producer_writes_into_two_decode_workers(pair: Pair) -> None:
    targets = two_decode_workers(pair)
    pair.stage(workers=targets)
    for target in targets:
        pair.register(dw=target)
    pair.finish_prefill()
    pair.pw.tap.get_new_notifs()
    handles = [pair.write(dw=target) for target in targets]
    for handle in handles:
        pair.pw.agent.complete(handle)
        pair.poll(pair.pw, handle)
    for target in targets:
        target.tap.get_new_notifs()
        pair.d.ledger.record(target.story.receipts.finished, now(), frozenset({D_REQUEST}), None)
    pair.sent(P_REQUEST)
    assert pair.losses == NOTHING_LOST
    writes, awaits = pair.p.spans(names.SPAN_WRITE), pair.d.spans(names.SPAN_AWAIT)
    assert len({write.context.span_id for write in writes}) == 2
    assert [link_ids(awaiting) for awaiting in awaits] == [[write.context.span_id] for write in writes]
    assert len(pair.p.spans(names.SPAN_RENDEZVOUS)) == 1, "the second registration of the request is no second meeting"
    # the WRITE into the second worker links to the first one's registration: that is what P acted on
    assert {link_ids(write)[0] for write in writes} <= {
        span.context.span_id for span in pair.d.spans("kvpath.register")
    }
    assert attributes(pair.p.span(names.SPAN_BLOCKS_HELD))[names.ATTR_RELEASE_REASON] == names.RELEASE_DONE


def test_handshakes_on_both_sides(pair: Pair) -> None:
    pair.stage()
    pair.connect(pair.dw, pair.pw)  # after staging: the registration had to wait for it
    pair.register()
    pair.finish_prefill()
    pair.pw.tap.get_new_notifs()
    pair.connect(pair.pw, pair.dw)  # after the rendezvous: the WRITE had to wait for it
    pair.push()
    pair.received(D_REQUEST)
    assert pair.losses == NOTHING_LOST
    on_p, on_d = pair.p.span(names.SPAN_HANDSHAKE), pair.d.span(names.SPAN_HANDSHAKE)
    register, rendezvous = pair.d.span(names.SPAN_REGISTER), pair.p.span(names.SPAN_RENDEZVOUS)
    prepare, write = pair.p.span(names.SPAN_WRITE + ".prepare"), pair.p.span(names.SPAN_WRITE)
    assert (on_p.parent.span_id, on_d.parent.span_id) == (PREFILL_LEG, DECODE_LEG)
    assert register.start_time <= on_d.start_time < on_d.end_time <= register.end_time
    assert write.start_time == rendezvous.end_time == on_p.start_time
    assert on_p.end_time == prepare.start_time
    assert attributes(on_p)[names.ATTR_PEER_ENGINE_ID] == "decode-0"
    assert attributes(on_d)[names.ATTR_PEER_ENGINE_ID] == "prefill-0"
    for engine in (pair.p, pair.d):
        assert ["push", "handshake"] in [sample[1:] for sample in engine.samples(metrics.STAGE_SECONDS)]


def test_no_handshake_span_when_the_connection_was_there(connected: Pair) -> None:
    pair = connected
    pair.stage()
    pair.register()
    pair.finish_prefill()
    pair.pw.tap.get_new_notifs()
    pair.push()
    pair.received(D_REQUEST)
    assert pair.p.spans(names.SPAN_HANDSHAKE) == pair.d.spans(names.SPAN_HANDSHAKE) == []
