// The peak as a flame graph: everything alive at one moment, as wide as it is large, by module or by source line.

const FLAME_ROW = 22;  // pixels
const FLAME_GROUPS = 40;  // rows of the table
const FLAME_LABEL = "Flame graph of live memory: arrow keys move, Enter zooms, Escape goes back, 0 shows everything";

addView({
  id: "peak", title: "Peak", isThere: (page) => Object.values(page.data.simulated ?? {}).some((rank) => rank.peak_bytes > 0),
  mount: (box, page) => openFlame(box, page),
});

async function openFlame(box, page) {
  const state = { by: "module", isFolded: true, isColoured: true, role: null, query: "", detail: null, document: null,
    root: null, zoom: null, focus: null, shown: [], total: 0 };
  const parts = {
    title: h("h2"), notes: h("div"), kinds: h("div", { class: "bar", role: "group", "aria-label": "Kinds of memory" }),
    hint: h("p", { class: "note", hidden: true }, "Recorded is the innermost line of your own code and its libraries; ",
      h("code", null, "windtunnel run --memory-tracker"), " records whole stacks."),
    found: h("span", { class: "faint", role: "status" }), crumbs: h("div", { class: "bar flame-crumbs" }),
    graph: h("div", { class: "flame", role: "tree", "aria-label": FLAME_LABEL }), groups: h("div"),
  };
  const switches = flameSwitches(state, parts, rebuild, draw);
  box.append(parts.title, parts.notes, switches.bar, parts.kinds, parts.hint, parts.crumbs, parts.graph,
    h("p", { class: "faint" }, "Click or Enter: zoom. Arrows: parent, child, neighbours. Escape: back. 0: everything."), parts.groups);
  flameListen(parts.graph, state, zoomTo);

  async function load() {
    const { rank, at } = page, detail = await rankDetail(page, rank);
    if (rank !== page.rank || at !== page.at) return;  // another choice came in between
    Object.assign(state, { detail, document: page.document(), row: detail ? at ?? detail.peak_row : null });
    if (!detail) state.by = "module";
    switches.mark();
    flameTitle(page, state, parts);
    rebuild();
  }

  function rebuild() {
    const { detail, document, role } = state, isPeak = !detail || state.row === detail.peak_row;
    const all = !document?.peak_bytes ? [] : detail ? flameItems(detail, state.row) : flameShares(document);
    const items = all.filter((item) => item.bytes > 0 && (!role || item.role === role));
    state.total = all.reduce((sum, item) => sum + item.bytes, 0);
    state.root = flameTree(items, state.by === "line" ? flameByLine(detail) : flameByModule(items, state.isFolded));
    state.root.name = state.root.path = role ? roleWord(role) : isPeak ? "alive at the peak" : "alive at this moment";
    state.zoom = state.focus = state.root;
    flameKinds(state, parts, all, rebuild);
    parts.hint.hidden = state.by !== "line" || flameHasStacks(detail);
    draw();
  }

  function zoomTo(node, focus = node) {
    Object.assign(state, { zoom: node, focus });
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
  const button = (by, words) => h("button", { type: "button", onclick: () => { state.by = by; mark(); rebuild(); } }, words);
  const byModule = button("module", "by module"), byLine = button("line", "by source line");
  const check = (words, name, after) => h("label", null, h("input", { type: "checkbox", checked: state[name],
    onchange: (event) => { state[name] = event.target.checked; after(); } }), ` ${words}`);
  const search = h("input", { type: "search", class: "flame-search", placeholder: "find a module, operator, line",
    "aria-label": "find in the flame graph", oninput: (event) => { state.query = event.target.value.trim().toLowerCase(); draw(); } });
  function mark() {
    byModule.setAttribute("aria-pressed", String(state.by === "module"));
    byLine.setAttribute("aria-pressed", String(state.by === "line"));
    byLine.disabled = !state.detail;
  }
  mark();
  return { mark, bar: h("div", { class: "bar" }, byModule, byLine, check("layers together", "isFolded", rebuild),
    check("colour by kind", "isColoured", draw), search, parts.found) };
}

function flameTitle(page, state, parts) {
  const { detail, document, row } = state, who = page.data.run.world_size > 1 ? ` of rank ${page.rank}` : "";
  const isPeak = !detail || row === detail.peak_row, notes = [], note = (words) => notes.push(h("p", { class: "note" }, words));
  parts.title.replaceChildren(isPeak ? `Alive at the peak${who}` : `Alive after event ${count(row)}${who}`);
  if (!isPeak) {
    notes.push(h("p", { class: "faint" }, overviewMoment({ step: stepAt(detail, row), phase: phaseAt(detail, row) }), " ",
      h("button", { type: "button", onclick: () => page.choose({ at: null }) }, "back to the peak")));
  } else if (document?.peak_at) notes.push(h("p", { class: "faint" }, overviewMoment(document.peak_at)));
  if (!document?.peak_bytes) note(rankUnseen(page) ?? "No memory was measured of this rank.");
  else if (!detail) note(`${flameTold(page)}; of this one the modules at its peak are known.`);
  for (const sentence of detail?.left_out ?? []) note(sentence);
  parts.notes.replaceChildren(...notes);
}

function flameTold(page) {
  const n = Object.keys(page.data.details ?? {}).length;
  if (!n) return "This page has no single allocations";
  return `Only ${n === 1 ? "the tightest rank is" : `the ${count(n)} tightest ranks are`} shown with every allocation`;
}

// The legend, and the filter: what is held for one purpose only.
function flameKinds(state, parts, items, rebuild) {
  const sums = {};
  for (const item of items) sums[item.role] = (sums[item.role] ?? 0) + item.bytes;
  const choose = (role) => { state.role = role; rebuild(); parts.kinds.querySelector('[aria-pressed="true"]')?.focus(); };
  const button = (role, words, size) => h("button", { type: "button", "aria-pressed": String(state.role === role), "data-role": role ?? "all",
    onclick: () => choose(role) }, role ? overviewSwatch(role) : null, `${words} ${bytes(size)}`);
  // A kind that is chosen stays, even if nothing of it lives at this moment.
  const kinds = STACKED.filter((role) => sums[role] || role === state.role);
  parts.kinds.replaceChildren(button(null, "all kinds", state.total), ...kinds.map((role) => button(role, roleWord(role), sums[role] ?? 0)));
}

// -- drawing ----------------------------------------------------------------------------------------------------------

function flameDraw(state, parts, zoomTo) {
  const { zoom, query } = state, width = parts.graph.clientWidth || 1000, shown = [], above = [];
  for (let node = zoom.parent; node; node = node.parent) above.unshift(node);
  const isMatch = (node) => query && node.parent && node.name.toLowerCase().includes(query);
  let rows = 0;
  const place = (node, left, share, isAbove) => {
    if (share * width < 1) return;  // thinner than a pixel: its parent still counts it
    rows = Math.max(rows, node.depth + 1);
    shown.push({ node, element: flameElement(state, node, left, share, isAbove, isMatch(node)) });
    let at = left;
    for (const child of isAbove ? [] : node.children) {
      const part = node.bytes ? share * child.bytes / node.bytes : 0;
      place(child, at, part, false);
      at += part;
    }
  };
  for (const node of above) place(node, 0, 1, true);
  place(zoom, 0, 1, false);
  parts.graph.style.height = `${rows * FLAME_ROW}px`;
  parts.graph.replaceChildren(...shown.map((each) => each.element));
  state.shown = shown;
  (shown.find((each) => each.node === state.focus) ?? shown[above.length]).element.tabIndex = 0;
  parts.found.replaceChildren(query ? flameFound(state, isMatch) : "");
  const crumb = (node) => h("button", { type: "button", disabled: node === zoom, onclick: () => zoomTo(node) }, node.name);
  parts.crumbs.replaceChildren(...[...above, zoom].map(crumb), h("strong", { id: "flame-total" }, bytes(zoom.bytes)),
    h("span", { class: "faint" }, ` ${percent(zoom.bytes, state.total)} of ${bytes(state.total)}${flameCount(zoom)}`));
}

function flameElement(state, node, left, share, isAbove, isMatch) {
  const looks = isAbove ? " above" : isMatch ? " match" : state.query && node.parent ? " dim" : "";
  const element = h("div", { class: `flame-node${looks}`, role: "treeitem", tabindex: -1, "aria-level": node.depth + 1,
    "aria-expanded": node.children.length ? String(!isAbove) : null, "aria-label": `${node.name}, ${bytes(node.bytes)}, ${percent(node.bytes, state.total)}`,
    style: { left: `${100 * left}%`, width: `${100 * share}%`, top: `${node.depth * FLAME_ROW}px`, height: `${FLAME_ROW - 1}px` } },
  share > 0.02 ? node.name : "");
  if (state.isColoured) element.style.background = flameColours(node);
  element.flame = node;
  return element;
}

const flameCount = (node) => node.count ? `, ${plural(node.count, "tensor")}` : "";

// As much of each colour as there is of each kind, side by side.
function flameColours(node) {
  let at = 0;
  const stops = STACKED.filter((role) => node.roles[role]).map((role) => {
    const from = at;
    at += 100 * node.roles[role] / node.bytes;
    return `color-mix(in srgb, var(--role-${role}) 55%, var(--paper)) ${from.toFixed(2)}% ${at.toFixed(2)}%`;
  });
  return stops.length ? `linear-gradient(to right, ${stops.join(", ")})` : "";
}

function flameFound(state, isMatch) {
  let size = 0, places = 0;
  // Inside a match everything belongs to it: it is counted once.
  const walk = (node) => { if (isMatch(node)) { size += node.bytes; places += 1; } else node.children.forEach(walk); };
  walk(state.root);
  return places ? `${plural(places, "place")}, ${bytes(size)}, ${percent(size, state.total)}` : "nothing matches";
}

// -- pointer and keys -------------------------------------------------------------------------------------------------

function flameListen(graph, state, zoomTo) {
  const nodeOf = (event) => event.target.closest(".flame-node")?.flame;
  graph.addEventListener("pointermove", (event) => {
    const node = nodeOf(event);
    if (node) tip.show(event, flameWords(node, state)); else tip.hide();
  });
  graph.addEventListener("pointerleave", () => tip.hide());
  graph.addEventListener("focusin", (event) => { if (event.target.flame) flameFocus(event.target, state); });
  graph.addEventListener("focusout", () => tip.hide());
  graph.addEventListener("click", (event) => {
    const node = nodeOf(event);
    if (node) zoomTo(node === state.zoom ? node.parent ?? node : node, node);  // a second click goes back
  });
  graph.addEventListener("keydown", (event) => flameKey(event, state, zoomTo));
}

function flameWords(node, state) {
  const kinds = Object.entries(node.roles).sort((a, b) => b[1] - a[1]).map(([role, size]) => `${roleWord(role)} ${bytes(size)}`);
  const where = [...new Set(node.items.map((item) => item.where).filter(Boolean))];
  return [node.path, `${bytes(node.bytes)}, ${percent(node.bytes, state.total)}${flameCount(node)}`, kinds.join(", "),
    where.length ? `made at ${where.slice(0, 3).join(", ")}${where.length > 3 ? " …" : ""}` : ""];
}

function flameFocus(element, state) {
  state.focus = element.flame;
  for (const each of state.shown) each.element.tabIndex = each.element === element ? 0 : -1;
  if (!element.matches(":focus-visible")) return;  // the pointer has its own box
  const box = element.getBoundingClientRect();
  tip.show({ clientX: Math.max(0, box.left), clientY: box.bottom - 12 }, flameWords(element.flame, state));
}

function flameKey(event, state, zoomTo) {
  const node = event.target.flame;
  if (!node) return;
  const row = state.shown.filter((each) => each.node.depth === node.depth), at = row.findIndex((each) => each.node === node);
  const move = {
    ArrowDown: () => state.shown.find((each) => each.node.parent === node), ArrowUp: () => state.shown.find((each) => each.node === node.parent),
    ArrowLeft: () => row[at - 1], ArrowRight: () => row[at + 1], Home: () => row[0], End: () => row[row.length - 1],
  }[event.key];
  const zoom = { Enter: node, " ": node, Escape: state.zoom.parent ?? state.root, 0: state.root }[event.key];
  if (!move && !zoom) return;
  event.preventDefault();
  if (zoom) zoomTo(zoom); else move()?.element.focus();
}
