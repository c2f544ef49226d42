// Two charts over one axis of thresholds: how much slower, and how much memory. One cursor for both.
//
// A point is one threshold with one policy. A point that does not fit has no time: it is a cross at the top.

const REMAT_COLOURS = ["role-weights", "role-temporary", "role-gradients", "role-communication", "role-activations", "role-workspace", "role-optimizer", "role-inputs"];
const REMAT_DASHES = [[], [7, 4], [2, 3], [10, 3, 2, 3], [5, 2], [12, 4], [1, 4]];
const REMAT_SYNC = "remat";

function rematUnit(remat) {
  const largest = Math.max(...remat.points.map((point) => point.threshold_bytes));
  return largest >= 2 ** 30 ? { name: "GiB", size: 2 ** 30 } : { name: "MiB", size: 2 ** 20 };
}

// The size as the setting takes it: "7.5GB".
function rematSize(n) {
  for (const [name, size] of [["GB", 2 ** 30], ["MB", 2 ** 20], ["KB", 2 ** 10]]) {
    if (n >= size && Number.isInteger(4 * n / size)) return `${n / size}${name}`;
  }
  return String(n);
}

const rematIsSame = (a, b) => Boolean(a && b) && a.threshold_bytes === b.threshold_bytes && a.policy === b.policy;

// hands: {shown: () => Set of policies, chosen: () => point, hover(point, event), leave(), choose(point)}
function rematCharts(remat, box, hands) {
  const unit = rematUnit(remat);
  const sizes = [...new Set(remat.points.map((point) => point.threshold_bytes))].sort((a, b) => a - b);
  const policies = [...new Set(remat.points.map((point) => point.policy))];
  const at = new Map(remat.points.map((point) => [`${point.policy} ${point.threshold_bytes}`, point]));
  const find = (policy, i) => at.get(`${policy} ${sizes[i]}`);
  const column = (value) => policies.map((policy) => sizes.map((_, i) => { const point = find(policy, i); return point ? value(point) : null; }));
  const x = sizes.map((size) => size / unit.size);
  const hovered = () => { const index = slow.cursor.idx ?? peak.cursor.idx; return index ?? null; };

  function nearest(plot, values, index) {
    let best = null, distance = Infinity;
    policies.forEach((policy, p) => {
      const point = find(policy, index);
      if (!point || !hands.shown().has(policy)) return;
      const value = values[p][index];
      const off = Math.abs((value === null ? 0 : plot.valToPos(value, "y")) - plot.cursor.top);
      if (off < distance) { distance = off; best = point; }
    });
    return best;
  }

  function options(height, title, values, draw, range, marks) {
    const ink = cssColour("ink"), faint = cssColour("faint"), line = cssColour("line");
    const axis = { stroke: faint, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 }, font: "12px system-ui, sans-serif" };
    return {
      width: Math.max(260, box.clientWidth), height, padding: [14, 14, 0, 0], legend: { show: false },
      cursor: { sync: { key: REMAT_SYNC, setSeries: false }, points: { show: false }, drag: { x: false, y: false }, y: false },
      scales: { x: { time: false, range: () => rematRange(x) }, y: { range } },
      axes: [
        { ...axis, label: title.x, labelSize: title.x ? 20 : 0, size: 34, splits: () => rematSplits(x), values: (_, all) => all.map((v) => String(Number(v.toFixed(2)))) },
        { ...axis, label: title.y, labelSize: 20, size: 52, labelFont: "12px system-ui, sans-serif", values: (_, all) => all.map((v) => title.tick(v)) },
      ].map((each) => ({ ...each, labelFont: "12px system-ui, sans-serif" })),
      series: [{}, ...policies.map((policy, p) => ({ label: policy, stroke: cssColour(REMAT_COLOURS[p % REMAT_COLOURS.length]), width: remat.best?.policy === policy ? 3 : 1.8,
        dash: REMAT_DASHES[p % REMAT_DASHES.length], show: hands.shown().has(policy), points: { show: true, size: 7, fill: cssColour("paper") } }))],
      hooks: {
        drawClear: [(u) => { if (marks === "peak") rematBands(u, remat, unit); }],
        draw: [(u) => draw(u, { ink, faint }), (u) => rematMarks(u, marks, { remat, hands, unit, find, sizes, policies, ink })],
      },
    };
  }

  const slowdowns = column((point) => point.slowdown === null ? null : 100 * (point.slowdown - 1));
  const reserved = column((point) => point.peak_reserved_bytes / unit.size);
  const highest = (values, least) => Math.max(least, ...values.flat().filter((v) => v !== null));
  const usable = remat.device.usable_bytes / unit.size;
  const top = highest(reserved, usable) * 1.1;
  const slow = new uPlot(options(box.clientWidth > 1100 ? 310 : 250, { x: null, y: "slower than without a limit (%)", tick: (v) => `${v} %` }, slowdowns,
    (u, c) => rematLevel(u, 0, c.faint, "without a limit"), () => [0, highest(slowdowns, 5) * 1.18], "slow"), [x, ...slowdowns], box);
  const peak = new uPlot(options(box.clientWidth > 1100 ? 370 : 290, { x: `threshold (${unit.name})`, y: `peak reserved (${unit.name})`, tick: (v) => String(v) }, reserved,
    (u, c) => rematLevels(u, remat, unit, top, c), () => [0, top], "peak"), [x, ...reserved], box);

  for (const [plot, values] of [[slow, slowdowns], [peak, reserved]]) {
    plot.over.addEventListener("mousemove", (event) => {
      const index = hovered();
      const point = index === null ? null : nearest(plot, values, index);
      if (point) hands.hover(point, event);
    });
    plot.over.addEventListener("mouseleave", hands.leave);
    plot.over.addEventListener("click", () => { const index = hovered(); const point = index === null ? null : nearest(plot, values, index); if (point) hands.choose(point); });
  }
  return {
    redraw() { for (const plot of [slow, peak]) { policies.forEach((policy, p) => plot.setSeries(p + 1, { show: hands.shown().has(policy) })); plot.redraw(); } },
    destroy() { slow.destroy(); peak.destroy(); },
  };
}

function rematRange(x) {
  const room = x.length > 1 ? 0.05 * (x[x.length - 1] - x[0]) : 0.5;
  return [x[0] - room, x[x.length - 1] + room];
}

// A tick at every threshold, as far as there is room.
function rematSplits(x) {
  const every = Math.max(1, Math.ceil(x.length / 12));
  return x.filter((_, i) => i % every === 0);
}

// -- drawing on a plot, in its own pixels ----------------------------------------------------------------------------

const rematDots = () => uPlot.pxRatio;

function rematText(context, words, x, y, colour, align = "left", weight = 400) {
  context.font = `${weight} ${12 * rematDots()}px system-ui, sans-serif`;
  context.fillStyle = colour;
  context.textAlign = align;
  context.textBaseline = "alphabetic";
  // A border of paper: lines go behind the words.
  context.save();
  context.setLineDash([]);
  context.lineJoin = "round";
  context.strokeStyle = cssColour("paper");
  context.lineWidth = 3.5 * rematDots();
  context.strokeText(words, x, y);
  context.fillText(words, x, y);
  context.restore();
}

function rematLevel(u, value, colour, words, dash = [4, 4], side = "left") {
  const { ctx, bbox } = u, y = u.valToPos(value, "y", true), dots = rematDots();
  ctx.save();
  ctx.strokeStyle = colour;
  ctx.lineWidth = 1.2 * dots;
  ctx.setLineDash(dash.map((n) => n * dots));
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  rematText(ctx, words, side === "left" ? bbox.left + 6 * dots : bbox.left + bbox.width - 6 * dots, y - 4 * dots, colour, side);
  ctx.restore();
}

// Behind the lines: what is kept free, and what exceeds the device.
function rematBands(u, remat, unit) {
  const { ctx, bbox } = u, { usable_bytes: usable } = remat.device;
  const line = u.valToPos(usable / unit.size, "y", true), margin = u.valToPos(usable * (1 - remat.margin) / unit.size, "y", true);
  ctx.save();
  ctx.globalAlpha = 0.16;
  ctx.fillStyle = cssColour("bad");
  ctx.fillRect(bbox.left, line, bbox.width, margin - line);
  ctx.globalAlpha = 0.07;
  ctx.fillRect(bbox.left, bbox.top, bbox.width, line - bbox.top);
  ctx.restore();
}

function rematLevels(u, remat, unit, top, colours) {
  const { ctx, bbox } = u, { usable_bytes: usable } = remat.device, dots = rematDots();
  const isNarrow = bbox.width < 520 * dots;
  const margin = isNarrow ? "" : `; best leaves ${Math.round(100 * remat.margin)} % of it free`;
  rematLevel(u, usable / unit.size, cssColour("bad"), `usable: ${bytes(usable)}${margin}`, []);
  if (remat.never_evicted_bytes > 0) rematLevel(u, remat.never_evicted_bytes / unit.size, colours.faint, `never evicted: ${bytes(remat.never_evicted_bytes)}`);
  const without = remat.without.peak_reserved_bytes, words = `without a limit: ${bytes(without)}`;
  if (without / unit.size <= top) rematLevel(u, without / unit.size, colours.faint, words, [4, 4], "right");
  else rematText(ctx, `↑ ${words}`, bbox.left + bbox.width - 6 * dots, bbox.top + 12 * dots, colours.faint, "right");
}

// The best point, the chosen one, and those that do not fit.
function rematMarks(u, which, { remat, hands, unit, find, sizes, policies, ink }) {
  const { ctx, bbox } = u, dots = rematDots();
  const spot = (point) => {
    const value = which === "slow" ? (point.slowdown === null ? null : 100 * (point.slowdown - 1)) : point.peak_reserved_bytes / unit.size;
    return { x: u.valToPos(point.threshold_bytes / unit.size, "x", true), y: value === null ? bbox.top + 26 * dots : u.valToPos(value, "y", true) };
  };
  ctx.save();
  ctx.setLineDash([]);
  let nCrosses = 0;
  policies.forEach((policy, p) => sizes.forEach((_, i) => {
    const point = find(policy, i);
    if (!point || point.fits || !hands.shown().has(policy)) return;
    const { x, y } = spot(point), reach = 5 * dots;
    // Several may fail at one threshold: side by side.
    const shift = which === "slow" ? (p - (policies.length - 1) / 2) * 9 * dots : 0;
    nCrosses += 1;
    ctx.strokeStyle = cssColour("bad");
    ctx.lineWidth = 2 * dots;
    ctx.beginPath();
    ctx.moveTo(x + shift - reach, y - reach); ctx.lineTo(x + shift + reach, y + reach);
    ctx.moveTo(x + shift + reach, y - reach); ctx.lineTo(x + shift - reach, y + reach);
    ctx.stroke();
  }));
  if (nCrosses && which === "slow") rematText(ctx, "× does not fit", bbox.left + bbox.width - 6 * dots, bbox.top + 12 * dots, cssColour("bad"), "right");
  const ring = (point, colour, radius, width) => {
    const { x, y } = spot(point);
    ctx.strokeStyle = colour;
    ctx.lineWidth = width * dots;
    ctx.beginPath();
    ctx.arc(x, y, radius * dots, 0, 2 * Math.PI);
    ctx.stroke();
    return { x, y };
  };
  const best = remat.best && hands.shown().has(remat.best.policy) ? remat.best : null;
  if (best) {
    const { x, y } = ring(best, ink, 8, 2.2);
    const isLeft = x > bbox.left + bbox.width * 0.75;
    // In the upper chart lines come from above, in the lower one the limit of the device is above.
    const isAbove = which === "slow";
    rematText(ctx, `best: ${rematSize(best.threshold_bytes)}`, x + (isLeft ? -6 : 6) * dots, y + (isAbove ? -16 : 28) * dots, ink, isLeft ? "right" : "left", 600);
  }
  const chosen = hands.chosen();
  if (chosen && hands.shown().has(chosen.policy)) ring(chosen, cssColour("accent"), 12, 2);
  ctx.restore();
}
