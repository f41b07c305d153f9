"""What a terminal can show: width, colour, Unicode; and text that is safe to print there.

Colour needs a terminal, no ``NO_COLOR`` and no ``TERM=dumb``. Bars and arrows fall back to ASCII when the stream's
encoding lacks them. Text from traces is never printed raw: control characters could move the cursor.
"""

from __future__ import annotations

import os
import shutil
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

DEFAULT_WIDTH = 80
_STYLES = {"bold": "1", "dim": "2", "red": "31", "yellow": "33", "cyan": "36"}
_GLYPHS = "█░▏▸→·"


@dataclass(frozen=True, slots=True)
class Terminal:
    """The abilities of one output stream; ``width`` in columns."""

    width: int = DEFAULT_WIDTH
    color: bool = False
    unicode: bool = True

    def styled(self, text: str, style: str) -> str:
        """Returns ``text`` in a style of bold, dim, red, yellow or cyan, if there is colour."""
        return f"\x1b[{_STYLES[style]}m{text}\x1b[0m" if self.color else text

    def glyph(self, unicode: str, ascii_: str) -> str:
        return unicode if self.unicode else ascii_

    def ascii(self, text: str) -> str:
        """Returns our own ``text`` with arrows that the stream can encode."""
        return text if self.unicode else text.replace("→", "->").replace("▸", ">")

    def safe(self, text: str) -> str:
        """Returns ``text`` without control characters, and without what the stream cannot encode."""
        printable = "".join(c if unicodedata.category(c)[0] != "C" else "?" for c in text)
        return printable if self.unicode else printable.encode("ascii", "replace").decode()


def terminal_of(stream: TextIO, environment: Mapping[str, str] = os.environ) -> Terminal:
    """Returns what ``stream`` can show; 80 columns when it is not a terminal."""
    interactive = stream.isatty()
    color = interactive and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"
    width = max(shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns, 60) if interactive else DEFAULT_WIDTH
    try:
        _GLYPHS.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return Terminal(width, color, False)
    return Terminal(width, color, True)


def columns(text: str) -> int:
    """Returns how many columns ``text`` takes: wide characters take two, combining ones none."""
    return sum(_columns(c) for c in text)


def _columns(character: str) -> int:
    if unicodedata.combining(character):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def fit(text: str, width: int) -> str:
    """Returns ``text`` cut or padded to exactly ``width`` columns; a cut ends in "~"."""
    if columns(text) <= width:
        return text + " " * (width - columns(text))
    kept, used = "", 0
    for character in text:
        if used + _columns(character) > width - 1:
            break
        kept += character
        used += _columns(character)
    return kept + "~" + " " * (width - 1 - used)


def milliseconds(ns: float) -> str:
    """Returns nanoseconds as milliseconds with about four digits: 0.600, 12.34, 812.5, 12345."""
    if ns == 0:
        return "0"
    ms = ns / 1e6
    size = abs(ms)
    return f"{ms:.3f}" if size < 10 else f"{ms:.2f}" if size < 100 else f"{ms:.1f}" if size < 10_000 else f"{ms:.0f}"


def percent(share: float) -> str:
    """Returns a fraction as a percentage with one decimal."""
    return f"{share * 100:.1f}%"
