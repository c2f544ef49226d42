// What is live at one moment of a rank: sums by kind, the largest allocations, and one of them with its stack.

// Equal allocations of a moment in one group: same operator, shape and line, modules equal except for layer numbers.
function liveGroups(detail, row) {
  const byLabel = new Map();
  for (const i of liveAt(detail, row)) {
    const label = detail.allocations.what[i];
    const found = byLabel.get(label);
    if (found) { found.count++; found.bytes += detail.allocations.bytes[i]; }
    else byLabel.set(label, { ...describe(detail, i), allocation: i, count: 1 });
  }
  const all = [...byLabel.values()];
  const modules = foldPaths(all.map((one) => one.module)), names = foldPaths(all.map((one) => one.name));
  const groups = new Map();
  for (const one of all) {
    const module = modules.get(one.module), name = names.get(one.name);
    const key = JSON.stringify([name, one.op, module, one.role, one.shape, one.where]);
    const found = groups.get(key);
    if (found) { found.count += one.count; found.bytes += one.bytes; } else groups.set(key, { ...one, name, module });
  }
  return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
}

// Each path -> the same path with the numbers of all its siblings: layers.0.mlp -> layers.0-27.mlp.
function foldPaths(paths) {
  const alike = new Map();
  for (const path of new Set(paths)) {
    const parts = path.split("."), template = parts.map((part) => /^\d+$/.test(part) ? "#" : part).join(".");
    alike.set(template, [...(alike.get(template) ?? []), parts]);
  }
  const folded = new Map();
  for (const members of alike.values()) {
    const text = members[0].map((part, k) => /^\d+$/.test(part) ? numberRanges(members.map((parts) => Number(parts[k]))) : part).join(".");
    for (const parts of members) folded.set(parts.join("."), text);
  }
  return folded;
}

// [0, 1, 2, 5] -> "0-2,5".
function numberRanges(numbers) {
  const runs = [];
  for (const n of [...new Set(numbers)].sort((a, b) => a - b)) {
    if (runs.length && n === runs.at(-1)[1] + 1) runs.at(-1)[1] = n; else runs.push([n, n]);
  }
  return runs.map(([a, b]) => a === b ? `${a}` : `${a}-${b}`).join(",");
}

const memoryMoment = (detail, row) => row >= detail.rows ? "the end"
  : `step ${stepAt(detail, row)}${detail.phases.row.length ? `, ${phaseAt(detail, row)}` : ""} (event ${count(row)})`;

const memoryLife = (detail, one) => `allocated in ${memoryMoment(detail, one.born)}, ${one.freed >= detail.rows ? "never freed" : `freed in ${memoryMoment(detail, one.freed)}`}`;

function memoryTip(detail, found, row, total) {
  const kind = roleWord(detail.roles[found.role]);
  if (found.allocation < 0) return [kind, "bytes of allocations that this page does not name", memoryMoment(detail, row)];
  const one = describe(detail, found.allocation);
  const share = one.bytes < total / 1000 ? "less than 0.1 %" : percent(one.bytes, total);
  return [
    memoryTitle(one),
    `${bytes(one.bytes)}, ${share} of the ${bytes(total)} live here; ${kind}`,
    one.name && one.op ? `made by ${one.op}` : "",
    one.module ? `in ${one.module}` : "",
    one.where && (one.name || one.op) ? `at ${one.where}` : "",
    memoryLife(detail, one),
  ];
}

// The panel below the chart. `at`: {row, isPeak, live (bytes), picked, most, more()}; `pick(allocation)` chooses one.
function momentPanel(detail, at, pick) {
  const { row, live, most } = at, groups = liveGroups(detail, row);
  const reserved = levelAt({ row: detail.reserved.row, level: detail.reserved.bytes }, row);
  const op = operatorAt(detail, row);
  const untold = restAt(detail, row).reduce((a, b) => a + b, 0);
  return [
    h("h2", null, `${at.isPeak ? "At the peak" : "At the chosen moment"}: ${memoryMoment(detail, row)}`),
    h("p", null, `${bytes(live)} live, ${bytes(reserved)} reserved by the allocator. `,
      op ? h("span", { class: "faint" }, `The program is in ${op.name}${op.module ? ` of ${op.module}` : ""}.`) : null),
    at.picked >= 0 ? pickedCard(detail, at.picked) : null,
    groups.length ? table([
      { title: "what", cell: (one) => h("span", null, h("span", { class: "swatch", style: { background: `var(--role-${one.role})` } }), memoryTitle(one)) },
      { title: "kind", cell: (one) => roleWord(one.role) },
      { title: "bytes", number: true, cell: (one) => bytes(one.bytes) },
      { title: "share", number: true, cell: (one) => percent(one.bytes, live) },
      { title: "count", number: true, cell: (one) => count(one.count) },
      { title: "module", cell: (one) => one.module },
      { title: "line", cell: (one) => one.where },
    ], groups.slice(0, most).map((one) => ({ ...one, attributes: {
      tabindex: 0, "aria-label": `show ${memoryTitle(one)}`,
      onclick: () => pick(one.allocation),
      onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(one.allocation); } },
    } })), { class: "memory-live" }) : null,
    groups.length > most ? h("button", { type: "button", onclick: () => at.more() }, `${plural(groups.length - most, "smaller group")} more`) : null,
    untold && detail.allocations.born.length ? h("p", { class: "faint" }, `${bytes(untold)} more are live in allocations that this page only counts.`) : null,
  ].filter(Boolean);
}

function pickedCard(detail, allocation) {
  const one = describe(detail, allocation);
  return h("div", { class: "card memory-picked" },
    h("strong", null, h("span", { class: "swatch", style: { background: `var(--role-${one.role})` } }), memoryTitle(one)),
    h("div", null, `${bytes(one.bytes)} of ${roleWord(one.role)}${one.name && one.op ? `, made by ${one.op}` : ""}${one.module ? `, in ${one.module}` : ""}`),
    h("div", { class: "faint" }, memoryLife(detail, one)),
    one.stack.length ? h("pre", { "aria-label": "Python stack, innermost first" }, one.stack.join("\n")) : h("div", { class: "faint" }, "no Python line is known"));
}

// The operator that runs at this row: its own row comes after those of the memory it takes. None where none is named.
function operatorAt(detail, row) {
  if (!detail.ops) return null;
  const at = row > 0 ? firstAbove(detail.ops.row, row - 1) : 0;
  return at < detail.ops.row.length && operatorStart(detail, at) <= row ? describeOperator(detail, at) : null;
}

const operatorStart = (detail, at) => detail.ops.row[at] + 1 - detail.ops.rows[at];

function describeOperator(detail, at) {
  const { ops, strings } = detail;
  return { at, row: ops.row[at], first: operatorStart(detail, at), name: strings[ops.name[at]] || "operator", module: strings[ops.module[at]],
    phase: detail.phases.names[ops.phase[at]], stack: stackOf(detail, ops.frame[at]) };
}
