"""The page in real Chromium: what it shows, also with hostile text, without traces, without a store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from connector import names
from stack import experiment
from stack.analysis.synthetic import pull_trace, push_trace
from stack.analysis.trace import STATUS_ERROR, Trace
from stack.store.settings import StoreSettings
from stack.store.testing import opened, served
from stack.view.app import create_app
from stack.view.feed import FileFeed
from stack.view.rows import STAGE_ORDER

pytestmark = pytest.mark.browser

READY = "main:not([aria-busy]) h1"
Opener = Callable[..., Any]


def ready(page: Any, heading: str = "") -> None:
    """Waits until a view is drawn: the one with this heading, or whichever is open."""
    page.locator("h1", has_text=heading).wait_for()
    page.wait_for_selector(READY)


def test_the_list_is_filtered_and_sorted(open_page: Opener, mixed_view: str) -> None:
    page = open_page(mixed_view)
    ready(page, "Requests")
    assert page.locator(".count").inner_text() == "71 requests"
    page.select_option("#f-mode", "push")
    page.fill("#f-ttft", "500")
    shown = [float(text.replace(",", "")) for text in page.locator("td[data-label='TTFT, ms']").all_inner_texts()]
    assert shown
    assert min(shown) >= 500
    assert set(page.locator("td[data-label=mode]").all_inner_texts()) == {"push"}
    page.select_option("#f-sort", "ttft_ns")
    shown = [float(text.replace(",", "")) for text in page.locator("td[data-label='TTFT, ms']").all_inner_texts()]
    assert shown == sorted(shown, reverse=True)
    page.get_by_role("button", name="TTFT, ms").click()
    assert page.locator("th[aria-sort=ascending]").count() == 1
    page.fill("#f-text", "no such id")
    page.get_by_role("button", name="Clear the filter").click()
    assert page.locator(".count").inner_text() == "71 requests"
    page.select_option("#f-status", "failed")
    assert "prefill_unavailable" in page.locator("tr.row").inner_text()


def test_a_request_shows_path_stages_links_and_attributes(open_page: Opener, mixed_view: str) -> None:
    page = open_page(f"{mixed_view}#/request/req-41")
    ready(page, "req-41")
    assert page.locator(".path-line .stage").count() >= 8
    assert page.locator("[role=treeitem].on-path").count() >= 5
    assert "sum = TTFT" in page.locator("table.figures tfoot").first.inner_text()
    assert "reuse_" not in page.locator("table.figures tbody").first.inner_text()
    levels = page.locator("[role=treeitem]").evaluate_all("rows => rows.map(r => r.getAttribute('aria-level'))")
    assert set(levels) >= {"1", "2", "3", "4"}
    page.locator("[role=treeitem]", has_text="kvpath.write [0]").click()
    panel = page.get_by_role("complementary", name="Span details")
    assert names.ATTR_BYTES in panel.inner_text()
    assert page.locator(".links path.active").count() == 2
    panel.get_by_role("button", name="kvpath.register").click()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("kvpath.register")
    assert "kvpath.write [0]" in panel.inner_text()


def test_push_beside_pull_share_one_axis(open_page: Opener, mixed_view: str) -> None:
    page = open_page(f"{mixed_view}#/pair")
    ready(page, "Side by side")
    axes = page.locator(".of-pair .axis .lane").all_inner_texts()
    assert len(axes) == 2
    assert axes[0] == axes[1]
    assert page.locator(".of-pair h2 .badge").all_inner_texts() == ["push", "pull"]
    page.select_option(
        "#pick-b", label=next(t for t in page.locator("#pick-b option").all_inner_texts() if "req-3" in t)
    )
    ready(page, "Side by side")
    page.locator(".of-pair h2 a", has_text="req-3").wait_for()
    assert "A − B" in page.locator("table.figures").inner_text()  # noqa: RUF001 - a minus


def test_the_comparison_says_what_is_too_few_and_what_was_left_out(open_page: Opener, mixed_view: str) -> None:
    page = open_page(f"{mixed_view}#/comparison")
    ready(page, "Comparison")
    assert "Too few requests to believe: push p90" in page.locator("main").inner_text()
    assert page.locator(".chart-line.doubtful").count() > 0
    cards = page.locator(".card").all_inner_texts()
    assert any("1 × error: prefill_unavailable" in card for card in cards)  # noqa: RUF001 - a times sign
    before = page.locator(".differences").inner_text()
    page.get_by_label("mean", exact=True).check()
    assert page.locator(".differences").inner_text() != before
    assert page.locator("section table.figures").first.locator("tbody tr").count() == len(STAGE_ORDER)
    assert any("prompt tokens reused from D\n480" in card and "1 × edited" in card for card in cards)  # noqa: RUF001


def test_the_verdict(open_page: Opener, mixed_view: str) -> None:
    page = open_page(f"{mixed_view}#/verdict")
    ready(page, "Verdict")
    assert page.locator(".verdict li").count() == 2
    recorded = Path(experiment.__file__).parent / "results" / "h200-host-16.json"
    with served(create_app(FileFeed(Path("t.json"), [push_trace(), pull_trace(number=2)]), recorded)) as url:
        whole = open_page(f"{url}/view/#/verdict")
        ready(whole, "Verdict")
        text = whole.locator("main").inner_text()
        for expected in ("may be others", "WRITE, ", "TTFT p50", "pull minus push", "95 % interval", "Note: "):
            assert expected in text, expected
        whole.goto(f"{url}/view/#/comparison")
        ready(whole, "Comparison")
        text = whole.locator("main").inner_text()
        assert "the requests on this page may be others" in text
        assert "Push minus pull, in ms" in text
    with served(create_app(FileFeed(Path("t.json"), [push_trace()]))) as url:
        other = open_page(f"{url}/view/#/verdict")
        ready(other, "Verdict")
        assert "kvpath ab" in other.locator("main").inner_text()


HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;\u202eevil\u2067 مرحبا"


def hostile_trace() -> Trace:
    base = push_trace(number=7)
    spans = list(base.spans)
    for at, span in enumerate(spans):
        attributes = {
            **span.attributes,
            f"kvpath.{HOSTILE}": HOSTILE,
            "gen_ai.prompt": "SECRET PROMPT",
            "note": "SECRET",
        }
        if span.parent_span_id and span.name != names.SPAN_BLOCKS_HELD:
            spans[at] = replace(span, attributes=attributes)
        else:
            attributes[names.ATTR_REQUEST_ID] = HOSTILE
            name = HOSTILE if span.parent_span_id else span.name
            spans[at] = replace(
                span,
                name=name,
                attributes=attributes,
                status_code=STATUS_ERROR if span.parent_span_id else 0,
                status_message=HOSTILE,
            )
    return Trace(base.trace_id, tuple(spans))


def test_hostile_text_is_only_text_and_prompts_are_withheld(open_page: Opener) -> None:
    with served(create_app(FileFeed(Path("t.json"), [hostile_trace()]))) as url:
        for view in ("requests", f"request/{7:032x}", f"pair/{7:032x}/{7:032x}", "comparison"):
            page = open_page(f"{url}/view/#/{view}")
            ready(page)
            if view.startswith("request/"):
                page.locator("[role=treeitem]", has_text="<script>").click()
                assert "withheld" in page.locator(".span-detail").inner_text()
                assert HOSTILE in page.locator(".span-detail h2").text_content()
            assert page.locator("main script, main img").count() == 0
            assert "SECRET" not in page.content()
        assert "SECRET" not in page.request.get(f"{url}/view/api/requests/{7:032x}").text()


def test_an_empty_store_says_what_to_do(open_page: Opener, tmp_path: Path) -> None:
    with opened(StoreSettings(path=tmp_path / "traces.db")) as client:
        page = open_page(f"{client.base_url}")
        ready(page, "Requests")
        assert page.url.endswith("/view/")
        assert "No request has been traced yet" in page.locator(".empty").inner_text()
        for key, words in (("2", "Nothing to look at yet"), ("3", "nothing to compare"), ("4", "no verdict")):
            page.keyboard.press(key)
            page.locator("main", has_text=words).wait_for()


def test_a_store_that_went_away_is_said_and_tried_again(open_page: Opener) -> None:
    with served(create_app(FileFeed(Path("t.json"), [push_trace()]))) as url:
        page = open_page(f"{url}/view/", allowed=("ERR_CONNECTION_REFUSED",))
        ready(page, "Requests")
    page.keyboard.press("r")
    page.get_by_role("alert").get_by_text("Nothing answers at").wait_for()
    assert page.get_by_role("button", name="Try again").count() == 1


def test_an_unknown_request_is_said(open_page: Opener, mixed_view: str) -> None:
    page = open_page(f"{mixed_view}#/request/nope", allowed=("404",))
    page.get_by_role("alert").get_by_text("there is no request 'nope'").wait_for()


def test_keyboard_only(open_page: Opener, mixed_view: str) -> None:
    page = open_page(mixed_view)
    ready(page, "Requests")
    press = page.keyboard.press
    focused = "document.activeElement.textContent"
    press("j")
    first = page.evaluate(focused)
    press("j")
    press("a")
    second = page.evaluate(focused)
    assert first != second
    press("ArrowDown")
    press("b")
    press("n")
    assert "page 2 of 2" in page.locator(".pager").inner_text()
    press("p")
    press("/")
    page.keyboard.type("req-4")
    press("Escape")
    assert page.evaluate("document.activeElement.className") == "open"
    press("Enter")
    ready(page, "Request req-4")
    press("j")
    press("j")
    press("Enter")
    assert page.locator("[aria-selected=true]").count() == 1
    press("z")
    assert page.get_by_label("whole request").is_checked()
    press("?")
    assert page.get_by_role("dialog").is_visible()
    press("Escape")
    assert not page.get_by_role("dialog").is_visible()
    press("2")
    ready(page, "Side by side")
    assert second.strip() in page.locator(".of-pair h2").first.inner_text()
    press("t")
    assert page.locator("html").get_attribute("data-theme") == "light"
    press("Tab")
    assert page.evaluate("document.activeElement !== document.body")
    press("Escape")
    ready(page, "Requests")
