// Memory of one rank over time: every allocation as a band, stacked by kind, from the whole run to a single operator.

addView({
  id: "memory",
  title: "Memory",
  isThere: (page) => Object.values(page.data.simulated ?? {}).some((rank) => rank.timeline),
  mount: (box, page) => mountMemory(box, page),
});

const MEMORY_LEAST_ROWS = 4;  // the closest view
const MEMORY_MOST_BANDS = 3000;  // drawn one by one
const MEMORY_LEAST_TALL = 2;  // pixels of such a band

async function mountMemory(box, page) {
  const parts = {
    head: h("div", { class: "memory-head" }), buttons: h("div", { class: "bar" }), legend: h("div", { class: "bar memory-legend", role: "group", "aria-label": "kinds of memory" }),
    chart: h("div", { class: "memory-chart", tabindex: 0, role: "group",
      "aria-label": "Memory over time. Left and right move, plus and minus zoom, up and down stretch the height, 0 shows the whole run; with shift, left and right move the chosen moment." }),
    strip: h("canvas", { class: "memory-strip", "aria-label": "steps, phases and operators in view" }),
    overview: h("canvas", { class: "memory-overview", "aria-label": "the whole run, with the part in view" }),
    panel: h("div", { class: "memory-panel" }),
  };
  box.append(parts.head, parts.buttons, parts.legend, parts.chart, parts.strip, parts.overview, parts.panel);
  let chart = null, shown = null;
  async function load() {
    const rank = page.rank, found = await rankDetail(page, rank), timeline = page.document()?.timeline;
    if (rank !== page.rank) return load();  // another was chosen meanwhile
    chart?.destroy();
    shown = rank;
    for (const part of [parts.chart, parts.strip, parts.overview]) part.hidden = !found && !timeline;
    chart = found || timeline ? memoryChart(parts, page, found ?? detailOfTimeline(timeline), Boolean(found)) : null;
    if (!chart) emptyMemory(parts, page);
  }
  await load();
  return {
    update: () => page.rank === shown ? (chart?.resize(), chart?.moment()) : load(),
    resize: () => chart?.resize(),
  };
}

function emptyMemory(parts, page) {
  for (const part of [parts.buttons, parts.legend, parts.panel]) part.replaceChildren();
  parts.head.replaceChildren(h("h2", null, "Memory over time"), h("p", null, rankUnseen(page) ?? `This page has no timeline of rank ${page.rank}; its numbers are in report.json.`));
}

function memoryChart(parts, page, detail, isDetailed) {
  const report = page.document(), changes = memoryChanges(detail);
  const isShown = detail.roles.map(() => true);
  const levels = kindLevels(detail, changes);
  const reserved = { row: detail.reserved.row, level: detail.reserved.bytes };
  const state = { from: 0, to: detail.rows, low: 0, high: 1, heights: null, picture: null, hovered: -1, picked: -1, most: 12, total: null, plot: null, paints: 0 };
  const row = () => Math.min(page.at ?? Math.max(0, detail.peak_row), detail.rows - 1);
  const order = () => STACKED.map((name) => detail.roles.indexOf(name)).filter((role) => role >= 0 && isShown[role]);
  const overlay = h("canvas", { class: "memory-overlay", "aria-hidden": "true" });

  const isWhole = () => isShown.every(Boolean);
  const liveBytes = (at) => levels.reduce((sum, level) => sum + levelAt(level, at), 0);

  function addUp() { state.total = totalLevel(detail, changes, levels, isShown); state.picture = null; }

  // Show rows [from, to); heights: [low, high] in bytes, null for all of it, undefined: as it is.
  function zoom(from, to, heights = state.heights) {
    const span = Math.min(detail.rows, Math.max(MEMORY_LEAST_ROWS, to - from));
    const start = Math.max(0, Math.min((from + to - span) / 2, detail.rows - span));
    state.from = start;
    state.to = start + span;
    // Without some kinds the bands are not what the allocator reserves, and need their own scale.
    const highest = Math.max(highestLevel(state.total, start, state.to), isWhole() ? highestLevel(reserved, start, state.to) : 0, 1);
    const usable = isWhole() && report.usable_memory_bytes;
    const all = 1.07 * (usable && usable < highest * 1.3 ? Math.max(highest, usable) : highest);
    const tall = heights ? Math.max(1024, heights[1] - heights[0]) : all;
    state.low = heights ? Math.max(0, Math.min(heights[0], all - tall)) : 0;
    state.high = Math.min(all, state.low + tall);
    state.heights = state.high - state.low < all ? [state.low, state.high] : null;
    state.picture = null;
    const before = state.paints;
    state.plot.batch(() => { state.plot.setScale("x", { min: state.from, max: state.to }); state.plot.setScale("y", { min: state.low, max: state.high }); });
    if (state.paints === before) state.plot.redraw(false);  // the same scales, but perhaps other bands
    below();
    highlight();
  }

  function area() {
    const { left, top, width, height } = state.plot.bbox, dots = window.devicePixelRatio || 1;
    const { from, to, low, high } = state;
    return { left, top, width, height, dots, step: 1, x: (at) => left + width * (at - from) / (to - from), y: (n) => top + height * (high - n) / (high - low) };
  }

  function picture() {
    if (state.picture) return state.picture;
    const { width, height, dots } = area();
    const rows = highestRows(state.total, state.from, state.to, Math.max(1, Math.round(width)));
    const stacked = stackKinds(levels, rows, order());
    const tall = tallAllocations(detail, rows, isShown, MEMORY_LEAST_TALL * dots * (state.high - state.low) / height, MEMORY_MOST_BANDS);
    state.picture = { rows, stacked, places: placeAllocations(detail, changes, rows, stacked, tall) };
    return state.picture;
  }

  function paint(plot) {
    const context = plot.ctx, place = area();
    state.paints += 1;
    context.save();
    context.beginPath();
    context.rect(place.left, place.top, place.width, place.height);
    context.clip();
    paintBands(context, place, picture(), detail);
    paintSteps(context, place);
    if (isWhole()) paintLevel(context, place, reserved, state.from, state.to, cssColour("ink"));
    paintMarks(context, place, { report, peakRow: detail.peak_row, row: row(), isPeak: page.at === null, state, isWhole: isWhole() });
    context.restore();
    paintAxisName(context, place, "events");
  }

  function paintSteps(context, place) {
    const inView = [...detail.steps.row].filter((at) => at > state.from && at < state.to);
    if (inView.length * 14 * place.dots < place.width) {
      for (const at of inView) paintLine(context, place, place.x(at), place.top, place.x(at), place.top + place.height, cssColour("faint"), [2, 3]);
    }
  }

  // The allocation under the pointer, or else the chosen one, over its whole life.
  function highlight() {
    const { over } = state.plot, context = fitCanvas(overlay, over.clientWidth, over.clientHeight);
    const which = state.hovered >= 0 ? state.hovered : state.picked;
    if (which < 0 || !isShown[detail.allocations.role[which]]) return;
    const { rows, stacked } = picture(), { dots } = area();
    if (detail.allocations.born[which] > rows.at(-1) || detail.allocations.freed[which] <= rows[0]) return;
    const [place] = placeAllocations(detail, changes, rows, stacked, [which]);
    const size = detail.allocations.bytes[which], y = (n) => over.clientHeight * (state.high - n) / (state.high - state.low);
    memoryBand(context, { left: 0, step: 1 / dots, y }, place.columns, place.bottoms.map((bottom) => bottom + size), place.bottoms);
    context.fillStyle = "rgb(255 255 255 / 45%)";
    context.fill();
    context.strokeStyle = cssColour("ink");
    context.lineWidth = 1.5;
    context.stroke();
  }

  // What the pointer is on: {row, found}; null outside the chart.
  function pointed(left, top) {
    if (left < 0 || top < 0) return null;
    const { rows } = picture(), column = Math.min(rows.length - 1, Math.floor(left * area().dots));
    const height = state.high - (state.high - state.low) * top / state.plot.over.clientHeight;
    return { row: rows[column], found: allocationAt(detail, levels, order(), rows[column], height) };
  }

  function hover(plot) {
    const { left, top } = plot.cursor, at = pointed(left ?? -1, top ?? -1), before = state.hovered;
    state.hovered = at?.found ? at.found.allocation : -1;
    if (before !== state.hovered) highlight();
    if (!at) { tip.hide(); return; }
    const box = plot.over.getBoundingClientRect(), live = liveBytes(at.row);
    const lines = at.found ? memoryTip(detail, at.found, at.row, live)
      : [`${bytes(live)} live, ${bytes(levelAt(reserved, at.row))} reserved`, memoryMoment(detail, at.row), operatorAt(detail, at.row)?.name];
    tip.show({ clientX: box.left + left, clientY: box.top + top }, lines);
  }

  function below() {
    const { plot } = state, dots = area().dots, room = { left: plot.bbox.left / dots, width: plot.bbox.width / dots };
    const width = parts.chart.clientWidth;
    memoryStrip(parts.strip, detail, { from: state.from, to: state.to, width, room, zoom });
    parts.overview.setAttribute("aria-label", `in view: events ${count(Math.floor(state.from))} to ${count(Math.ceil(state.to) - 1)} of ${count(detail.rows)}`);
    paintOverview(parts.overview, width, 40, room, state.total, detail.rows, state.from, state.to);
    parts.overview.onpointerdown = parts.overview.onpointermove = (event) => {
      if (!event.buttons) return;
      const centre = detail.rows * (event.offsetX - room.left) / room.width, half = (state.to - state.from) / 2;
      zoom(centre - half, centre + half);
    };
  }

  function moment() {
    state.plot.redraw(false);
    drawLegend();
    parts.panel.replaceChildren(...momentPanel(detail, {
      row: row(), isPeak: row() === detail.peak_row, live: liveBytes(row()), picked: state.picked, most: state.most,
      more: () => { state.most += 50; moment(); },
    }, (allocation) => { state.picked = allocation; highlight(); moment(); }));
  }

  function drawLegend() {
    const at = row(), kinds = [...STACKED].reverse().map((name) => detail.roles.indexOf(name)).filter((role) => role >= 0 && levels[role].level.some((n) => n > 0));
    parts.legend.replaceChildren(
      h("span", { class: "faint" }, page.at === null ? "at the peak:" : "at the chosen moment:"),
      ...kinds.map((role) => h("button", { type: "button", "aria-pressed": String(isShown[role]), "data-role": detail.roles[role],
        title: "show or hide this kind", onclick: (event) => {
          isShown[role] = !isShown[role];
          addUp();
          zoom(state.from, state.to);
          drawLegend();
          parts.legend.querySelector(`[data-role="${detail.roles[role]}"]`).focus();
        } },
      h("span", { class: "swatch", style: { background: `var(--role-${detail.roles[role]})` } }), `${roleWord(detail.roles[role])} ${bytes(levelAt(levels[role], at))}`)),
      h("span", { class: "memory-line" }, `reserved ${bytes(levelAt(reserved, at))}`));
  }

  const move = (share) => zoom(state.from + share * (state.to - state.from), state.to + share * (state.to - state.from));
  // Zoom by a factor, with one row staying where it is.
  const scale = (factor, around = (state.from + state.to) / 2) =>
    zoom(around - (around - state.from) * factor, around - (around - state.from) * factor + (state.to - state.from) * factor);

  // The same for the height, in bytes.
  function stretch(factor, around = (state.low + state.high) / 2) {
    const low = around - (around - state.low) * factor;
    zoom(state.from, state.to, [low, low + (state.high - state.low) * factor]);
  }
  const lift = (share) => { const by = share * (state.high - state.low); zoom(state.from, state.to, [state.low + by, state.high + by]); };

  function key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      ArrowLeft: () => event.shiftKey ? step(-1) : move(-0.1), ArrowRight: () => event.shiftKey ? step(1) : move(0.1),
      "+": () => scale(0.5), "=": () => scale(0.5), "-": () => scale(2), _: () => scale(2), 0: () => zoom(0, detail.rows, null),
      ArrowUp: () => event.shiftKey ? lift(0.2) : stretch(0.5), ArrowDown: () => event.shiftKey ? lift(-0.2) : stretch(2),
    };
    if (!(event.key in acts)) return;
    event.preventDefault();
    acts[event.key]();
  }

  // The chosen moment to the next or the last change of memory.
  function step(way) {
    const all = changes.row.length ? changes.row : detail.rest?.row ?? [], now = row();
    const next = all[way > 0 ? firstAbove(all, now) : firstAbove(all, now - 1) - 1];
    if (next === undefined) return;
    if (next < state.from || next >= state.to) { const half = (state.to - state.from) / 2; zoom(next - half, next + half); }
    page.choose({ at: next });
  }

  function resize() {
    const width = parts.chart.clientWidth;
    if (!width) return;
    state.plot.setSize({ width, height: memoryHeight() });
    zoom(state.from, state.to);
  }

  const hands = { zoom, scale, stretch, move, pointed, choose(at) {
    if (!at) return;
    state.picked = at.found ? at.found.allocation : -1;
    page.choose({ at: at.row });
    highlight();
    moment();
  } };
  addUp();
  state.plot = memoryPlot(parts.chart, { rows: detail.rows, paint, hover, hands, overlay });
  parts.chart.onkeydown = key;
  memoryHead(parts, page, detail, isDetailed, hands);
  zoom(0, detail.rows, null);
  moment();
  return { resize, moment, destroy: () => { tip.hide(); state.plot.destroy(); }, state, detail };
}
