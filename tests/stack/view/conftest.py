"""A real Chromium, a page that must stay clean while a test uses it, and traces to look at."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from stack.analysis.otlp_json import read_file
from stack.analysis.synthetic import MS, Figures, plain_trace, pull_trace, push_trace
from stack.analysis.trace import Trace
from stack.store.testing import served
from stack.view.app import create_app
from stack.view.feed import FileFeed

GOLDEN = Path(__file__).parents[2] / "golden"
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}
# A browser that does not talk to its maker: nothing here may leave the machine.
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium for the tests of a module; it ends with them, because its event loop would disturb others'."""
    executable = shutil.which("chromium")
    if executable is None:
        pytest.fail("these tests need the program chromium: install Debian's package chromium", pytrace=False)
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        pytest.fail("these tests need the Python package playwright (the extra dev has it)", pytrace=False)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, headless=True, args=list(FLAGS))
        yield chromium
        chromium.close()


@dataclass
class Watched:
    """What a page did that it must not do."""

    origin: str
    complaints: list[str] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)  # parts of complaints that a test provokes

    def watch(self, page: Any) -> None:
        page.on("console", lambda m: m.type in ("error", "warning") and self._note(f"console: {m.text}"))
        page.on("pageerror", lambda error: self._note(f"exception: {error}"))
        page.on("dialog", lambda dialog: (self._note(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda r: r.url.startswith((self.origin, "data:")) or self._note(f"left: {r.url}"))

    def _note(self, text: str) -> None:
        if not any(part in text for part in self.allowed):
            self.complaints.append(text)


Opener = Callable[..., Any]


@pytest.fixture
def open_page(browser: Any) -> Iterator[Opener]:
    """Opens an address in a fresh profile; at the end of the test no page may have a complaint."""
    contexts, watched = [], []

    def opened(url: str, viewport: dict[str, int] = WIDE, theme: str = "light", allowed: tuple[str, ...] = ()) -> Any:
        context = browser.new_context(viewport=viewport, color_scheme=theme, reduced_motion="reduce")
        context.set_default_timeout(15_000)
        contexts.append(context)
        page = context.new_page()
        origin = url if url.startswith("file:") else "/".join(url.split("/")[:3])
        watched.append(Watched(origin, allowed=list(allowed)))
        watched[-1].watch(page)
        page.goto(url)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert [complaint for each in watched for complaint in each.complaints] == []


@contextmanager
def view_of(traces: list[Trace], result: Path | None = None) -> Iterator[str]:
    """Serves the page of some traces; yields its address."""
    with served(create_app(FileFeed(Path("traces.json"), traces), result)) as url:
        yield f"{url}/view/"


def pairs(count: int) -> list[Trace]:
    """``count`` requests, push and pull in turn, with different lengths of prefill and of transfer."""
    return [_pair_member(number) for number in range(1, count + 1)]


def _pair_member(number: int) -> Trace:
    figures = Figures(
        prefill=(100 + number * 37 % 700) * MS,
        prefill_queue=number % 13 * MS,
        flight=(8 + number % 9) * MS,
        handshake=3 * MS if number % 10 == 0 else 0,
    )
    return (push_trace if number % 2 else pull_trace)(figures, number=number, ranks=1 + number % 3 // 2)


def mixed() -> list[Trace]:
    """Sixty requests that count, one without transfer, and every golden trace (failures, several hosts, ranks)."""
    golden = [t for path in sorted(GOLDEN.glob("*.json")) if path.name != "expected.json" for t in read_file(path)]
    return [*pairs(60), plain_trace(number=900), *golden]


@pytest.fixture(scope="module")
def mixed_view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    result = tmp_path_factory.mktemp("run") / "result.json"
    result.write_text(
        '{"verdict": {"headline": "Push is 12.3 ms faster at p50, and it is the protocol.",'
        ' "sentences": ["Coordination moved off the path: 11.9 ms.", "READ and WRITE differ by 4 %."]}}'
    )
    with view_of(mixed(), result) as url:
        yield url
