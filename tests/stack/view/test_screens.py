"""Every view in both themes, wide and on a phone: a picture under out/view/, nothing cut off, contrast measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

PICTURES = Path(__file__).parents[3] / "out" / "view"
SIZES = {"wide": {"width": 1280, "height": 900}, "phone": {"width": 360, "height": 740}}
VIEWS = {
    "requests": "#/requests",
    "push": "#/request/req-41",
    "pull": "#/request/req-40",
    "pair": "#/pair",
    "comparison": "#/comparison",
    "verdict": "#/verdict",
}

# Every visible element with text of its own: its colour, and what is behind it. The lowest contrast of a gradient's
# colours counts. Elements that are disabled are exempt, as in WCAG.
CONTRAST = """() => {
  const parse = (text) => (text.match(/rgba?\\([^)]*\\)/g) || []).map((c) => c.match(/[\\d.]+/g).map(Number));
  const linear = (v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
  const lum = ([r, g, b]) => [r, g, b].map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ratio = (a, b) => { const [x, y] = [lum(a), lum(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const style = getComputedStyle(node);
      const image = style.backgroundImage;
      if (image !== "none" && !node.matches(".stacked, .diverging")) return parse(image);
      const [color] = parse(style.backgroundColor);
      if (color && (color.length < 4 || color[3] > 0)) return [color];
    }
    return [[255, 255, 255]];
  };
  const found = [];
  for (const node of document.querySelectorAll("body *")) {
    const own = [...node.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim());
    if (!own || !node.checkVisibility() || node.matches(":disabled, script, option, .skip")) continue;
    const style = getComputedStyle(node);
    if (parseFloat(style.fontSize) === 0) continue;
    const [color] = parse(style.color);
    const worst = Math.min(...behind(node).map((b) => ratio(color, b)));
    if (worst < 4.5) found.push(`${node.tagName}.${node.className} "${node.textContent.slice(0, 30)}" ${worst}`);
  }
  return found;
}"""

# What assistive technology needs: names for everything that can be used, one h1, no id twice, headings in order.
STRUCTURE = """() => {
  const found = [];
  const name = (n) => (n.getAttribute("aria-label") || n.textContent || n.title || "").trim();
  for (const n of document.querySelectorAll("button, a[href], [role=treeitem], [role=img], [role=region], [role=tree]"))
    if (!name(n)) found.push(`no name: ${n.outerHTML.slice(0, 80)}`);
  for (const n of document.querySelectorAll("input, select")) if (!n.labels.length) found.push(`no label: ${n.id}`);
  for (const n of document.querySelectorAll("table")) if (!n.caption) found.push("a table without caption");
  const ids = [...document.querySelectorAll("[id]")].map((n) => n.id);
  if (new Set(ids).size !== ids.length) found.push("an id twice");
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  if (document.querySelectorAll("[aria-current=page]").length !== 1) found.push("no current page in the navigation");
  if (!document.title || !document.documentElement.lang) found.push("no title or language");
  return found;
}"""


@pytest.fixture(scope="module")
def shared(browser: Any) -> Iterator[Callable[[str, str], Any]]:
    """One page for every theme and size."""
    pages: dict[tuple[str, str], Any] = {}

    def of(theme: str, size: str) -> Any:
        if (theme, size) not in pages:
            context = browser.new_context(viewport=SIZES[size], color_scheme=theme, reduced_motion="reduce")
            pages[theme, size] = context.new_page()
        return pages[theme, size]

    yield of
    for page in pages.values():
        page.context.close()


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_view(theme: str, size: str, view: str, shared: Callable[[str, str], Any], mixed_view: str) -> None:
    page = shared(theme, size)
    page.goto("about:blank")
    page.goto(mixed_view + VIEWS[view])
    page.wait_for_selector("main:not([aria-busy]) h1")
    if view in ("push", "pull"):
        page.keyboard.press("j")
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"{view}-{size}-{theme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, "the page scrolls sideways"
    assert page.evaluate(CONTRAST) == []
    assert page.evaluate(STRUCTURE) == []


def test_the_measure_of_contrast_finds_what_is_too_faint(shared: Callable[[str, str], Any], mixed_view: str) -> None:
    page = shared("light", "wide")
    page.goto(mixed_view)
    page.wait_for_selector("main:not([aria-busy]) h1")
    page.evaluate("document.documentElement.style.setProperty('--muted', '#b0b0b0')")
    assert page.evaluate(CONTRAST) != []


@pytest.mark.parametrize(("system", "chosen"), [("light", "dark"), ("dark", "light")])
def test_the_theme_can_be_chosen_against_the_system(
    system: str, chosen: str, shared: Callable[[str, str], Any], mixed_view: str
) -> None:
    pages = {theme: shared(theme, "wide") for theme in (system, chosen)}
    background = "getComputedStyle(document.body).backgroundColor"
    for page in pages.values():
        page.goto(mixed_view)
        page.wait_for_selector("main:not([aria-busy]) h1")
    while pages[system].locator("html").get_attribute("data-theme") != chosen:
        pages[system].locator("#theme").click()
    assert pages[system].evaluate(background) == pages[chosen].evaluate(background)
    pages[system].reload()
    assert pages[system].locator("html").get_attribute("data-theme") == chosen
    pages[system].evaluate("localStorage.clear()")
