// What holds the memory of a rank at its peak: a bar against the limit, kinds, what to checkpoint, modules and tensors.

function overviewMemory(page, rank) {
  const need = rank.peak_with_fragments_bytes, held = STACKED.map((role) => [role, rank.at_peak_bytes[role] ?? 0]).filter(([, size]) => size > 0);
  const title = page.data.run.world_size > 1 ? `What holds the memory of rank ${page.rank} at its peak` : "What holds the memory at the peak";
  const rows = [...held].sort((a, b) => b[1] - a[1]).map(([role, size]) => ({ role, words: roleWord(role), size }));
  rows.push({ words: "live at the peak", size: rank.peak_bytes, attributes: { class: "overview-sum" } });
  if (need > rank.peak_bytes) rows.push({ role: "fragments", words: "fragments: reserved, but of no use to any tensor", size: need - rank.peak_bytes });
  rows.push({ words: "needed", size: need, attributes: { class: "overview-sum" } });
  const columns = [
    { title: "kind", cell: (row) => [row.role ? overviewSwatch(row.role) : null, row.words] },
    { title: "bytes", number: true, cell: (row) => bytes(row.size) },
    { title: "of the need", number: true, cell: (row) => percent(row.size, need) },
  ];
  return h("div", null, h("h2", null, title), ...overviewBar(page, rank, held),
    h("div", { class: "columns overview-split" }, table(columns, rows, { id: "overview-kinds" }), rank.status === "failed" ? null : overviewCheckpoint(page)), overviewAdvice(page));
}

function overviewSwatch(role) {
  if (role === "fragments") return h("span", { class: "swatch overview-hatch" });
  return h("span", { class: "swatch", title: roleWord(role), style: { background: `var(--role-${role})` } });
}

// All kinds and the fragments in a row, as long as the need, and where the device ends.
function overviewBar(page, rank, held) {
  const need = rank.peak_with_fragments_bytes, usable = rank.usable_memory_bytes, hasLimit = overviewHasLimit(page, rank);
  const isFar = hasLimit && usable > 20 * need;  // so far off that only the limit would be seen
  const isDrawn = hasLimit && !isFar, scale = 1.02 * Math.max(need, isDrawn ? usable : 0), share = (size) => `${100 * size / scale}%`;
  const part = (role, words, size) => h("span", { class: `overview-part ${role}`,
    style: { width: share(size), background: role === "fragments" ? "" : `var(--role-${role})` },
    onpointermove: (event) => tip.show(event, [words, bytes(size), `${percent(size, need)} of the need`]), onpointerleave: () => tip.hide() });
  const limit = h("span", { class: `overview-limit ${usable > 0.6 * scale ? "before" : ""}`, style: { left: share(usable) } },
    h("span", null, `${bytes(usable)} usable`));
  const words = `${bytes(need)} needed${hasLimit ? `, ${bytes(usable)} usable` : ""}`;
  return [
    h("div", { class: "overview-bar", role: "img", "aria-label": words }, held.map(([role, size]) => part(role, roleWord(role), size)),
      need > rank.peak_bytes ? part("fragments", "fragments", need - rank.peak_bytes) : null, isDrawn ? limit : null),
    isFar ? h("p", { class: "faint" }, `${bytes(usable)} usable is ${count(Math.floor(usable / need))} times as long as this bar.`) : "",
  ];
}

// -- advice -----------------------------------------------------------------------------------------------------------

function overviewAdvice(page) {
  const { run } = page.data, rows = run.advice ?? [];
  if (!rows.length) return "";
  const columns = [
    { title: "change", cell: (row) => row.what },
    { title: "needs", number: true, cell: (row) => bytes(row.needs_bytes) },
    { title: "fits?", cell: (row) => h("span", { class: row.fits ? "good" : "bad" }, row.fits ? "yes" : "no") },
    { title: "how", cell: (row) => h("code", null, row.how) },
  ];
  return h("div", { id: "overview-advice" }, h("h3", null, run.fits ? "What else would fit" : "What would make it fit"),
    h("p", { class: "faint" }, "Each was simulated, by its own dry run or by replaying the allocations of this one."), table(columns, rows));
}

function overviewCheckpoint(page) {
  const { checkpoint_first: rows = [], verdict: { rank: worst }, run, simulated } = page.data, told = simulated[worst];
  const box = h("div", { id: "overview-checkpoint" }, h("h3", null, "Which module to checkpoint first"));
  if (page.shownBy(page.rank) !== worst) box.append(h("p", { class: "faint" }, `For rank ${worst}, the tightest.`));
  if (!rows.length) {
    const held = told.at_peak_bytes.activations, when = told.peak_at?.phase ? ` (${told.peak_at.phase})` : "";
    box.append(h("p", null, `None: activations hold ${held ? `only ${bytes(held)}` : "nothing"} at the peak${when}, `,
      "so checkpointing would not lower it."));
    return box;
  }
  const first = rows[0];
  const inputs = first.count === 1 ? "the module stay" : `the ${count(first.count)} modules stay`;
  box.append(
    h("p", null, h("strong", null, first.module),
      `: at most ${bytes(first.bytes)} less. The inputs of ${inputs}, and the peak may move.`),
    table(overviewCheckpointColumns(rows), rows),
    h("p", { class: "faint" }, "For the exact cost and saving: ", h("code", null, `windtunnel remat --advise --device ${run.device.name} …`)));
  return box;
}

function overviewCheckpointColumns(rows) {
  const name = (row) => h("code", null, row.module);
  const columns = [
    { title: "module", cell: name },
    { title: "modules", number: true, cell: (row) => count(row.count) },
    { title: "activations", number: true, cell: (row) => bytes(row.bytes) },
    { title: "of the need", number: true, cell: (row) => percent(row.share, 1) },
  ];
  if (rows.every((row) => row.forward_us === null)) return columns;
  return [...columns,
    { title: "costs a step", number: true, cell: (row) => row.forward_us ? `≈ ${seconds(row.forward_us / 1e6)}` : "" },
    { title: "freed per ms", number: true, cell: (row) => row.forward_us ? `≤ ${bytes(row.bytes / row.forward_us * 1e3)}` : "" }];
}

// -- tables -----------------------------------------------------------------------------------------------------------

function overviewTables(page, rank) {
  const who = page.data.run.world_size > 1 ? ` of rank ${page.rank}` : "", modules = overviewModules(rank), most = modules[0]?.size || 1;
  const largest = (roles, whole) => Object.entries(roles).filter(([, size]) => size >= 0.01 * whole).sort((a, b) => b[1] - a[1]).slice(0, 3);
  const byModule = table([
    { title: "module", cell: (row) => h("code", null, row.module || "(outside of modules)") },
    { title: "bytes", number: true, cell: (row) => bytes(row.size) },
    { title: "", cell: (row) => h("span", { class: "overview-meter", style: { width: `${8 * row.size / most}em` } }) },
    { title: "of which", cell: (row) => largest(row.roles, row.size).map(([role, size]) => `${roleWord(role)} ${bytes(size)}`).join(", ") },
  ], modules, { id: "overview-modules" });
  const tensors = table([
    { title: "what", cell: (row) => [overviewSwatch(row.role), h("code", null, tensorWords(row))] },
    { title: "bytes", number: true, cell: (row) => bytes(row.bytes) },
    { title: "count", number: true, cell: (row) => count(row.count) },
    { title: "shape", cell: (row) => row.shape ? `${row.shape.join("×") || "scalar"} ${row.dtype}` : "" },
    { title: "line", cell: (row) => row.where },
  ], rank.largest_at_peak.slice(0, 12), { id: "overview-tensors" });
  const phases = table([
    { title: "phase", cell: (row) => row.part },
    { title: "times", number: true, cell: (row) => count(row.times) },
    { title: "peak", number: true, cell: (row) => bytes(row.peak_bytes) },
    { title: "reserved", number: true, cell: (row) => bytes(row.peak_with_fragments_bytes) },
    { title: "left after", number: true, cell: (row) => bytes(row.left_bytes) },
    { title: "reserved after", number: true, cell: (row) => bytes(row.left_with_fragments_bytes) },
  ], rank.memory_by_phase ?? [], { id: "overview-phases" });
  return [
    ...(rank.memory_by_phase?.length ? [h("h2", null, `By phase of the step, and what the next one finds${who}`), phases] : []),
    h("div", { class: "columns overview-wide" }, h("div", null, h("h2", null, `Modules at the peak${who}`), byModule),
      h("div", null, h("h2", null, `Largest tensors at the peak${who}`), tensors)),
    h("h2", null, `The five facts${who}`), h("pre", { id: "overview-facts" }, overviewFacts(page, rank).join("\n")),
  ];
}

// What to call tensors: a weight's name, what computes them and where, or at least the line.
function tensorWords(row) {
  return row.name || [row.op, row.module].filter(Boolean).join(" ") || (row.where ? `allocation at ${row.where}` : "(unnamed)");
}

// Module paths with layers folded, at the greatest depth that keeps the table short.
function overviewModules(rank) {
  const shares = rank.at_peak_by_module, most = 12;
  const deepest = Math.max(1, ...shares.map((share) => share.module.split(".").length));
  for (let depth = deepest; ; depth--) {
    const cut = shares.map((share) => share.module.split(".").slice(0, depth).join("."));
    const folded = foldPaths(cut), groups = new Map();
    shares.forEach((share, i) => {
      const module = folded.get(cut[i]), group = groups.get(module) ?? { module, size: 0, roles: {} };
      group.size += share.bytes;
      group.roles[share.role] = (group.roles[share.role] ?? 0) + share.bytes;
      groups.set(module, group);
    });
    const rows = [...groups.values()].sort((a, b) => b.size - a.size).filter((row) => row.size >= 0.01 * rank.peak_bytes);
    if (rows.length <= most || depth === 1) return rows.slice(0, most);
  }
}

// The lines of report/facts.py, which programs look for.
function overviewFacts(page, rank) {
  const isAscend = page.data.run.device.name.toLowerCase().startsWith("ascend"), mebibytes = (n) => `${Math.floor(n / 2 ** 20)}M`;
  return [
    `Device MOC memory size: ${mebibytes(rank.device_memory_bytes)}`,
    `${isAscend ? "MindSpore Used memory size" : "Usable memory size"}: ${mebibytes(rank.usable_memory_bytes)}`,
    `${isAscend ? "MindSpore" : "Device"} memory base address: ${rank.base_address}`,
    `Used peak memory usage (without fragments): ${mebibytes(rank.peak_bytes)}`,
    `Actual peak memory usage (with fragments): ${mebibytes(rank.peak_with_fragments_bytes)}`,
  ];
}
