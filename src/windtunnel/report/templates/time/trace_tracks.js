// A trace as rows of a picture: document -> tracks of slices at heights, counters, headings. Times are nanoseconds.
//
// A document holds columns, plain or packed; times of a track are differences, so that they are short.

const TRACE_ROW = 17, TRACE_GAP = 6, TRACE_COUNTER = 44, TRACE_RULER = 22, TRACE_HEAD = 22;
const TRACE_DEEPEST = 40;
const TRACE_PHASES = { build: 270, forward: 205, backward: 28, optimizer: 140 };  // hues; those of other names are of their letters

async function traceUnpacked(document) {
  const each = (list) => Promise.all(list.map(unpackAll));
  const [tracks, counters, arrows] = await Promise.all(
    [each(document.tracks), each(document.counters), unpackAll(document.arrows)]);
  return { ...document, tracks, counters, arrows };
}

// Absolute times and depths; done once, whatever is shown of it.
function traceTracks(document) {
  const slices = [];  // by number: [track, index], for arrows
  const tracks = document.tracks.map((source) => {
    const n = source.start.length;
    const track = { rank: source.rank, name: source.name, kind: source.kind, start: new Float64Array(n), end: new Float64Array(n),
      label: source.label, merged: source.merged, number: source.first, depth: new Uint8Array(n), rows: [], y: 0, isShown: true };
    const open = [];
    let time = 0;
    for (let i = 0; i < n; i++) {
      time += source.start[i];
      track.start[i] = time;
      track.end[i] = time + source.length[i];
      while (open.length && track.end[open[open.length - 1]] <= time) open.pop();
      track.depth[i] = Math.min(open.length, TRACE_DEEPEST);
      (track.rows[track.depth[i]] ??= []).push(i);
      open.push(i);
      slices[source.first + i] = [track, i];
    }
    return track;
  });
  const counters = document.counters.map((source) => {
    const time = new Float64Array(source.time.length);
    let sum = 0, top = 1;
    for (let i = 0; i < time.length; i++) { sum += source.time[i]; time[i] = sum; top = Math.max(top, source.value[i]); }
    return { rank: source.rank, name: source.name, value: source.value, time, top, y: 0, isShown: true };
  });
  return { tracks, counters, slices, labels: document.labels.map(traceLabel) };
}

function traceSpan(tracks) {
  let first = Infinity, last = -Infinity;
  for (const track of tracks) for (let i = 0; i < track.start.length; i++) {
    first = Math.min(first, track.start[i]);
    last = Math.max(last, track.end[i]);
  }
  if (!(first < last)) { first = Math.min(first, 0); last = first + 1000; }
  return { first, last };
}

function traceLabel([name, category, args]) {
  const isWaiting = category === "waiting" || category === "wait";
  let hash = 2166136261;
  for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  return { name, category, args, isWaiting, hue: (category === "phase" ? TRACE_PHASES[name] : null) ?? (hash >>> 0) % 360, text: `${name}\n${Object.values(args).join("\n")}`.toLowerCase() };
}

// Heights of what is shown, and the words beside it. `kinds`: a set of kinds of tracks, or null for all.
function traceLayout(found, ranks, kinds, rankName) {
  const headings = [];
  let y = TRACE_RULER;
  for (const rank of ranks) {
    headings.push({ name: rankName(rank), y, isRank: true });
    y += TRACE_HEAD;
    for (const track of found.tracks) {
      if (track.rank !== rank) continue;
      track.isShown = !kinds || kinds.has(track.kind);
      if (!track.isShown) continue;
      track.y = y;
      headings.push({ name: track.name, y });
      y += Math.max(1, track.rows.length) * TRACE_ROW + TRACE_GAP;
    }
    for (const counter of found.counters) {
      if (counter.rank !== rank) continue;
      counter.isShown = !kinds || kinds.has("counter");
      if (!counter.isShown) continue;
      counter.y = y;
      headings.push({ name: counter.name, y });
      y += TRACE_COUNTER + TRACE_GAP;
    }
  }
  return { headings, height: y };
}

// The first of a row's slices that ends at `time` or later.
function traceFirstAfter(row, end, time) {
  let low = 0, high = row.length;
  while (low < high) { const middle = (low + high) >> 1; if (end[row[middle]] < time) low = middle + 1; else high = middle; }
  return low;
}

function traceDuration(ns) {
  const size = Math.abs(ns);
  const [unit, factor] = size >= 1e9 ? ["s", 1e9] : size >= 1e6 ? ["ms", 1e6] : size >= 1e3 ? ["µs", 1e3] : ["ns", 1];
  return `${Number((ns / factor).toPrecision(5))} ${unit}`;
}

// The description of a slice; the first line is its name.
function traceWords({ track, i }, labels, from) {
  const { name, args } = labels[track.label[i]];
  const lines = [name, `${traceDuration(track.end[i] - track.start[i])} from ${traceDuration(track.start[i] - from)}`];
  if (track.merged[i]) lines.push(`merged from ${track.merged[i]} slices`);
  for (const [key, value] of Object.entries(args)) lines.push(`${key}: ${Array.isArray(value) ? value.join(", ") : value}`);
  return lines;
}

function traceFitted(text, wide) {
  const most = Math.floor(wide / 6.3);
  return text.length <= most ? text : most < 4 ? "" : `${text.slice(0, most - 1)}…`;
}

// Idle time: shown by stripes, not by colour alone.
function traceStripes(context, ground, line) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = ground; pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = line; pen.lineWidth = 2;
  for (const shift of [-8, 0, 8]) { pen.beginPath(); pen.moveTo(shift, 8); pen.lineTo(shift + 8, 0); pen.stroke(); }
  return context.createPattern(tile, "repeat");
}
