// Columns of numbers: base64 of a deflated stream of bytes -> typed arrays. The writer is report/page/columns.py.

const COLUMN_TYPES = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f8: Float64Array };

async function unpack(column) {
  const Type = COLUMN_TYPES[column.type], n = column.n, size = Type.BYTES_PER_ELEMENT;
  if (!n) return new Type(0);
  const planes = await inflate(column.data);
  const raw = new Uint8Array(n * size);
  // The first bytes of all numbers come first, then the second ones: so they are packed tighter.
  for (let plane = 0; plane < size; plane++) {
    for (let i = 0, from = plane * n, to = plane; i < n; i++, to += size) raw[to] = planes[from + i];
  }
  const values = new Type(raw.buffer);
  if (column.delta) for (let i = 1; i < n; i++) values[i] += values[i - 1];
  return values;
}

// Every column of an object of columns; other values stay as they are.
async function unpackAll(columns) {
  const entries = Object.entries(columns).map(async ([name, value]) => [
    name, value && value.data !== undefined && value.type ? await unpack(value) : value,
  ]);
  return Object.fromEntries(await Promise.all(entries));
}

async function inflate(text) {
  if (typeof DecompressionStream === "undefined") throw new Error("this page needs a browser of 2023 or later");
  const letters = atob(text), packed = new Uint8Array(letters.length);
  for (let i = 0; i < packed.length; i++) packed[i] = letters.charCodeAt(i);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

// The first index whose value is greater than `value`, in a sorted array.
function firstAbove(sorted, value) {
  let low = 0, high = sorted.length;
  while (low < high) { const middle = (low + high) >> 1; if (sorted[middle] <= value) low = middle + 1; else high = middle; }
  return low;
}
// The last index whose value is at most `value`; -1 if there is none.
const lastUpTo = (sorted, value) => firstAbove(sorted, value) - 1;
