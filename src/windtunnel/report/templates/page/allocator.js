// The allocator's memory at a peak: every segment it took from the device, the blocks in it, and the holes between them.
//
// Segments flow over lines of equal length, as text does; a long one goes on in the next line. So a pixel is as many bytes
// everywhere, and what is lost is as large as it looks.

const ALLOCATOR_LINE = 20, ALLOCATOR_GAP = 5, ALLOCATOR_MARGIN = 4;  // pixels
const ALLOCATOR_STATES = ["in use", "freed, but waiting for another stream", "hole"];

addView({
  id: "allocator", title: "Allocator", isThere: (page) => Object.values(page.data.details ?? {}).some((detail) => detail.maps.length > 0),
  mount: (box, page) => openAllocator(box, page),
});

async function openAllocator(box, page) {
  const state = { detail: null, map: null, which: 0, order: "address", zoom: 1, lines: [], chosen: null, perLine: 1 };
  const parts = { title: h("h2"), notes: h("div"), maps: h("div", { class: "bar", role: "group", "aria-label": "Moment" }), sum: h("div"), legend: h("div", { class: "bar" }),
    scroll: h("div", { class: "allocator-scroll" }), sheet: h("div"), canvas: h("canvas", { tabindex: 0, role: "img", "aria-label": "Map of the allocator's segments: left and right move through blocks, up and down through segments" }),
    said: h("p", { class: "allocator-said", role: "status" }) };
  const select = (words, options, change) => h("label", null, `${words} `, h("select", { onchange: (event) => { change(event.target.value); layout(); } }, options.map(([value, text]) => h("option", { value }, text))));
  const tools = h("div", { class: "bar" },
    select("order", [["address", "by address"], ["unused", "most unused first"], ["size", "largest first"]], (value) => { state.order = value; }),
    select("scale", [[1, "everything"], [4, "4 times"], [16, "16 times"], [64, "64 times"], [256, "256 times"]], (value) => { state.zoom = Number(value); }));
  parts.scroll.append(parts.sheet, parts.canvas);
  box.append(parts.title, parts.notes, parts.maps, parts.sum, tools, parts.legend, parts.scroll, parts.said);
  parts.scroll.addEventListener("scroll", () => draw());
  parts.canvas.addEventListener("pointermove", (event) => { const block = allocatorAt(state, parts, event); if (block >= 0) tip.show(event, allocatorWords(state, block)); else tip.hide(); });
  parts.canvas.addEventListener("pointerleave", () => tip.hide());
  parts.canvas.addEventListener("click", (event) => { const block = allocatorAt(state, parts, event); if (block >= 0) choose(block); });
  parts.canvas.addEventListener("keydown", (event) => {
    const to = allocatorStep(state, event.key);
    if (to === null) return;
    event.preventDefault();
    choose(to);
  });

  async function load() {
    const rank = page.rank, detail = await rankDetail(page, rank);
    if (rank !== page.rank) return;
    const who = page.data.run.world_size > 1 ? ` of rank ${rank}` : "";
    state.detail = detail;
    const isThere = Boolean(detail?.maps.length);
    parts.title.replaceChildren(`The allocator${who}`);
    parts.notes.replaceChildren(isThere ? "" : h("p", { class: "note" }, `${flameTold(page)}: of rank ${rank} there is no map.`));
    for (const part of [parts.maps, parts.sum, parts.legend, parts.scroll, tools, parts.said]) part.hidden = !isThere;
    if (!isThere) return;
    pick(Math.min(state.which, detail.maps.length - 1));
  }

  function pick(which) {
    state.which = which;
    state.map = state.detail.maps[which];
    state.chosen = null;
    parts.maps.replaceChildren(...state.detail.maps.map((map, i) => h("button", { type: "button", "aria-pressed": String(i === which), onclick: () => { pick(i); parts.maps.children[i].focus(); } }, `at the ${map.title}`)));
    allocatorPrepare(state);
    allocatorSummary(state, parts);
    parts.said.replaceChildren("Point at a block to see whose it is.");
    layout();
  }

  function layout() { allocatorLayout(state, parts); draw(); }
  function draw() { if (state.map) allocatorDraw(state, parts); }
  function choose(block) {
    state.chosen = block;
    const line = state.lines.findIndex((pieces) => pieces.some((piece) => piece.blocks.includes(block)));
    const top = line * (ALLOCATOR_LINE + ALLOCATOR_GAP), view = parts.scroll;
    if (top < view.scrollTop || top + ALLOCATOR_LINE > view.scrollTop + view.clientHeight) view.scrollTop = top - view.clientHeight / 3;
    const [title, ...more] = allocatorWords(state, block);
    parts.said.replaceChildren(h("strong", null, title), ...more.filter(Boolean).map((line) => h("span", null, `; ${line}`)));
    draw();
  }

  await load();
  return { update: load, resize: () => { if (state.map) layout(); } };
}

// The blocks of every segment, in the order of their addresses.
function allocatorPrepare(state) {
  const { segments, blocks } = state.map;
  state.of = Array.from(segments.bytes, () => []);
  for (let block = 0; block < blocks.segment.length; block++) state.of[blocks.segment[block]].push(block);
  state.unused = state.of.map((mine) => mine.reduce((sum, block) => sum + (blocks.state[block] ? blocks.bytes[block] : 0), 0));
}

function allocatorSummary(state, parts) {
  const { segments, blocks, allocated_bytes: allocated, reserved_bytes: reserved } = state.map;
  let largest = 0, holes = 0, pending = 0;
  for (let block = 0; block < blocks.bytes.length; block++) {
    if (blocks.state[block] === 2) { holes += 1; largest = Math.max(largest, blocks.bytes[block]); }
    else if (blocks.state[block] === 1) pending += blocks.bytes[block];
  }
  const lost = reserved - allocated, taken = segments.bytes.reduce((sum, size) => sum + size, 0);
  // MindSpore takes whole blocks from the device, and counts of each what it ever handed out.
  const untouched = taken > reserved ? ` The segments are ${bytes(taken)} long; what was never handed out of them is not counted, though it is hatched as holes are.` : "";
  const where = untouched ? "between them" : `${plural(holes, "hole")}, the largest ${bytes(largest)}`;
  parts.sum.replaceChildren(h("p", null, h("strong", { id: "allocator-allocated" }, bytes(allocated)), " of ", h("strong", { id: "allocator-reserved" }, bytes(reserved)), ` reserved in ${plural(segments.bytes.length, "segment")} is in use. `,
    ...lost > 0 ? [h("strong", { id: "allocator-lost" }, bytes(lost)), ` (${percent(lost, reserved)}) is not: ${where}`, pending ? `; ${bytes(pending)} waits for another stream` : "", "."] : ["Nothing is lost."], untouched));
  const roles = new Set();
  for (let block = 0; block < blocks.bytes.length; block++) if (blocks.state[block] !== 2) roles.add(allocatorRole(state, block));
  const swatch = (style, words) => h("span", null, h("span", { class: `swatch ${style}`, style: style ? null : { background: `var(--role-${words})` } }), style ? words : roleWord(words));
  parts.legend.replaceChildren(...STACKED.filter((role) => roles.has(role)).map((role) => swatch("", role)),
    roles.has(null) ? swatch("allocator-other", "in use, by no tensor of the recording") : "", swatch("allocator-hole", "hole"), pending ? swatch("allocator-pending", "waits for another stream") : "");
}

function allocatorRole(state, block) {
  const allocation = state.map.blocks.allocation[block];
  return allocation < 0 ? null : state.detail.roles[state.detail.whats.role[state.detail.allocations.what[allocation]]];
}

// Which part of which segment stands on which line.
function allocatorLayout(state, parts) {
  const { segments } = state.map, width = Math.max(100, parts.scroll.clientWidth - 2 * ALLOCATOR_MARGIN), order = [...segments.bytes.keys()];
  const by = { address: (a, b) => segments.address[a] - segments.address[b], unused: (a, b) => state.unused[b] - state.unused[a], size: (a, b) => segments.bytes[b] - segments.bytes[a] }[state.order];
  order.sort((a, b) => by(a, b) || a - b);
  const total = segments.bytes.reduce((sum, size) => sum + size, 0);
  // Not quite twenty lines hold everything; a gap of two pixels parts one segment from the next.
  state.perLine = Math.max(1, total / 16 / state.zoom);
  const gap = 2 * state.perLine / width, lines = [[]];
  let used = 0;
  for (const segment of order) {
    const size = segments.bytes[segment];
    if (used && used + size > state.perLine) { lines.push([]); used = 0; }
    for (let from = 0; from < size; from += state.perLine) {
      if (from) { lines.push([]); used = 0; }
      const to = Math.min(size, from + state.perLine);
      lines[lines.length - 1].push({ segment, from, to, left: used, blocks: allocatorBetween(state, segment, from, to) });
      used += to - from + gap;
    }
  }
  state.lines = lines;
  state.width = width;
  parts.scroll.style.height = `${Math.min(lines.length * (ALLOCATOR_LINE + ALLOCATOR_GAP) + 8, Math.max(260, innerHeight * 0.66))}px`;
  parts.sheet.style.height = `${lines.length * (ALLOCATOR_LINE + ALLOCATOR_GAP) + 4}px`;
}

function allocatorBetween(state, segment, from, to) {
  const { blocks } = state.map;
  return state.of[segment].filter((block) => blocks.offset[block] < to && blocks.offset[block] + blocks.bytes[block] > from);
}

// Only the lines in sight are drawn, on one canvas that stays where it is while the sheet behind it scrolls.
function allocatorDraw(state, parts) {
  const height = parts.scroll.clientHeight, step = ALLOCATOR_LINE + ALLOCATOR_GAP, top = parts.scroll.scrollTop;
  const context = fitCanvas(parts.canvas, parts.scroll.clientWidth, height);
  const ink = { hole: cssColour("hole"), line: cssColour("faint"), other: cssColour("faint"), ink: cssColour("ink"), roles: Object.fromEntries(ROLES.map((role) => [role, roleColour(role)])) };
  const hatch = allocatorHatch(context, ink.line), x = (piece, at) => ALLOCATOR_MARGIN + (piece.left + at - piece.from) * state.width / state.perLine;
  for (let line = Math.max(0, Math.floor(top / step)); line < state.lines.length && line * step - top < height; line++) {
    const y = 3 + line * step - top;
    for (const piece of state.lines[line]) {
      const { blocks } = state.map, left = x(piece, piece.from), right = Math.max(left + 1, x(piece, piece.to));
      context.fillStyle = ink.hole;
      context.fillRect(left, y, right - left, ALLOCATOR_LINE);
      for (const block of piece.blocks) {
        const from = Math.max(piece.from, blocks.offset[block]), to = Math.min(piece.to, blocks.offset[block] + blocks.bytes[block]);
        const a = x(piece, from), w = Math.max(0.5, x(piece, to) - a), role = blocks.state[block] === 2 ? null : allocatorRole(state, block);
        if (blocks.state[block] !== 2) { context.fillStyle = role ? ink.roles[role] : ink.other; context.fillRect(a, y, w > 3 ? w - 0.6 : w, ALLOCATOR_LINE); }
        if (blocks.state[block]) { context.fillStyle = hatch; context.fillRect(a, y, w, ALLOCATOR_LINE); }
        if (block === state.chosen) { context.strokeStyle = ink.ink; context.lineWidth = 3; context.strokeRect(a, y - 1, Math.max(2, w), ALLOCATOR_LINE + 2); }
      }
      context.strokeStyle = ink.line;
      context.lineWidth = 1;
      if (right - left > 3) context.strokeRect(left + 0.5, y + 0.5, right - left - 1, ALLOCATOR_LINE - 1);
    }
  }
}

function allocatorHatch(context, colour) {
  const tile = document.createElement("canvas"), size = tile.width = tile.height = 6, pen = tile.getContext("2d");
  pen.strokeStyle = colour;
  for (const shift of [-size, 0, size]) { pen.moveTo(shift, size); pen.lineTo(shift + size, 0); }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

function allocatorAt(state, parts, event) {
  const box = parts.canvas.getBoundingClientRect(), step = ALLOCATOR_LINE + ALLOCATOR_GAP;
  const line = state.lines[Math.floor((event.clientY - box.top + parts.scroll.scrollTop - 3) / step)];
  const at = (event.clientX - box.left - ALLOCATOR_MARGIN) * state.perLine / state.width;
  const piece = line?.find((each) => at >= each.left && at <= each.left + each.to - each.from);
  if (!piece) return -1;
  const offset = piece.from + at - piece.left, { blocks } = state.map;
  return piece.blocks.find((block) => blocks.offset[block] <= offset && offset <= blocks.offset[block] + blocks.bytes[block]) ?? -1;
}

function allocatorStep(state, key) {
  const order = [...new Set(state.lines.flatMap((line) => line.map((piece) => piece.segment)))];
  if (!order.length || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(key)) return null;
  const segment = state.chosen === null ? order[0] : state.map.blocks.segment[state.chosen], mine = state.of[segment], at = mine.indexOf(state.chosen), rank = order.indexOf(segment);
  if (state.chosen === null || key === "Home") return state.of[order[0]][0] ?? null;
  if (key === "End") return state.of[order[order.length - 1]].at(-1) ?? null;
  const next = key === "ArrowRight" && at < mine.length - 1 ? mine[at + 1] : key === "ArrowLeft" && at > 0 ? mine[at - 1] : null;
  if (next !== null) return next;
  const other = state.of[order[rank + (key === "ArrowRight" || key === "ArrowDown" ? 1 : -1)]];
  return other?.length ? (key === "ArrowLeft" ? other.at(-1) : other[0]) : state.chosen;
}

function allocatorWords(state, block) {
  const { segments, blocks, base } = state.map, segment = blocks.segment[block], allocation = blocks.allocation[block];
  const address = (offset) => `0x${(BigInt(base) + BigInt(offset)).toString(16)}`;
  const pool = state.detail.strings[segments.pool[segment]];
  const place = `block at ${address(segments.address[segment] + blocks.offset[block])}; segment of ${bytes(segments.bytes[segment])} at ${address(segments.address[segment])}${pool ? `, ${pool} pool` : ""}${segments.stream[segment] ? `, stream ${segments.stream[segment]}` : ""}${segments.expandable[segment] ? ", expandable" : ""}, ${bytes(state.unused[segment])} of it unused`;
  if (blocks.state[block] === 2) return [`hole of ${bytes(blocks.bytes[block])}`, place];
  if (allocation < 0) return [`${bytes(blocks.bytes[block])} ${ALLOCATOR_STATES[blocks.state[block]]}`, "by no tensor of the recording", place];
  const owner = describe(state.detail, allocation);
  return [owner.name || [owner.op, owner.module].filter(Boolean).join(" in ") || roleWord(owner.role), `${bytes(blocks.bytes[block])}, ${roleWord(owner.role)}${blocks.state[block] ? `, ${ALLOCATOR_STATES[1]}` : ""}`,
    [owner.shape, owner.where && `made at ${owner.where}`].filter(Boolean).join(", "), place];
}
