// What a reader should know before trusting the numbers: guessed values, notes, mismatched collectives, errors.
//
// Equal warnings of many ranks are shown once, with the ranks.

addView({
  id: "warnings", title: "Warnings",
  // The tab says how many there are: it is drawn after this question was asked.
  isThere(page) {
    if (!page.data.run) return false;
    const n = warningsCount(warningsOf(page));
    this.title = n ? `Warnings\u00a0(${count(n)})` : "Warnings";
    return true;
  },
  mount(box, page) {
    const found = warningsOf(page), builds = h("div"), update = () => builds.replaceChildren(...warningsBuilds(page));
    box.append(h("h2", null, warningsCount(found) ? "Warnings" : "No warnings: nothing was guessed or left out"),
      ...warningsMismatches(found), ...warningsErrors(found), ...warningsUnknown(found),
      ...warningsList("Notes", found, found.notes), ...warningsList("Left out of this page", found, found.leftOut),
      ...warningsFiles(page.data.run.files), builds);
    update();
    return { update };
  },
});

function warningsOf(page) {
  const { data } = page, members = warningsMembers(data), kinds = { errors: new Map(), unknown: new Map(), notes: new Map(), leftOut: new Map() };
  const add = (kind, key, value, ranks) => {
    const entry = kinds[kind].get(key) ?? { ...value, ranks: new Set() };
    for (const rank of ranks) entry.ranks.add(rank);
    kinds[kind].set(key, entry);
  };
  const say = (kind, sentence, ranks) => add(kind, sentence, { sentence }, ranks);
  for (const rank of Object.values(data.simulated ?? {})) {
    const ranks = members.get(rank.rank) ?? [rank.rank], sentence = rank.error ?? "the script failed";
    if (rank.status === "failed") add("errors", sentence, { sentence, log: `rank${rank.rank}/run.log` }, ranks);
    for (const value of rank.unknown_values) add("unknown", JSON.stringify([value.where, value.what, value.value]), value, ranks);
    for (const note of rank.notes ?? []) say("notes", note, ranks);
  }
  for (const note of data.run.time?.notes ?? []) say("notes", note, []);
  if (data.run.time?.source) say("notes", `operator times: ${data.run.time.source}`, []);
  for (const sentence of data.left_out ?? []) say("leftOut", sentence, []);
  for (const [rank, detail] of Object.entries(data.details ?? {})) for (const sentence of detail.left_out ?? []) say("leftOut", sentence, [Number(rank)]);
  const lists = Object.fromEntries(Object.entries(kinds).map(([kind, entries]) => [kind, [...entries.values()]]));
  return { worldSize: data.run.world_size, mismatches: data.run.mismatches, ...lists };
}

const warningsCount = ({ mismatches, errors, unknown, notes, leftOut }) =>
  mismatches.length + errors.length + unknown.length + notes.length + leftOut.length;

// A simulated rank -> all ranks that do the same work.
function warningsMembers({ ranks }) {
  const members = new Map();
  if (ranks) for (let i = 0; i < ranks.rank.length; i++) {
    const of = ranks.same_as[i] >= 0 ? ranks.same_as[i] : ranks.rank[i];
    (members.get(of) ?? members.set(of, []).get(of)).push(ranks.rank[i]);
  }
  return members;
}

function warningsWho(found, ranks) {
  const who = [...ranks];
  if (found.worldSize === 1 || !who.length) return "";
  if (who.length === found.worldSize) return "all ranks";
  const text = numberRanges(new Set(who)).replaceAll(",", ", ").replaceAll("-", "\u2011");  // a range stays on one line
  return `${who.length === 1 ? "rank" : "ranks"} ${text.length > 60 ? `${text.slice(0, 60)}… (${count(who.length)} in all)` : text}`;
}

const WARNINGS_MOST = 200;  // mismatched collectives: one mistake may cause thousands
function warningsMismatches(found) {
  if (!found.mismatches.length) return [];
  const shown = found.mismatches.slice(0, WARNINGS_MOST), more = found.mismatches.length - shown.length;
  return [h("h3", { class: "bad" }, "Mismatched collectives: on a cluster this would hang"),
    h("ul", { class: "warnings-list" }, shown.map((each) => h("li", null, `${each.sentence} `,
      h("span", { class: "faint" }, `(${warningsWho(found, each.ranks)})`)))),
    more ? h("p", { class: "faint" }, `and ${count(more)} more in report.json`) : ""];
}

function warningsErrors(found) {
  if (!found.errors.length) return [];
  const who = (each) => [warningsWho(found, each.ranks), "log: "].filter(Boolean).join("; ");
  return [h("h3", { class: "bad" }, "Ranks that failed"),
    h("ul", { class: "warnings-list" }, found.errors.map((each) => h("li", null, `${each.sentence} `,
      h("span", { class: "faint" }, who(each)), h("code", null, each.log))))];
}

function warningsUnknown(found) {
  if (!found.unknown.length) return [];
  const columns = [
    { title: "line", cell: (row) => h("code", null, row.where) },
    { title: "what the script read", cell: (row) => row.what },
    { title: "taken as", cell: (row) => h("code", null, JSON.stringify(row.value)) },
    { title: "times", number: true, cell: (row) => count(row.count) },
    ...found.worldSize > 1 ? [{ title: "on", cell: (row) => warningsWho(found, row.ranks) }] : [],
  ];
  return [h("h3", { class: "warn" }, "Values unknown on a simulated device"),
    h("p", null, "The script read them and got the values below. If a branch of the script depends on such a value, set it:"),
    h("pre", null, "value = windtunnel.mock(2.5, lambda: loss.item())   # 2.5 in a dry run, the real value in training"),
    table(columns, found.unknown, { id: "warnings-unknown" }), h("p", { class: "faint" }, "In a MindSpore script: mindspore.utils.dryrun.mock.")];
}

function warningsList(title, found, rows) {
  if (!rows.length) return [];
  const who = (row) => { const text = warningsWho(found, row.ranks); return text ? h("span", { class: "faint" }, `(${text})`) : ""; };
  return [h("h3", null, title), h("ul", { class: "warnings-list" }, rows.map((row) => h("li", null, `${row.sentence} `, who(row))))];
}

const WARNINGS_MOST_FILES = 300;  // of a script that writes thousands the largest are enough to look at
function warningsFiles(files) {
  if (!files) return [];
  const protection = h("p", { class: "faint" }, `In this dry run ${files.sentence}; the network was ${files.is_network_off ? "off" : "on"}.`);
  if (!files.changes.length) return [h("h3", null, "The script would have written no files"), protection];
  const order = ["removed", "replaced", "moved", "written", "metadata"], size = (n) => n === null ? "" : bytes(n);
  const rows = [...files.changes].sort((a, b) => order.indexOf(a.what) - order.indexOf(b.what) || (b.n_bytes ?? 0) - (a.n_bytes ?? 0));
  const more = Math.max(0, rows.length - WARNINGS_MOST_FILES) + files.n_more;
  return [h("h3", null, "What the script would have written"), protection, table([
    { title: "what", cell: (row) => row.what },
    { title: "bytes", number: true, cell: (row) => size(row.n_bytes) },
    { title: "before", number: true, cell: (row) => size(row.n_bytes_before) },
    { title: "file", cell: (row) => h("code", null, row.moved_from ? `${row.path} (from ${row.moved_from})` : row.path) },
  ], rows.slice(0, WARNINGS_MOST_FILES), { id: "warnings-files" }), more ? h("p", { class: "faint" }, `and ${count(more)} smaller ones`) : ""];
}

function warningsBuilds(page) {
  const times = Object.entries(page.document()?.build_time_us ?? {});
  if (!times.length) return [];
  const folded = foldPaths(times.map(([module]) => module)), sums = new Map();
  for (const [module, time] of times) sums.set(folded.get(module), (sums.get(folded.get(module)) ?? 0) + time);
  const rows = [...sums].sort((a, b) => b[1] - a[1]).slice(0, 12);
  return [h("h3", null, `Slowest modules to build${page.data.run.world_size > 1 ? ` on rank ${page.rank}` : ""}`), table([
    { title: "module, with all inside it", cell: ([module]) => h("code", null, module || "(the model)") },
    { title: "CPU time", number: true, cell: ([, time]) => seconds(time / 1e6) },
  ], rows, { id: "warnings-builds" })];
}
