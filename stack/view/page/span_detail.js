// What is known about one span, beside the waterfall.

function spanDetail(detail, span, show) {
  const rows = (pairs) => pairs.map(([key, value]) => el("tr", {}, el("th", { scope: "row" }, told(key)), el("td", {}, told(value))));
  const table = (title, pairs) => (pairs.length
    ? el("table", { class: "attributes" }, el("caption", {}, title), el("tbody", {}, rows(pairs))) : null);
  const facts = [
    ["from → to", `${ms(span.start_ns)} → ${ms(span.end_ns)} ms`],
    ["lasted", `${ms(span.end_ns - span.start_ns)} ms`],
    ["service", span.service || "unknown"],
    ["critical path", span.on_path ? "on it" : "beside it"],
  ];
  if (span.failed) facts.push(["failed", span.status_message || "no message"]);
  return [
    el("h2", {}, told(span.name)),
    el("dl", { class: "facts" }, facts.map(([key, value]) => el("div", {}, el("dt", {}, key), el("dd", {}, told(value))))),
    linkList(detail, span, show),
    table("Attributes", span.attributes),
    span.events.length ? table("Events", span.events.map((e) =>
      [e.name, [`at ${ms(e.at_ns)} ms`, ...e.attributes.map(([k, v]) => `${k}: ${v}`)].join(", ")])) : null,
    table("Process", span.resource),
  ];
}

function linkList(detail, span, show) {
  const nameOf = (id) => {
    const found = detail.spans.find((other) => other.id === id);
    return found ? (found.rank === null ? found.name : `${found.name} [${found.rank}]`) : null;
  };
  const item = (words, id) => {
    const name = nameOf(id);
    return el("li", {}, words, " ", name
      ? el("button", { type: "button", class: "as-link", onclick: () => show(id) }, told(name))
      : [told(id), " (not in this trace)"]);
  };
  const items = [
    ...detail.links.filter((link) => link.from === span.id).map((link) => item("caused by", link.to)),
    ...detail.links.filter((link) => link.to === span.id).map((link) => item("leads to", link.from)),
  ];
  return items.length ? el("div", {}, el("h3", {}, "Links"), el("ul", { class: "plain-list" }, items)) : null;
}
