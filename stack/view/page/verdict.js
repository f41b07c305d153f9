// The experiment's verdict in its own sentences, with the figures it rests on; without one, how to get it.

async function verdictView(main) {
  fill(main, el("h1", {}, "Verdict"), el("p", {}, "Loading…"));
  const found = await get("verdict");
  const absent = !found.headline && !found.sentences.length;
  fill(main, el("h1", {}, "Verdict"),
    found.problem ? el("p", { class: "remarks warn" }, told(found.problem)) : null,
    absent ? howToGetOne() : [
      found.beside ? el("p", { class: "remarks" }, told(found.beside)) : null,
      el("article", { class: "verdict" },
        found.headline ? el("p", { class: "headline" }, told(found.headline)) : null,
        el("ul", {}, found.sentences.map((sentence) => el("li", {}, told(sentence)))),
        el("p", { class: "muted" }, "From ", told(found.result), ".")),
      found.experiment ? experiment(found.experiment) : null]);
}

function experiment(doc) {
  const several = doc.cells.length > 1;
  return [
    notes(doc.notes),
    doc.cells.map((cell) => el("section", {}, el("h2", {}, told(cell.load || "The experiment")),
      several ? el("ul", {}, cell.sentences.map((sentence) => el("li", {}, told(sentence)))) : null,
      notes(cell.notes), linkRates(cell),
      cell.figures.length ? scrolled("Figures of both arms", armFigures(doc, cell)) : null,
      cell.counts.length ? el("div", { class: "cards" }, cell.counts.map(armCard)) : null)),
  ];
}

const notes = (texts) => texts.map((text) => el("p", { class: "remarks" }, "Note: ", told(text)));

function linkRates(cell) {
  if (!cell.rates.length) return null;
  const way = (operation) => (cell.transports[operation] ? `${operation}, ${cell.transports[operation]}` : operation);
  return scrolled("Rates of the link", el("table", { class: "figures" }, el("caption", {}, "The link, in GB/s"),
    el("thead", {}, headCells("", way("WRITE"), way("READ"))),
    el("tbody", {}, cell.rates.map((rate) => el("tr", {}, el("th", { scope: "row" }, told(rate.condition)),
      el("td", { class: "n" }, rate.write.toPrecision(3)), el("td", { class: "n" }, rate.read.toPrecision(3)))))));
}

function armFigures(doc, cell) {
  const number = (row, value) => (value === null ? "–" : row.unit === "ms" ? ms(value) : value.toPrecision(3));
  const mark = (row) => (row.differs === false ? "=" : row.differs ? "" : "?");
  const line = (row) => el("tr", { class: row.differs === false ? "idle" : null },
    el("th", { scope: "row" }, told(row.name), row.believed ? "" : " ~"),
    [row.first, row.second, row.value].map((value) => el("td", { class: "n" }, number(row, value))),
    el("td", { class: "n" }, row.low === null || row.high === null ? "–" : `${number(row, row.low)} to ${number(row, row.high)}`),
    el("td", {}, mark(row)));
  return el("table", { class: "figures" },
    el("caption", {}, "Times in ms. = no difference: the interval holds 0; ? too few blocks; ~ too few requests"),
    el("thead", {}, headCells("", ...doc.arms, told(doc.difference), "95 % interval", "")),
    el("tbody", {}, [...cell.figures, ...cell.stages].map(line)));
}

function armCard(arm) {
  const fact = (title, value) => el("div", {}, el("dt", {}, title), el("dd", {}, String(value)));
  return el("article", { class: "card" }, el("h3", {}, told(arm.name)),
    el("dl", { class: "facts" }, fact("seen", arm.seen), fact("counted", arm.counted), fact("with stages", arm.traced),
      fact("warm-up beside", arm.warm_up_excluded)),
    Object.entries(arm.reasons).map(([title, found]) => (Object.keys(found).length ? el("div", {}, el("h4", {}, title),
      el("ul", { class: "reasons" }, Object.entries(found).map(([reason, count]) => el("li", {}, `${count} × `, told(reason))))) : null)));
}

function howToGetOne() {
  return el("div", { class: "empty" },
    el("h2", {}, "There is no verdict on these requests"),
    el("p", {}, "A verdict needs an experiment: push and pull in alternating blocks on the same engines, with the same prompts, ",
      "and a measurement of the link in both directions."),
    el("p", {}, el("code", {}, "kvpath ab"), " runs one. Then ", el("code", {}, "kvpath view --result FOLDER"), " with the experiment's folder shows its verdict here; a ",
      el("code", {}, "result.json"), " beside the traces is found by itself."),
    el("p", {}, "Until then, the ", el("a", { href: "#/comparison" }, "comparison"), " tells what was measured, not why."));
}
