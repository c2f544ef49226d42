// Words and tables beside the map of ranks. Every figure is one of report.json.

const RANK_STATUS = { ok: "ran to its end", oom: "runs out of memory", failed: "failed" };
const RANK_MOST_CLASSES = 40;  // rows of a table that people still read

// A rank in lines: which it is, where it lies, what it needs.
function rankWords(page, ranks, rank) {
  const i = ranks.at.get(rank), position = rankPlace(page.data.run.mesh ?? [], rank);
  if (i === undefined) return [`rank ${rank}`, position, "was not simulated"];
  const { columns } = ranks, other = columns.same_as[i];
  const lines = [`rank ${rank}${rank === ranks.worst ? ", which needs most" : ""}`, position];
  if (ranks.isFailed(i)) lines.push("failed: there are no numbers");
  else {
    lines.push(`peak ${bytes(columns.peak_bytes[i])}`, `with fragments ${bytes(columns.peak_with_fragments_bytes[i])}${columns.fits[i] ? "" : ", which does not fit"}`);
    if (columns.step_time_us[i]) lines.push(`step ${seconds(columns.step_time_us[i] * 1e-6)}`);
  }
  lines.push(other >= 0 ? `same as rank ${other}, which was simulated` : "simulated");
  return lines.filter(Boolean);
}

function rankLegend(page, ranks, { mode, scale, grid }) {
  const kind = RANK_MODES[mode], parts = [], { columns } = ranks;
  if (!kind.column) parts.push(h("p", null, `${plural(ranks.members.size, "colour")}: ranks of one colour do the same work, and one of them was simulated.`));
  else if (scale.isEqual) parts.push(h("p", null, rankSwatch(rankShades().fit[32]), 
    `All ranks ${kind.verb} the same: ${kind.words(scale.high)}${scale.low < scale.high ? `, to within ${kind.words(scale.high - scale.low)}` : ""}.`));
  else parts.push(rankRamp(page, kind, scale));
  const nOver = columns.fits.reduce((n, fits, i) => n + (!fits && !ranks.isFailed(i)), 0);
  const nFailed = columns.fits.reduce((n, _, i) => n + ranks.isFailed(i), 0);
  const marks = [];
  if (nOver) marks.push(h("span", { class: "bad" }, `✕ ${plural(nOver, "rank does", "ranks do")} not fit`));
  if (nFailed) marks.push(h("span", { class: "bad" }, `− ${plural(nFailed, "rank")} failed`));
  if (columns.rank.length < page.data.run.world_size) marks.push(h("span", null, `empty: ${plural(page.data.run.world_size - columns.rank.length, "rank was", "ranks were")} not simulated`));
  if (ranks.worst >= 0 && !scale?.isEqual) marks.push(h("span", null, `ring: rank ${ranks.worst} needs most`));
  parts.push(h("p", { class: "rank-marks" }, marks), h("p", { class: "faint" }, `${grid.words}.`));
  return parts;
}

const rankSwatch = (colour) => h("span", { class: "swatch", style: { background: colour } });

// The scale with its numbers, and where a device is full.
function rankRamp(page, kind, scale) {
  const usable = kind.words === bytes ? page.data.simulated[page.data.verdict.rank]?.usable_memory_bytes ?? 0 : 0;
  const share = (usable - scale.from) / (scale.to - scale.from);
  const colours = rankShades(), isInside = usable > 0 && share >= 0 && share <= 1;
  const stops = isInside
    ? `${colours.fit[0]}, ${colours.fit[Math.round(63 * share)]} ${100 * share}%, ${colours.over[Math.round(63 * share)]} ${100 * share}%, ${colours.over[63]}`
    : `${(usable && share < 0 ? colours.over : colours.fit)[0]}, ${(usable && share < 0 ? colours.over : colours.fit)[63]}`;
  const beyond = usable && !isInside ? `usable: ${bytes(usable)}, ${share < 0 ? "less than every rank needs" : "more than any rank needs"}` : "";
  return h("div", { class: "rank-scale" },
    h("div", { class: "rank-ramp", style: { background: `linear-gradient(to right, ${stops})` } },
      isInside ? h("span", { class: "rank-usable", style: { left: `${100 * share}%` }, title: `usable memory: ${bytes(usable)}` }) : null),
    h("div", { class: "rank-ends" }, h("span", null, `least ${kind.words(scale.low)}`), h("span", null, `most ${kind.words(scale.high)}`)),
    usable ? h("div", { class: "faint" }, isInside ? `mark: usable, ${bytes(usable)}` : beyond) : null);
}

function rankFigures(page, ranks) {
  const rank = page.rank, i = ranks.at.get(rank), title = h("h3", null, `Rank ${rank}`);
  if (i === undefined) return [title, h("p", null, rankUnseen(page))];
  const document = page.document(), { columns } = ranks, shownBy = ranks.shownBy(i);
  const axes = page.data.run.mesh ?? [];
  const place = axes.map((axis) => axis.name.includes(" ") ? `${axis.name}: ${Math.floor(rank / axis.stride) % axis.size}` : `${axis.name} ${Math.floor(rank / axis.stride) % axis.size} of ${axis.size}`).join(", ");
  const status = columns.same_as[i] >= 0 ? `same work as rank ${shownBy}, which was simulated` : RANK_STATUS[ranks.statusOf(i)] ?? ranks.statusOf(i);
  const rows = [["status", columns.fits[i] || ranks.isFailed(i) ? status : `${status}; does not fit`], ["place", place]];
  if (document && !ranks.isFailed(i)) {
    rows.push(["device memory", bytes(document.device_memory_bytes)], ["usable", bytes(document.usable_memory_bytes)],
      ["peak", bytes(columns.peak_bytes[i])], ["peak with fragments", bytes(columns.peak_with_fragments_bytes[i])],
      ["base address", document.base_address]);
    if (columns.step_time_us[i]) rows.push(["step time", seconds(columns.step_time_us[i] * 1e-6)]);
    rows.push(["steps", count(document.steps)]);
  }
  if (document?.error) rows.push(["error", document.error]);
  const alike = ranks.members.get(shownBy).filter((each) => each !== rank);
  if (alike.length) rows.push([`same work (${count(alike.length)})`, rankCut(rankRanges(alike), 6)]);
  return [title, h("dl", { class: "rank-facts" }, rows.filter(([, text]) => text).flatMap(([name, text]) => [h("dt", null, name), h("dd", null, text)])),
    ...rankHeld(document, columns.peak_bytes[i])];
}

// What is alive at the peak, by kind: bars as long as their bytes.
function rankHeld(document, peak) {
  const held = Object.entries(document?.at_peak_bytes ?? {}).filter(([, n]) => n > 0).sort((a, b) => b[1] - a[1]);
  if (!held.length || !peak) return [];
  return [h("h3", null, `Alive at its peak, of ${bytes(peak)}`), h("table", { class: "rank-held" }, h("tbody", null, held.map(([role, n]) => h("tr", null,
    h("td", null, rankSwatch(`var(--role-${role})`), roleWord(role)), h("td", { class: "number" }, bytes(n)), h("td", { class: "number faint" }, percent(n, peak)),
    h("td", { class: "rank-bar" }, h("div", { style: { width: `${100 * n / held[0][1]}%`, background: `var(--role-${role})` } }))))))];
}

// Ranks that do the same work are one kind; kinds that need the same are one row.
function rankNeeds(ranks) {
  const { columns } = ranks, found = new Map();
  for (const [rank, members] of ranks.members) {
    const i = ranks.at.get(rank) ?? ranks.at.get(members[0]);
    const needs = [bytes(columns.peak_bytes[i]), bytes(columns.peak_with_fragments_bytes[i]), seconds(columns.step_time_us[i] * 1e-6)];
    const key = [ranks.isFailed(i), columns.fits[i], ...needs].join();
    if (!found.has(key)) found.set(key, { rank, i, simulated: [], members: [] });
    found.get(key).simulated.push(rank);
    found.get(key).members.push(...members);
  }
  for (const row of found.values()) row.members.sort((a, b) => a - b);
  return [...found.values()];
}

// One row for each need, the largest first.
function rankClasses(page, ranks) {
  const { columns } = ranks;
  const found = rankNeeds(ranks);
  found.sort((a, b) => columns.peak_with_fragments_bytes[b.i] - columns.peak_with_fragments_bytes[a.i] || a.rank - b.rank);
  const chosen = ranks.at.has(page.rank) ? ranks.shownBy(ranks.at.get(page.rank)) : -1;
  const pick = (row) => page.choose({ rank: row.rank });
  const rows = found.slice(0, RANK_MOST_CLASSES).map((row) => ({ ...row, attributes: {
    tabindex: 0, "data-rank": row.rank, "aria-selected": String(row.simulated.includes(chosen)), class: row.simulated.includes(chosen) ? "rank-chosen" : null,
    onclick: () => pick(row), onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { event.preventDefault(); pick(row); } },
  } }));
  const shown = [
    { title: "simulated", cell: (row) => [rankSwatch(rankClassColour(ranks.order.get(row.rank))), `rank ${rankCut(rankRanges(row.simulated), 2)}`] },
    { title: "represents", number: true, cell: (row) => plural(row.members.length, "rank") },
    { title: "ranks", cell: (row) => rankCut(rankRanges(row.members), 5) },
    { title: "peak", number: true, cell: (row) => ranks.isFailed(row.i) ? "" : bytes(columns.peak_bytes[row.i]) },
    { title: "with fragments", number: true, cell: (row) => ranks.isFailed(row.i) ? "" : bytes(columns.peak_with_fragments_bytes[row.i]) },
    ...(ranks.hasTime ? [{ title: "step", number: true, cell: (row) => columns.step_time_us[row.i] ? seconds(columns.step_time_us[row.i] * 1e-6) : "" }] : []),
    { title: "", cell: (row) => ranks.isFailed(row.i) ? h("span", { class: "bad" }, "failed") : columns.fits[row.i] ? "fits" : h("span", { class: "bad" }, "does not fit") },
  ];
  const more = found.length - rows.length;
  const title = `${plural(ranks.members.size, "kind")} of work${found.length < ranks.members.size ? `, ${plural(found.length, "different need")}` : ""}`;
  return [h("h3", null, title), table(shown, rows),
    more > 0 ? h("p", { class: "faint" }, `${plural(more, "kind")} more, which need less; report.json has them all.`) : null].filter(Boolean);
}

const rankCut = (ranges, most) => ranges.length > most ? `${ranges.slice(0, most).join(", ")}, …` : ranges.join(", ");

// For every view: what to say of a rank the run knows nothing of; null of all others.
const rankUnseen = (page) => page.document() ? null : `Rank ${page.rank} was not simulated: this run simulated others.`;
