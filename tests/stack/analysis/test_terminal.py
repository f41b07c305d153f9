"""What is printed fits the terminal and cannot control it."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stack.analysis.terminal import Terminal, columns, fit, milliseconds, terminal_of


class Stream(io.TextIOWrapper):
    def __init__(self, encoding: str, interactive: bool) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self._interactive = interactive

    def isatty(self) -> bool:
        return self._interactive


@pytest.mark.parametrize(
    ("interactive", "environment", "color"),
    [(True, {}, True), (False, {}, False), (True, {"NO_COLOR": "1"}, False), (True, {"TERM": "dumb"}, False)],
)
def test_colour_only_on_a_terminal_that_wants_it(interactive, environment, color):
    assert terminal_of(Stream("utf-8", interactive), environment).color is color


def test_encodings_without_bars_get_ascii():
    assert terminal_of(Stream("utf-8", False)).unicode
    assert not terminal_of(Stream("ascii", False)).unicode
    assert not terminal_of(Stream("latin-1", False)).unicode
    assert terminal_of(Stream("ascii", False)).width == 80


def test_text_from_traces_cannot_move_the_cursor():
    assert Terminal().safe("a\x1b[2Jb\r\n\u202ec") == "a?[2Jb???c"
    assert Terminal(unicode=False).safe("naïve → 名") == "na?ve ? ?"


@given(st.text(), st.integers(1, 40))
def test_fitted_text_has_exactly_the_width(text, width):
    assert columns(fit(text, width)) == width


def test_wide_characters_take_two_columns():
    assert fit("模型模型", 5) == "模型~"
    assert fit("模型", 5) == "模型 "


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0"),
        (1500, "0.002"),
        (600_000, "0.600"),
        (12_340_000, "12.34"),
        (812_500_000, "812.5"),
        (12_345_600_000, "12346"),
        (-1_000_000, "-1.000"),
    ],
)
def test_milliseconds(ns, text):
    assert milliseconds(ns) == text
