// One step of one rank of two dumps: columns made into nodes, calls and values that know each other.

const PRECISION_STATES = ["equal", "rounding", "different", "on one side", "no numbers"];
const PRECISION_SIGNS = ["=", "≈", "✗", "◐", "·"];
const PRECISION_ROLES = ["input", "parameter", "output"];
const PRECISION_FIGURES = ["max", "min", "mean", "norm", "NaN", "infinite", "zeros"];
const PRECISION_FLAGS = ["shapes differ", "types differ", "NaN or infinity on one side", "checksums differ", "nothing but rounding"];
const [PRECISION_EQUAL, PRECISION_ROUNDING, PRECISION_DIFFERENT, PRECISION_ONE, PRECISION_NONE] = [0, 1, 2, 3, 4];

async function precisionTexts(column) {
  const raw = await unpack(column);
  return raw.length ? new TextDecoder().decode(raw).split("\0") : [];
}

const PRECISION_PARTS = new WeakMap();
// Decoded once, when it is first looked at.
function precisionPart(part) {
  if (!PRECISION_PARTS.has(part)) PRECISION_PARTS.set(part, precisionDecode(part));
  return PRECISION_PARTS.get(part);
}

async function precisionDecode(part) {
  const [nodes, calls, values] = await Promise.all([unpackAll(part.nodes), unpackAll(part.calls), unpackAll(part.values)]);
  const [nodeNames, classes, callNames, texts] = await Promise.all([part.nodes.names, part.nodes.classes, part.calls.names, part.values.texts].map(precisionTexts));
  const [a, b] = await Promise.all([part.values.a, part.values.b].map((columns) => Promise.all(columns.map(unpack))));
  const elements = await unpackAll(part.values.elements);
  const n = nodeNames.length || nodes.parent.length, children = Array.from({ length: n }, () => []), roots = [];
  for (let i = 0; i < n; i++) (nodes.parent[i] >= 0 ? children[nodes.parent[i]] : roots).push(i);
  const callsOf = new Map();
  for (let i = 0; i < calls.place.length; i++) {
    if (!callsOf.has(calls.node[i])) callsOf.set(calls.node[i], []);
    callsOf.get(calls.node[i]).push(i);
  }
  return { part, nodes: { ...nodes, names: nodeNames, classes }, calls: { ...calls, names: callNames }, values: { ...values, a, b, texts, elements }, children, roots, callsOf };
}

// The index of the first divergence among the calls of a page; -1 if there is none.
function precisionFirst(found) {
  const { first } = found.part, at = first < 0 ? -1 : lastUpTo(found.calls.place, first);
  return at >= 0 && found.calls.place[at] === first ? at : -1;
}

// The rows of values of a call: [from, to).
function precisionRows(found, call) {
  const column = found.values.call;
  return [firstAbove(column, call - 0.5), firstAbove(column, call)];
}

function precisionState(found, node) {
  const { nodes } = found;
  if (nodes.different[node]) return PRECISION_DIFFERENT;
  if (nodes.one_sided[node]) return PRECISION_ONE;
  if (nodes.rounding[node]) return PRECISION_ROUNDING;
  return nodes.equal[node] ? PRECISION_EQUAL : PRECISION_NONE;
}

// "begins", "inherits" or "" for a node; a difference that begins below it begins in it.
function precisionOrigin(found, node) {
  if (found.nodes.begins[node]) return "begins";
  return found.nodes.different[node] ? "inherits" : "";
}

function precisionPath(found, node) {
  const names = [];
  for (let at = node; at >= 0; at = found.nodes.parent[at]) names.unshift(found.nodes.names[at]);
  return names.join(".");
}

const precisionError = (error) => Number.isNaN(error) ? "" : error === Infinity ? "infinite" : error === 0 ? "0" : error.toExponential(1);

function precisionNumber(value) {
  if (Number.isNaN(value)) return "NaN";
  if (!Number.isFinite(value)) return value > 0 ? "inf" : "-inf";
  return String(Number(value.toPrecision(7)));
}

// The numbers of a value on one side; null where the dump has none.
function precisionFigures(found, row, side) {
  const { values } = found, has = side === "a" ? values.a_has[row] : values.b_has[row];
  const columns = side === "a" || values.same[row] ? values.a : values.b;
  return PRECISION_FIGURES.map((_, i) => i < 4 ? (has & (1 << i) ? columns[i][row] : null) : columns[i][row]);
}

// A single number, a text, or null: it is a tensor with figures.
function precisionScalar(found, row, side) {
  const { values } = found, has = side === "a" ? values.a_has[row] : values.b_has[row];
  const text = values.texts[side === "a" ? values.a_text[row] : values.b_text[row]];
  if (has & 16) return precisionNumber((side === "a" || values.same[row] ? values.a : values.b)[0][row]);
  return text || null;
}

function precisionFlags(found, row) {
  return PRECISION_FLAGS.filter((_, bit) => found.values.flags[row] & (1 << bit));
}

const precisionPartName = (part) => [part.area || null, part.step === null ? null : `step ${part.step}`, part.rank === null ? null : `rank ${part.rank}`].filter(Boolean).join(", ") || "the whole dump";
