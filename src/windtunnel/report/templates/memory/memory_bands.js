// The details of a rank: every allocation with its life, decoded once and asked often.
//
// rankDetail(page, rank) -> Promise of the detail (null: the page has none of that rank). A row is one of the rank's
// events; what holds "at a row" holds right after it. The writer is report/page/rank_detail.py.

const rankDetailCache = new Map();

function rankDetail(page, rank) {
  const shown = page.shownBy(rank);
  const packed = page.data.details?.[shown];
  if (!packed) return Promise.resolve(null);
  if (!rankDetailCache.has(shown)) rankDetailCache.set(shown, decodeDetail(packed));
  return rankDetailCache.get(shown);
}

async function decodeDetail(packed) {
  const [allocations, sizes, whats, frames, reserved, rest, ops, phases, steps, maps] = await Promise.all([
    unpackAll(packed.allocations), unpack(packed.sizes), unpackAll(packed.whats), unpackAll(packed.frames),
    unpackAll(packed.reserved), decodeRest(packed.rest), packed.ops ? unpackAll(packed.ops) : null,
    unpackAll(packed.phases), unpackAll(packed.steps), Promise.all(packed.maps.map(decodeMap)),
  ]);
  const n = allocations.born.length, freed = new Uint32Array(n), sized = new Float64Array(n), role = new Uint8Array(n);
  for (let i = 0; i < n; i++) {
    freed[i] = allocations.born[i] + allocations.life[i];
    sized[i] = sizes[allocations.size[i]];
    role[i] = whats.role[allocations.what[i]];
  }
  const { born, what } = allocations;
  return { ...packed, allocations: { born, freed, bytes: sized, what, role }, whats, frames, reserved, rest, ops, phases, steps, maps };
}

async function decodeRest(rest) {
  return rest && { row: await unpack(rest.row), bytes: await Promise.all(rest.bytes.map(unpack)) };
}

async function decodeMap(map) {
  const [segments, blocks] = await Promise.all([unpackAll(map.segments), unpackAll(map.blocks)]);
  return { ...map, segments, blocks };
}

// Allocations that live right after this row, in the order of their birth.
function liveAt(detail, row) {
  const { born, freed } = detail.allocations, end = firstAbove(born, row);
  let n = 0;
  for (let i = 0; i < end; i++) if (freed[i] > row) n++;
  const live = new Int32Array(n);
  for (let i = 0, at = 0; i < end; i++) if (freed[i] > row) live[at++] = i;
  return live;
}

// Bytes no allocation tells at this row, in the order of detail.roles.
function restAt(detail, row) {
  const at = detail.rest ? lastUpTo(detail.rest.row, row) : -1;
  return detail.roles.map((_, role) => at < 0 ? 0 : detail.rest.bytes[role][at]);
}

function describe(detail, allocation) {
  const { born, freed, bytes: sized, what } = detail.allocations, label = what[allocation];
  const text = (column) => detail.strings[detail.whats[column][label]];
  return {
    name: text("name"), op: text("op"), module: text("module"), shape: text("shape"), where: text("where"),
    role: detail.roles[detail.whats.role[label]], stack: stackOf(detail, detail.whats.frame[label]),
    bytes: sized[allocation], born: born[allocation], freed: freed[allocation],
  };
}

// ["file:line function", ...], innermost first.
function stackOf(detail, frame) {
  const { file, line, function: name, parent } = detail.frames, stack = [];
  for (let at = frame; at >= 0 && stack.length < 200; at = parent[at]) {
    stack.push(`${detail.strings[file[at]]}:${line[at]} ${detail.strings[name[at]]}`);
  }
  return stack;
}

const stepAt = (detail, row) => detail.steps.number[Math.max(0, lastUpTo(detail.steps.row, row))];
const phaseAt = (detail, row) => detail.phases.names[detail.phases.phase[Math.max(0, lastUpTo(detail.phases.row, row))]];
