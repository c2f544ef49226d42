"use strict";
// The timeline: data -> tracks with positions -> a canvas that draws what is in view. Text of the program only ever
// reaches the page as text.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const byId = (id) => document.getElementById(id);
  const view = byId("view"), canvas = byId("picture"), tip = byId("tip"), details = byId("details");
  const context = canvas.getContext("2d");
  const ROW = 17, GAP = 6, COUNTER = 44, RULER = 22, HEAD = 22, NAMES = 210;
  const MOST_ARROWS = 200;

  // -- data ---------------------------------------------------------------------------------------------------------

  let first = Infinity, last = -Infinity, height = RULER;
  const slices = [];  // by number: [track, index], for arrows
  const tracks = [], counters = [], headings = [];
  for (const rank of data.ranks) {
    headings.push({ name: `rank ${rank}`, y: height, isRank: true });
    height += HEAD;
    for (const source of data.tracks.filter((each) => each.rank === rank)) addTrack(source);
    for (const source of data.counters.filter((each) => each.rank === rank)) addCounter(source);
  }
  if (!(first < last)) { first = Math.min(first, 0); last = first + 1000; }
  const label = data.labels.map(([name, category, args]) => ({
    name, category, args, colour: colourOf(name, category),
    text: `${name}\n${Object.values(args).join("\n")}`.toLowerCase(),
  }));

  function addTrack(source) {
    const n = source.start.length;
    const track = { start: new Float64Array(n), end: new Float64Array(n), label: source.label, merged: source.merged,
                    number: source.first, depth: new Uint8Array(n), rows: [], y: height };
    let time = 0;
    const open = [];
    for (let i = 0; i < n; i++) {
      time += source.start[i];
      track.start[i] = time;
      track.end[i] = time + source.length[i];
      while (open.length && track.end[open[open.length - 1]] <= time) open.pop();
      track.depth[i] = Math.min(open.length, 40);
      (track.rows[track.depth[i]] ??= []).push(i);
      open.push(i);
      slices[source.first + i] = [track, i];
      first = Math.min(first, time);
      last = Math.max(last, track.end[i]);
    }
    tracks.push(track);
    headings.push({ name: source.name, y: height });
    height += Math.max(1, track.rows.length) * ROW + GAP;
  }

  function addCounter(source) {
    const time = [];
    source.time.reduce((sum, step) => (time.push(sum + step), sum + step), 0);
    counters.push({ ...source, time, y: height, top: source.value.reduce((most, each) => Math.max(most, each), 1) });
    headings.push({ name: source.name, y: height });
    height += COUNTER + GAP;
  }

  function colourOf(name, category) {
    if (category === "waiting" || category === "wait") return { hue: 0, part: 0 };
    let hash = 2166136261;
    for (let i = 0; i < name.length; i++) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
    return { hue: (hash >>> 0) % 360, part: 45 };
  }

  // -- what is in view ----------------------------------------------------------------------------------------------

  let left = first, scale = 1, width = 1, tall = 1, isPending = false, isShown = false;  // scale: pixels for each nanosecond
  let selected = null, hovered = null, wanted = null, matches = [], atMatch = -1;
  const x = (ns) => (ns - left) * scale;

  function resize() {
    const before = width / scale;
    width = Math.max(50, view.clientWidth - NAMES);
    tall = view.clientHeight;
    const dots = window.devicePixelRatio || 1;
    canvas.width = width * dots; canvas.height = tall * dots;
    canvas.style.width = `${width}px`; canvas.style.height = `${tall}px`;
    context.setTransform(dots, 0, 0, dots, 0, 0);
    if (isShown) show(left, before); else showAll();
    isShown = true;
  }

  function show(from, length) {
    const whole = last - first;
    length = Math.min(Math.max(length, 10), whole * 1.1);
    scale = width / length;
    left = Math.min(Math.max(from, first - whole * 0.05), last + whole * 0.05 - length);
    draw();
  }
  const showAll = () => show(first - (last - first) * 0.01, (last - first) * 1.02);
  const zoom = (factor, at) => show(left + at / scale * (1 - factor), width / scale * factor);

  function draw() {
    if (isPending) return;
    isPending = true;
    requestAnimationFrame(paint);
  }

  function paint() {
    isPending = false;
    const css = getComputedStyle(document.documentElement);
    const colour = (name) => css.getPropertyValue(name).trim();
    const ink = colour("--ink"), light = colour("--light");
    canvas.style.top = `${view.scrollTop}px`;
    context.fillStyle = colour("--paper");
    context.fillRect(0, 0, width, tall);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.lineWidth = 1;
    for (const heading of headings) if (heading.isRank) band(heading.y - view.scrollTop, HEAD, colour("--band"));
    const ticks = ticksInView();
    for (const time of ticks) { context.fillStyle = colour("--line"); context.fillRect(x(time), 0, 1, tall); }
    for (const track of tracks) paintTrack(track, ink, light);
    for (const counter of counters) paintCounter(counter, ink, colour("--faint"));
    if (selected) paintSelected(colour("--accent"));
    band(0, RULER - 1, colour("--paper"));
    band(RULER - 1, 1, colour("--line"));
    context.fillStyle = colour("--faint");
    for (const time of ticks) context.fillText(duration(time), x(time) + 4, RULER / 2);
    byId("span").textContent = `${duration(width / scale)} in view`;
  }

  function band(y, h, colour) { context.fillStyle = colour; context.fillRect(0, y, width, h); }

  function paintTrack(track, ink, light) {
    track.rows.forEach((row, depth) => {
      const y = track.y + depth * ROW - view.scrollTop;
      if (y > tall || y + ROW < RULER) return;
      let edge = -1;  // what ends before this pixel is there already
      for (let k = firstAfter(row, track.end, left); k < row.length; k++) {
        const i = row[k], from = x(track.start[i]), to = x(track.end[i]);
        if (from > width) break;
        if (to <= edge) continue;
        const mine = label[track.label[i]];
        const begin = Math.max(from, -2), wide = Math.max(1, Math.min(to, width + 2) - begin - (to - from > 3 ? 0.5 : 0));
        context.globalAlpha = wanted && !wanted[track.label[i]] ? 0.18 : 1;
        context.fillStyle = `hsl(${mine.colour.hue} ${mine.colour.part}% ${light})`;
        context.fillRect(begin, y, wide, ROW - 2);
        if (wide > 28) {
          context.fillStyle = ink;
          context.fillText(fit(mine.name, wide - 6), Math.max(begin, 0) + 3, y + ROW / 2 - 0.5);
        }
        edge = Math.ceil(to);
      }
    });
    context.globalAlpha = 1;
  }

  function fit(text, wide) {
    const most = Math.floor(wide / 6.3);
    return text.length <= most ? text : most < 4 ? "" : `${text.slice(0, most - 1)}…`;
  }

  function paintCounter(counter, ink, faint) {
    const y = counter.y - view.scrollTop, floor = y + COUNTER;
    if (y > tall || floor < RULER) return;
    const up = (value) => floor - value / counter.top * (COUNTER - 4);
    context.beginPath();
    context.moveTo(x(counter.time[0]), floor);
    counter.time.forEach((time, i) => {
      if (i) context.lineTo(x(time), up(counter.value[i - 1]));
      context.lineTo(x(time), up(counter.value[i]));
    });
    context.lineTo(x(last), up(counter.value[counter.value.length - 1]));
    context.lineTo(x(last), floor);
    context.globalAlpha = 0.35; context.fillStyle = faint; context.fill(); context.globalAlpha = 1;
    context.fillStyle = ink;
    context.fillText(`most ${bytes(counter.top)}`, 3, y + 8);
  }

  function paintSelected(accent) {
    const { track, i } = selected, number = track.number + i;
    context.strokeStyle = accent; context.lineWidth = 2;
    context.strokeRect(x(track.start[i]), rowOf(track, i), Math.max(2, (track.end[i] - track.start[i]) * scale), ROW - 2);
    context.lineWidth = 1;
    let n = 0;
    for (let k = 0; k < data.arrows.from.length && n < MOST_ARROWS; k++) {
      if (data.arrows.from[k] !== number && data.arrows.to[k] !== number) continue;
      const [a, ai] = slices[data.arrows.from[k]], [b, bi] = slices[data.arrows.to[k]];
      const x1 = x(a.start[ai]), x2 = x(b.start[bi]), y1 = rowOf(a, ai) + ROW / 2, y2 = rowOf(b, bi) + ROW / 2;
      context.beginPath(); context.moveTo(x1, y1);
      context.bezierCurveTo(x1 + 30, y1, x2 - 30, y2, x2, y2); context.stroke();
      context.beginPath(); context.arc(x2, y2, 3, 0, 7); context.fillStyle = accent; context.fill();
      n++;
    }
  }
  const rowOf = (track, i) => track.y + track.depth[i] * ROW - view.scrollTop;

  function ticksInView() {
    const rough = 110 / scale, power = 10 ** Math.floor(Math.log10(rough)), found = [];
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    for (let k = Math.ceil(left / step); x(k * step) < width; k++) found.push(k * step);
    return found;
  }

  function firstAfter(row, end, time) {
    let low = 0, high = row.length;
    while (low < high) { const middle = (low + high) >> 1; if (end[row[middle]] < time) low = middle + 1; else high = middle; }
    return low;
  }

  // -- words --------------------------------------------------------------------------------------------------------

  function duration(ns) {
    const size = Math.abs(ns);
    const [unit, factor] = size >= 1e9 ? ["s", 1e9] : size >= 1e6 ? ["ms", 1e6] : size >= 1e3 ? ["µs", 1e3] : ["ns", 1];
    return `${Number((ns / factor).toPrecision(5))} ${unit}`;
  }

  function bytes(n) {
    const power = n < 1024 ? 0 : Math.min(4, Math.floor(Math.log2(n) / 10));
    return `${Number((n / 1024 ** power).toPrecision(4))} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
  }

  function describe({ track, i }) {
    const { name, args } = label[track.label[i]];
    const lines = [name, `${duration(track.end[i] - track.start[i])} from ${duration(track.start[i])}`];
    if (track.merged[i]) lines.push(`stands for ${track.merged[i]} slices`);
    for (const [key, value] of Object.entries(args)) {
      lines.push(`${key}: ${Array.isArray(value) ? value.join(", ") : value}`);
    }
    return lines.join("\n");
  }

  // -- hands --------------------------------------------------------------------------------------------------------

  function at(event) {
    const box = canvas.getBoundingClientRect();
    const time = left + (event.clientX - box.left) / scale, y = event.clientY - box.top + view.scrollTop;
    if (event.clientY - box.top < RULER || event.clientX < box.left) return null;
    const track = tracks.find((each) => y >= each.y && y < each.y + each.rows.length * ROW);
    const row = track && track.rows[Math.floor((y - track.y) / ROW)];
    if (!row) return null;
    const k = firstAfter(row, track.end, time), near = 2 / scale;  // two pixels beside a slice still mean it
    if (k < row.length && track.start[row[k]] <= time) return { track, i: row[k] };
    if (k > 0 && track.end[row[k - 1]] >= time - near) return { track, i: row[k - 1] };
    return k < row.length && track.start[row[k]] <= time + near ? { track, i: row[k] } : null;
  }

  function hover(event) {
    hovered = at(event);
    tip.hidden = !hovered;
    if (!hovered) return;
    tip.textContent = describe(hovered);
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(4, Math.min(event.clientY + 16, innerHeight - tip.offsetHeight - 8))}px`;
  }

  function select(one) {
    selected = one;
    details.hidden = !one;
    if (one) details.textContent = describe(one);
    resize();
  }

  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, left, top: view.scrollTop, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    drag.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
    if (!drag.moved) return;
    tip.hidden = true;
    view.scrollTop = drag.top - dy;
    show(drag.left - dx / scale, width / scale);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) select(at(event));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.shiftKey) show(left + (event.deltaY + event.deltaX) / scale, width / scale);
    else zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008), event.clientX - canvas.getBoundingClientRect().left);
    hover(event);
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => {
    const one = at(event);
    if (one) reveal(one);
  });
  view.addEventListener("scroll", draw);
  addEventListener("resize", resize);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);

  const KEYS = {
    w: () => zoom(0.7, width / 2), "+": () => zoom(0.7, width / 2), s: () => zoom(1 / 0.7, width / 2),
    "-": () => zoom(1 / 0.7, width / 2), a: () => show(left - width / scale / 5, width / scale),
    ArrowLeft: () => show(left - width / scale / 5, width / scale),
    d: () => show(left + width / scale / 5, width / scale),
    ArrowRight: () => show(left + width / scale / 5, width / scale),
    0: showAll, Home: showAll, "/": () => byId("search").focus(), Escape: () => select(null), Enter: () => next(),
  };
  addEventListener("keydown", (event) => {
    const isTyping = event.target === byId("search");
    if (event.ctrlKey || event.metaKey || event.altKey || (isTyping && event.key !== "Enter" && event.key !== "Escape")) return;
    const act = KEYS[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  byId("search").addEventListener("input", (event) => {
    const text = event.target.value.trim().toLowerCase();
    wanted = text ? label.map((each) => each.text.includes(text)) : null;
    matches = []; atMatch = -1;
    if (wanted) for (const track of tracks) track.label.forEach((l, i) => { if (wanted[l]) matches.push({ track, i }); });
    byId("found").textContent = text ? `${matches.length.toLocaleString("en")} found` : "";
    draw();
  });

  function next() {
    if (!matches.length) return;
    atMatch = (atMatch + 1) % matches.length;
    reveal(matches[atMatch]);
  }

  function reveal(one) {
    select(one);
    tip.hidden = true;
    const { track, i } = one, length = Math.max(track.end[i] - track.start[i], 1);
    const y = track.y + track.depth[i] * ROW;
    if (y < view.scrollTop + RULER || y + ROW > view.scrollTop + tall) view.scrollTop = y - tall / 2;
    show(track.start[i] - 2 * length, 5 * length);
  }

  // -- begin --------------------------------------------------------------------------------------------------------

  for (const { name, y, isRank } of headings) {
    const line = document.createElement("div");
    line.textContent = line.title = name;
    line.style.top = `${y}px`;
    if (isRank) line.className = "rank";
    byId("names").append(line);
  }
  byId("names").style.height = `${height}px`;
  if (data.leftOut.length) {
    byId("left-out").hidden = false;
    byId("left-out").textContent = `Not everything is shown: ${data.leftOut.join("; ")}.`;
  }
  // Where the first slice of a name lies on the screen: for tests, and for whoever scripts this page.
  window.windtunnelTrace = {
    place(name) {
      const box = canvas.getBoundingClientRect();
      for (const track of tracks) for (let i = 0; i < track.start.length; i++) {
        if (label[track.label[i]].name !== name) continue;
        return { x: box.left + x((track.start[i] + track.end[i]) / 2), y: box.top + rowOf(track, i) + ROW / 2 };
      }
      return null;
    },
  };
  resize();
})();
