// The peak as a flame graph: everything alive at one moment, as wide as it is large, by module or by source line.

const FLAME_ROW = 22;  // pixels
const FLAME_GROUPS = 40;  // rows of the table

addView({
  id: "peak", title: "Peak", isThere: (page) => Object.values(page.data.simulated ?? {}).some((rank) => rank.peak_bytes > 0),
  mount: (box, page) => openFlame(box, page),
});

async function openFlame(box, page) {
  const state = { by: "module", isFolded: true, isColoured: true, role: null, query: "", zoom: null, focus: null, root: null, detail: null, document: null, shown: [] };
  const parts = { title: h("h2"), crumbs: h("div", { class: "bar flame-crumbs" }), notes: h("div"), kinds: h("div", { class: "bar", role: "group", "aria-label": "Kinds of memory" }),
    hint: h("p", { class: "note", hidden: true }, "Recorded is the innermost line of your own code and its libraries; ", h("code", null, "windtunnel run --memory-tracker"), " records whole stacks."), found: h("span", { class: "faint", role: "status" }), graph: h("div", { class: "flame", role: "tree", "aria-label": "Flame graph of live memory: arrow keys move, Enter zooms, Escape goes back, 0 shows everything" }), groups: h("div") };
  const switches = flameSwitches(state, parts, rebuild, draw);
  box.append(parts.title, parts.notes, switches.bar, parts.kinds, parts.hint, parts.crumbs, parts.graph,
    h("p", { class: "faint" }, "Click or Enter: zoom. Arrows: parent, child, neighbours. Escape: back. 0: everything."), parts.groups);
  parts.graph.addEventListener("keydown", (event) => flameKey(event, state, zoomTo));
  parts.graph.addEventListener("pointermove", (event) => { const node = event.target.closest(".flame-node")?.flame; if (node) tip.show(event, flameWords(node, state)); else tip.hide(); });
  parts.graph.addEventListener("pointerleave", () => tip.hide());
  parts.graph.addEventListener("focusin", (event) => { const node = event.target.flame; if (node) flameFocus(event.target, node, state); });
  parts.graph.addEventListener("focusout", () => tip.hide());
  parts.graph.addEventListener("click", (event) => { const node = event.target.closest(".flame-node")?.flame; if (node) zoomTo(node === state.zoom && node.parent ? node.parent : node, node); });

  async function load() {
    const rank = page.rank, at = page.at;
    const detail = await rankDetail(page, rank);
    if (rank !== page.rank || at !== page.at) return;  // another choice came in between
    state.detail = detail;
    state.document = page.document();
    state.row = detail ? at ?? detail.peak_row : null;
    if (!detail) state.by = "module";
    switches.byLine.disabled = !detail;
    switches.mark();
    flameTitle(page, state, parts);
    rebuild();
  }

  function rebuild() {
    const { detail, document } = state;
    const all = !document?.peak_bytes ? [] : detail ? flameItems(detail, state.row) : flameShares(document);
    const items = all.filter((item) => item.bytes > 0 && (!state.role || item.role === state.role));
    state.root = flameTree(items, state.by === "line" && detail ? flameByLine(detail) : flameByModule(items, state.isFolded));
    state.total = all.reduce((sum, item) => sum + item.bytes, 0);
    state.root.name = state.root.path = state.role ? roleWord(state.role) : state.detail && state.row !== state.detail.peak_row ? "alive at this moment" : "alive at the peak";
    state.zoom = state.focus = state.root;
    flameKinds(state, parts, all, rebuild);
    parts.hint.hidden = state.by !== "line" || !detail || flameHasStacks(detail);
    draw();
  }

  function zoomTo(node, focus = node) {
    state.zoom = node;
    state.focus = focus;
    draw();
    parts.graph.querySelector('[tabindex="0"]')?.focus({ preventScroll: true });
  }

  function draw() {
    flameDraw(state, parts, zoomTo);
    flameTable(state, parts);
  }

  await load();
  return { update: load, resize: () => flameDraw(state, parts, zoomTo) };
}

function flameSwitches(state, parts, rebuild, draw) {
  const byModule = h("button", { type: "button", onclick: () => { state.by = "module"; mark(); rebuild(); } }, "by module");
  const byLine = h("button", { type: "button", onclick: () => { state.by = "line"; mark(); rebuild(); } }, "by source line");
  const check = (words, name, after) => h("label", null, h("input", { type: "checkbox", checked: state[name], onchange: (event) => { state[name] = event.target.checked; after(); } }), ` ${words}`);
  const search = h("input", { type: "search", class: "flame-search", placeholder: "find a module, operator, line", "aria-label": "find in the flame graph", oninput: (event) => { state.query = event.target.value.trim().toLowerCase(); draw(); } });
  function mark() {
    byModule.setAttribute("aria-pressed", String(state.by === "module"));
    byLine.setAttribute("aria-pressed", String(state.by === "line"));
  }
  mark();
  const bar = h("div", { class: "bar" }, byModule, byLine, check("layers together", "isFolded", rebuild), check("colour by kind", "isColoured", draw), search, parts.found);
  return { bar, byLine, mark };
}

function flameTitle(page, state, parts) {
  const { detail, document } = state, who = page.data.run.world_size > 1 ? ` of rank ${page.rank}` : "", notes = [];
  const isPeak = !detail || state.row === detail.peak_row;
  parts.title.replaceChildren(isPeak ? `Alive at the peak${who}` : `Alive after event ${count(state.row)}${who}`);
  const at = isPeak ? document?.peak_at : { step: stepAt(detail, state.row), phase: phaseAt(detail, state.row), op: "", module: "" };
  if (at) notes.push(h("p", { class: "faint" }, overviewMoment(at), isPeak ? "" : [" ", h("button", { type: "button", onclick: () => page.choose({ at: null }) }, "back to the peak")]));
  if (!document?.peak_bytes) notes.push(h("p", { class: "note" }, "No memory was measured of this rank."));
  else if (!detail) notes.push(h("p", { class: "note" }, `${flameTold(page)}; of this one the modules at its peak are known.`));
  for (const sentence of detail?.left_out ?? []) notes.push(h("p", { class: "note" }, sentence));
  parts.notes.replaceChildren(...notes);
}

function flameTold(page) {
  const n = Object.keys(page.data.details ?? {}).length;
  return n ? `Only ${n === 1 ? "the tightest rank is" : `the ${count(n)} tightest ranks are`} told allocation by allocation` : "This page tells no rank allocation by allocation";
}

// The legend, and the filter: what is held for one purpose only.
function flameKinds(state, parts, items, rebuild) {
  const sums = {};
  for (const item of items) sums[item.role] = (sums[item.role] ?? 0) + item.bytes;
  const button = (role, words, size) => h("button", { type: "button", "aria-pressed": String(state.role === role), "data-role": role ?? "all",
    onclick: () => { state.role = role; rebuild(); parts.kinds.querySelector('[aria-pressed="true"]').focus(); } },
  role ? h("span", { class: "swatch", style: { background: `var(--role-${role})` } }) : null, `${words} ${bytes(size)}`);
  parts.kinds.replaceChildren(button(null, "all kinds", state.total), ...STACKED.filter((role) => sums[role]).map((role) => button(role, roleWord(role), sums[role])));
}

// -- drawing ----------------------------------------------------------------------------------------------------------

function flameDraw(state, parts, zoomTo) {
  const { zoom, root, query } = state, width = parts.graph.clientWidth || 1000, shown = [];
  const above = [];
  for (let node = zoom.parent; node; node = node.parent) above.unshift(node);
  const matches = (node) => query && node.parent && node.name.toLowerCase().includes(query);
  let rows = 0;
  const place = (node, left, share, isAbove) => {
    if (share * width < 1) return;  // thinner than a pixel: its parent still counts it
    rows = Math.max(rows, node.depth + 1);
    shown.push({ node, element: flameElement(state, node, left, share, isAbove, matches(node)) });
    let at = left;
    if (!isAbove) for (const child of node.children) { const part = node.bytes ? share * child.bytes / node.bytes : 0; place(child, at, part, false); at += part; }
  };
  for (const node of above) place(node, 0, 1, true);
  place(zoom, 0, 1, false);
  parts.graph.style.height = `${rows * FLAME_ROW}px`;
  parts.graph.replaceChildren(...shown.map((each) => each.element));
  state.shown = shown;
  const focused = shown.find((each) => each.node === state.focus) ?? shown[above.length];
  if (focused) focused.element.tabIndex = 0;
  flameFound(parts, state, root, matches);
  const path = [...above, zoom];
  parts.crumbs.replaceChildren(...path.map((node) => h("button", { type: "button", disabled: node === zoom, onclick: () => zoomTo(node) }, node.name)),
    h("strong", { id: "flame-total" }, bytes(zoom.bytes)), h("span", { class: "faint" }, ` ${percent(zoom.bytes, state.total)} of ${bytes(state.total)}${zoom.count ? `, ${plural(zoom.count, "tensor")}` : ""}`));
}

function flameElement(state, node, left, share, isAbove, isMatch) {
  const element = h("div", { class: `flame-node${isAbove ? " above" : ""}${isMatch ? " match" : state.query && node.parent ? " dim" : ""}`, role: "treeitem", tabindex: -1,
    "aria-level": node.depth + 1, "aria-expanded": node.children.length ? String(!isAbove) : null, "aria-label": `${node.name}, ${bytes(node.bytes)}, ${percent(node.bytes, state.total)}`,
    style: { left: `${100 * left}%`, width: `${100 * share}%`, top: `${node.depth * FLAME_ROW}px`, height: `${FLAME_ROW - 1}px` } }, share > 0.02 ? node.name : "");
  if (state.isColoured) element.style.background = flameColours(node);
  element.flame = node;
  return element;
}

// As much of each colour as there is of each kind, side by side.
function flameColours(node) {
  let at = 0;
  const stops = STACKED.filter((role) => node.roles[role]).map((role) => {
    const from = at, colour = `color-mix(in srgb, var(--role-${role}) 55%, var(--paper))`;
    at += 100 * node.roles[role] / node.bytes;
    return `${colour} ${from.toFixed(2)}% ${at.toFixed(2)}%`;
  });
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

function flameFound(parts, state, root, matches) {
  if (!state.query) return parts.found.replaceChildren();
  let size = 0, places = 0;
  // Inside a match everything belongs to it: it is counted once.
  const walk = (node) => { if (matches(node)) { size += node.bytes; places += 1; } else node.children.forEach(walk); };
  walk(root);
  return parts.found.replaceChildren(places ? `${plural(places, "place")}, ${bytes(size)}, ${percent(size, state.total)}` : "nothing matches");
}

function flameWords(node, state) {
  const kinds = Object.entries(node.roles).sort((a, b) => b[1] - a[1]).map(([role, size]) => `${roleWord(role)} ${bytes(size)}`);
  const items = node.items.length ? node.items : [], where = [...new Set(items.map((item) => item.where).filter(Boolean))];
  return [node.path, `${bytes(node.bytes)}, ${percent(node.bytes, state.total)}${node.count ? `, ${plural(node.count, "tensor")}` : ""}`, kinds.join(", "),
    where.length ? `made at ${where.slice(0, 3).join(", ")}${where.length > 3 ? " …" : ""}` : ""];
}

function flameFocus(element, node, state) {
  state.focus = node;
  for (const each of state.shown) each.element.tabIndex = each.element === element ? 0 : -1;
  if (!element.matches(":focus-visible")) return;  // the pointer has its own box
  const box = element.getBoundingClientRect();
  tip.show({ clientX: Math.max(0, box.left), clientY: box.bottom - 12 }, flameWords(node, state));
}

function flameKey(event, state, zoomTo) {
  const at = state.shown.findIndex((each) => each.element === document.activeElement);
  if (at < 0) return;
  const { node } = state.shown[at], seen = (test) => state.shown.find((each) => test(each.node));
  const row = state.shown.filter((each) => each.node.depth === node.depth), inRow = row.findIndex((each) => each.node === node);
  const to = {
    ArrowDown: () => seen((each) => each.parent === node), ArrowUp: () => seen((each) => each === node.parent),
    ArrowLeft: () => row[inRow - 1], ArrowRight: () => row[inRow + 1], Home: () => row[0], End: () => row[row.length - 1],
  }[event.key];
  if (to) to()?.element.focus();
  else if (event.key === "Enter" || event.key === " ") zoomTo(node);
  else if (event.key === "Escape") zoomTo(state.zoom.parent ?? state.root);
  else if (event.key === "0") zoomTo(state.root);
  else return;
  event.preventDefault();
}

// -- the largest tensors ----------------------------------------------------------------------------------------------

function flameTable(state, parts) {
  const isTold = Boolean(state.detail);
  const groups = isTold ? flameGroups(state.zoom, state.isFolded) : (state.document?.largest_at_peak ?? []).map((group) => ({ ...group, stack: [], shape: group.shape ? `${group.shape.join("x")} ${group.dtype}` : "" }));
  const shown = groups.slice(0, FLAME_GROUPS), columns = ["what", "kind", "bytes", "share", "count", "shape", "line"];
  const body = h("tbody");
  for (const group of shown) {
    const stack = h("tr", { hidden: true, class: "flame-stack" }, h("td", { colspan: columns.length }, h("pre", null, group.stack.join("\n"))));
    const open = () => { stack.hidden = !stack.hidden; row.setAttribute("aria-expanded", String(!stack.hidden)); };
    const hasStack = group.stack.length > 0;
    const row = h("tr", hasStack ? { tabindex: 0, "aria-expanded": "false", title: "the whole stack", onclick: open, onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { open(); event.preventDefault(); } } } : null,
      h("td", null, h("code", null, tensorWords(group))),
      h("td", null, h("span", { class: "swatch", style: { background: `var(--role-${group.role})` } }), roleWord(group.role)),
      h("td", { class: "number" }, bytes(group.bytes)), h("td", { class: "number" }, percent(group.bytes, state.total)), h("td", { class: "number" }, group.count ? count(group.count) : ""),
      h("td", null, group.shape), h("td", null, group.where, hasStack ? h("span", { class: "faint" }, " ▸") : ""));
    body.append(row, stack);
  }
  const where = isTold && state.zoom !== state.root ? ` in ${state.zoom.path}` : "";
  parts.groups.replaceChildren(h("h2", null, `Largest tensors${where}`), h("div", { class: "scroll" }, h("table", { id: "flame-groups" },
    h("thead", null, h("tr", null, columns.map((title) => h("th", { scope: "col", class: ["bytes", "share", "count"].includes(title) ? "number" : null }, title)))), body)),
  groups.length > shown.length ? h("p", { class: "faint" }, `and ${plural(groups.length - shown.length, "smaller group")}`) : "");
}
