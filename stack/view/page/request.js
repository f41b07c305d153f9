// One request: where its time went, span by span.

const view = { whole: false, redraw: null }; // redraw: the open waterfall again, when the window became narrow or wide

async function requestView(main, id) {
  fill(main, el("h1", {}, "Request"), el("p", {}, "Loading…"));
  const detail = await get(`requests/${encodeURIComponent(id)}`);
  const path = detail.path;
  const place = el("div", { class: "with-detail" });
  let drawing = null;
  const panel = el("aside", { class: "span-detail", "aria-label": "Span details" },
    el("p", { class: "muted" }, "Point at a span, or move with j and k, to see its attributes and links."));
  const draw = () => { drawing = drawRequest(place, panel, detail); };
  const zoom = zoomChoice(detail, draw);
  fill(main,
    requestHead(detail),
    remarks(detail),
    zoom,
    place,
    path ? el("div", { class: "columns" },
      scrolled("Stages", stageTable(detail.stage_order, path)), besides(detail)) : null,
    hints());
  draw();
  view.redraw = draw;
  keys.view = {
    j: () => drawing.move(1), k: () => drawing.move(-1), ArrowDown: () => drawing.move(1), ArrowUp: () => drawing.move(-1),
    Home: () => drawing.move(-1e9), End: () => drawing.move(1e9),
    Enter: (event) => (event.target.getAttribute("role") === "treeitem" ? event.target.click() : false),
    a: () => pin("a", detail.row.id), b: () => pin("b", detail.row.id),
    z: () => { const other = main.querySelector('input[name="zoom"]:not(:checked)'); if (other) other.click(); },
    Escape: () => { location.hash = "#/requests"; },
  };
}

function requestHead(detail) {
  const row = detail.row;
  const at = clockTime(row.start_ms);
  const fact = (title, ...value) => el("div", {}, el("dt", {}, title), el("dd", {}, value));
  return el("header", { class: "request-head" },
    el("p", {}, el("a", { href: "#/requests" }, "← Requests")),
    el("h1", {}, "Request ", told(row.request_id || row.id)),
    el("dl", { class: "facts wide" },
      fact("mode", badge(row.mode)),
      fact("TTFT", el("strong", {}, row.ttft_ns === null ? "–" : `${ms(row.ttft_ns)} ms`)),
      fact("whole request", row.total_ns === null ? "–" : `${ms(row.total_ns)} ms`),
      fact("status", statusText(row)),
      fact("began", `${at.day} ${at.time}`),
      fact("trace", el("code", {}, row.id)),
      fact("pair", pins(row.id, true))));
}

function remarks(detail) {
  const group = (title, items, kind) => (items.length
    ? el("section", { class: `remarks ${kind}` }, el("h2", {}, title),
      el("ul", {}, items.map((text) => el("li", {}, told(text))))) : null);
  return [
    group("✕ Failed", detail.failures, "bad"),
    group("⚠ Incomplete: this trace lacks", detail.incomplete, "warn"),
    group("Notes", detail.notes, ""),
  ];
}

function zoomChoice(detail, draw) {
  if (!detail.path) return null;
  const radio = (whole, text) => el("label", {},
    el("input", { type: "radio", name: "zoom", checked: view.whole === whole,
                  onchange: () => { view.whole = whole; draw(); } }), text);
  return el("fieldset", { class: "choice" }, el("legend", {}, "Time axis"),
    radio(false, "to the first token"), radio(true, "whole request"));
}

function axisOf(details) {
  const to = Math.max(...details.map((d) => (d.path && !view.whole ? d.path.ttft_ns * 1.03 : d.end_ns)), 1);
  return { from: Math.min(0, ...details.map((d) => (view.whole ? Math.min(...d.spans.map((s) => s.start_ns)) : 0))), to };
}

function drawRequest(place, panel, detail) {
  let pinned = -1;
  const drawing = waterfall(detail, axisOf([detail]), `request ${detail.row.request_id}`, (span, pinning, index) => {
    if (pinning) pinned = pinned === index ? -1 : index;
    if (pinned >= 0 && index !== pinned && document.activeElement !== drawing.rows[index]) return;
    fill(panel, spanDetail(detail, span, (id) => drawing.show(id)));
  });
  fill(place, drawing.figure, panel);
  return drawing;
}

function besides(detail) {
  const path = detail.path;
  const rows = Object.entries(path.overlapped_ns);
  const clocks = detail.clocks;
  const uncertain = clocks.uncertainty_ns === null ? "unbounded (a message is missing)"
    : clocks.uncertainty_ns === 0 ? "0: one clock, or offsets that are exact" : `± ${ms(clocks.uncertainty_ns)} ms`;
  return el("div", { class: "stack" },
    el("table", { class: "figures" }, el("caption", {}, "Overlapped: ran behind prefill, not part of TTFT"),
      el("thead", {}, headCells("what", "ms")),
      el("tbody", {}, rows.map(([kind, ns]) => el("tr", { class: ns ? null : "idle" },
        el("th", { scope: "row" }, kind), el("td", { class: "n" }, ms(ns))))),
      el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "any of them"), el("td", { class: "n" }, ms(path.overlapped_total_ns))))),
    el("dl", { class: "facts" },
      el("div", {}, el("dt", {}, "clock uncertainty"), el("dd", {}, uncertain)),
      el("div", {}, el("dt", {}, "clocks"), el("dd", {}, String(clocks.count))),
      Object.entries(clocks.offsets_ns).map(([domain, ns]) =>
        el("div", {}, el("dt", {}, "offset of ", told(domain)), el("dd", {}, `${signed(ns)} ms applied`)))));
}

function hints() {
  return el("p", { class: "muted hint" }, "● and filled: on the critical path. Outline: beside it. R router, P prefill engine, ",
    "D decode engine. Thin upright marks are events; curves are links from cause to effect; ▸ continues beyond the axis.");
}
