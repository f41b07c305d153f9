// One keydown listener: the open view's keys first, then the page's. Typing in a field is left alone.

const keys = { view: {}, page: {} };

function typing(target) {
  const tag = target.tagName;
  return tag === "SELECT" || tag === "TEXTAREA" || (tag === "INPUT" && !["checkbox", "radio"].includes(target.type));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
  if (typing(event.target) && event.key !== "Escape") return;
  if (event.target.type === "radio" && event.key.startsWith("Arrow")) return;
  const action = keys.view[event.key] || keys.page[event.key];
  if (!action || action(event) === false) return;
  event.preventDefault();
});
