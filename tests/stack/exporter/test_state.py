from __future__ import annotations

import sqlite3

import pytest

from stack.exporter.state import Entry, Sample, State, StateError

IDS = [f"{n:032x}" for n in range(1200)]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "state.db"


@pytest.fixture
def state(path):
    state = State(path)
    yield state
    state.close()


def test_what_was_counted_and_how_far_survive(state, path):
    state.commit([Entry(IDS[1], 10.0, "push", 0.5), Entry(IDS[2])], {"main": 12.5}, 20.0)
    state.close()
    again = State(path)
    assert again.cursor("main") == 12.5
    assert again.cursor("sweep") is None
    assert again.uncounted(IDS[:4]) == {IDS[0], IDS[3]}
    again.close()


def test_many_ids_are_asked_for_at_once(state):
    state.commit([Entry(trace_id) for trace_id in IDS[::2]], {}, 1.0)
    assert state.uncounted(IDS) == set(IDS[1::2])


def test_samples_are_the_newest_of_a_mode_in_the_window(state):
    entries = [Entry(IDS[n], float(n), "push" if n % 2 else "pull", n / 10) for n in range(10)]
    state.commit([*entries, Entry(IDS[20], 9.0, "push")], {}, 1.0)
    assert state.samples("push", 4.0, 2) == [Sample(9.0, 0.9), Sample(7.0, 0.7)]
    assert state.samples("pull", 4.0, 9) == [Sample(8.0, 0.8), Sample(6.0, 0.6), Sample(4.0, 0.4)]


def test_old_entries_are_forgotten(state):
    state.commit([Entry(IDS[0])], {}, 1.0)
    state.commit([Entry(IDS[1])], {}, 2.0)
    state.prune(2.0)
    assert state.uncounted(IDS[:2]) == {IDS[0]}


def test_a_failed_commit_leaves_nothing_behind(state):
    with pytest.raises(StateError):
        state.commit([Entry(IDS[0]), Entry(IDS[1], "not a number", "push", object())], {"main": 5.0}, 1.0)
    assert state.uncounted(IDS[:1]) == {IDS[0]}
    assert state.cursor("main") is None


def test_a_second_exporter_on_the_same_file_is_told_so(state, path):
    with pytest.raises(StateError, match="another exporter uses it"):
        State(path)


def test_a_file_of_another_kind_is_one_line(tmp_path):
    path = tmp_path / "state.db"
    path.write_text("not a database, and long enough to have a header that SQLite does not know\n" * 20)
    with pytest.raises(StateError, match=r"state\.db: file is not a database"):
        State(path)


def test_a_file_of_a_later_version_is_refused(tmp_path):
    path = tmp_path / "state.db"
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StateError, match="version 99"):
        State(path)
