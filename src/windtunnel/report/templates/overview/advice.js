// Recomputation strategies: plain training, checkpointed blocks, windtunnel.dtr and the best fixed set, time versus memory.

const ADVICE_WAYS = [["nothing", "plain training", "ink"], ["blocks", "torch.utils.checkpoint", "role-activations"], ["dtr", "windtunnel.dtr", "role-weights"], ["fixed set", "best fixed set (solver)", "role-gradients"]];

addView({
  id: "advice", title: "Ways", isThere: (page) => Boolean(page.data.advice),
  mount(box, page) {
    const { advice } = page.data, { points } = advice;
    const state = { chosen: advice.recommended ?? 0 };
    const plots = h("div", { class: "advice-plot", tabindex: 0, role: "application", "aria-label": "Extra time versus peak memory, with a point for each strategy. Left and right go from point to point.",
      onkeydown: (event) => { const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key]; if (by) { event.preventDefault(); choose(adviceNext(points, state.chosen, by)); } } });
    const about = h("div", { class: "card", "aria-live": "polite" });
    let plot = null;
    const choose = (i) => { state.chosen = i; about.replaceChildren(...advicePoint(advice, i)); plot?.redraw(false); };
    box.append(h("h1", { class: advice.recommended === null ? "bad" : null }, advice.answer),
      h("p", { class: "faint" }, `${bytes(advice.in_use_whatever_is_dropped_bytes)} cannot be dropped; the device has ${bytes(advice.device_bytes)} usable. Checkpointed: ${advice.blocks}.`),
      h("div", { class: "bar faint" }, ADVICE_WAYS.map(([way, words, colour]) => h("span", null, adviceKey(way, colour), ` ${words}`))),
      h("div", { class: "remat-side" }, plots, about), h("h2", null, "Every way"), adviceTable(advice, choose));
    const draw = () => { plot?.destroy(); plot = advicePlot(advice, plots, { chosen: () => state.chosen, choose }); };
    draw();
    choose(state.chosen);
    return { update: draw, resize: draw };
  },
});

const adviceExtra = (point) => 100 * (point.slowdown - 1);
const adviceNext = (points, i, by) => {
  const order = points.map((_, k) => k).sort((x, y) => points[x].needs_bytes - points[y].needs_bytes || x - y);
  return order[Math.min(order.length - 1, Math.max(0, order.indexOf(i) + by))];
};
const adviceWord = (advice, point) => !point.fits ? "does not fit" : advice.points.indexOf(point) === advice.recommended ? "fits, recommended" : "fits";
const adviceLines = (advice, point) => [`${point.label}: ${adviceWord(advice, point)}`, `needs ${bytes(point.needs_bytes)}, ${bytes(point.peak_bytes)} of it live`, `step ${seconds(point.seconds)}, ${rematPercent(point.slowdown)}`];

function advicePoint(advice, i) {
  const point = advice.points[i], dropped = point.dropped.slice(0, 8);
  const lines = adviceLines(advice, point);
  return [h("h3", { class: point.fits ? "good" : "bad" }, `${point.fits ? "✓" : "✗"} ${lines[0]}`), ...lines.slice(1).map((line) => h("p", null, line)),
    dropped.length ? h("p", { class: "faint" }, `recomputes: ${dropped.map((each) => `${count(each.n_calls)} × ${each.operator} (${bytes(each.n_bytes)})`).join(", ")}${point.dropped.length > dropped.length ? ", …" : ""}`) : ""];
}

function advicePlot(advice, box, hands) {
  const { points } = advice, order = points.map((_, i) => i).sort((x, y) => points[x].needs_bytes - points[y].needs_bytes);
  const unit = advice.device_bytes >= 2 ** 30 ? { name: "GiB", size: 2 ** 30 } : { name: "MiB", size: 2 ** 20 };
  const faint = cssColour("faint"), line = cssColour("line"), font = "12px system-ui, sans-serif";
  const axis = { stroke: faint, font, labelFont: font, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const most = Math.max(advice.device_bytes, ...points.map((point) => point.needs_bytes)) / unit.size * 1.04;
  const top = Math.max(5, ...points.map(adviceExtra)) * 1.12;
  const plot = new uPlot({
    width: Math.max(260, box.clientWidth), height: 380, padding: [12, 14, 0, 0], legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { show: false }, y: false },
    scales: { x: { time: false, range: () => [0, most] }, y: { range: () => [Math.min(0, ...points.map(adviceExtra)), top] } },
    axes: [{ ...axis, label: `peak memory reserved (${unit.name})`, labelSize: 18, size: 34 }, { ...axis, label: "extra time of a step (%)", labelSize: 20, size: 52, values: (_, all) => all.map((v) => `${v} %`) }],
    series: [{}, { paths: () => null, points: { show: false } }],
    hooks: { draw: [(u) => adviceMarks(u, advice, unit, hands)] },
  }, [order.map((i) => points[i].needs_bytes / unit.size), order.map((i) => adviceExtra(points[i]))], box);
  const nearest = () => {
    let best = -1, distance = 900;
    points.forEach((point, i) => {
      const off = (plot.valToPos(point.needs_bytes / unit.size, "x") - plot.cursor.left) ** 2 + (plot.valToPos(adviceExtra(point), "y") - plot.cursor.top) ** 2;
      if (off < distance) { distance = off; best = i; }
    });
    return best;
  };
  plot.over.addEventListener("mousemove", (event) => { const i = nearest(); if (i < 0) tip.hide(); else tip.show(event, adviceLines(advice, points[i])); });
  plot.over.addEventListener("mouseleave", () => tip.hide());
  plot.over.addEventListener("click", () => { const i = nearest(); if (i >= 0) hands.choose(i); });
  return plot;
}

function adviceMarks(u, advice, unit, hands) {
  const { ctx, bbox } = u, dots = rematDots();
  const at = (point) => [u.valToPos(point.needs_bytes / unit.size, "x", true), u.valToPos(adviceExtra(point), "y", true)];
  const limit = (n, colour, words) => {
    const x = u.valToPos(n / unit.size, "x", true);
    ctx.save();
    ctx.strokeStyle = colour;
    ctx.lineWidth = 1.5 * dots;
    ctx.setLineDash([5 * dots, 4 * dots]);
    ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    const isLeft = x > bbox.left + bbox.width * 0.6;
    rematText(ctx, words, x + (isLeft ? -5 : 5) * dots, bbox.top + 13 * dots, colour, isLeft ? "right" : "left");
    ctx.restore();
  };
  limit(advice.in_use_whatever_is_dropped_bytes, cssColour("faint"), "in use whatever is dropped");
  limit(advice.device_bytes, cssColour("bad"), `usable: ${bytes(advice.device_bytes)}`);
  ctx.save();
  ctx.setLineDash([]);
  for (const [way, , name] of ADVICE_WAYS) {
    const mine = advice.points.filter((point) => point.way === way).sort((x, y) => x.needs_bytes - y.needs_bytes);
    ctx.strokeStyle = ctx.fillStyle = cssColour(name);
    ctx.lineWidth = 1.6 * dots;
    ctx.beginPath();
    mine.forEach((point, i) => { const [x, y] = at(point); if (i) ctx.lineTo(x, y); else ctx.moveTo(x, y); });
    ctx.stroke();
    for (const point of mine) adviceShape(ctx, way, ...at(point), 4.5 * dots);
  }
  const ring = (i, colour, radius) => { ctx.strokeStyle = colour; ctx.lineWidth = 2 * dots; ctx.beginPath(); ctx.arc(...at(advice.points[i]), radius * dots, 0, 2 * Math.PI); ctx.stroke(); };
  if (advice.recommended !== null) {
    ring(advice.recommended, cssColour("ink"), 9);
    const [x, y] = at(advice.points[advice.recommended]);
    rematText(ctx, "recommended", x, y - 16 * dots, cssColour("ink"), "center", 600);
  }
  ring(hands.chosen(), cssColour("accent"), 12);
  ctx.restore();
}

// A shape for each way, beside its colour.
function adviceShape(ctx, way, x, y, r) {
  ctx.beginPath();
  if (way === "dtr") ctx.arc(x, y, r, 0, 2 * Math.PI);
  else if (way === "blocks") ctx.rect(x - r, y - r, 2 * r, 2 * r);
  else if (way === "nothing") { ctx.moveTo(x, y - 1.4 * r); ctx.lineTo(x + 1.4 * r, y); ctx.lineTo(x, y + 1.4 * r); ctx.lineTo(x - 1.4 * r, y); }
  else { ctx.moveTo(x, y - 1.2 * r); ctx.lineTo(x + 1.15 * r, y + r); ctx.lineTo(x - 1.15 * r, y + r); }
  ctx.fill();
}

function adviceKey(way, colour) {
  const canvas = h("canvas", { "aria-hidden": "true", class: "advice-key" }), context = fitCanvas(canvas, 14, 14);
  context.fillStyle = cssColour(colour);
  adviceShape(context, way, 7, 7, 4.4);
  return canvas;
}

function adviceTable(advice, choose) {
  const element = table([
    { title: "way", cell: (point) => point.label }, { title: "peak live", number: true, cell: (point) => bytes(point.needs_bytes) },
    { title: "step", number: true, cell: (point) => seconds(point.seconds) }, { title: "extra", number: true, cell: (point) => rematPercent(point.slowdown) },
    { title: "fits?", cell: (point) => `${point.fits ? "✓" : "✗"} ${adviceWord(advice, point)}` },
    { title: "", cell: (point) => point.way === "dtr" && point.threshold_bytes ? `threshold ${bytes(point.threshold_bytes)}` : point.way === "fixed set" && point.gap !== null ? (point.gap < 5e-4 ? "optimal" : `within ${(100 * point.gap).toFixed(1)} % of the best`) : "" },
  ], advice.points, { id: "advice-points" });
  element.querySelectorAll("tbody tr").forEach((row, i) => {
    row.tabIndex = 0;
    if (i === advice.recommended) row.classList.add("good");
    if (!advice.points[i].fits) row.classList.add("faint");
    row.addEventListener("click", () => choose(i));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter") choose(i); });
  });
  return element;
}
