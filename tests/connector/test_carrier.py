from __future__ import annotations

import pickle
from typing import Any

import pytest

from connector import names
from connector.carrier import (
    Carrier,
    base_request_id,
    compute_span_id,
    derived_span_id,
    from_params,
    parse_traceparent,
    register_span_id,
    write_span_id,
)

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_reads_what_the_router_sends() -> None:
    params = {
        names.PARAM_TRACEPARENT: TRACEPARENT,
        names.PARAM_MODE: names.MODE_PULL,
        names.PARAM_REQUEST_ID: "rid-1",
    }
    assert from_params(params, "cmpl-rid-1-0-1234abcd", names.MODE_PUSH) == Carrier(TRACEPARENT, "pull", "rid-1")


@pytest.mark.parametrize("params", [{}, {"traceparent": 7, "transfer_mode": ["push"], "kvpath_request_id": None}])
def test_what_is_missing_or_of_the_wrong_type_gets_a_default(params: dict[str, Any]) -> None:
    assert from_params(params, "engine-id", names.MODE_PUSH) == Carrier("", "push", "engine-id")


def test_the_header_serves_when_the_parameter_is_absent() -> None:
    carrier = from_params({}, "engine-id", names.MODE_PUSH, {"traceparent": TRACEPARENT})
    assert carrier.traceparent == TRACEPARENT


def test_the_parent_is_the_leg() -> None:
    parent = Carrier(TRACEPARENT, "push", "rid").parent()
    assert parent is not None
    assert (parent.trace_id, parent.span_id) == (0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    assert parent.is_remote
    assert parent.trace_flags.sampled


@pytest.mark.parametrize(
    "header",
    [
        "",
        "nonsense",
        TRACEPARENT.upper(),
        TRACEPARENT + "\n",
        TRACEPARENT + "-more",
        "01" + TRACEPARENT[2:],
        "00-" + "0" * 32 + "-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-" + "0" * 16 + "-01",
    ],
)
def test_a_malformed_traceparent_is_none(header: str) -> None:
    assert parse_traceparent(header) is None


def test_an_unsampled_traceparent_stays_unsampled() -> None:
    context = parse_traceparent(TRACEPARENT[:-2] + "00")
    assert context is not None
    assert not context.trace_flags.sampled


def test_a_stamp_leaves_the_rest() -> None:
    assert Carrier("t", "push", "rid").at(7) == Carrier("t", "push", "rid", 7)


def test_survives_pickle() -> None:
    carrier = Carrier(TRACEPARENT, "push", "rid", 5)
    assert pickle.loads(pickle.dumps(carrier)) == carrier


@pytest.mark.parametrize(
    ("request_id", "base"),
    [
        ("cmpl-rid-0-1a2b3c4d", "cmpl-rid-0"),
        ("cmpl-rid-0-1A2B3C4D", "cmpl-rid-0"),
        ("cmpl-rid-0", "cmpl-rid-0"),
        ("cmpl-rid-1a2b3c4d-0", "cmpl-rid-1a2b3c4d-0"),
        ("x-1a2b3c4d-deadbeef", "x-1a2b3c4d"),
        ("x-1a2b3c4d\n", "x-1a2b3c4d\n"),
    ],
)
def test_strips_one_random_suffix(request_id: str, base: str) -> None:
    assert base_request_id(request_id) == base


def test_derived_ids_depend_on_every_part_and_on_nothing_else() -> None:
    ids = {
        derived_span_id(trace, *parts)
        for trace in (1, 2)
        for parts in (("a", "b"), ("ab",), ("a", "b", ""), ("b", "a"))
    }
    assert len(ids) == 8
    assert all(0 < span_id < 2**64 for span_id in ids)
    assert derived_span_id(1, "a", "b") == derived_span_id(1, "a", "b")


def test_the_three_kinds_of_ids_never_coincide() -> None:
    assert len({compute_span_id(1, "x", "y"), register_span_id(1, "x", "y"), write_span_id(1, "x", "y", "")}) == 3
