"""TraceQL's subset: what it reads, what it refuses, and that it prints what it reads."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stack.store.errors import BadRequestError
from stack.store.traceql import (
    And,
    Attribute,
    Comparison,
    Duration,
    Intrinsic,
    Kind,
    Nil,
    Or,
    Scope,
    Status,
    parse,
    to_query,
)
from stack.store.traceql_tokens import duration_ns

A = Comparison(Attribute(Scope.ANY, "a"), "=", 1)
B = Comparison(Attribute(Scope.SPAN, "b.c-d/e"), "!=", "x")
C = Comparison(Attribute(Scope.RESOURCE, "service.name"), "=~", "p.*")


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("{}", None),
        (" { } ", None),
        ("{.a=1}", A),
        ('{ span.b.c-d/e != "x" }', B),
        ("{ resource.service.name =~ `p.*` }", C),
        ('{ .a=1 && span.b.c-d/e != "x" || resource.service.name =~ "p.*" }', Or((And((A, B)), C))),
        ('{ .a=1 && (span.b.c-d/e != "x" || resource.service.name =~ "p.*") }', And((A, Or((B, C))))),
        ("{ status = error }", Comparison(Intrinsic.STATUS, "=", Status.ERROR)),
        ("{ span:kind != server }", Comparison(Intrinsic.KIND, "!=", Kind.SERVER)),
        ("{ duration > 1.5s }", Comparison(Intrinsic.DURATION, ">", Duration(1_500_000_000))),
        ("{ trace:duration <= 1h30m }", Comparison(Intrinsic.TRACE_DURATION, "<=", Duration(5400 * 10**9))),
        ('{ rootServiceName = "r" }', Comparison(Intrinsic.ROOT_SERVICE, "=", "r")),
        ('{ ."a b" = true }', Comparison(Attribute(Scope.ANY, "a b"), "=", True)),
        ("{ .a != nil }", Comparison(Attribute(Scope.ANY, "a"), "!=", Nil.NIL)),
        ("{ .a >= -2.5 }", Comparison(Attribute(Scope.ANY, "a"), ">=", -2.5)),
        (r'{ name = "a\"\\\n" }', Comparison(Intrinsic.NAME, "=", 'a"\\\n')),
    ],
)
def test_reads(query: str, expected: object) -> None:
    assert parse(query) == expected


@pytest.mark.parametrize(
    ("query", "part"),
    [
        ("", "a query starts with"),
        (".a = 1", "a query starts with"),
        ("{ .a = 1 } | count() > 2", "no pipelines"),
        ("{ .a = 1 } && { .b = 2 }", "structural operators"),
        ("{ .a = 1 } >> { .b = 2 }", "structural operators"),
        ("{ .a = 1", "'}'"),
        ("{ .a }", "after a field"),
        ("{ 1 = .a }", "expected .attr"),
        ("{ event.name = 1 }", "'event.name'"),
        ("{ parent.a = 1 }", "'parent.a'"),
        ("{ nestedSetLeft = 1 }", "'nestedSetLeft'"),
        ("{ .a = .b }", "expected a literal"),
        ("{ .a + 1 = 2 }", "not supported"),
        ("{ !(.a = 1) }", "not supported"),
        ("{ .a =! 1 }", "not supported"),
        ("{ .a == 1 }", "not supported"),
        ('{ status = "error" }', "status is"),
        ("{ status > ok }", "= and != only"),
        ("{ kind = 2 }", "kind is one of"),
        ('{ duration > "1s" }', "a duration is written"),
        ("{ name = 3 }", "compared with a string"),
        ("{ .a =~ 3 }", "regular expression is a string"),
        ('{ .a =~ "(" }', "not a regular expression"),
        ('{ .a =~ "x(?=y)" }', "RE2"),
        ("{ .a =~ `(x)\\1` }", "RE2"),
        ("{ .a > true }", "= and != only"),
        ("{ .a = error }", "compared with status or kind"),
        ('{ .a = "\\q" }', "escape"),
        ("{" + "(" * 60 + ".a=1" + ")" * 60 + "}", "nested"),
        ("{ name = `" + "x" * 9000 + "` }", "longer than"),
    ],
)
def test_refuses_with_one_line_that_names_the_part(query: str, part: str) -> None:
    with pytest.raises(BadRequestError) as caught:
        parse(query)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


@settings(deadline=None)
@given(st.text(alphabet='{}()=!~<>&|."`\\ aspn0159mh:-', max_size=40) | st.text(max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        expression = parse(text)
    except BadRequestError:
        return
    assert parse(to_query(expression)) == expression


_names = st.text(min_size=1, max_size=12)
_attributes = st.builds(Attribute, st.sampled_from(Scope), _names)
_scalars = st.text(max_size=12) | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
_order = st.sampled_from(["=", "!=", ">", ">=", "<", "<="])
_equal = st.sampled_from(["=", "!="])
_comparisons = st.one_of(
    st.builds(Comparison, _attributes, _order, _scalars | st.builds(Duration, st.integers())),
    st.builds(Comparison, _attributes, _equal, st.booleans() | st.just(Nil.NIL)),
    st.builds(Comparison, _attributes, st.sampled_from(["=~", "!~"]), st.sampled_from(["a.*", "[x-z]+", "(p|q)"])),
    st.builds(Comparison, st.just(Intrinsic.STATUS), _equal, st.sampled_from(Status)),
    st.builds(Comparison, st.just(Intrinsic.KIND), _equal, st.sampled_from(Kind)),
    st.builds(Comparison, st.just(Intrinsic.DURATION), _order, st.builds(Duration, st.integers())),
)


def _several(kind: type, inner: st.SearchStrategy) -> st.SearchStrategy:
    return st.lists(inner, min_size=2, max_size=3).map(lambda parts: kind(tuple(parts)))


@settings(deadline=None)
@given(st.recursive(_comparisons, lambda inner: _several(And, inner) | _several(Or, inner), max_leaves=8))
def test_prints_what_it_reads(expression: object) -> None:
    assert parse(to_query(expression)) == expression


def test_durations() -> None:
    assert [duration_ns(text) for text in ("10ns", "2us", "3µs", "1.5ms", "1m0.5s", "-1s")] == [
        10, 2_000, 3_000, 1_500_000, 60_500_000_000, -(10**9),
    ]  # fmt: skip
    for bad in ("", "10", "s", "1s x", "1d"):
        with pytest.raises(BadRequestError):
            duration_ns(bad)
