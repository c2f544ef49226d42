// Parts of a comparison: a table of differences that can be sorted, two bars on one scale, two lines over one axis.

const comparisonSigned = (format, n) => n === null ? "" : n === 0 ? "same" : `${n > 0 ? "+" : "−"}${format(Math.abs(n))}`;

// rows: [{a, b, difference, ...}]; names: columns in front, {title, text: (row) => text}; format: how a figure is written.
// A difference is a bar to the left (less) or to the right (more), and a sign and figure beside it.
function comparisonTable({ rows, names, format, id, shown = 25, total = null }) {
  const largest = Math.max(1e-30, ...rows.map((row) => Math.abs(row.difference ?? 0)));
  const state = { by: "difference", isDown: true, isAll: false, words: "" };
  const box = h("div", { id });
  const value = (row) => state.by === "difference" ? Math.abs(row.difference ?? Math.max(row.a ?? 0, row.b ?? 0))
    : state.by === "a" || state.by === "b" ? row[state.by] ?? -1 : names[Number(state.by)].text(row);
  const compare = (x, y) => typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
  const heading = (title, by, kind) => h("th", { scope: "col", class: kind, "aria-sort": state.by === by ? (state.isDown ? "descending" : "ascending") : "none" },
    h("button", { type: "button", class: "comparison-sort", onclick: () => {
      if (state.by === by) state.isDown = !state.isDown; else { state.by = by; state.isDown = Number.isNaN(Number(by)); }
      draw();
      box.querySelectorAll("th button")[[...names.keys()].map(String).concat(["a", "b", "difference"]).indexOf(by)].focus();
    } }, title, state.by === by ? (state.isDown ? " ▾" : " ▴") : ""));
  const side = (row, name) => row[name] === null ? h("td", { class: "number faint", title: "not among the largest of this run" }, "smaller") : h("td", { class: "number" }, format(row[name]));

  function draw() {
    const words = state.words.toLowerCase();
    const found = words ? rows.filter((row) => names.some((name) => name.text(row).toLowerCase().includes(words))) : rows;
    const sorted = [...found].sort((x, y) => (state.isDown ? -1 : 1) * compare(value(x), value(y)));
    const visible = state.isAll ? sorted : sorted.slice(0, shown);
    const body = visible.map((row) => h("tr", null,
      names.map((name) => h("td", { class: name.class ?? null }, name.cell ? name.cell(row) : name.text(row))),
      side(row, "a"), side(row, "b"),
      h("td", { class: "number" }, comparisonSigned(format, row.difference)), h("td", { class: "comparison-cell" }, comparisonBar(row.difference, largest))));
    if (total) body.push(h("tr", { class: "comparison-total" }, h("td", { colspan: names.length }, total.title),
      h("td", { class: "number" }, format(total.a)), h("td", { class: "number" }, format(total.b)), h("td", { class: "number" }, comparisonSigned(format, total.difference)), h("td")));
    const more = found.length - visible.length;
    box.replaceChildren(
      rows.length > shown ? h("div", { class: "bar" }, h("label", null, "find ", finder),
        h("span", { class: "faint" }, `${count(visible.length)} of ${plural(rows.length, "row")}`)) : "",
      h("div", { class: "scroll" }, h("table", null,
        h("thead", null, h("tr", null, names.map((name, i) => heading(name.title, String(i), null)), heading("A", "a", "number"), heading("B", "b", "number"), heading("change", "difference", "number"), h("th", { "aria-hidden": "true" }))),
        h("tbody", null, body))),
      more > 0 ? h("button", { type: "button", onclick: () => { state.isAll = true; draw(); } }, `show ${count(more)} more`) : "");
  }
  const finder = h("input", { type: "search", size: 24, oninput: () => { state.words = finder.value; draw(); finder.focus(); } });
  draw();
  return box;
}

function comparisonBar(difference, largest) {
  const share = Math.min(1, Math.abs(difference ?? 0) / largest) * 50;
  return h("div", { class: "comparison-diff", "aria-hidden": "true" }, difference
    ? h("i", { class: difference > 0 ? "more" : "less", style: { width: `${share}%`, left: `${difference > 0 ? 50 : 50 - share}%` } }) : null);
}

// Both peaks as stacked bars on one scale; `sides` are [{letter, name, roles: [{role, bytes}], usable, needs}].
function comparisonStacks(sides) {
  const most = Math.max(...sides.map((side) => Math.max(side.needs, side.usable))) * 1.04 || 1;
  const bar = (side) => h("div", { class: "comparison-row" },
    h("div", { class: "comparison-letter" }, side.letter),
    h("div", { class: "comparison-track", role: "img", "aria-label": `${side.letter} needs ${bytes(side.needs)} of ${bytes(side.usable)}: ${side.roles.map((each) => `${comparisonRole(each.role)} ${bytes(each.bytes)}`).join(", ")}` },
      side.roles.map((each) => h("i", { style: { width: `${100 * each.bytes / most}%`, background: comparisonColour(each.role) }, class: each.role === "fragments" ? "comparison-hatched" : null,
        onmousemove: (event) => tip.show(event, [comparisonRole(each.role), bytes(each.bytes), percent(each.bytes, side.needs)]), onmouseleave: () => tip.hide() })),
      side.usable ? h("b", { class: "comparison-usable", style: { left: `${100 * side.usable / most}%` } }) : null),
    h("div", { class: "comparison-says number" }, h("strong", null, bytes(side.needs)),
      side.usable ? h("span", { class: side.needs > side.usable ? "bad" : "good" }, side.needs > side.usable ? ` ✗ ${bytes(side.needs - side.usable)} too much` : ` ✓ ${bytes(side.usable - side.needs)} free`) : null));
  const roles = [...new Set(sides.flatMap((side) => side.roles.map((each) => each.role)))];
  return h("div", { class: "comparison-stacks" }, h("div", { class: "comparison-bars" }, sides.map(bar)),
    h("div", { class: "bar faint" }, roles.map((role) => h("span", null, h("span", { class: role === "fragments" ? "swatch comparison-hatched" : "swatch", style: { background: comparisonColour(role) } }), comparisonRole(role))),
      sides.some((side) => side.usable) ? h("span", null, h("b", { class: "comparison-usable-key" }), "usable memory") : null));
}

const COMPARISON_WORDS = { fragments: "fragments and cache", unnamed: "bytes no tensor explains" };
const comparisonRole = (role) => COMPARISON_WORDS[role] ?? roleWord(role);
const comparisonColour = (role) => role === "fragments" || role === "unnamed" ? "var(--line)" : `var(--role-${role})`;

// -- memory over time -------------------------------------------------------------------------------------------------

// Points of a timeline by step: 2.5 is the middle of step 2, however many events it has.
function comparisonSteps(timeline) {
  const { event, step } = timeline, n = event.length, x = new Array(n);
  for (let from = 0; from < n;) {
    let to = from;
    while (to < n && step[to] === step[from]) to++;
    const begin = event[from], end = to < n ? event[to] : event[n - 1] + 1;
    for (let i = from; i < to; i++) x[i] = step[from] + (event[i] - begin) / Math.max(1, end - begin);
    from = to;
  }
  return x;
}

// One chart for both: allocated as lines, usable memory as levels.
function comparisonTimes(box, sides) {
  const ink = { faint: cssColour("faint"), line: cssColour("line"), bad: cssColour("bad") };
  const font = "12px system-ui, sans-serif", axis = { stroke: ink.faint, font, labelFont: font, grid: { stroke: ink.line, width: 1 }, ticks: { stroke: ink.line, width: 1 } };
  const columns = sides.map((side) => comparisonSteps(side.timeline));
  const data = uPlot.join(sides.map((side, i) => [columns[i], side.timeline.allocated_bytes]));
  const most = 1.08 * Math.max(...sides.flatMap((side) => [side.usable, ...side.timeline.allocated_bytes]));
  const colours = [cssColour("role-weights"), cssColour("role-temporary")];
  const levels = (u) => {
    const { ctx, bbox } = u, dots = uPlot.pxRatio;
    for (const usable of new Set(sides.map((side) => side.usable))) {
      if (!usable) continue;
      const y = u.valToPos(usable, "y", true), who = sides.every((side) => side.usable === usable) ? "" : ` of ${sides.find((side) => side.usable === usable).letter}`;
      ctx.save();
      ctx.strokeStyle = ctx.fillStyle = ink.bad;
      ctx.lineWidth = 1.3 * dots;
      ctx.setLineDash([]);
      ctx.beginPath(); ctx.moveTo(bbox.left, y); ctx.lineTo(bbox.left + bbox.width, y); ctx.stroke();
      ctx.font = `${12 * dots}px system-ui, sans-serif`;
      ctx.textAlign = "left";
      ctx.textBaseline = "alphabetic";
      // A border of paper: lines go behind the words.
      const words = [`usable memory${who}: ${bytes(usable)}`, bbox.left + 6 * dots, y - 5 * dots];
      ctx.strokeStyle = cssColour("paper");
      ctx.lineWidth = 4 * dots;
      ctx.setLineDash([]);
      ctx.strokeText(...words);
      ctx.fillText(...words);
      ctx.restore();
    }
  };
  const plot = new uPlot({
    width: Math.max(260, box.clientWidth), height: 300, padding: [12, 12, 0, 0], legend: { show: false },
    cursor: { drag: { x: true, y: false }, y: false },
    scales: { x: { time: false }, y: { range: () => [0, most] } },
    axes: [{ ...axis, label: "step", size: 34, labelSize: 18, incrs: [0.01, 0.05, 0.1, 0.25, 0.5, 1, 2, 5, 10, 50, 100, 1000] },
      { ...axis, size: 78, incrs: comparisonIncrements(), values: (_, all) => all.map(bytes) }],
    series: [{}, ...sides.map((side, i) => ({ label: side.letter, stroke: colours[i], width: 2, dash: i ? [7, 4] : [], spanGaps: true, points: { show: false } }))],
    hooks: { draw: [levels] },
  }, data, box);
  plot.over.addEventListener("mousemove", (event) => {
    const x = plot.posToVal(plot.cursor.left, "x");
    tip.show(event, [`step ${x.toFixed(2)}`, ...sides.map((side, i) => {
      const at = lastUpTo(columns[i], x);
      return at < 0 ? null : `${side.letter}: ${bytes(side.timeline.allocated_bytes[at])} allocated, ${bytes(side.timeline.reserved_bytes[at])} reserved`;
    })]);
  });
  plot.over.addEventListener("mouseleave", () => tip.hide());
  return plot;
}

const comparisonIncrements = () => Array.from({ length: 44 }, (_, i) => 2 ** i);
