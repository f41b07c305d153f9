// The spans of one request on a time axis: the critical path on top, below it every span under its parent. What lies
// on the path is filled in its stage's colour and number, what does not is an outline.

const SERVICES = { "kvpath-router": ["R", "router"], "vllm-prefill": ["P", "prefill engine"],
                   "vllm-decode": ["D", "decode engine"] };
const narrow = matchMedia("(max-width: 700px)");

// axis: {from, to} in ns after the request came in. onActive(span, pinned) hears which span is looked at.
function waterfall(detail, axis, name, onActive) {
  const drawing = { detail, axis, onActive, rows: [], active: 0, links: null };
  const order = detail.stage_order;
  const tree = el("div", { class: "tree", role: "tree", "aria-label": `Spans of ${name}` });
  detail.spans.forEach((span, index) => {
    const row = spanRow(drawing, span, index, order);
    drawing.rows.push(row);
    tree.append(row);
  });
  drawing.links = linkLayer(drawing);
  const overlay = el("div", { class: "overlay", "aria-hidden": "true" }, drawing.links.layer, firstTokenLine(drawing));
  tree.append(overlay);
  const figure = el("div", { class: "waterfall" }, axisRow(axis), pathRow(detail, axis, order), tree);
  drawing.figure = figure;
  drawing.move = (by) => {
    const from = figure.contains(document.activeElement) ? drawing.active + by : drawing.active;
    focusSpan(drawing, Math.max(0, Math.min(drawing.rows.length - 1, from)));
  };
  drawing.show = (id) => focusSpan(drawing, detail.spans.findIndex((span) => span.id === id));
  return drawing;
}

function axisRow(axis) {
  const length = axis.to - axis.from;
  const step = niceStep(length / (narrow.matches ? 3 : 6));
  const lane = el("div", { class: "lane ticks" });
  for (let at = Math.ceil(axis.from / step) * step; at <= axis.to; at += step) {
    const left = (at - axis.from) / length * 100;
    if (left < 94) lane.append(el("span", { class: "tick", style: { left: percentOf(left) } }, tickText(at, step)));
  }
  return el("div", { class: "line axis", "aria-hidden": "true" }, el("div", { class: "name" }), lane,
    el("div", { class: "time" }, "ms"));
}

function tickText(ns, step) {
  const digits = step >= 1e6 ? 0 : step >= 1e5 ? 1 : 2;
  return (ns / 1e6).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

function niceStep(rough) {
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1)));
  return [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
}

function pathRow(detail, axis, order) {
  if (!detail.path) return null;
  const lane = el("div", { class: "lane path" });
  for (const s of detail.path.segments) {
    if (s.end_ns > s.start_ns && s.start_ns < axis.to) lane.append(segment(order, s.stage, s.start_ns, s.end_ns, axis.from, axis.to));
  }
  const words = order.map((stage) => [stage, stage === UNEXPLAINED ? detail.path.unexplained_ns : detail.path.stages[stage]])
    .filter(([, ns]) => ns).map(([stage, ns]) => `${stage} ${ms(ns)} ms`).join(", ");
  return el("div", { class: "line path-line", role: "img", "aria-label": `Critical path: ${words}` },
    el("div", { class: "name" }, "critical path"), lane, el("div", { class: "time" }, ms(detail.path.ttft_ns)));
}

function spanRow(drawing, span, index, order) {
  const [letter, service] = SERVICES[span.service] || ["·", span.service || "unknown service"];
  const label = span.rank === null ? span.name : `${span.name} [${span.rank}]`;
  const words = [label, service, `${ms(span.end_ns - span.start_ns)} ms from ${ms(span.start_ns)} ms`,
    span.on_path ? "on the critical path" : "beside the path", span.failed ? "failed" : ""];
  return el("div", {
    class: `line span ${span.on_path ? "on-path" : ""} ${span.failed ? "failed" : ""}`, role: "treeitem",
    "aria-level": span.depth + 1, "aria-selected": "false", "aria-label": words.filter(Boolean).join(", "),
    tabindex: index ? -1 : 0,
    onfocus: () => look(drawing, index, false), onmouseenter: () => look(drawing, index, false),
    onclick: () => { focusSpan(drawing, index); look(drawing, index, true); },
  },
    el("div", { class: "name", style: { "--depth": span.depth } },
      el("span", { class: `service svc-${letter === "·" ? "x" : letter}`, title: service }, letter),
      el("span", { class: "mark" }, span.failed ? "!" : span.on_path ? "●" : ""), told(label)),
    spanLane(drawing, span, order),
    el("div", { class: "time" }, ms(span.end_ns - span.start_ns)));
}

function spanLane(drawing, span, order) {
  const { from, to } = drawing.axis;
  const lane = el("div", { class: "lane" });
  const at = (ns) => (Math.min(Math.max(ns, from), to) - from) / (to - from) * 100;
  if (span.start_ns > to) {
    lane.append(el("span", { class: "beyond", title: "begins after the end of the axis" }, "▸"));
    return lane;
  }
  lane.append(el("span", {
    class: `bar ${span.end_ns > to ? "open-end" : ""} ${span.start_ns < from ? "open-start" : ""}`,
    style: { left: percentOf(at(span.start_ns)), width: percentOf(Math.max(at(span.end_ns) - at(span.start_ns), 0)) },
  }));
  const path = drawing.detail.path;
  for (const s of path ? path.segments : []) {
    if (s.span_id === span.id && s.end_ns > s.start_ns) lane.append(segment(order, s.stage, s.start_ns, s.end_ns, from, to));
  }
  for (const event of span.events) {
    if (event.at_ns >= from && event.at_ns <= to) {
      lane.append(el("span", { class: "event", title: `${event.name} at ${ms(event.at_ns)} ms`, style: { left: percentOf(at(event.at_ns)) } }));
    }
  }
  return lane;
}

function firstTokenLine(drawing) {
  const { detail: { first_token_ns: at }, axis } = drawing;
  if (at === null || at < axis.from || at > axis.to) return null;
  return el("span", { class: "first-token", style: { left: percentOf((at - axis.from) / (axis.to - axis.from) * 100) } },
    el("span", {}, "first token"));
}

// Links as lines from the cause's end to the start of the span that names it; those of the active span stand out.
function linkLayer(drawing) {
  const { detail, axis } = drawing;
  const rowOf = new Map(detail.spans.map((span, index) => [span.id, index]));
  const count = Math.max(detail.spans.length, 1);
  const x = (ns) => Math.min(Math.max((ns - axis.from) / (axis.to - axis.from), 0), 1) * 1000;
  const y = (row) => (row + (narrow.matches ? 0.76 : 0.5)) * 100;
  const layer = svg("svg", { class: "links", viewBox: `0 0 1000 ${count * 100}`, preserveAspectRatio: "none" });
  const lines = [];
  for (const link of detail.links) {
    if (!link.present) continue;
    const cause = rowOf.get(link.to), effect = rowOf.get(link.from);
    const x1 = x(detail.spans[cause].end_ns), x2 = x(detail.spans[effect].start_ns);
    const line = svg("path", { d: `M${x1} ${y(cause)} C${x1 + 25} ${y(cause)} ${x2 - 25} ${y(effect)} ${x2} ${y(effect)}` });
    layer.append(line);
    lines.push({ ...link, line });
  }
  return { layer, lines };
}

function look(drawing, index, pinned) {
  const span = drawing.detail.spans[index];
  for (const { from, to, line } of drawing.links.lines) {
    line.setAttribute("class", from === span.id || to === span.id ? "active" : "");
  }
  if (drawing.onActive) drawing.onActive(span, pinned, index);
}

function focusSpan(drawing, index) {
  if (index < 0 || !drawing.rows[index]) return;
  const before = drawing.rows[drawing.active];
  before.tabIndex = -1;
  before.setAttribute("aria-selected", "false");
  drawing.active = index;
  drawing.rows[index].tabIndex = 0;
  drawing.rows[index].setAttribute("aria-selected", "true");
  drawing.rows[index].focus();
}
