// The frame of the memory chart: axes and pointer by uPlot, words and buttons above it, strips below it.

const memoryHeight = () => Math.round(Math.max(260, Math.min(620, innerHeight * 0.5)));

function memoryPlot(box, { rows, paint, hover, hands, overlay }) {
  const axis = { stroke: () => cssColour("faint"), grid: { stroke: () => cssColour("line"), width: 1 }, ticks: { stroke: () => cssColour("line") }, font: "12px system-ui, sans-serif" };
  let down = 0;
  const plot = new uPlot({
    width: box.clientWidth || 600,
    height: memoryHeight(),
    legend: { show: false },
    padding: [8, 22, 0, 0],
    scales: { x: { time: false, auto: false, min: 0, max: rows }, y: { auto: false, min: 0, max: 1 } },
    axes: [
      { ...axis, grid: { show: false }, size: 34, space: 90, values: (_, splits) => splits.map((at) => Number.isInteger(at) ? count(at) : "") },
      { ...axis, size: 74, splits: (_, axisNumber, low, high) => byteSplits(low, high), values: (_, splits) => splits.map((n) => n ? bytes(n) : "0") },
    ],
    series: [{}, { scale: "y", paths: () => null, points: { show: false } }],
    cursor: {
      drag: { x: true, y: true, uni: 40, dist: 5, setScale: false }, points: { show: false }, y: false,
      bind: { dblclick: () => () => hands.zoom(0, rows, null) },
    },
    hooks: {
      draw: [paint],
      setCursor: [hover],
      setSelect: [(u) => {
        const { left, width, top, height } = u.select, isWhole = height >= u.over.clientHeight - 1;
        if (width <= 0 || height <= 0) return;
        hands.zoom(u.posToVal(left, "x"), u.posToVal(left + width, "x"), isWhole ? undefined : [u.posToVal(top + height, "y"), u.posToVal(top, "y")]);
        u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      }],
    },
  }, [[0, rows], [0, 0]], box);
  plot.over.append(overlay);
  plot.over.addEventListener("mousedown", (event) => { down = event.clientX; });
  plot.over.addEventListener("click", (event) => {
    const corner = plot.over.getBoundingClientRect();
    if (Math.abs(event.clientX - down) < 5) hands.choose(hands.pointed(event.clientX - corner.left, event.clientY - corner.top));
  });
  plot.over.addEventListener("wheel", (event) => {
    event.preventDefault();
    const corner = plot.over.getBoundingClientRect();
    if (event.shiftKey) {  // some systems turn the wheel sideways with shift
      hands.stretch(event.deltaY + event.deltaX > 0 ? 1.25 : 0.8, plot.posToVal(event.clientY - corner.top, "y"));
      return;
    }
    if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) { hands.move(Math.sign(event.deltaX) * 0.06); return; }
    hands.scale(event.deltaY > 0 ? 1.25 : 0.8, plot.posToVal(event.clientX - corner.left, "x"));
  }, { passive: false });
  return plot;
}

// Round numbers of bytes, three to eight of them.
function byteSplits(low, high) {
  const unit = 1024 ** Math.max(0, Math.floor(Math.log2(Math.max(1, high - low)) / 10)), most = (high - low) / unit;
  const each = unit * ([0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200].find((n) => most / n <= 8) ?? 200);
  const first = Math.ceil(low / each);
  return Array.from({ length: Math.max(0, Math.floor(high / each) - first + 1) }, (_, k) => (first + k) * each);
}

function memoryHead(parts, page, detail, isDetailed, hands) {
  const report = page.document(), { rows, steps } = detail, shown = page.shownBy(page.rank);
  const around = () => {
    const at = Math.max(0, lastUpTo(steps.row, detail.peak_row)), end = steps.row[at + 1] ?? rows;
    const half = Math.max(60, (end - steps.row[at]) / 12);
    hands.zoom(detail.peak_row - half, detail.peak_row + half, null);
  };
  const told = Object.keys(page.data.details ?? {}).length;
  const name = page.data.run.world_size > 1 ? `Memory of rank ${page.rank} over time` : "Memory over time";
  parts.head.replaceChildren(
    h("h2", null, name),
    h("p", null, `Peak ${bytes(report.peak_bytes)} live${detail.peak_row >= 0 ? ` in ${memoryMoment(detail, detail.peak_row)}` : ""}, ${bytes(report.peak_with_fragments_bytes)} reserved`,
      report.usable_memory_bytes ? `; the device has ${bytes(report.usable_memory_bytes)} usable.` : "."),
    ...[[
      shown !== page.rank ? `Rank ${page.rank} does the same work as rank ${shown}, which is shown.` : "",
      isDetailed ? "" : `Only ${plural(told, "rank")} of this page ${told === 1 ? "is" : "are"} shown with every allocation; this rank has only an outline.`,
      ...detail.left_out.map((sentence) => `${sentence}.`),
    ].filter(Boolean).join(" ")].filter(Boolean).map((sentences) => h("p", { class: "note" }, sentences)));
  const button = (text, label, act) => h("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
  parts.buttons.replaceChildren(...[
    button("whole run", "show the whole run (0)", () => hands.zoom(0, rows, null)),
    steps.row.length > 1 ? button("last step", "show the last step only", () => hands.zoom(steps.row.at(-1), rows, null)) : null,
    detail.peak_row >= 0 ? button("around the peak", "show what surrounds the peak", around) : null,
    button("+", "zoom in (+)", () => hands.scale(0.5)), button("−", "zoom out (-)", () => hands.scale(2)),
    button("↕+", "stretch the height (up arrow, or shift with the wheel)", () => hands.stretch(0.5)), button("↕−", "shrink the height (down arrow)", () => hands.stretch(2)),
    button("◀", "earlier (left arrow)", () => hands.move(-0.25)), button("▶", "later (right arrow)", () => hands.move(0.25)),
    h("span", { class: "faint memory-hint" }, "drag or turn the wheel to zoom, click for what is live at a moment"),
  ].filter(Boolean));
}

// Lines over the bands: the device's memory, the peak, where it runs out, the chosen moment.
function paintMarks(context, area, { report, peakRow, row, isPeak, state, isWhole }) {
  const isIn = (at) => at >= state.from && at < state.to, right = area.left + area.width, bottom = area.top + area.height;
  const usable = isWhole && report.usable_memory_bytes;
  if (usable && usable < state.high && usable > state.low) {
    paintLine(context, area, area.left, area.y(usable), right, area.y(usable), cssColour("bad"), [7, 5]);
    paintLabel(context, area, `usable ${bytes(usable)}`, right, area.y(usable) - 20 * area.dots, cssColour("bad"));
  }
  const oom = report.out_of_memory;
  if (oom && isIn(oom.event)) {
    paintLine(context, area, area.x(oom.event), area.top, area.x(oom.event), bottom, cssColour("bad"));
    paintLabel(context, area, `out of memory: requests ${bytes(oom.requested_bytes)}`, area.x(oom.event) + 4 * area.dots, area.top + area.height * 0.42, cssColour("bad"));
  }
  if (isIn(row) && !isPeak) {
    const x = (area.x(row) + area.x(row + 1)) / 2;
    paintLine(context, area, x, area.top, x, bottom, cssColour("accent"));
    paintLabel(context, area, "chosen", x + 4 * area.dots, bottom - 22 * area.dots, cssColour("accent"));
  }
  if (isIn(peakRow) && !isWhole) {
    const x = (area.x(peakRow) + area.x(peakRow + 1)) / 2;
    paintLine(context, area, x, area.top, x, bottom, cssColour("ink"), [4, 3]);
    paintLabel(context, area, "peak of all kinds", x + 4 * area.dots, area.top, cssColour("ink"));
  } else if (isIn(peakRow)) {
    const x = (area.x(peakRow) + area.x(peakRow + 1)) / 2, y = area.y(report.peak_bytes);
    paintLine(context, area, x, y, x, bottom, cssColour("ink"), [4, 3]);
    context.beginPath();
    context.arc(x, y, 4 * area.dots, 0, 7);
    context.fillStyle = cssColour("ink");
    context.fill();
    paintLabel(context, area, `peak ${bytes(report.peak_bytes)}${report.peak_bytes > state.high ? " ↑" : ""}`, x + 8 * area.dots, y + 4 * area.dots, cssColour("ink"));
  }
}

// -- steps, phases and operators -----------------------------------------------------------------------------------------

const MEMORY_PHASE_SHORT = { forward: "fwd", backward: "bwd", optimizer: "opt" };
const MEMORY_PHASE_COLOURS = { build: "faint", forward: "accent", backward: "warn", optimizer: "good" };

function memoryStrip(canvas, detail, { from, to, width, room, zoom }) {
  const lanes = memoryLanes(detail, from, to, room.width), tall = 19;
  const context = fitCanvas(canvas, width, lanes.length * (tall + 3)), x = (row) => room.left + room.width * (row - from) / (to - from);
  lanes.forEach(({ name, bars, note, spills }, number) => {
    const top = number * (tall + 3);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.textAlign = "right";
    context.fillStyle = cssColour("faint");
    context.fillText(name, room.left - 8, top + tall / 2);
    context.textAlign = "left";
    if (note) context.fillText(fittingText(context, note, room.width), room.left + 2, top + tall / 2);
    paintBars(context, bars, x, top, tall, room, spills);
  });
  canvas.setAttribute("aria-label", lanes.map(({ name, bars, note }) => `${name}: ${note || bars.slice(0, 30).map((each) => each.text).join(", ")}`).join("; "));
  const bar = (event) => {
    const row = from + (to - from) * (event.offsetX - room.left) / room.width;
    return lanes[Math.floor(event.offsetY / (tall + 3))]?.bars.find((each) => row >= each.from && row < each.to);
  };
  canvas.onmousemove = (event) => { const found = bar(event); canvas.style.cursor = found ? "pointer" : ""; if (found) tip.show(event, found.lines()); else tip.hide(); };
  canvas.onmouseleave = () => tip.hide();
  canvas.onclick = (event) => { const found = bar(event); if (found) zoom(found.from, found.to); };
}

function memoryLanes(detail, from, to, width) {
  const stretches = (rows, make) => {
    const bars = [];
    for (let at = Math.max(0, lastUpTo(rows, from)); at < rows.length && rows[at] < to; at++) bars.push(make(at, rows[at], rows[at + 1] ?? detail.rows));
    return bars;
  };
  const { steps, phases, ops } = detail;
  const lanes = [{ name: "steps", spills: true, bars: stretches(steps.row, (at, first, end) => ({
    from: first, to: end, text: `step ${steps.number[at]}`, short: `${steps.number[at]}`, colour: "faint", lines: () => [`step ${steps.number[at]}`, `events ${count(first)} to ${count(end - 1)}`, "click to zoom"] })) }];
  if (phases.row.length) lanes.push({ name: "phases", bars: stretches(phases.row, (at, first, end) => {
    const text = phases.names[phases.phase[at]];
    return { from: first, to: end, text, short: MEMORY_PHASE_SHORT[text] ?? "", colour: MEMORY_PHASE_COLOURS[text] ?? "faint", lines: () => [text, memoryMoment(detail, first), "click to zoom"] };
  }) });
  for (const lane of lanes) {
    if (lane.bars.length > width / 2) { lane.note = `${count(lane.bars.length)} in view: zoom in to see them`; lane.bars = []; }
  }
  if (!ops) return lanes;
  const first = firstAbove(ops.row, Math.ceil(from) - 1), end = Math.min(ops.row.length, firstAbove(ops.row, to) + 1), n = Math.max(0, end - first);
  if (n > width / 4) return [...lanes, { name: "operators", bars: [], note: `${count(n)} ${detail.left_out.length ? "named ones " : ""}in view: zoom in to see their names` }];
  const bars = Array.from({ length: n }, (_, k) => first + k).map((at) => {
    const one = describeOperator(detail, at);
    return { from: one.first, to: one.row + 1, text: one.name, short: "", colour: MEMORY_PHASE_COLOURS[one.phase] ?? "faint",
      lines: () => [one.name, one.module ? `in ${one.module}` : "", one.stack[0] ? `at ${one.stack[0]}` : "", memoryMoment(detail, one.row), "click to zoom"] };
  });
  return [...lanes, { name: "operators", bars, note: n ? "" : "none named here" }];
}
