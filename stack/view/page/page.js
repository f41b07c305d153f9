// Which view is open (the address after #), what went wrong, colours, help.

const VIEWS = {
  requests: requestsView, request: requestView, pair: pairView, comparison: comparisonView, verdict: verdictView,
};
const TITLES = { requests: "Requests", request: "Request", pair: "Side by side", comparison: "Comparison", verdict: "Verdict" };
let shown = 0;

async function route() {
  const [name, ...parts] = location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const opened = VIEWS[name] ? name : embedded ? "comparison" : "requests";
  const turn = ++shown;
  keys.view = {};
  view.redraw = null;
  say("");
  byId("alert").replaceChildren();
  document.title = `${TITLES[opened]} · kvpath`;
  for (const link of document.querySelectorAll("nav [data-view]")) {
    const here = link.dataset.view === opened || (opened === "request" && link.dataset.view === "requests");
    if (here) link.setAttribute("aria-current", "page"); else link.removeAttribute("aria-current");
  }
  // Each view draws into its own element, so that a slow answer for one that was left draws nowhere.
  const place = el("div", { class: `view-${opened}` });
  byId("main").replaceChildren(place);
  byId("main").setAttribute("aria-busy", "true");
  try {
    await VIEWS[opened](place, ...parts);
  } catch (error) {
    if (turn === shown) problem(error, place);
  }
  if (turn === shown) byId("main").removeAttribute("aria-busy");
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function problem(error, place) {
  if (!(error instanceof Problem)) console.error(error);
  const text = error instanceof Problem ? error.message : `The page failed: ${error.message}`;
  say("");
  fill(byId("alert"), el("p", {}, told(text), " ", el("button", { type: "button", onclick: () => reload() }, "Try again")));
  for (const waiting of place.querySelectorAll("p")) if (waiting.textContent === "Loading…") waiting.remove();
}

function reload() {
  listing.document = null;
  return route();
}

const THEMES = ["auto", "light", "dark"];

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = `Theme: ${theme}`;
  try {
    localStorage.setItem("kvpath-theme", theme);
  } catch { /* a file or a private window may have no storage: the choice then ends with the page */ }
}

function nextTheme() {
  setTheme(THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length]);
}

function storedTheme() {
  try {
    const stored = localStorage.getItem("kvpath-theme");
    return THEMES.includes(stored) ? stored : "auto";
  } catch {
    return "auto";
  }
}

function focusMain() {
  byId("main").focus({ preventScroll: true });
  scrollTo(0, 0);
}

const go = (hash) => () => { location.hash = hash; };
keys.page = {
  "?": () => byId("help").showModal(), r: () => reload(), t: nextTheme,
  "1": go("#/requests"), "2": () => { location.hash = pair.a && pair.b ? `#/pair/${pair.a}/${pair.b}` : "#/pair"; },
  "3": go("#/comparison"), "4": go("#/verdict"), "/": () => { location.hash = "#/requests"; },
};
byId("help-open").addEventListener("click", () => byId("help").showModal());
byId("theme").addEventListener("click", nextTheme);
byId("refresh").addEventListener("click", () => reload());
byId("refresh").hidden = Boolean(embedded);
byId("skip").addEventListener("click", (event) => { event.preventDefault(); focusMain(); });
addEventListener("hashchange", () => { route(); focusMain(); });
narrow.addEventListener("change", () => view.redraw && view.redraw());
setTheme(storedTheme());
if (embedded) {
  listing.document = embedded.requests;
  byId("main").before(el("p", { class: "muted print-note" }, "A report of ", told(embedded.requests.source)));
}
route();
