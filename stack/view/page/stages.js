// The stages as they are drawn everywhere: a number and a colour; the number stands wherever there is room for it.

const UNEXPLAINED = "unexplained";

function stageNumber(order, stage) {
  return stage === UNEXPLAINED ? "?" : String(order.indexOf(stage) + 1);
}

function stageClass(order, stage) {
  return stage === UNEXPLAINED ? "stage s-x" : `stage s-${order.indexOf(stage) + 1}`;
}

function stageKey(order, stage) {
  return el("span", { class: `${stageClass(order, stage)} key`, "aria-hidden": "true" }, stageNumber(order, stage));
}

function legend(order, modes) {
  const items = shownStages(order, modes).map((stage) => el("li", {}, stageKey(order, stage), " ", stage));
  return el("ul", { class: "legend", "aria-label": "Stages" }, items);
}

// Without a request of mode reuse, its stages are rows of zeros.
function shownStages(order, modes) {
  return modes.includes("reuse") ? order : order.filter((stage) => !stage.startsWith("reuse_"));
}

// One stacked bar. parts: [stage, ns]; full: nanoseconds that fill the width.
function stackedBar(order, parts, full, label) {
  const bar = el("div", { class: "stacked", role: label ? "img" : null, "aria-label": label || null });
  let reached = 0;
  for (const [stage, ns] of parts) {
    if (ns <= 0 || full <= 0) continue;
    bar.append(segment(order, stage, reached, reached + ns, 0, full));
    reached += ns;
  }
  return bar;
}

function segment(order, stage, start, end, from, to) {
  const left = (Math.max(start, from) - from) / (to - from) * 100;
  const right = (Math.min(end, to) - from) / (to - from) * 100;
  const wide = right - left >= 4;
  return el("span", {
    class: stageClass(order, stage),
    title: `${stage} ${ms(end - start)} ms`,
    style: { left: percentOf(left), width: percentOf(Math.max(right - left, 0)) },
  }, wide ? stageNumber(order, stage) : null);
}

// Rows "stage, ms, share" of one path; they add up to TTFT.
function stageTable(order, path) {
  const rows = shownStages(order, [path.mode]).map((stage) => {
    const ns = stage === UNEXPLAINED ? path.unexplained_ns : path.stages[stage];
    const full = path.ttft_ns || 1;
    return el("tr", { class: ns === 0 ? "idle" : null },
      el("th", { scope: "row" }, stageKey(order, stage), " ", stage),
      el("td", { class: "n" }, ms(ns)),
      el("td", { class: "n" }, share(ns / full)),
      el("td", { class: "spark" }, stackedBar(order, [[stage, ns]], full)));
  });
  const sum = Object.values(path.stages).reduce((a, b) => a + b, path.unexplained_ns);
  return el("table", { class: "figures" },
    el("caption", {}, "Stages of the critical path, in ms. A stage lasts from the end of what was before it to its own milestone: it may be longer than the span of its name."),
    el("thead", {}, headCells("stage", "ms", "share", "")),
    el("tbody", {}, rows),
    el("tfoot", {}, el("tr", {},
      el("th", { scope: "row" }, sum === path.ttft_ns ? "sum = TTFT" : "sum (not TTFT: please report this)"),
      el("td", { class: "n" }, ms(sum)), el("td", { class: "n" }, "100.0 %"), el("td"))));
}

function badge(mode) {
  return el("span", { class: `badge mode-${["push", "pull", "reuse", "plain"].includes(mode) ? mode : "other"}` },
    told(mode || "unknown"));
}
