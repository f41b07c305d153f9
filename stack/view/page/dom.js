// Building blocks. Text from traces only ever becomes text nodes, isolated from the direction of what surrounds it.

const byId = (id) => document.getElementById(id);

// el("td", {class: "n", onclick: f, style: {left: "3%"}}, "text", node, null)
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  setAttributes(node, attributes || {});
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) node.append(child);
  }
  return node;
}

function setAttributes(node, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [key, v] of Object.entries(value)) node.style.setProperty(key, v);
    else node.setAttribute(name, value === true ? "" : String(value));
  }
}

function svg(tag, attributes) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  setAttributes(node, attributes);
  return node;
}

// Text that was written by somebody else.
const told = (text) => el("bdi", {}, String(text));

function fill(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

// Nanoseconds as milliseconds, with as many places as say something.
function ms(ns) {
  if (ns === null || ns === undefined) return "–";
  const value = ns / 1e6;
  const size = Math.abs(value);
  if (size === 0) return "0";
  const digits = size >= 10000 ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 3;
  const text = size.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  return (value < 0 && Number(text) !== 0 ? "−" : "") + text;
}

const signed = (ns) => (ns > 0 ? "+" : "") + ms(ns);
const share = (part) => `${(part * 100).toFixed(1)} %`;
const percentOf = (value) => `${value.toFixed(4)}%`;
const plural = (count, one) => `${count.toLocaleString("en")} ${one}${count === 1 ? "" : "s"}`;

function clockTime(epochMs) {
  const at = new Date(epochMs);
  const two = (n) => String(n).padStart(2, "0");
  const day = `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
  return { day, time: `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}` };
}

const shortId = (id) => (id.length > 12 ? `${id.slice(0, 8)}…` : id);

// A table in a box of its own that scrolls sideways, reachable by keyboard.
function scrolled(label, table) {
  return el("div", { class: "scroll", role: "region", "aria-label": label, tabindex: 0 }, table);
}

function headCells(...titles) {
  return el("tr", {}, titles.map((title, i) => el("th", { scope: "col", class: i ? "n" : null }, title)));
}
