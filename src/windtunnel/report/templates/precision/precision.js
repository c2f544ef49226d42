// Two precision dumps: where they diverge, the modules coloured by how far, and the numbers of both sides.

addView({
  id: "precision", title: "Precision", isThere: (page) => page.data.kind === "precision",
  async mount(box, page) {
    const { data } = page, body = h("div");
    box.append(...precisionHead(data));
    let hands = null;
    const open = async (index) => { hands?.destroy(); hands = await precisionOpen(body, data, await precisionPart(data.parts[index]), page); };
    const start = precisionStart(data);
    if (data.parts.length > 1) box.append(precisionPicker(data, start, open));
    box.append(body);
    if (data.compare.first_divergence) box.append(precisionAround(data.compare.first_divergence));
    if (data.parts.length) await open(start);
    return { update: () => hands?.redraw(), resize: () => hands?.redraw() };
  },
});

// The step and rank with the first divergence, else the first.
function precisionStart(data) {
  const first = data.compare.first_divergence;
  if (!first) return 0;
  const isHere = (part) => part.step === first.step && part.rank === first.rank && (part.area || null) === first.area;
  const at = data.parts.findIndex(isHere), near = data.parts.findIndex((part) => part.step === first.step && part.rank === first.rank && part.first >= 0);
  return at >= 0 ? at : near >= 0 ? near : Math.max(0, data.parts.findIndex((part) => part.first >= 0));
}

function precisionHead(data) {
  const { compare } = data, first = compare.first_divergence;
  const mark = data.is_equal ? "✓" : "✗";
  const upper = (text) => text ? `${text[0].toUpperCase()}${text.slice(1)}` : "";
  return [
    h("h1", { class: data.is_equal ? "good" : "bad" }, `${mark} ${data.headline}`),
    ...(first ? first.explanation.map((sentence) => h("p", { class: "precision-why" }, `${upper(sentence)}.`)) : []),
    first && first.item_in_b !== first.item ? h("p", null, "B calls it ", h("code", null, first.item_in_b), ".") : null,
    first?.line ? h("p", null, "At ", h("code", null, first.line)) : null,
    h("p", { class: "faint" }, `${data.counts_sentence} Different means ${data.rule}.`),
    h("p", { class: "faint" }, "A: ", h("code", null, compare.a), "  B: ", h("code", null, compare.b)),
    ...compare.notes.map((note) => h("p", { class: "note" }, `Note: ${note}.`)),
  ].filter(Boolean);
}

function precisionAround(first) {
  const rows = table([
    { title: "value", cell: (row) => h("span", { class: row.role === "call" ? "code" : "code precision-inner" }, row.item) }, { title: "role", cell: (row) => row.role },
    { title: "A (norm)", number: true, cell: (row) => row.a }, { title: "B (norm)", number: true, cell: (row) => row.b },
    { title: "error", number: true, cell: (row) => row.error === null ? "" : row.error === "inf" ? "infinite" : precisionError(row.error) },
    { title: "is", cell: (row) => h("span", { class: row.judged === "different" ? "bad" : "faint" }, `${PRECISION_SIGNS[PRECISION_STATES.indexOf(row.judged)]} ${row.judged}`) },
  ], first.around.map((row) => ({ ...row, attributes: { class: row.judged === "different" ? "precision-bad" : null } })), { id: "precision-around" });
  return h("div", { class: "columns" }, h("div", null, h("h2", null, "Around the place"), rows),
    first.stack.length ? h("div", null, h("h2", null, "Call stack, innermost first"), precisionStack(first.stack)) : null);
}

const precisionStack = (frames) => h("pre", { class: "precision-stack" }, frames.map((frame) => frame.split(/\s+/).join(" ")).join("\n"));

function precisionPicker(data, start, open) {
  const word = (part) => part.first >= 0 ? "✗ differs" : "✓ agrees";
  return h("div", { class: "bar" }, h("label", null, "step and rank ", h("select", { id: "precision-part", onchange: (event) => open(Number(event.target.value)) },
    data.parts.map((part, i) => h("option", { value: i, selected: i === start }, `${precisionPartName(part)}: ${word(part)}`)))),
    data.n_parts_left_out ? h("span", { class: "faint" }, `${count(data.n_parts_left_out)} more steps and ranks were compared and are not shown`) : null);
}

async function precisionOpen(body, data, found, page) {
  const { part } = found, state = { call: precisionFirst(found), node: -1 };
  const chartBox = h("div", { class: "precision-chart", role: "img", "aria-label": `Relative error of ${plural(part.n_calls, "call")} in the order of execution` });
  const panel = h("div", { class: "precision-panel", "aria-live": "polite" });
  let plot = null;
  const show = (node, call) => {
    state.node = node;
    state.call = call;
    panel.replaceChildren(...precisionPanel(found, node, call, data));
    panel.scrollTop = 0;
    plot?.redraw(false);
  };
  const tree = precisionTree(found, { choose: (node) => show(node, (found.callsOf.get(node) ?? [-1]).find((call) => call >= 0 && found.calls.state[call] === PRECISION_DIFFERENT) ?? (found.callsOf.get(node) ?? [-1])[0]) });
  const toCall = (call) => { tree.reveal(found.calls.node[call]); show(found.calls.node[call], call); };
  const begins = Array.from(found.calls.begins.keys()).filter((call) => found.calls.begins[call]);
  const next = () => toCall(begins.find((call) => call > state.call) ?? begins[0]);
  body.replaceChildren(
    h("h2", null, "Modules and their values"), ...precisionSaid(part),
    h("div", { class: "bar" },
      begins.length ? h("button", { type: "button", id: "precision-go", onclick: () => toCall(precisionFirst(found) >= 0 ? precisionFirst(found) : begins[0]) }, "first divergence") : null,
      begins.length > 1 ? h("button", { type: "button", onclick: next }, `next of ${count(begins.length)} places where one starts`) : null,
      h("button", { type: "button", "aria-pressed": "false", onclick: (event) => { const is = event.target.getAttribute("aria-pressed") !== "true"; event.target.setAttribute("aria-pressed", String(is)); tree.onlyDifferent(is); } }, "only what differs"),
      h("span", { class: "faint" }, precisionKey())),
    h("div", { class: "precision-two" }, tree.element, panel),
    h("h2", null, `Relative error of every call${data.parts.length > 1 ? `: ${precisionPartName(part)}` : ""}`), chartBox, precisionLegend(data.phases));
  plot = precisionChart(found, chartBox, { chosen: () => state.call, choose: toCall, phases: data.phases });
  if (state.call >= 0) toCall(state.call); else if (found.roots.length) show(found.roots[0], -1);
  return { redraw() { plot.destroy(); plot = precisionChart(found, chartBox, { chosen: () => state.call, choose: toCall, phases: data.phases }); }, destroy() { plot.destroy(); } };
}

const precisionKey = () => "✗ a difference starts in it · ↳ only passes on differing inputs · ◐ on one side only · ≈ rounding · = equal";

function precisionSaid(part) {
  const said = [];
  if (part.n_told < part.n_values) said.push(`The tree counts all ${count(part.n_values)} values; the numbers of ${count(part.n_told)} are in this page, first those where a difference starts. windtunnel compare --csv lists all.`);
  if (!part.is_whole_tree) said.push("The dump has more names than fit in the tree: some are counted with their parent module.");
  return said.length ? [h("p", { class: "note" }, said.join(" "))] : [];
}

// -- what is known of a module ----------------------------------------------------------------------------------------

function precisionPanel(found, node, call, data) {
  const { nodes } = found, origin = precisionOrigin(found, node), mine = found.callsOf.get(node) ?? [];
  const calls = mine.length ? mine : precisionWorst(found, node);
  const state = precisionState(found, node);
  const why = { begins: "A difference starts in it.", inherits: "It differs because its inputs already differ." }[origin]
    ?? { [PRECISION_ROUNDING]: "It agrees within rounding.", [PRECISION_EQUAL]: "It agrees.", [PRECISION_ONE]: "Some of it is on one side only." }[state] ?? "There is nothing to compare.";
  const order = [...calls].sort((x, y) => (y === call) - (x === call) || x - y).slice(0, 12);
  return [
    h("h3", null, h("span", { class: "code" }, precisionPath(found, node)), nodes.classes[node] ? ` ${nodes.classes[node]}` : ""),
    h("p", { class: state === PRECISION_DIFFERENT ? "bad" : state === PRECISION_EQUAL ? "good" : null }, why),
    h("p", { class: "faint" }, `${plural(nodes.calls[node], "call")} in it and below: ${count(nodes.equal[node])} values equal, ${count(nodes.rounding[node])} within rounding, ${count(nodes.different[node])} different, ${count(nodes.one_sided[node])} on one side.`),
    !mine.length && calls.length ? h("p", { class: "faint" }, "It has no values of its own; these are the first below it that differ:") : null,
    ...order.flatMap((each) => precisionCall(found, each, data)),
    calls.length > order.length ? h("p", { class: "faint" }, `${plural(calls.length - order.length, "more call")} of it: choose one in the chart.`) : null,
  ].filter(Boolean);
}

function precisionWorst(found, node) {
  const isBelow = (at) => { while (at > node) at = found.nodes.parent[at]; return at === node; };
  const below = [];
  for (let call = 0; call < found.calls.place.length && below.length < 12; call++) {
    if ((found.calls.state[call] === PRECISION_DIFFERENT || found.calls.state[call] === PRECISION_ONE) && isBelow(found.calls.node[call])) below.push(call);
  }
  return below;
}

function precisionCall(found, call, data) {
  const { calls } = found, [from, to] = precisionRows(found, call);
  const word = calls.side[call] ? `◐ only ${calls.side[call] === 1 ? "A" : "B"} makes this call`
    : `${PRECISION_SIGNS[calls.state[call]]} ${PRECISION_STATES[calls.state[call]]}${calls.begins[call] ? ": a difference starts here" : calls.state[call] === PRECISION_DIFFERENT ? ": its inputs already differ" : ""}`;
  const inB = found.part.names_in_b[call], stack = found.part.stacks[call];
  return [
    h("h4", { class: "precision-call" }, h("span", { class: "code" }, calls.names[call]), " ", h("span", { class: calls.state[call] === PRECISION_DIFFERENT ? "bad" : "faint" }, word)),
    inB ? h("p", { class: "faint" }, "B calls it ", h("code", null, inB), ".") : null,
    from < to ? precisionValues(found, from, to, data) : h("p", { class: "faint" }, calls.is_told[call] ? "It has no values that both sides have." : "Its numbers are not in this page."),
    stack ? h("details", { open: found.calls.place[call] === found.part.first }, h("summary", null, "call stack"), precisionStack(stack)) : null,
  ].filter(Boolean);
}

function precisionValues(found, from, to, data) {
  const { values } = found, rows = [];
  for (let row = from; row < to; row++) {
    const judged = values.judged[row], side = values.side[row], isBad = judged === PRECISION_DIFFERENT || judged === PRECISION_ONE;
    const letters = side === 1 ? ["a"] : side === 2 ? ["b"] : ["a", "b"];
    const span = { rowspan: letters.length };
    const flags = precisionFlags(found, row), word = judged === PRECISION_ONE ? `only in ${side === 1 ? "A" : "B"}` : PRECISION_STATES[judged];
    letters.forEach((letter, i) => rows.push(h("tr", { class: `${isBad ? "precision-bad" : ""} ${i ? "precision-b" : "precision-a"}` },
      i ? null : h("td", { ...span, class: "code" }, values.texts[values.suffix[row]], h("div", { class: "faint" }, PRECISION_ROLES[values.role[row]])),
      h("td", { class: "comparison-letter" }, letter.toUpperCase()),
      h("td", { class: "faint" }, values.texts[letter === "a" ? values.a_type[row] : values.b_type[row]]),
      precisionCells(found, row, letter, isBad && letters.length > 1),
      i ? null : h("td", { ...span, class: "number", title: `from ${data.evidence[values.evidence[row]]}` }, precisionError(values.error[row])),
      i ? null : h("td", { ...span, class: isBad ? "bad" : "faint" }, `${PRECISION_SIGNS[judged]} ${word}`, flags.map((flag) => h("div", null, flag)), precisionElements(found, row)))));
  }
  return h("div", { class: "scroll" }, h("table", { class: "precision-values" },
    h("thead", null, h("tr", null, ["value", "", "type", "max", "min", "mean", "norm", "error", "is"].map((title, i) => h("th", { scope: "col", class: i > 2 && i < 8 ? "number" : null }, title)))),
    h("tbody", null, rows)));
}

function precisionCells(found, row, side, isBad) {
  const scalar = precisionScalar(found, row, side);
  if (scalar !== null) return [h("td", { class: isBad ? "number bad" : "number", colspan: 4 }, scalar)];
  const figures = precisionFigures(found, row, side), others = precisionFigures(found, row, side === "a" ? "b" : "a");
  const extra = [4, 5, 6].filter((i) => figures[i] > 0 && (i < 6 || figures[i] !== others[i])).map((i) => `${count(figures[i])} ${PRECISION_FIGURES[i]}`).join(", ");
  return figures.slice(0, 4).map((figure, i) => h("td", { class: isBad && figure !== others[i] ? "number bad" : "number" }, figure === null ? "–" : precisionNumber(figure),
    i === 3 && extra ? h("div", { class: "warn" }, extra) : null));
}

// Where both dumps have the tensors themselves.
function precisionElements(found, row) {
  const { elements } = found.values, at = lastUpTo(elements.value, row);
  if (at < 0 || elements.value[at] !== row) return null;
  return h("div", { class: "faint" }, `cosine ${precisionNumber(elements.cosine[at])}, largest |a − b| ${precisionNumber(elements.max_abs[at])}, ${(100 * elements.one_thousandth[at]).toFixed(1)} % within 1/1000`);
}
