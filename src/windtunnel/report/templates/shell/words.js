// Numbers as people write them, and elements whose text can only ever be text.

// The digits that units.format_bytes writes in the terminal and in the verdict: two, or one from a hundred on.
function bytes(n) {
  if (n < 0) return `-${bytes(-n)}`;
  const power = n < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(n) / 10));
  const value = n / 1024 ** power;
  return `${power ? rounded(value, value < 100 ? 2 : 1) : Math.trunc(value)} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

// Python rounds 1.125 to the even digit; such halves are common among sizes.
function rounded(value, digits) {
  const scaled = value * 10 ** digits, below = Math.floor(scaled);
  const isTie = scaled - below === 0.5 && below % 2 === 0;
  return (isTie ? below / 10 ** digits : value).toFixed(digits);
}

function seconds(s) {
  const size = Math.abs(s);
  const [unit, factor] = size >= 1 ? ["s", 1] : size >= 1e-3 ? ["ms", 1e3] : size >= 1e-6 ? ["µs", 1e6] : ["ns", 1e9];
  return s === 0 ? "0 s" : `${Number((s * factor).toPrecision(3))} ${unit}`;
}

const count = (n) => n.toLocaleString("en");
const percent = (part, whole) => whole ? `${(100 * part / whole).toFixed(1)} %` : "";
const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

// h("td", {class: "number", onclick: act}, "text", element, ...): strings become text nodes, never markup.
function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}

// A table: columns are {title, number: true for figures, cell: (row) => text or element}.
function table(columns, rows, attributes) {
  const kind = (column) => column.number ? "number" : null;
  return h("div", { class: "scroll" }, h("table", attributes,
    h("thead", null, h("tr", null, columns.map((column) => h("th", { class: kind(column), scope: "col" }, column.title)))),
    h("tbody", null, rows.map((row) => h("tr", row.attributes ?? null,
      columns.map((column) => h("td", { class: kind(column) }, column.cell(row))))))));
}

// The box that follows the pointer. `lines` are texts; the first is the title.
const tip = {
  show(event, lines) {
    const box = document.getElementById("tip");
    box.replaceChildren(...lines.filter(Boolean).map((line, i) => h(i ? "div" : "strong", null, line)));
    box.hidden = false;
    const x = event.clientX ?? 0, y = event.clientY ?? 0;
    box.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - box.offsetWidth - 8))}px`;
    box.style.top = `${Math.max(4, y + 18 + box.offsetHeight > innerHeight ? y - box.offsetHeight - 10 : y + 18)}px`;
  },
  hide() { document.getElementById("tip").hidden = true; },
};

// -- colours: from the style sheet, so that canvases follow the theme --------------------------------------------------

const ROLES = ["weights", "gradients", "optimizer", "activations", "inputs", "temporary", "workspace", "communication", "frozen", "copies"];
// From the bottom of a picture to its top: what stays, then what passes.
const STACKED = ["weights", "frozen", "copies", "optimizer", "gradients", "activations", "inputs", "communication", "workspace", "temporary"];
const ROLE_WORDS = { optimizer: "optimizer state", temporary: "temporary tensors", communication: "communication buffers",
  frozen: "frozen weights", copies: "copies of weights" };
const roleWord = (role) => ROLE_WORDS[role] ?? role;
const cssColour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
const roleColour = (role) => cssColour(`role-${role}`);

// A canvas as large as its box, sharp on every screen; returns its context, in CSS pixels.
function fitCanvas(canvas, width, height) {
  const dots = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * dots);
  canvas.height = Math.round(height * dots);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(dots, 0, 0, dots, 0, 0);
  return context;
}
