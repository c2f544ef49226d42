// The error of every call in the order of execution. uPlot has the axes, the zoom and the cursor; the marks are ours, so
// that a phase is a shape as well as a colour.

const PRECISION_LOW = -9, PRECISION_HIGH = 1;  // powers of ten; equal lies at the bottom, infinite at the top
const PRECISION_COLOURS = ["role-weights", "role-temporary", "role-gradients"];  // forward, backward, optimizer

const precisionPower = (error) => !(error > 0) ? PRECISION_LOW : error === Infinity ? PRECISION_HIGH : Math.min(PRECISION_HIGH, Math.max(PRECISION_LOW + 0.5, Math.log10(error)));

// hands: {chosen: () => call, choose(call), phases}
function precisionChart(found, box, hands) {
  const { calls } = found, n = calls.place.length;
  const y = Array.from(calls.error, precisionPower);
  const faint = cssColour("faint"), line = cssColour("line"), font = "12px system-ui, sans-serif";
  const axis = { stroke: faint, font, labelFont: font, grid: { stroke: line, width: 1 }, ticks: { stroke: line, width: 1 } };
  const last = Math.max(1, found.part.n_calls - 1);
  const plot = new uPlot({
    width: Math.max(260, box.clientWidth), height: 270, padding: [12, 12, 0, 0], legend: { show: false },
    cursor: { drag: { x: true, y: false }, points: { show: false }, y: false },
    scales: { x: { time: false, range: (_, low, high) => { const room = low === high ? 1 : 0.01 * (high - low); return [low - room, high + room]; } }, y: { range: () => [PRECISION_LOW - 0.5, PRECISION_HIGH + 0.4] } },
    axes: [{ ...axis, label: "call, as executed", labelSize: 18, size: 34, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 1000000] },
      { ...axis, size: 62, splits: () => [PRECISION_LOW, -8, -6, -4, -2, 0, PRECISION_HIGH], values: (_, all) => all.map((power) => power === PRECISION_LOW ? "equal" : power === PRECISION_HIGH ? "≥ 10" : power === 0 ? "1" : `1e${power}`) }],
    series: [{}, { paths: () => null, points: { show: false } }],
    hooks: { draw: [(u) => precisionMarks(u, found, y, hands)] },
  }, [Array.from(calls.place), y], box);
  const nearest = (event) => {
    const { left, top } = plot.cursor, reach = 14;
    let from = firstAbove(calls.place, plot.posToVal(left - reach, "x")), best = -1, distance = reach * reach * 4;
    for (const to = firstAbove(calls.place, plot.posToVal(left + reach, "x")); from < Math.min(to + 1, n); from++) {
      const off = (plot.valToPos(calls.place[from], "x") - left) ** 2 + (plot.valToPos(y[from], "y") - top) ** 2;
      if (off < distance) { distance = off; best = from; }
    }
    return best;
  };
  plot.over.addEventListener("mousemove", (event) => {
    const call = nearest(event);
    if (call < 0) { tip.hide(); return; }
    tip.show(event, [calls.names[call], `call ${count(calls.place[call])} of ${count(last + 1)}, ${hands.phases[calls.phase[call]]}`,
      calls.side[call] ? `only in ${calls.side[call] === 1 ? "A" : "B"}` : `${PRECISION_STATES[calls.state[call]]}, worst relative error ${precisionError(calls.error[call])}`,
      calls.begins[call] ? "a difference starts here" : calls.state[call] === PRECISION_DIFFERENT ? "its inputs already differ" : null]);
  });
  plot.over.addEventListener("mouseleave", () => tip.hide());
  plot.over.addEventListener("click", (event) => { const call = nearest(event); if (call >= 0) hands.choose(call); });
  return plot;
}

function precisionMarks(u, found, y, hands) {
  const { ctx, bbox } = u, { calls } = found, dots = uPlot.pxRatio, n = calls.place.length;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  const at = (call) => [u.valToPos(calls.place[call], "x", true), u.valToPos(y[call], "y", true)];
  const low = u.scales.x.min, high = u.scales.x.max, colours = PRECISION_COLOURS.map(cssColour), bad = cssColour("bad");
  const nSeen = firstAbove(calls.place, high) - firstAbove(calls.place, low), size = nSeen > 4000 ? 0.55 : 1;  // smaller in a crowd
  for (const isBad of [false, true]) {  // what differs lies on top
    for (let call = Math.max(0, firstAbove(calls.place, low) - 1); call < n && calls.place[call] <= high; call++) {
      const isDifferent = calls.state[call] === PRECISION_DIFFERENT;
      if (isDifferent !== isBad) continue;
      const [x, top] = at(call);
      if (calls.side[call]) { ctx.fillStyle = cssColour("faint"); ctx.fillRect(x - dots, bbox.top + bbox.height - 14 * dots, 2 * dots, 14 * dots); continue; }
      ctx.fillStyle = colours[calls.phase[call]];
      ctx.globalAlpha = isDifferent ? 1 : 0.65;
      precisionShape(ctx, calls.phase[call], x, top, (isDifferent ? 4.4 : 2.8) * size * dots);
      if (calls.begins[call]) { ctx.globalAlpha = 1; ctx.strokeStyle = bad; ctx.lineWidth = 2 * dots; ctx.stroke(); }
    }
  }
  ctx.globalAlpha = 1;
  const first = precisionFirst(found), chosen = hands.chosen();
  if (first >= 0) {
    const [x] = at(first), isLeft = x > bbox.left + bbox.width / 2;
    ctx.strokeStyle = ctx.fillStyle = bad;
    ctx.lineWidth = 1.5 * dots;
    ctx.setLineDash([5 * dots, 4 * dots]);
    ctx.beginPath(); ctx.moveTo(x, bbox.top); ctx.lineTo(x, bbox.top + bbox.height); ctx.stroke();
    ctx.setLineDash([]);
    ctx.font = `${12 * dots}px system-ui, sans-serif`;
    ctx.textAlign = isLeft ? "right" : "left";
    ctx.textBaseline = "top";
    const words = [`first divergence: ${calls.names[first]}`, x + (isLeft ? -6 : 6) * dots, bbox.top + 2 * dots];
    ctx.strokeStyle = cssColour("paper");  // a border of paper: marks go behind the words
    ctx.lineWidth = 4 * dots;
    ctx.strokeText(...words);
    ctx.fillText(...words);
  }
  if (chosen >= 0) {
    const [x, top] = at(chosen);
    ctx.strokeStyle = cssColour("accent");
    ctx.lineWidth = 2 * dots;
    ctx.beginPath(); ctx.arc(x, top, 9 * dots, 0, 2 * Math.PI); ctx.stroke();
  }
  ctx.restore();
}

// Forward is round, backward a triangle, the optimizer a square.
function precisionShape(ctx, phase, x, y, r) {
  ctx.beginPath();
  if (phase === 0) ctx.arc(x, y, r, 0, 2 * Math.PI);
  else if (phase === 1) { ctx.moveTo(x, y - 1.2 * r); ctx.lineTo(x + 1.15 * r, y + r); ctx.lineTo(x - 1.15 * r, y + r); ctx.closePath(); }
  else ctx.rect(x - r, y - r, 2 * r, 2 * r);
  ctx.fill();
}

function precisionLegend(phases) {
  return h("div", { class: "bar faint" }, phases.map((phase, i) => {
    const canvas = h("canvas", { "aria-hidden": "true", class: "precision-key" }), context = fitCanvas(canvas, 14, 14);
    context.fillStyle = cssColour(PRECISION_COLOURS[i]);
    precisionShape(context, i, 7, 7, 4.4);
    return h("span", null, canvas, ` ${phase}`);
  }), h("span", null, "larger: different"), h("span", null, "red border: a difference starts"), h("span", null, "tick at the bottom: on one side only"), h("span", null, "drag to zoom, double-click to see all, click to choose"));
}
