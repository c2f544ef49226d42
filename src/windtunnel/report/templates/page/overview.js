// Verdict first: does it fit, on which rank, by how much, what holds the memory, what to try next. Then the ranks.
//
// Sentences about the whole run come from page.data.verdict; figures are those of the chosen rank, at first the worst.

addView({
  id: "overview", title: "Overview", isThere: (page) => Boolean(page.data.run),
  mount(box, page) {
    const verdict = overviewVerdict(page), rank = h("div", { class: "overview-rank" });
    const map = page.data.run.world_size > 1 && typeof rankMap === "function" ? rankMap(page) : null;
    box.append(verdict, rank);
    const rest = h("div");
    const update = () => {
      const document = page.document();
      rank.replaceChildren(...overviewRank(page, document));
      rest.replaceChildren(...overviewTables(page, document));
    };
    update();
    if (map) box.append(h("h2", { id: "overview-ranks" }, `All ${plural(page.data.run.world_size, "rank")}`), map.element);
    box.append(rest);
    map?.resize?.();
    return { update: () => { update(); map?.update?.(page); }, resize: () => map?.resize?.() };
  },
});

// -- the verdict ------------------------------------------------------------------------------------------------------

function overviewVerdict(page) {
  const { verdict, run } = page.data;
  const failed = Object.values(page.data.simulated ?? {}).filter((rank) => rank.status === "failed");
  const word = verdict.sentence.split(":")[0].split(",")[0];
  // A sentence about memory says the fact first, then what holds it and what to try, each after a semicolon.
  const isPlain = failed.length || run.mismatches.length, [first, ...others] = isPlain ? [verdict.sentence] : verdict.sentence.split("; ");
  return h("section", { class: `overview-verdict ${verdict.fits ? "fits" : "fails"}` },
    h("h1", null, h("span", { class: "overview-word" }, `${verdict.fits ? "✓" : "✗"} ${word}`), others.length ? `${first.slice(word.length)}.` : first.slice(word.length)),
    others.map((part) => h("p", { class: "overview-more" }, `${part[0].toUpperCase()}${part.slice(1).replace(/\.$/, "")}.`)),
    failed.length ? overviewFailures(failed) : null,
    run.mismatches.length ? h("p", null, `${plural(run.mismatches.length, "call")} would wait for ever: `, overviewLink(page, "warnings", "see which"), ".") : null);
}

function overviewFailures(failed) {
  const shown = failed.slice(0, 8);
  return h("div", null,
    shown.map((rank) => h("p", null, `Rank ${rank.rank} stopped; everything it said is in `, h("code", null, `rank${rank.rank}/run.log`),
      " beside this page.", rank.peak_bytes ? "" : " Nothing was measured of it.")),
    failed.length > shown.length ? h("p", { class: "faint" }, `${count(failed.length - shown.length)} more ranks failed: see Warnings.`) : null);
}

function overviewLink(page, view, words) {
  if (!VIEWS.some((each) => each.id === view && each.isThere(page))) return words;
  return h("a", { href: `#${view}`, onclick: (event) => { event.preventDefault(); page.show(view); scrollTo(0, 0); } }, words);
}

// -- the chosen rank --------------------------------------------------------------------------------------------------

function overviewRank(page, rank) {
  const answers = overviewAnswers(page, rank);
  const parts = [h("dl", { class: "overview-answers" }, answers.flatMap(([question, ...answer]) => [h("dt", null, question), h("dd", null, answer.flat())]))];
  if (!rank?.peak_bytes) return parts;
  parts.push(overviewMemory(page, rank));
  return parts;
}

function overviewAnswers(page, rank) {
  const { run, verdict, ranks } = page.data, found = [];
  const isWorst = page.shownBy(page.rank) === verdict.rank;
  if (run.world_size > 1 && verdict.rank !== null && verdict.rank !== undefined) {
    const at = ranks.rank.indexOf(verdict.rank), most = ranks.peak_with_fragments_bytes[at];
    const alike = run.level ? ranks.peak_with_fragments_bytes.filter((size) => size === most).length - 1 : 0;
    const hasFailed = Object.values(page.data.simulated).some((each) => each.status === "failed");
    found.push([!run.level ? "Simulated" : hasFailed ? "Needs most" : "Worst rank", h("strong", null, `rank ${verdict.rank}`), ` of ${count(run.world_size)}`,
      alike ? `; ${plural(alike, "other rank needs", "other ranks need")} as much` : "",
      typeof rankMap === "function" ? [": ", h("a", { href: "#overview", onclick: (event) => { event.preventDefault(); document.getElementById("overview-ranks")?.scrollIntoView({ block: "start" }); } }, "map of all ranks")] : "",
      isWorst ? "" : h("span", null, `. Below: rank ${page.rank}`, page.shownBy(page.rank) !== page.rank ? `, which does the same as rank ${page.shownBy(page.rank)}` : "", "; ",
        h("button", { type: "button", onclick: () => page.choose({ rank: verdict.rank }) }, `show rank ${verdict.rank}`))]);
  }
  if (!rank) return [...found, ["Rank", `rank ${page.rank} is not in the report`]];
  if (rank.error && run.world_size > 1) found.push([`Rank ${rank.rank}`, h("span", { class: "bad" }, rank.error)]);
  if (rank.peak_bytes) {
    found.push([rank.status === "failed" ? "Until then" : "Room", ...overviewRoom(page, rank)]);
    if (rank.peak_at) found.push(["Peak", overviewMoment(rank.peak_at), ": ", overviewLink(page, "peak", "flame graph of it"), ", ", overviewLink(page, "memory", "every allocation over time"), ", ", overviewLink(page, "allocator", "map of the allocator")]);
    if (rank.out_of_memory) found.push(["First does not fit", `${bytes(rank.out_of_memory.requested_bytes)} asked for at `, overviewMoment(rank.out_of_memory.at)]);
    if (rank.n_retries && rank.fits) found.push(["Retries", `the allocator had to release its cache ${plural(rank.n_retries, "time")} to fit`]);
    if (rank.library_buffers_bytes) found.push(["Beside it", `about ${bytes(rank.library_buffers_bytes)} of the communication library's own buffers`]);
    if (rank.peak_in_pages_bytes) found.push(["In whole pages", `${bytes(rank.peak_in_pages_bytes)}, as the card counts them`]);
  } else if (rank.status !== "failed") {
    found.push(["Memory", run.level ? "nothing was allocated on the device" : "not measured at level 0; --level 1 measures it"]);
  }
  return [...found, ...overviewTime(page, rank), ["Ran", `${plural(rank.steps, "optimizer step")} at level ${run.level} on ${run.device.name}, allocator ${run.allocator}`]];
}

const overviewHasLimit = (page, rank) => page.data.run.device.name !== "cpu" && rank.usable_memory_bytes > 0;

function overviewRoom(page, rank) {
  const need = rank.peak_with_fragments_bytes, usable = rank.usable_memory_bytes, verb = rank.status === "failed" ? "needed " : "needs ";
  const subject = page.data.run.world_size > 1 ? `rank ${page.rank} ${verb}` : verb;
  const needed = [subject, h("strong", null, bytes(need)), need > rank.peak_bytes ? ` (${bytes(rank.peak_bytes)} live, the rest fragments)` : ""];
  if (!overviewHasLimit(page, rank)) return needed;
  if (need > usable) return [...needed, ", ", h("strong", { class: "bad" }, `${bytes(need - usable)} too much`), ` for ${bytes(usable)} usable`];
  return [...needed, ", ", h("strong", { class: "good" }, `${bytes(usable - need)} to spare`), ` of ${bytes(usable)} usable`];
}

function overviewMoment(at) {
  return h("span", null, [at.step ? `step ${at.step}` : "before the first step", at.phase].filter(Boolean).join(", "),
    at.op ? [", ", h("code", null, at.op)] : null, at.module ? [" in ", h("code", null, at.module)] : null);
}

function overviewTime(page, rank) {
  const time = page.data.run.time;
  if (!time) return [];
  const facts = [`${seconds(time.step_seconds)} a step`];
  if (time.tokens_per_second) facts.push(`${count(Math.round(time.tokens_per_second))} tokens/s`);
  if (time.model_flops_utilisation !== null) facts.push(`MFU ${percent(time.model_flops_utilisation, 1)}`);
  if (time.bubble_share) facts.push(`pipeline bubble ${percent(time.bubble_share, 1)} on average over the ranks`);
  const found = [["Step", h("strong", null, facts[0]), facts.slice(1).map((fact) => `, ${fact}`).join(""), ": ", overviewLink(page, "time", "where the time goes")]];
  if (time.bound_by) found.push(["Bound by", page.data.run.world_size > 1 && time.slowest_rank !== null ? `on rank ${time.slowest_rank}, the slowest: ` : "", time.bound_by]);
  if (page.data.run.world_size > 1 && time.slowest_rank !== null && time.slowest_why) found.push(["Slowest rank", `rank ${time.slowest_rank}: ${time.slowest_why}`]);
  return found;
}

// -- what holds the memory --------------------------------------------------------------------------------------------

function overviewMemory(page, rank) {
  const held = STACKED.map((role) => [role, rank.at_peak_bytes[role] ?? 0]).filter(([, size]) => size > 0);
  const fragments = rank.peak_with_fragments_bytes - rank.peak_bytes;
  const usable = rank.usable_memory_bytes, isFar = usable > 20 * rank.peak_with_fragments_bytes;
  const hasLimit = overviewHasLimit(page, rank) && !isFar;  // so far off that only the limit would be seen
  const scale = 1.02 * Math.max(rank.peak_with_fragments_bytes, hasLimit ? usable : 0);
  const share = (size) => `${100 * size / scale}%`;
  const part = (role, words, size) => h("span", { class: `overview-part ${role}`, style: { width: share(size), background: role === "fragments" ? "" : `var(--role-${role})` },
    onpointermove: (event) => tip.show(event, [words, bytes(size), `${percent(size, rank.peak_with_fragments_bytes)} of the need`]), onpointerleave: () => tip.hide() });
  const limit = hasLimit ? h("span", { class: `overview-limit ${usable > 0.6 * scale ? "before" : ""}`, style: { left: share(usable) } }, h("span", null, `${bytes(usable)} usable`)) : null;
  const bar = h("div", { class: "overview-bar", role: "img", "aria-label": `${bytes(rank.peak_with_fragments_bytes)} needed${hasLimit ? `, ${bytes(usable)} usable` : ""}` },
    held.map(([role, size]) => part(role, roleWord(role), size)), fragments > 0 ? part("fragments", "fragments", fragments) : null, limit);
  const far = isFar && overviewHasLimit(page, rank) ? h("p", { class: "faint" }, `${bytes(usable)} usable is ${count(Math.floor(usable / rank.peak_with_fragments_bytes))} times as long as this bar.`) : null;
  const rows = [...held].sort((a, b) => b[1] - a[1]).map(([role, size]) => ({ role, words: roleWord(role), size }));
  rows.push({ words: "live at the peak", size: rank.peak_bytes, attributes: { class: "overview-sum" } });
  if (fragments) rows.push({ role: "fragments", words: "fragments: reserved, but of no use to any tensor", size: fragments });
  rows.push({ words: "needed", size: rank.peak_with_fragments_bytes, attributes: { class: "overview-sum" } });
  const columns = [
    { title: "kind", cell: (row) => [row.role ? h("span", { class: `swatch ${row.role === "fragments" ? "overview-hatch" : ""}`, style: { background: row.role === "fragments" ? "" : `var(--role-${row.role})` } }) : null, row.words] },
    { title: "bytes", number: true, cell: (row) => bytes(row.size) },
    { title: "of the need", number: true, cell: (row) => percent(row.size, rank.peak_with_fragments_bytes) },
  ];
  return h("div", null, h("h2", null, page.data.run.world_size > 1 ? `What holds the memory of rank ${page.rank} at its peak` : "What holds the memory at the peak"), bar, far,
    h("div", { class: "columns" }, table(columns, rows, { id: "overview-kinds" }), rank.status === "failed" ? null : overviewCheckpoint(page, rank)));
}

function overviewCheckpoint(page, rank) {
  const rows = page.data.checkpoint_first ?? [], worst = page.data.verdict.rank, box = h("div", { id: "overview-checkpoint" }, h("h3", null, "Which module to checkpoint first"));
  if (page.shownBy(page.rank) !== worst) box.append(h("p", { class: "faint" }, `Told of rank ${worst}, the worst.`));
  const told = page.data.simulated?.[worst] ?? rank;
  if (!rows.length) {
    const held = told.at_peak_bytes.activations;
    box.append(h("p", null, `None: activations hold ${held ? `only ${bytes(held)}` : "nothing"} at the peak`, told.peak_at?.phase ? ` (${told.peak_at.phase})` : "", ", so checkpointing would not lower it."));
    return box;
  }
  const hasTime = rows.some((row) => row.forward_us !== null);
  const columns = [
    { title: "module", cell: (row) => row.module ? [h("code", null, row.module), row.is_whole ? "" : h("span", { class: "faint" }, " itself, without its blocks")] : h("span", { class: "faint" }, "outside of modules") },
    { title: "modules", number: true, cell: (row) => count(row.count) },
    { title: "activations", number: true, cell: (row) => bytes(row.bytes) },
    { title: "of the need", number: true, cell: (row) => percent(row.share, 1) },
    ...hasTime ? [{ title: "forward a step", number: true, cell: (row) => row.forward_us ? `≈ ${seconds(row.forward_us / 1e6)}` : "" },
      { title: "freed per ms", number: true, cell: (row) => row.forward_us ? `≤ ${bytes(row.bytes / row.forward_us * 1e3)}` : "" }] : [],
  ];
  const first = rows.find((row) => row.is_whole) ?? rows[0];
  box.append(h("p", null, h("strong", null, first.module || "What is outside of modules"), `: at most ${bytes(first.bytes)} less. The inputs of ${first.count === 1 ? "the module stay" : `the ${count(first.count)} modules stay`}, and the peak may move.`),
    table(columns, rows), h("p", { class: "faint" }, "What it would really cost and save: ", h("code", null, `windtunnel remat --advise --device ${page.data.run.device.name} …`)));
  return box;
}

// -- tables -----------------------------------------------------------------------------------------------------------

function overviewTables(page, rank) {
  if (!rank?.peak_bytes) return [];
  const who = page.data.run.world_size > 1 ? ` of rank ${page.rank}` : "";
  const modules = overviewModules(rank), most = modules[0]?.size || 1;
  const of = (row) => Object.entries(row.roles).filter(([, size]) => size >= 0.01 * row.size).sort((a, b) => b[1] - a[1]).slice(0, 3).map(([role, size]) => `${roleWord(role)} ${bytes(size)}`).join(", ");
  return [h("div", { class: "columns overview-wide" },
    h("div", null, h("h2", null, `Modules at the peak${who}`), table([
      { title: "module", cell: (row) => h("code", null, row.module || "(outside of modules)") },
      { title: "bytes", number: true, cell: (row) => bytes(row.size) },
      { title: "", cell: (row) => h("span", { class: "overview-meter", style: { width: `${8 * row.size / most}em` } }) },
      { title: "of which", cell: of },
    ], modules, { id: "overview-modules" })),
    h("div", null, h("h2", null, `Largest tensors at the peak${who}`), table([
      { title: "what", cell: (row) => [h("span", { class: "swatch", style: { background: `var(--role-${row.role})` }, title: roleWord(row.role) }), h("code", null, tensorWords(row))] },
      { title: "bytes", number: true, cell: (row) => bytes(row.bytes) },
      { title: "count", number: true, cell: (row) => count(row.count) },
      { title: "shape", cell: (row) => row.shape ? `${row.shape.join("×") || "scalar"} ${row.dtype}` : "" },
      { title: "line", cell: (row) => row.where },
    ], rank.largest_at_peak.slice(0, 12), { id: "overview-tensors" }))),
  overviewFacts(page, rank)];
}

// What to call tensors: a weight's name, what computes them and where, or at least the line.
const tensorWords = (row) => row.name || [row.op, row.module].filter(Boolean).join(" ") || (row.where ? `allocation at ${row.where}` : "(unnamed)");

// Module paths with layers folded, at the greatest depth that keeps the table short.
function overviewModules(rank) {
  const shares = rank.at_peak_by_module, most = 12;
  const deepest = Math.max(1, ...shares.map((share) => share.module.split(".").length));
  for (let depth = deepest; depth > 0; depth--) {
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
  return [];
}

function overviewFacts(page, rank) {
  const isAscend = page.data.run.device.name.toLowerCase().startsWith("ascend"), mebibytes = (n) => `${Math.floor(n / 2 ** 20)}M`;
  const lines = [
    `Device MOC memory size: ${mebibytes(rank.device_memory_bytes)}`,
    `${isAscend ? "MindSpore Used memory size" : "Usable memory size"}: ${mebibytes(rank.usable_memory_bytes)}`,
    `${isAscend ? "MindSpore" : "Device"} memory base address: ${rank.base_address}`,
    `Used peak memory usage (without fragments): ${mebibytes(rank.peak_bytes)}`,
    `Actual peak memory usage (with fragments): ${mebibytes(rank.peak_with_fragments_bytes)}`,
  ];
  return h("div", null, h("h2", null, `The five facts${page.data.run.world_size > 1 ? ` of rank ${page.rank}` : ""}`), h("pre", { id: "overview-facts" }, lines.join("\n")));
}
