// The experiment's verdict, in its own sentences; without one, how to get it.

async function verdictView(main) {
  fill(main, el("h1", {}, "Verdict"), el("p", {}, "Loading…"));
  const found = await get("verdict");
  const absent = !found.headline && !found.sentences.length;
  fill(main, el("h1", {}, "Verdict"),
    found.problem ? el("p", { class: "remarks warn" }, told(found.problem)) : null,
    absent ? howToGetOne() : el("article", { class: "verdict" },
      found.headline ? el("p", { class: "headline" }, told(found.headline)) : null,
      el("ul", {}, found.sentences.map((sentence) => el("li", {}, told(sentence)))),
      el("p", { class: "muted" }, "From ", told(found.result), ".")));
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
