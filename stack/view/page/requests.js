// The list: filtered, sorted, in pages; every row is a link, and j/k move between the rows' links.

const PAGE_ROWS = 50;
const SORTS = {
  start_ms: "newest", ttft_ns: "TTFT", total_ns: "whole request", unexplained: "unexplained", incomplete: "defects",
};
const list = {
  filter: { text: "", mode: "", status: "", ttft: "", incomplete: false },
  sort: "start_ms", descending: true, page: 0, active: 0, rows: [],
};

function requestsView(main) {
  const body = el("div", { class: "list" });
  const form = filterForm(() => { list.page = list.active = 0; drawList(body); });
  fill(main, el("h1", {}, "Requests"), form, body);
  keys.view = {
    j: () => moveRow(body, 1), k: () => moveRow(body, -1), ArrowDown: () => moveRow(body, 1),
    ArrowUp: () => moveRow(body, -1), n: () => turnPage(body, 1), p: () => turnPage(body, -1),
    "/": () => byId("f-text").select(),
    a: () => takeRow("a"), b: () => takeRow("b"),
    Escape: (event) => (typing(event.target) ? focusRow(body) : false),
  };
  if (listing.document) drawList(body);
  return loadRequests(() => body.isConnected && drawList(body));
}

function filterForm(changed) {
  const f = list.filter;
  const on = (key, read) => (event) => { f[key] = read(event.target); changed(); };
  const select = (id, label, options, value, change) => el("label", {}, label,
    el("select", { id, onchange: change },
      options.map(([v, text]) => el("option", { value: v, selected: v === value }, text))));
  const value = (node) => node.value;
  return el("form", { class: "filter", role: "search", "aria-label": "Filter requests",
                      onsubmit: (event) => event.preventDefault() },
    el("label", {}, "Id contains",
      el("input", { id: "f-text", type: "search", value: f.text, autocomplete: "off", spellcheck: "false",
                    oninput: on("text", value) })),
    select("f-mode", "Mode", [["", "all"], ["push", "push"], ["pull", "pull"], ["reuse", "reuse"], ["plain", "plain"],
      ["none", "none (refused)"]],
      f.mode, on("mode", value)),
    select("f-status", "Status", [["", "all"], ["counted", "counted"], ["left out", "left out"], ["failed", "failed"]],
      f.status, on("status", value)),
    el("label", {}, "TTFT at least, ms",
      el("input", { id: "f-ttft", type: "number", min: 0, step: "any", inputmode: "decimal", value: f.ttft,
                    oninput: on("ttft", value) })),
    select("f-sort", "Sort by", Object.entries(SORTS), list.sort,
      (event) => { list.sort = event.target.value; list.descending = true; changed(); }),
    el("label", { class: "check" },
      el("input", { id: "f-incomplete", type: "checkbox", checked: f.incomplete,
                    onchange: on("incomplete", (node) => node.checked) }), "incomplete only"));
}

function wanted(row) {
  const f = list.filter;
  const text = f.text.trim().toLowerCase();
  return (!text || row.id.includes(text) || row.request_id.toLowerCase().includes(text))
    && (!f.mode || row.mode === f.mode)
    && (!f.status || row.status === f.status)
    && (!(Number(f.ttft) > 0) || (row.ttft_ns !== null && row.ttft_ns >= Number(f.ttft) * 1e6))
    && (!f.incomplete || row.incomplete > 0);
}

function sortValue(row) {
  if (list.sort === "unexplained") return row.stages ? row.stages[row.stages.length - 1] : null;
  return row[list.sort];
}

function drawList(body) {
  const found = listing.document;
  if (!found.requests.length) return fill(body, found.left ? el("p", {}, "Analysing…") : emptyState(found));
  const sign = list.descending ? -1 : 1;
  list.rows = found.requests.filter(wanted).sort((one, other) => {
    const a = sortValue(one), b = sortValue(other);
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (a - b);
  });
  const pages = Math.max(1, Math.ceil(list.rows.length / PAGE_ROWS));
  list.page = Math.min(list.page, pages - 1);
  const shown = list.rows.slice(list.page * PAGE_ROWS, (list.page + 1) * PAGE_ROWS);
  list.active = Math.max(0, Math.min(list.active, shown.length - 1));
  const hadFocus = body.contains(document.activeElement) && document.activeElement.matches("a.open");
  const count = list.rows.length === found.requests.length
    ? plural(list.rows.length, "request")
    : `${list.rows.length.toLocaleString("en")} of ${plural(found.requests.length, "request")}`;
  fill(body,
    found.selection ? el("p", { class: "muted" }, found.selection) : null,
    el("p", { class: "count", role: "status" }, count),
    shown.length ? requestTable(body, found, shown) : el("p", { class: "empty" }, "No request passes the filter. ",
      el("button", { type: "button", onclick: clearFilter }, "Clear the filter")),
    pages > 1 ? pager(body, pages) : null);
  if (hadFocus) focusRow(body);
  return body;
}

function clearFilter() {
  list.filter = { text: "", mode: "", status: "", ttft: "", incomplete: false };
  route();
}

function emptyState(found) {
  return el("div", { class: "empty" },
    el("h2", {}, "Nothing to look at yet"),
    el("p", {}, told(found.empty)),
    el("p", {}, "Send a request through the router, then press ", el("kbd", {}, "r"), ". ",
      el("code", {}, "kvpath demo"), " sends some in both modes; ", el("code", {}, "kvpath view --traces FILE"),
      " shows those of a file."));
}

function requestTable(body, found, shown) {
  const longest = Math.max(...shown.map((row) => row.ttft_ns || 0), 1);
  const head = (key, title, extra) => {
    const sorted = list.sort === key;
    const flip = () => {
      list.descending = sorted ? !list.descending : true;
      list.sort = key;
      byId("f-sort").value = key;
      drawList(body);
      body.querySelector(`[data-sort="${key}"]`).focus();
    };
    return el("th", { scope: "col", class: extra, "aria-sort": sorted ? (list.descending ? "descending" : "ascending") : null },
      el("button", { type: "button", "data-sort": key, onclick: flip }, title,
        el("span", { "aria-hidden": "true" }, sorted ? (list.descending ? " ↓" : " ↑") : "")));
  };
  const plain = (title) => el("th", { scope: "col" }, title);
  return el("table", { class: "requests" },
    el("caption", { class: "sr" }, "Requests"),
    el("thead", {}, el("tr", {}, plain("request"), plain("mode"), head("start_ms", "began"), head("ttft_ns", "TTFT, ms", "n"),
      plain("stages"), head("unexplained", "unexplained", "n"), head("total_ns", "whole, ms", "n"), plain("status"),
      head("incomplete", "defects", "n"))),
    el("tbody", {}, shown.map((row, index) => requestRow(found, row, index, longest))));
}

function requestRow(found, row, index, longest) {
  const at = clockTime(row.start_ms);
  const parts = row.stages ? found.stage_order.map((stage, i) => [stage, row.stages[i]]) : [];
  const link = el("a", { class: "open", href: `#/request/${row.id}`, tabindex: index === list.active ? 0 : -1,
                         title: `trace ${row.id}`, onfocus: () => activate(link, index) },
    told(row.request_id || row.id));
  const cell = (label, attributes, ...children) => el("td", { "data-label": label, ...attributes }, ...children);
  return el("tr", { class: `row ${row.status === "failed" ? "failed" : ""}`, "data-id": row.id,
                    onclick: (event) => event.target.closest("a, button") || (location.hash = `#/request/${row.id}`) },
    el("th", { scope: "row", class: "id" }, link, pins(row.id)),
    cell("mode", {}, badge(row.mode)),
    cell("began", { title: at.day }, at.time),
    cell("TTFT, ms", { class: "n strong" }, ms(row.ttft_ns)),
    cell("stages", { class: "spark" }, row.stages ? stackedBar(found.stage_order, parts, longest) : "–"),
    cell("unexplained", { class: "n" }, row.stages ? ms(row.stages[row.stages.length - 1]) : "–"),
    cell("whole, ms", { class: "n" }, ms(row.total_ns)),
    cell("status", { class: "status" }, statusText(row)),
    cell("defects", { class: "n" }, row.incomplete ? `⚠ ${row.incomplete}` : "0"));
}

function statusText(row) {
  const mark = row.status === "failed" ? "✕ " : row.status === "left out" ? "○ " : "✓ ";
  return [mark + row.status, row.reason ? el("small", {}, told(row.reason)) : null,
    row.fallback ? el("small", {}, "fell back: ", told(row.fallback)) : null];
}

function activate(link, index) {
  list.active = index;
  for (const other of document.querySelectorAll("a.open")) other.tabIndex = other === link ? 0 : -1;
}

function pager(body, pages) {
  const button = (by, text) => el("button", { type: "button", disabled: list.page + by < 0 || list.page + by >= pages,
                                              onclick: () => turnPage(body, by) }, text);
  return el("nav", { class: "pager", "aria-label": "Pages" }, button(-1, "← Previous"),
    el("span", {}, `page ${list.page + 1} of ${pages}`), button(1, "Next →"));
}

function turnPage(body, by, active = 0) {
  const pages = Math.ceil(list.rows.length / PAGE_ROWS);
  if (list.page + by < 0 || list.page + by >= pages) return;
  list.page += by;
  list.active = active;
  drawList(body);
  focusRow(body);
}

function moveRow(body, by) {
  const links = [...body.querySelectorAll("a.open")];
  const focused = links.indexOf(document.activeElement);
  const next = focused < 0 ? list.active : focused + by;
  if (next < 0) turnPage(body, -1, PAGE_ROWS - 1);
  else if (next >= links.length) turnPage(body, 1);
  else links[next].focus();
}

function focusRow(body) {
  const link = body.querySelectorAll("a.open")[list.active];
  if (link) link.focus();
}

function takeRow(slot) {
  const row = list.rows[list.page * PAGE_ROWS + list.active];
  if (row) pin(slot, row.id);
}
