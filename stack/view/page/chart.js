// The comparison's two charts: stages stacked, mode below mode, and push minus pull stage by stage.

const stageTime = (mode, stage, measure) => mode.stages[stage].time[measure];

// Percentiles of stages need not add up to the percentile of TTFT, so each bar also shows where TTFT itself lies.
function stackedChart(doc, modes) {
  const order = doc.stage_order;
  const sum = (mode, measure) => order.reduce((total, stage) => total + Math.max(stageTime(mode, stage, measure), 0), 0);
  const full = Math.max(...modes.flatMap((mode) => doc.measures.map((m) => Math.max(sum(mode, m), mode.ttft[m])))) * 1.02;
  const figure = el("div", { class: "chart", role: "group", "aria-label": "Time to first token by stage; the table below has every figure" });
  for (const measure of doc.measures) {
    figure.append(el("h3", {}, measure, measure === "mean" ? el("small", {}, " stages add up to TTFT") : null));
    for (const mode of modes) figure.append(chartBar(doc, mode, measure, full));
  }
  return figure;
}

function chartBar(doc, mode, measure, full) {
  const order = doc.stage_order;
  const doubtful = measure !== "mean" && !mode.believed[measure];
  const parts = order.map((stage) => [stage, stageTime(mode, stage, measure)]);
  const words = parts.filter(([, ns]) => ns).map(([stage, ns]) => `${stage} ${ms(ns)}`).join(", ");
  const bar = stackedBar(order, parts, full,
    `${mode.mode} ${measure}: TTFT ${ms(mode.ttft[measure])} ms; ${words}${doubtful ? "; too few samples to believe" : ""}`);
  bar.append(el("span", { class: "ttft-mark", title: `TTFT ${ms(mode.ttft[measure])} ms`,
                          style: { left: percentOf(mode.ttft[measure] / full * 100) } }));
  return el("div", { class: `chart-line ${doubtful ? "doubtful" : ""}` },
    el("span", { class: "chart-name" }, badge(mode.mode)), bar,
    el("span", { class: "chart-value" }, `${ms(mode.ttft[measure])} ms`, doubtful ? el("small", {}, " ~ too few") : null));
}

function differenceChart(doc, measure) {
  const order = doc.stage_order;
  const all = [...order.map((stage) => [stage, doc.differences.stages[stage][measure]]), ["TTFT", doc.differences.ttft[measure]]];
  const full = Math.max(...all.map(([, ns]) => Math.abs(ns)), 1);
  return el("div", { class: "chart differences", role: "group", "aria-label": `Push minus pull, ${measure}` },
    el("div", { class: "chart-line ends", "aria-hidden": "true" }, el("span", { class: "chart-name" }),
      el("span", { class: "both-ends" }, el("span", {}, "← push is shorter"), el("span", {}, "push is longer →")), el("span", { class: "chart-value" })),
    all.map(([stage, ns]) => {
      const width = Math.abs(ns) / full * 50;
      const bar = el("span", { class: stage === "TTFT" ? "diff total" : `diff ${stageClass(order, stage)}`,
                               style: { left: percentOf(ns < 0 ? 50 - width : 50), width: percentOf(width) } });
      return el("div", { class: "chart-line", role: "img", "aria-label": `${stage}: ${signed(ns)} ms` },
        el("span", { class: "chart-name" }, stage === "TTFT" ? el("strong", {}, "TTFT") : [stageKey(order, stage), " ", stage]),
        el("span", { class: "diverging" }, ns ? bar : null),
        el("span", { class: "chart-value" }, signed(ns)));
    }));
}
