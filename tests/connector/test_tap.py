"""The tap changes nothing: results and exceptions pass through, whatever telemetry does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from connector.clock import now
from connector.fake_agent import FabricError, FakeAgent, Network
from connector.ledger import Ledger
from connector.tap import NixlTap, key_of


class RecordingStory:
    """Remembers facts; methods are made on demand, as the tap asks for them."""

    def __init__(self) -> None:
        self.facts: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *data: self.facts.append((name, data))


class BrokenLedger(Ledger):
    def record(self, handler: Any, at_ns: int, *data: Any) -> None:
        raise RuntimeError("telemetry is broken")


class BrokenStory:
    def __getattr__(self, name: str) -> Callable[..., None]:
        def handler(*data: Any) -> None:
            raise RuntimeError(f"{name} is broken")

        return handler


def pair() -> tuple[FakeAgent, FakeAgent]:
    network = Network()
    return FakeAgent("p", network), FakeAgent("d", network)


def make(agent: Any, message: bytes = b"req:1") -> Any:
    remote = agent.prep_xfer_dlist("d", "blocks")
    return agent.make_prepped_xfer("WRITE", "local", [1, 2], remote, [3, 4], notif_msg=message)


def posted(agent: Any) -> Any:
    handle = make(agent)
    agent.transfer(handle)
    return handle


# method -> (what must happen before, the call)
CALLS: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "make_prepped_xfer": (
        lambda agent: agent.prep_xfer_dlist("d", "blocks"),
        lambda agent, remote: agent.make_prepped_xfer("WRITE", "l", [1], remote, [2], notif_msg=b"r:1"),
    ),
    "transfer": (make, lambda agent, handle: agent.transfer(handle)),
    "check_xfer_state": (posted, lambda agent, handle: agent.check_xfer_state(handle)),
    "get_xfer_telemetry": (posted, lambda agent, handle: agent.get_xfer_telemetry(handle)),
    "send_notif": (lambda agent: None, lambda agent, _: agent.send_notif("d", notif_msg=b"x:1")),
    "get_new_notifs": (
        lambda agent: agent.network.agents["d"].deliver("p", b"x:1"),
        lambda agent, _: agent.get_new_notifs(),
    ),
    "add_remote_agent": (lambda agent: None, lambda agent, _: agent.add_remote_agent(b"d")),
    "prep_xfer_dlist": (lambda agent: None, lambda agent, _: agent.prep_xfer_dlist("d", "blocks")),
}
DONE_STATES = ("check_xfer_state",)


def comparable(value: Any) -> Any:
    return {**vars(value)} if hasattr(value, "__dict__") else value


def prepare_and_call(agent: FakeAgent, caller: Any, method: str) -> Any:
    before, call = CALLS[method]
    prepared = before(agent)
    if method in DONE_STATES:
        agent.complete(prepared)
    return call(caller, prepared)


@pytest.mark.parametrize("method", CALLS)
def test_every_result_passes_through(method: str) -> None:
    bare, _ = pair()
    expected = prepare_and_call(bare, bare, method)
    agent, _ = pair()
    story, ledger = RecordingStory(), Ledger()
    got = prepare_and_call(agent, NixlTap(agent, ledger, story), method)
    assert comparable(got) == comparable(expected)
    assert agent.calls == bare.calls
    ledger.drain()
    assert len(story.facts) == 1, story.facts
    assert ledger.losses.errors == 0


@pytest.mark.parametrize("method", CALLS)
def test_every_exception_passes_through_and_is_the_same_object(method: str) -> None:
    agent, _ = pair()
    error = FabricError("link down")
    before, call = CALLS[method]
    prepared = before(agent)
    agent.fail[method] = error
    ledger = Ledger()
    with pytest.raises(FabricError) as raised:
        call(NixlTap(agent, ledger, RecordingStory()), prepared)
    assert raised.value is error
    ledger.drain()
    assert ledger.losses.errors == 0


@pytest.mark.parametrize("method", CALLS)
def test_a_ledger_that_raises_costs_one_error_and_nothing_else(method: str) -> None:
    bare, _ = pair()
    expected = prepare_and_call(bare, bare, method)
    agent, _ = pair()
    ledger = BrokenLedger()
    got = prepare_and_call(agent, NixlTap(agent, ledger, RecordingStory()), method)
    assert comparable(got) == comparable(expected)
    assert ledger.losses.errors == 1


@pytest.mark.parametrize("method", CALLS)
def test_a_ledger_that_raises_does_not_replace_the_agents_exception(method: str) -> None:
    agent, _ = pair()
    before, call = CALLS[method]
    prepared = before(agent)
    agent.fail[method] = error = FabricError("link down")
    with pytest.raises(FabricError) as raised:
        call(NixlTap(agent, BrokenLedger(), RecordingStory()), prepared)
    assert raised.value is error


@pytest.mark.parametrize("method", CALLS)
def test_a_story_that_raises_costs_one_error_and_nothing_else(method: str) -> None:
    agent, _ = pair()
    ledger = Ledger()
    prepare_and_call(agent, NixlTap(agent, ledger, BrokenStory()), method)
    ledger.drain()
    assert ledger.losses.errors == 1


@pytest.mark.parametrize("message", ["text instead of bytes", None, 7])
def test_a_message_of_another_type_is_the_agents_business(message: Any) -> None:
    agent, _ = pair()
    ledger = Ledger()
    NixlTap(agent, ledger, BrokenStory()).send_notif("d", notif_msg=message)
    assert agent.calls == ["send_notif"]


def test_attributes_that_are_not_tapped_come_from_the_agent() -> None:
    agent, _ = pair()
    tap = NixlTap(agent, Ledger(), RecordingStory())
    assert tap.name == "p"
    handle = posted(tap)
    tap.release_xfer_handle(handle)
    assert handle.released
    with pytest.raises(AttributeError):
        _ = tap.no_such_call


def test_polls_in_progress_are_no_facts_but_bound_the_end() -> None:
    agent, _ = pair()
    story, ledger = RecordingStory(), Ledger()
    tap = NixlTap(agent, ledger, story)
    handle = posted(tap)
    for _ in range(5):
        assert tap.check_xfer_state(handle) == "PROC"
    agent.complete(handle)
    tap.check_xfer_state(handle)
    ledger.drain()
    ended = [data for name, data in story.facts if name == "ended"]
    ((at_ns, key, state, last_in_progress_ns),) = ended
    assert (key, state) == (key_of(handle), "DONE")
    assert 0 < last_in_progress_ns <= at_ns
    assert tap.calls.last_in_progress == {}


def test_a_poll_that_raises_leaves_nothing_behind() -> None:
    agent, _ = pair()
    tap = NixlTap(agent, Ledger(), RecordingStory())
    handle = posted(tap)
    tap.check_xfer_state(handle)
    agent.fail["check_xfer_state"] = FabricError("link down")
    with pytest.raises(FabricError):
        tap.check_xfer_state(handle)
    assert tap.calls.last_in_progress == {}


def test_no_notifications_are_no_fact() -> None:
    agent, _ = pair()
    story, ledger = RecordingStory(), Ledger()
    assert NixlTap(agent, ledger, story).get_new_notifs() == {}
    assert ledger.drain() == 0


def test_a_handle_that_is_a_number_is_its_own_key() -> None:
    large = 2**40 + 1
    assert key_of(large) == key_of(int(str(large)))
    first, second = object(), object()
    assert key_of(first) != key_of(second)


def test_a_positional_notification_is_seen_too() -> None:
    agent, _ = pair()
    story, ledger = RecordingStory(), Ledger()
    tap = NixlTap(agent, ledger, story)
    tap.send_notif("d", b"x:1")
    tap.make_prepped_xfer("WRITE", "l", [1], agent.prep_xfer_dlist("d", "b"), [2], b"r:1")
    ledger.drain()
    assert story.facts[0][1][-1] == b"x:1"
    assert story.facts[1][1][-1] == b"r:1"


@pytest.mark.parametrize(
    ("method", "fact", "end_at"),
    [
        ("make_prepped_xfer", "prepared", 2),
        ("transfer", "posted", 2),
        ("send_notif", "sent", 1),
        ("add_remote_agent", "agent_added", 1),
        ("prep_xfer_dlist", "list_prepared", 1),
    ],
)
def test_a_fact_holds_the_time_before_and_after_the_call(method: str, fact: str, end_at: int) -> None:
    agent, _ = pair()
    inside: list[int] = []
    real = getattr(agent, method)
    before, call = CALLS[method]
    prepared = before(agent)

    def stamped(*args: Any, **kwargs: Any) -> Any:
        inside.append(now())
        return real(*args, **kwargs)

    setattr(agent, method, stamped)
    story, ledger = RecordingStory(), Ledger()
    start_ns = now()
    call(NixlTap(agent, ledger, story), prepared)
    end_ns = now()
    ledger.drain()
    ((name, data),) = story.facts
    assert name == fact
    assert start_ns <= data[0] <= inside[0] <= data[end_at] <= end_ns
    assert data[0] < data[end_at]
