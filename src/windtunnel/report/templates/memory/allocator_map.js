// Layout of segments on lines, drawing, and finding what is under the pointer. allocator.js shows it.
//
// Segments flow over lines of equal length, as text does; a long one goes on in the next line. So a pixel is as many bytes
// everywhere, and what is lost is as large as it looks.

const ALLOCATOR_LINE = 20, ALLOCATOR_GAP = 5, ALLOCATOR_MARGIN = 4;  // pixels
const ALLOCATOR_STEP = ALLOCATOR_LINE + ALLOCATOR_GAP;
const ALLOCATOR_LINES = 16;  // about as many hold everything
const ALLOCATOR_HOLE = 2, ALLOCATOR_PENDING = 1;  // states of a block; 0: in use

// The blocks of every segment in the order of their addresses, and how much of it is unused.
function allocatorPrepare(state) {
  const { segments, blocks } = state.map;
  state.of = Array.from(segments.bytes, () => []);
  for (let block = 0; block < blocks.segment.length; block++) state.of[blocks.segment[block]].push(block);
  state.unused = state.of.map((mine) => mine.reduce((sum, block) => sum + (blocks.state[block] ? blocks.bytes[block] : 0), 0));
}

function allocatorRole(state, block) {
  const allocation = state.map.blocks.allocation[block];
  return allocation < 0 ? null : state.detail.roles[state.detail.whats.role[state.detail.allocations.what[allocation]]];
}

const ALLOCATOR_ORDERS = {
  address: ({ map: { segments } }) => (a, b) => segments.address[a] - segments.address[b],
  unused: ({ unused }) => (a, b) => unused[b] - unused[a],
  size: ({ map: { segments } }) => (a, b) => segments.bytes[b] - segments.bytes[a],
};

// Which part of which segment is on which line: pieces {segment, from, to, left, blocks}, all in bytes.
function allocatorLayout(state, width) {
  const { segments } = state.map, by = ALLOCATOR_ORDERS[state.order](state);
  const order = [...segments.bytes.keys()].sort((a, b) => by(a, b) || a - b);
  const total = segments.bytes.reduce((sum, size) => sum + size, 0);
  state.width = Math.max(100, width - 2 * ALLOCATOR_MARGIN);
  state.perLine = Math.max(1, total / ALLOCATOR_LINES / state.zoom);
  const gap = 2 * state.perLine / state.width, lines = [[]];
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
  state.ordered = order;
  state.lines = lines;
}

function allocatorBetween(state, segment, from, to) {
  const { offset, bytes: sized } = state.map.blocks;
  return state.of[segment].filter((block) => offset[block] < to && offset[block] + sized[block] > from);
}

// Only the lines in sight are drawn, on one canvas that stays where it is while the sheet behind it scrolls.
function allocatorDraw(state, canvas, scroll) {
  const height = scroll.clientHeight, top = scroll.scrollTop, context = fitCanvas(canvas, scroll.clientWidth, height);
  const pens = { hole: cssColour("hole"), line: cssColour("faint"), ink: cssColour("ink"), hatch: allocatorHatch(context, cssColour("faint")),
    roles: Object.fromEntries(ROLES.map((role) => [role, roleColour(role)])) };
  for (let line = Math.max(0, Math.floor(top / ALLOCATOR_STEP)); line < state.lines.length && line * ALLOCATOR_STEP - top < height; line++) {
    for (const piece of state.lines[line]) allocatorPiece(state, context, pens, piece, 3 + line * ALLOCATOR_STEP - top);
  }
}

function allocatorPiece(state, context, pens, piece, y) {
  const { blocks } = state.map, x = (at) => ALLOCATOR_MARGIN + (piece.left + at - piece.from) * state.width / state.perLine;
  const left = x(piece.from), width = Math.max(1, x(piece.to) - left);
  const fill = (style, at, wide) => { context.fillStyle = style; context.fillRect(at, y, wide, ALLOCATOR_LINE); };
  fill(pens.hole, left, width);
  for (const block of piece.blocks) {
    const at = x(Math.max(piece.from, blocks.offset[block]));
    const wide = Math.max(0.5, x(Math.min(piece.to, blocks.offset[block] + blocks.bytes[block])) - at);
    // A hair between neighbours, where there is room for one.
    if (blocks.state[block] !== ALLOCATOR_HOLE) fill(pens.roles[allocatorRole(state, block)] ?? pens.line, at, wide > 3 ? wide - 0.6 : wide);
    if (blocks.state[block]) fill(pens.hatch, at, wide);
    if (block !== state.chosen) continue;
    context.strokeStyle = pens.ink;
    context.lineWidth = 3;
    context.strokeRect(at, y - 1, Math.max(2, wide), ALLOCATOR_LINE + 2);
  }
  context.strokeStyle = pens.line;
  context.lineWidth = 1;
  if (width > 3) context.strokeRect(left + 0.5, y + 0.5, width - 1, ALLOCATOR_LINE - 1);
}

function allocatorHatch(context, colour) {
  const tile = document.createElement("canvas"), size = tile.width = tile.height = 6, pen = tile.getContext("2d");
  pen.strokeStyle = colour;
  for (const shift of [-size, 0, size]) { pen.moveTo(shift, size); pen.lineTo(shift + size, 0); }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

// The block at a place on the canvas; -1: none.
function allocatorAt(state, x, y) {
  const at = (x - ALLOCATOR_MARGIN) * state.perLine / state.width, { offset, bytes: sized } = state.map.blocks;
  const piece = state.lines[Math.floor((y - 3) / ALLOCATOR_STEP)]?.find((each) => at >= each.left && at <= each.left + each.to - each.from);
  if (!piece) return -1;
  const inside = piece.from + at - piece.left;
  return piece.blocks.find((block) => offset[block] <= inside && inside <= offset[block] + sized[block]) ?? -1;
}

// The block an arrow key leads to: along a segment and on into the next; null for other keys.
function allocatorStep(state, key) {
  const { ordered: order, of, chosen } = state;
  if (!order.length || !["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End"].includes(key)) return null;
  if (chosen === null || key === "Home") return of[order[0]][0] ?? null;
  if (key === "End") return of[order.at(-1)].at(-1) ?? null;
  const segment = state.map.blocks.segment[chosen], mine = of[segment], at = mine.indexOf(chosen);
  if (key === "ArrowRight" && at + 1 < mine.length) return mine[at + 1];
  if (key === "ArrowLeft" && at > 0) return mine[at - 1];
  const isForward = key === "ArrowRight" || key === "ArrowDown", other = of[order[order.indexOf(segment) + (isForward ? 1 : -1)]];
  if (!other?.length) return chosen;
  return key === "ArrowLeft" ? other.at(-1) : other[0];
}
