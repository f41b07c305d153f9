// Any two requests on one time axis, both from the instant they came in.

const pair = { a: "", b: "" };

function pin(slot, id) {
  pair[slot] = id;
  say(`${slot.toUpperCase()} is now ${shortId(nameOf(id))}. ${pair.a && pair.b ? "Press 2 to see A beside B." : ""}`);
  for (const button of document.querySelectorAll("[data-slot]")) markPin(button);
}

function nameOf(id) {
  const row = listing.document && listing.document.requests.find((r) => r.id === id);
  return row ? row.request_id || id : id;
}

function markPin(button) {
  button.setAttribute("aria-pressed", String(pair[button.dataset.slot] === button.dataset.id));
}

function pins(id, focusable) {
  return el("span", { class: "pins" }, ["a", "b"].map((slot) => {
    const button = el("button", { type: "button", "data-slot": slot, "data-id": id, tabindex: focusable ? 0 : -1,
                                  title: `Take as ${slot.toUpperCase()} of the pair (${slot})`,
                                  "aria-label": `Take as ${slot.toUpperCase()} of the pair`,
                                  onclick: () => pin(slot, id) }, slot.toUpperCase());
    markPin(button);
    return button;
  }));
}

// The middle request of a mode, by TTFT.
function typical(mode) {
  const rows = listing.document.requests.filter((r) => r.mode === mode && r.status === "counted")
    .sort((x, y) => x.ttft_ns - y.ttft_ns);
  return rows.length ? rows[Math.floor(rows.length / 2)].id : "";
}

async function pairView(main, a, b) {
  fill(main, el("h1", {}, "Side by side"), el("p", {}, "Loading…"));
  await loadRequests(null);
  const rows = listing.document.requests;
  if (!rows.length) return fill(main, el("h1", {}, "Side by side"), emptyState(listing.document));
  pair.a = a || pair.a || typical("push") || rows[0].id;
  pair.b = b || pair.b || typical("pull") || rows[Math.min(1, rows.length - 1)].id;
  history.replaceState(null, "", `#/pair/${pair.a}/${pair.b}`);
  const details = await Promise.all([pair.a, pair.b].map((id) => get(`requests/${encodeURIComponent(id)}`)));
  const place = el("div", {});
  let drawings = [];
  const draw = () => { drawings = drawPair(place, details); };
  fill(main, el("h1", {}, "Side by side"),
    el("div", { class: "pickers" }, picker("a", rows), picker("b", rows)),
    zoomChoice(details.find((d) => d.path) || details[0], draw), place, pairTable(details), hints());
  draw();
  view.redraw = draw;
  const move = (by) => () => (drawings.find((d) => d.figure.contains(document.activeElement)) || drawings[0]).move(by);
  keys.view = { j: move(1), k: move(-1), ArrowDown: move(1), ArrowUp: move(-1),
    z: () => { const other = main.querySelector('input[name="zoom"]:not(:checked)'); if (other) other.click(); },
    Escape: () => { location.hash = "#/requests"; } };
}

function picker(slot, rows) {
  const known = rows.some((row) => row.id === pair[slot]);
  const text = (row) => `${row.mode}, ${ms(row.ttft_ns)} ms, ${row.request_id || shortId(row.id)}`;
  return el("label", {}, slot.toUpperCase(),
    el("select", { id: `pick-${slot}`, onchange: (event) => { pair[slot] = event.target.value; location.hash = `#/pair/${pair.a}/${pair.b}`; } },
      known ? null : el("option", { value: pair[slot], selected: true }, pair[slot]),
      rows.map((row) => el("option", { value: row.id, selected: row.id === pair[slot] }, text(row)))));
}

function drawPair(place, details) {
  const axis = axisOf(details);
  const drawings = details.map((detail, i) => waterfall(detail, axis, `request ${"AB"[i]}`, null));
  fill(place, drawings.map((drawing, i) => {
    const row = details[i].row;
    return el("section", { class: "of-pair" },
      el("h2", {}, `${"AB"[i]}: `, badge(row.mode), " ", el("a", { href: `#/request/${row.id}` }, told(row.request_id || row.id)),
        ` TTFT ${ms(row.ttft_ns)} ms`), drawing.figure);
  }));
  return drawings;
}

function pairTable([a, b]) {
  if (!a.path || !b.path) return el("p", {}, "Stages can be put side by side only when both requests have a critical path.");
  const order = a.stage_order;
  const of = (d, stage) => (stage === UNEXPLAINED ? d.path.unexplained_ns : d.path.stages[stage]);
  const row = (head, x, y, idle) => el("tr", { class: idle ? "idle" : null }, el("th", { scope: "row" }, head),
    el("td", { class: "n" }, ms(x)), el("td", { class: "n" }, ms(y)), el("td", { class: "n" }, signed(x - y)));
  return scrolled("Stages of both requests", el("table", { class: "figures" },
    el("caption", {}, "Stages of the critical path, in ms"),
    el("thead", {}, headCells("stage", `A (${a.row.mode})`, `B (${b.row.mode})`, "A − B")),
    el("tbody", {}, shownStages(order, [a.path.mode, b.path.mode]).map((stage) =>
      row([stageKey(order, stage), " ", stage], of(a, stage), of(b, stage), !of(a, stage) && !of(b, stage)))),
    el("tfoot", {}, row("sum = TTFT", a.path.ttft_ns, b.path.ttft_ns))));
}
