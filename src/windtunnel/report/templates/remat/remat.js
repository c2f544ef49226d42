// Rematerialisation: which threshold to take, and what every other would cost.

addView({
  id: "remat", title: "Remat", isThere: (page) => Boolean(page.data.remat),
  mount(box, page) {
    const { remat } = page.data;
    const policies = [...new Set(remat.points.map((point) => point.policy))];
    const state = { shown: new Set(policies), chosen: rematFind(remat, remat.best) ?? remat.points[0] ?? null };
    const plots = h("div", { class: "remat-plots" });
    const about = h("div", { class: "remat-about card", "aria-live": "polite" });
    const rows = new Map();
    let charts = null;

    const choose = (point) => {
      state.chosen = point;
      about.replaceChildren(...rematPoint(remat, point));
      for (const [each, row] of rows) row.setAttribute("aria-selected", String(each === point));
      charts?.redraw();
    };
    const hands = {
      shown: () => state.shown, chosen: () => state.chosen, choose, leave: () => tip.hide(),
      hover: (point, event) => tip.show(event, rematLines(remat, point)),
    };
    const wrap = h("div", { class: "remat-charts", tabindex: 0, role: "application",
      "aria-label": "Slowdown and peak memory versus the threshold. Left and right go to the next threshold, up and down to the next policy.",
      onkeydown: (event) => { const next = rematNext(remat, state, event.key); if (next) { event.preventDefault(); choose(next); } } }, plots);

    box.append(h("h1", { class: remat.best ? null : "bad" }, remat.answer), rematSubject(remat));
    if (policies.length > 1) box.append(rematLegend(policies, state, () => charts.redraw()));
    box.append(h("div", { class: "remat-side" }, wrap, h("div", null, about, rematUse(remat))));
    box.append(h("h2", null, "Every point"), rematTable(remat, policies, rows, choose), rematNotes(remat));
    const draw = () => { charts?.destroy(); charts = remat.points.length ? rematCharts(remat, plots, hands) : null; };
    draw();
    if (state.chosen) choose(state.chosen);
    return { update: draw, resize: draw };
  },
});

const rematFind = (remat, point) => remat.points.find((each) => rematIsSame(each, point)) ?? null;
const rematPercent = (slowdown) => `${slowdown >= 1 ? "+" : ""}${(100 * (slowdown - 1)).toFixed(1)} %`;

function rematWord(remat, point) {
  if (!point.fits) return "does not fit";
  if (rematIsSame(point, remat.best)) return "fits, the best";
  return point.has_margin ? "fits" : "just fits";
}

function rematFailure(found) {
  if (!found) return null;
  const place = found.place ? ` (${found.place})` : "", operator = found.operator ? ` at ${found.operator}` : "";
  return `Out of memory in step ${found.step}${operator}${place}, requesting ${bytes(found.requested_bytes)}.`;
}

// Everything about a point: [words, figure].
function rematFigures(point) {
  const stalls = point.allocation_retries + point.cache_flushes;
  return [
    ["step", point.step_seconds === null ? "did not end" : seconds(point.step_seconds)],
    ["slower than without a limit", point.slowdown === null ? "–" : rematPercent(point.slowdown)],
    ["peak reserved", bytes(point.peak_reserved_bytes)],
    ["peak live", bytes(point.peak_live_bytes)],
    ["evictions in a step", `${count(point.evictions)} (${bytes(point.evicted_bytes)})`],
    ["recomputed in a step", `${count(point.rematerialisations)} (${bytes(point.rematerialised_bytes)})`],
    ["longest recomputed chain", plural(point.longest_chain, "operator")],
    ["stalls in the run", count(stalls)],
    ...(point.guarded_rounds ? [["too low to hold", `the guard stopped evicting ${plural(point.guarded_rounds, "time")}, limit raised by ${bytes(point.raised_limit_bytes)}`]] : []),
  ];
}

const rematTitle = (remat, point) => `${rematSize(point.threshold_bytes)}, policy ${point.policy}: ${rematWord(remat, point)}`;
const rematLines = (remat, point) => [rematTitle(remat, point), ...rematFigures(point).map(([words, figure]) => `${words}: ${figure}`), rematFailure(point.out_of_memory)];

function rematPoint(remat, point) {
  const failure = rematFailure(point.out_of_memory);
  return [
    h("h3", { class: point.fits ? "good" : "bad" }, `${point.fits ? "✓" : "✗"} ${rematTitle(remat, point)}`),
    h("dl", { class: "remat-figures" }, rematFigures(point).flatMap(([words, figure]) => [h("dt", null, words), h("dd", { class: "number" }, figure)])),
    failure ? h("p", { class: "bad" }, failure) : null,
    point.fits && !point.has_margin ? h("p", { class: "warn" }, `It leaves less than ${Math.round(100 * remat.margin)} % of the device free, or had stalls.`) : null,
  ].filter(Boolean);
}

function rematSubject(remat) {
  const { without, device } = remat;
  const world = remat.world_size > 1 ? `, rank ${remat.rank} of ${count(remat.world_size)}` : "";
  const fits = without.fits ? "it fits" : "which does not fit";
  return h("p", { class: "faint" }, `${remat.subject.split(/[\\/]/).pop() || remat.subject}${world}, ${plural(remat.steps, "step")} on ${device.name} (${bytes(device.usable_bytes)} usable). `
    + `Without a limit a step takes ${seconds(without.step_seconds)} and ${bytes(without.peak_reserved_bytes)} are reserved at the peak: ${fits}. `
    + `${bytes(remat.never_evicted_bytes)} can never be evicted.`);
}

function rematUse(remat) {
  const lines = remat.use ?? [];
  if (!lines.length) return null;
  const text = lines.join("\n");
  const button = h("button", { type: "button", onclick: () => {
    rematCopy(text).then((isDone) => { button.textContent = isDone ? "copied" : "select and copy"; setTimeout(() => { button.textContent = "copy"; }, 2000); });
  } }, "copy");
  const expandable = remat.allocator === "cuda-expandable"
    ? h("p", { class: "faint" }, "As simulated, with ", h("code", null, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"), " in the environment.") : null;
  return h("div", null, h("div", { class: "bar" }, h("strong", null, "To use it"), h("span", { class: "faint" }, "in the script, before training"), button),
    h("pre", { id: "remat-use" }, text), expandable);
}

// A page from a file may not use the clipboard everywhere: an invisible text box does it then.
async function rematCopy(text) {
  try { await navigator.clipboard.writeText(text); return true; } catch { /* the other way */ }
  const area = h("textarea", { style: { position: "fixed", opacity: "0" } });
  area.value = text;
  document.body.append(area);
  area.select();
  const isDone = document.execCommand("copy");
  area.remove();
  return isDone;
}

function rematLegend(policies, state, redraw) {
  return h("div", { class: "bar", role: "group", "aria-label": "Policies" }, policies.map((policy, p) => {
    const button = h("button", { type: "button", "aria-pressed": "true", title: "show or hide", onclick: () => {
      if (state.shown.has(policy)) state.shown.delete(policy); else state.shown.add(policy);
      button.setAttribute("aria-pressed", String(state.shown.has(policy)));
      redraw();
    } }, rematDash(p), ` ${policy}`);
    return button;
  }));
}

function rematDash(p) {
  const canvas = h("canvas", { class: "remat-dash", "aria-hidden": "true" });
  const context = fitCanvas(canvas, 30, 8);
  canvas.style.display = "inline-block";
  context.strokeStyle = cssColour(REMAT_COLOURS[p % REMAT_COLOURS.length]);
  context.lineWidth = 2.5;
  context.setLineDash(REMAT_DASHES[p % REMAT_DASHES.length]);
  context.beginPath(); context.moveTo(0, 4); context.lineTo(30, 4); context.stroke();
  return canvas;
}

// Left and right: the next threshold of this policy; up and down: the same threshold of the next policy shown.
function rematNext(remat, state, key) {
  const { chosen } = state;
  if (!chosen) return null;
  if (key === "ArrowRight" || key === "ArrowLeft" || key === "Home" || key === "End") {
    const mine = remat.points.filter((point) => point.policy === chosen.policy).sort((a, b) => a.threshold_bytes - b.threshold_bytes);
    const at = mine.indexOf(chosen), to = { ArrowRight: at + 1, ArrowLeft: at - 1, Home: 0, End: mine.length - 1 }[key];
    return mine[to] ?? null;
  }
  if (key === "ArrowUp" || key === "ArrowDown") {
    const mine = remat.points.filter((point) => point.threshold_bytes === chosen.threshold_bytes && state.shown.has(point.policy));
    return mine[mine.indexOf(chosen) + (key === "ArrowDown" ? 1 : -1)] ?? null;
  }
  return null;
}

function rematTable(remat, policies, rows, choose) {
  const off = { ...remat.without, threshold_bytes: null };
  const columns = [
    { title: "threshold", number: true, cell: (point) => point.threshold_bytes === null ? "off" : rematSize(point.threshold_bytes) },
    ...(policies.length > 1 ? [{ title: "policy", cell: (point) => point.policy ?? "" }] : []),
    { title: "step", number: true, cell: (point) => point.step_seconds === null ? "–" : seconds(point.step_seconds) },
    { title: "extra", number: true, cell: (point) => point.slowdown === null ? "–" : rematPercent(point.slowdown) },
    { title: "evicted", number: true, cell: (point) => count(point.evictions) },
    { title: "again", number: true, cell: (point) => count(point.rematerialisations) },
    { title: "peak live", number: true, cell: (point) => bytes(point.peak_live_bytes) },
    { title: "reserved", number: true, cell: (point) => bytes(point.peak_reserved_bytes) },
    { title: "stalls", number: true, cell: (point) => count(point.allocation_retries + point.cache_flushes) },
    { title: "fits?", cell: (point) => point.threshold_bytes === null ? (point.fits ? "✓ fits" : "✗ does not fit") : `${point.fits ? "✓" : "✗"} ${rematWord(remat, point)}` },
    { title: "where it fails", cell: (point) => point.out_of_memory ? `${point.out_of_memory.operator} ${point.out_of_memory.place ? `(${point.out_of_memory.place})` : ""}` : "" },
  ];
  const element = table(columns, [off, ...remat.points], { id: "remat-points" });
  element.querySelectorAll("tbody tr").forEach((row, i) => {
    const point = i ? remat.points[i - 1] : off;
    if (!point.fits) row.classList.add("bad");
    if (i && rematIsSame(point, remat.best)) row.classList.add("remat-best");
    if (!i) return;
    row.tabIndex = 0;
    rows.set(point, row);
    row.addEventListener("click", () => choose(point));
    row.addEventListener("keydown", (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); choose(point); } });
  });
  return element;
}

function rematNotes(remat) {
  const list = (title, lines) => lines.length ? [h("h2", null, title), h("ul", null, lines.map((line) => h("li", null, line)))] : [];
  return h("div", null, list("What this rests on", remat.assumptions ?? []), list("Notes", remat.notes ?? []));
}
