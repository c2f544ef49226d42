// Two runs: what changed in sentences, then side by side.

addView({
  id: "comparison", title: "Comparison", isThere: (page) => page.data.kind === "comparison",
  async mount(box, page) {
    const { data } = page;
    const ranks = data.rank_pairs ? await unpackAll(data.rank_pairs) : null;
    let isSwapped = false, plot = null, times = null, sides = null;
    const draw = () => {
      plot?.destroy();
      plot = null;
      ({ times, sides } = comparisonDraw(box, data, ranks, isSwapped, () => { isSwapped = !isSwapped; draw(); box.querySelector("#comparison-swap").focus(); }));
      drawTimes();
    };
    const drawTimes = () => { plot?.destroy(); plot = times ? comparisonTimes(times, sides) : null; };
    draw();
    return { update: draw, resize: drawTimes };
  },
});

function comparisonDraw(box, data, ranks, isSwapped, swap) {
  const [a, b] = isSwapped ? [data.sides.b, data.sides.a] : [data.sides.a, data.sides.b];
  // A row as it reads from A to B; turned round if the page is.
  const turn = (row, names = ["a_bytes", "b_bytes"]) => {
    const [x, y] = isSwapped ? [row[names[1]], row[names[0]]] : [row[names[0]], row[names[1]]];
    const difference = row.difference === null ? null : isSwapped ? -row.difference : row.difference;
    return { ...row, a: x, b: y, difference };
  };
  const sentences = data.sentences[isSwapped ? "b_to_a" : "a_to_b"];
  const needs = { a: a.rank.peak_with_fragments_bytes, b: b.rank.peak_with_fragments_bytes };
  const total = { title: "what the rank needs", ...needs, difference: needs.b - needs.a };
  const parts = [
    h("h1", null, sentences[0]), sentences.slice(1).map((sentence) => h("p", null, sentence)),
    h("div", { class: "bar" }, h("button", { id: "comparison-swap", type: "button", "aria-pressed": String(isSwapped), onclick: swap }, "⇄ swap A and B")),
    h("div", { class: "columns" }, comparisonSide("A", a), comparisonSide("B", b)),
  ];
  let times = null, sides = null;
  if (needs.a && needs.b) {
    const roles = data.roles.map((row) => turn(row));
    const stack = (letter, side, name) => ({ letter, name: side.name, usable: side.rank.usable_memory_bytes, needs: side.rank.peak_with_fragments_bytes,
      roles: [...STACKED, "unnamed", "fragments"].map((role) => ({ role, bytes: roles.find((row) => row.role === role)?.[name] ?? 0 })).filter((each) => each.bytes > 0) });
    parts.push(h("h2", null, `At the peak, by kind${comparisonWho(a, b)}`), comparisonStacks([stack("A", a, "a"), stack("B", b, "b")]),
      comparisonTable({ id: "comparison-roles", rows: roles.filter((row) => row.a || row.b), format: bytes, total,
        names: [{ title: "kind", text: (row) => comparisonRole(row.role), cell: (row) => [h("span", { class: "swatch", style: { background: comparisonColour(row.role) } }), comparisonRole(row.role)] }] }));
    if (a.rank.timeline && b.rank.timeline) {
      sides = [["A", a], ["B", b]].map(([letter, side]) => ({ letter, usable: side.rank.usable_memory_bytes, timeline: side.rank.timeline }));
      times = h("div", { class: "comparison-times", role: "img", "aria-label": "Allocated memory of both runs over their steps" });
      parts.push(h("h2", null, `Memory over time${comparisonWho(a, b)}`), h("p", { class: "faint" }, "Allocated bytes, step by step: ",
        h("span", { class: "comparison-line a" }), " A (solid), ", h("span", { class: "comparison-line b" }), " B (dashed). Drag to zoom, double-click to see all."), times);
    }
    parts.push(...comparisonHolders(data, turn, total));
  }
  parts.push(...comparisonTime(data, turn, a, b), ...comparisonRanks(ranks, isSwapped), ...comparisonSettings(data, isSwapped));
  box.replaceChildren(...parts.flat());
  return { times, sides };
}

// Which ranks are compared, if there are several.
const comparisonWho = (a, b) => a.world_size > 1 || b.world_size > 1 ? `: rank ${a.rank.rank} of A and rank ${b.rank.rank} of B` : "";

function comparisonSide(letter, side) {
  const { rank } = side, mark = side.verdict.fits ? "✓" : "✗";
  const where = side.world_size > 1 ? `rank ${rank.rank} of ${count(side.world_size)} needs most` : `on ${side.device}`;
  return h("div", { class: "card comparison-side" },
    h("h3", null, h("span", { class: "comparison-letter" }, letter), " ", side.title),
    h("p", null, h("strong", { class: side.verdict.fits ? "good" : "bad" }, mark), " ", side.verdict.sentence),
    h("p", { class: "faint" }, `${where}; `, rank.peak_at ? `peak in step ${rank.peak_at.step}, ${rank.peak_at.phase}, ${rank.peak_at.op || "no operator"}${rank.peak_at.module ? ` in ${rank.peak_at.module}` : ""}` : "no peak was measured",
      side.step_seconds ? `; a step takes ${seconds(side.step_seconds)}` : "", "."));
}

const comparisonModule = (row) => row.module || (row.role === "fragments" ? "(held by the allocator)" : row.role === "unnamed" ? "(no tensor explains it)" : "(outside any module)");
const comparisonKind = { title: "kind", text: (row) => comparisonRole(row.role), cell: (row) => [h("span", { class: "swatch", style: { background: comparisonColour(row.role) } }), comparisonRole(row.role)] };

function comparisonHolders(data, turn, total) {
  const { rows, rest, n_rest: nRest } = data.modules;
  const modules = rows.map((row) => turn(row));
  if (rest) modules.push(turn({ module: `(${count(nRest)} smaller rows)`, role: "", a_bytes: rest[0], b_bytes: rest[1], difference: rest[1] - rest[0] }));
  const parts = [h("h2", null, "What changed at the peak, by module"),
    comparisonTable({ id: "comparison-modules", rows: modules, format: bytes, total, names: [{ title: "module", text: comparisonModule, class: "code" }, comparisonKind] })];
  if (data.lines) {
    parts.push(h("h2", null, "By source line"), comparisonTable({ id: "comparison-lines", rows: data.lines.map((row) => turn(row)), format: bytes, shown: 15,
      names: [{ title: "line that made it", text: (row) => row.module || "(no line of yours)", class: "code" }, comparisonKind] }));
  }
  if (data.tensors.length) {
    parts.push(h("h2", null, "Largest tensors"), h("p", { class: "faint" }, "The largest of each run; “smaller” means that a run has none of this origin among its largest."),
      comparisonTable({ id: "comparison-tensors", rows: data.tensors.map((row) => turn(row)), format: bytes, shown: 15, names: [
        { title: "tensors", text: (row) => row.name || row.op || "tensor", class: "code" },
        { title: "module", text: (row) => row.module, class: "code" }, comparisonKind,
        { title: "made at", text: (row) => row.where, class: "code" },
        { title: "shape", text: (row) => row.a_shape === row.b_shape ? row.a_shape : [row.a_shape, row.b_shape].filter(Boolean).join(" | ") }] }));
  }
  return parts;
}

function comparisonTime(data, turn, a, b) {
  if (!data.time) return [];
  const name = (title) => [{ title, text: (row) => row.name || "(outside any module)", class: "code" }];
  const step = { a: a.step_seconds, b: b.step_seconds, name: "step", difference: b.step_seconds - a.step_seconds };
  const rows = (list) => list.map((row) => turn(row, ["a", "b"]));
  return [h("h2", null, "Time of a step"), comparisonTable({ id: "comparison-step", rows: [step], format: seconds, names: [{ title: "what", text: () => "whole step" }] }),
    h("div", { class: "columns" },
      h("div", null, h("h3", null, "Kernels by kind of operator"), comparisonTable({ id: "comparison-classes", rows: rows(data.time.classes), format: seconds, shown: 12, names: name("kind") })),
      h("div", null, h("h3", null, "Kernels by module"), comparisonTable({ id: "comparison-module-times", rows: rows(data.time.modules), format: seconds, shown: 12, names: name("module") })))];
}

function comparisonRanks(ranks, isSwapped) {
  if (!ranks) return [];
  const [a, b] = isSwapped ? ["b", "a"] : ["a", "b"];
  const rows = Array.from(ranks.rank, (rank, i) => ({ rank, a: ranks[`${a}_bytes`][i], b: ranks[`${b}_bytes`][i], difference: ranks[`${b}_bytes`][i] - ranks[`${a}_bytes`][i],
    fits: `${ranks[`${a}_fits`][i] ? "✓" : "✗"} → ${ranks[`${b}_fits`][i] ? "✓" : "✗"}` }));
  return [h("h2", null, "Rank by rank"), comparisonTable({ id: "comparison-ranks", rows, format: bytes, shown: 20,
    names: [{ title: "rank", text: (row) => String(row.rank) }, { title: "fits", text: (row) => row.fits }] })];
}

function comparisonSettings(data, isSwapped) {
  const [a, b] = isSwapped ? ["b", "a"] : ["a", "b"];
  return [h("h2", null, "Settings"), table([
    { title: "", cell: (row) => row.name }, { title: "A", cell: (row) => row[a] }, { title: "B", cell: (row) => row[b] },
    { title: "", cell: (row) => row.a === row.b ? h("span", { class: "faint" }, "same") : h("strong", { class: "warn" }, "≠ differs") },
  ], data.settings, { id: "comparison-settings" })];
}
