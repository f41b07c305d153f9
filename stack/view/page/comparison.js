// Push beside pull over many requests: what was counted, the charts, and the same as tables.

const WINDOWS = [["", "all requests"], ["900", "newest 15 minutes"], ["3600", "newest hour"], ["86400", "newest day"]];
const comparing = { newest: "", measure: "p50" };

async function comparisonView(main) {
  fill(main, el("h1", {}, "Comparison"), el("p", {}, "Loading…"));
  const doc = await loadComparison(comparing.newest);
  say("");
  const modes = Object.values(doc.modes);
  const counted = modes.filter((mode) => mode.counted);
  const choose = embedded ? null : el("label", { class: "window" }, "Requests",
    el("select", { id: "window", onchange: (event) => { comparing.newest = event.target.value; route(); } },
      WINDOWS.map(([value, text]) => el("option", { value, selected: value === comparing.newest }, text))));
  fill(main, el("h1", {}, "Comparison"), choose,
    doc.traces ? null : el("p", { class: "empty" }, "No requests: nothing to compare. Send some through the router first."),
    doc.traces && !counted.length ? el("p", { class: "remarks warn" }, "No request has a complete critical path; the reasons are below.") : null,
    counted.length ? figures(doc, counted) : null,
    modes.length ? el("section", {}, el("h2", {}, "What was counted"), el("div", { class: "cards" }, modes.map(modeCard))) : null);
}

function figures(doc, counted) {
  return [
    doubts(doc, counted),
    el("section", {}, el("h2", {}, "Time to first token by stage"), legend(doc.stage_order, counted.map((mode) => mode.mode)), stackedChart(doc, counted),
      el("p", { class: "muted" }, "│ marks TTFT itself. Percentiles of stages are taken stage by stage and need not add up to that of TTFT; means do.")),
    differences(doc, counted),
    el("section", {}, el("h2", {}, "The same in figures"), scrolled("Stages by mode", stageFigures(doc, counted)),
      scrolled("Overlapped time by mode", overlapFigures(doc, counted)), stageWords(doc)),
  ];
}

function doubts(doc, counted) {
  const doubtful = counted.flatMap((mode) => doc.measures.filter((m) => mode.believed[m] === false).map((m) => `${mode.mode} ${m}`));
  const needed = Object.entries(doc.samples_needed).map(([p, n]) => `${p} ${n}`).join(", ");
  return [
    doubtful.length ? el("p", { class: "remarks warn" },
      `~ Too few requests to believe: ${doubtful.join(", ")}. Needed: ${needed}.`) : null,
    doc.beside ? el("p", { class: "remarks" }, told(doc.beside)) : null,
    doc.differences ? el("p", { class: "remarks" },
      "A difference between modes may be the link's, not the protocol's: compare WRITE and READ rates first. ",
      el("a", { href: "#/verdict" }, "The verdict"), " does.") : null,
  ];
}

function differences(doc, counted) {
  if (!doc.differences) {
    return el("section", {}, el("h2", {}, "Push minus pull"), el("p", {}, "There is nothing to subtract: only ",
      counted.map((mode) => mode.mode).join(", "), " has requests that count."));
  }
  const place = el("div", {}, differenceChart(doc, comparing.measure));
  return el("section", {}, el("h2", {}, "Push minus pull, in ms"),
    el("fieldset", { class: "choice" }, el("legend", {}, "Of"), doc.measures.map((measure) => el("label", {},
      el("input", { type: "radio", name: "measure", checked: measure === comparing.measure,
                    onchange: () => { comparing.measure = measure; fill(place, differenceChart(doc, measure)); } }),
      counted.some((mode) => doc.differences.of.includes(mode.mode) && mode.believed[measure] === false) ? `${measure} ~` : measure))),
    place);
}

function groupHead(doc, counted, columns) {
  const mark = (mode, m) => (mode.believed[m] === false ? `${m} ~` : m);
  return el("thead", {},
    el("tr", {}, el("td", {}), counted.map((mode) => el("th", { scope: "colgroup", colspan: columns.length, class: "group" },
      badge(mode.mode), ` ${plural(mode.counted, "request")}`))),
    el("tr", {}, el("th", { scope: "col" }, "stage"), counted.map((mode) => columns.map((m, i) =>
      el("th", { scope: "col", class: i ? "n" : "n group" }, mark(mode, m))))));
}

function stageFigures(doc, counted) {
  const cells = (distribution, last) => [...doc.measures.map((m, i) => el("td", { class: i ? "n" : "n group" }, ms(distribution[m]))),
    el("td", { class: "n" }, last)];
  return el("table", { class: "figures" }, el("caption", {}, "Stages of TTFT, in ms; share: mean over requests"),
    groupHead(doc, counted, [...doc.measures, "share"]),
    el("tbody", {}, shownStages(doc.stage_order, counted.map((mode) => mode.mode)).map((stage) => {
      const idle = counted.every((mode) => !mode.stages[stage].time.high && !mode.stages[stage].time.low);
      return el("tr", { class: idle ? "idle" : null }, el("th", { scope: "row" }, stageKey(doc.stage_order, stage), " ", stage),
        counted.map((mode) => cells(mode.stages[stage].time, share(mode.stages[stage].share))));
    })),
    el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "TTFT"), counted.map((mode) => cells(mode.ttft, "100.0 %")))));
}

function overlapFigures(doc, counted) {
  const cells = (distribution) => doc.measures.map((m, i) => el("td", { class: i ? "n" : "n group" }, ms(distribution[m])));
  return el("table", { class: "figures" }, el("caption", {}, "Overlapped: ran behind prefill, not part of TTFT, in ms"),
    groupHead(doc, counted, doc.measures),
    el("tbody", {}, Object.keys(counted[0].overlapped).map((kind) => el("tr", {}, el("th", { scope: "row" }, kind),
      counted.map((mode) => cells(mode.overlapped[kind]))))),
    el("tfoot", {}, el("tr", {}, el("th", { scope: "row" }, "any of them"), counted.map((mode) => cells(mode.overlapped_total)))));
}

function stageWords(doc) {
  return el("details", {}, el("summary", {}, "What bounds each stage"),
    el("dl", { class: "words" }, Object.entries(doc.stage_words).map(([stage, words]) =>
      el("div", {}, el("dt", {}, stageKey(doc.stage_order, stage), " ", stage), el("dd", {}, words))),
      el("div", {}, el("dt", {}, stageKey(doc.stage_order, UNEXPLAINED), " ", UNEXPLAINED), el("dd", {}, "TTFT less all of these"))));
}

function modeCard(mode) {
  const reasons = (title, found) => (Object.keys(found).length ? el("div", {}, el("h4", {}, title),
    el("ul", { class: "reasons" }, Object.entries(found).map(([reason, count]) => el("li", {}, `${count} × `, told(reason))))) : null);
  const clock = mode.clock_uncertainty_ns === null ? "unbounded for some requests" : mode.clock_uncertainty_ns ? `up to ${ms(mode.clock_uncertainty_ns)} ms` : "none";
  const tokens = mode.tokens && (Object.keys(mode.lookups).length || mode.tokens.reused || mode.tokens.cached) ? mode.tokens : null;
  const fact = (title, value) => el("div", {}, el("dt", {}, title), el("dd", {}, String(value)));
  return el("article", { class: "card" }, el("h3", {}, badge(mode.mode)),
    el("dl", { class: "facts" }, fact("seen", mode.seen), fact("counted", mode.counted), fact("left out", mode.seen - mode.counted),
      mode.failed ? fact("of these failed or refused", mode.failed) : null,
      fact("incomplete", mode.incomplete), mode.counted ? fact("clock uncertainty", clock) : null,
      tokens ? [fact("prompt tokens reused from D", tokens.reused), fact("in P's own prefix cache", tokens.cached),
        fact("computed by P", tokens.computed)] : null),
    reasons("Left out", mode.reasons_excluded), reasons("Incomplete", mode.reasons_incomplete),
    reasons("Anomalies", mode.anomalies), reasons("Last to arrive at the rendezvous", mode.last_arrival),
    reasons("What was kept of the turn before", mode.lookups));
}
