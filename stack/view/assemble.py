"""The page from its pieces: one script, one style sheet, one HTML document; nothing is built or fetched.

The script's pieces are parts of one function body in the order below, so that they share names and leak none. The
Content-Security-Policy allows nothing from elsewhere and no inline code; a report, which has everything inline, allows
exactly its own script and style by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from pathlib import Path
from typing import Any

PIECES = Path(__file__).with_name("page")
SCRIPT_PIECES = (
    "dom",
    "keys",
    "data",
    "stages",
    "requests",
    "waterfall",
    "span_detail",
    "request",
    "pair",
    "chart",
    "comparison",
    "verdict",
    "page",
)
STYLE_PIECES = ("theme", "layout", "requests", "waterfall", "chart")
_FIXED_POLICY = "base-uri 'none'; form-action 'none'"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    f"frame-ancestors 'none'; {_FIXED_POLICY}"
)


@cache
def script() -> str:
    """Returns the page's one script."""
    pieces = "\n".join((PIECES / f"{name}.js").read_text(encoding="utf-8") for name in SCRIPT_PIECES)
    return f'(() => {{\n"use strict";\n{pieces}}})();\n'


@cache
def style() -> str:
    """Returns the page's one style sheet."""
    return "\n".join((PIECES / f"{name}.css").read_text(encoding="utf-8") for name in STYLE_PIECES)


def page() -> str:
    """Returns the page that a store serves: script and style are files beside it."""
    head = '<link rel="stylesheet" href="page.css">\n<script src="page.js" defer></script>'
    return _document("kvpath", head, "", "<p>This page needs JavaScript. `kvpath report` prints the same figures.</p>")


def single_file(title: str, embedded: dict[str, Any], as_text: str) -> str:
    """Returns one self-contained document that draws ``embedded``; ``as_text`` is for readers without JavaScript."""
    policy = (
        f"default-src 'none'; script-src '{_hash(script())}'; style-src '{_hash(style())}'; img-src data:; "
        + _FIXED_POLICY
    )
    data = json.dumps(embedded, separators=(",", ":")).replace("<", "\\u003c")  # nothing in it can end the element
    head = f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">\n<style>{style()}</style>'
    end = f'<script type="application/json" id="embedded">{data}</script>\n<script>{script()}</script>'
    return _document(title, head, end, f"<pre>{html.escape(as_text)}</pre>")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _document(title: str, head: str, end: str, without_script: str) -> str:
    body = (PIECES / "page.html").read_text(encoding="utf-8")
    parts = {"TITLE": html.escape(title), "HEAD": head, "END": end, "NOSCRIPT": without_script}
    pieces = body.split("@@")  # text, name, text, name, …: what is filled in is never searched again
    return "".join(parts[piece] if at % 2 else piece for at, piece in enumerate(pieces))
