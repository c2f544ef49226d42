// Where the time of a step goes: the job in sentences, every rank as a bar, one step as a timeline, operators, modules.
//
// All figures are those of report.json: run.time for the job, time.time and time.profile of a simulated rank.

const TIME_MOST_BARS = 24;
const TIME_ALIKE = 0.005;  // of the step
const TIME_KINDS = { streams: new Set(["phases", "stream"]), network: new Set(["phases", "stream", "communication"]), all: null };
const TIME_TALLEST = 720;  // pixels of the timeline

addView({
  id: "time", title: "Time", isThere: (page) => Boolean(page.data.run?.time),
  async mount(box, page) {
    const rank = h("div"), bars = h("div");
    box.append(...timeJob(page), h("h2", null, "Where the step goes"), bars);
    const timeline = page.data.trace ? await timeTimeline(box, page) : null;
    if (!timeline) box.append(h("p", { class: "note" }, "There is no timeline in this page: no trace was written of a rank that finished."));
    box.append(rank);
    const update = () => {
      bars.replaceChildren(...timeBars(page));
      rank.replaceChildren(...timeRank(page));
      timeline?.goToRank(page.rank);
    };
    update();
    return { update: () => { update(); timeline?.resize(); }, resize: () => timeline?.resize() };
  },
});

function timeJob(page) {
  const { time, world_size: worldSize } = page.data.run;
  const share = (value) => value === null || value === undefined ? null : `${(100 * value).toFixed(1)} %`;
  const facts = [
    ["a step", seconds(time.step_seconds), time.warm_up_seconds === null ? null : `the first takes ${seconds(time.warm_up_seconds)}`],
    ["tokens a second", time.tokens_per_second ? count(Math.round(time.tokens_per_second)) : null, time.tokens_per_step ? `${count(time.tokens_per_step)} in a step` : null],
    ["MFU", share(time.model_flops_utilisation), `of the devices' ${time.peak_of} peak`],
    ["HFU", share(time.hardware_flops_utilisation), "with what is computed twice"],
    ["pipeline bubble", time.bubble_share ? share(time.bubble_share) : null, "of all ranks' time"],
  ];
  const slowest = worldSize > 1 && time.slowest_rank !== null ? `Rank ${time.slowest_rank} is the slowest${time.slowest_why ? `: ${time.slowest_why}` : ""}.` : "";
  const basis = [time.source ? `Operator times: ${time.source}` : "", time.network ? `network: ${time.network}` : "", time.tokens_basis ? `tokens: ${time.tokens_basis}` : ""].filter(Boolean);
  return [
    h("div", { class: "time-facts" }, facts.filter(([, value]) => value).map(([name, value, more]) => h("div", { class: "card" },
      h("div", { class: "faint" }, name), h("div", { class: "time-figure" }, value), more ? h("div", { class: "faint" }, more) : null))),
    ...[time.bound_by, slowest].filter(Boolean).map((text) => h("p", null, text)),
    h("p", { class: "faint" }, `${basis.join("; ")}.`),
    ...time.notes.map((text) => h("p", { class: "note" }, `${text}.`)),
  ];
}

// -- every rank as a bar ----------------------------------------------------------------------------------------------

// The parts of a rank's step, which add up to it.
function timeParts(time) {
  const axes = (kind, word, seconds) => Object.entries(seconds).map(([axis, s]) => ({ kind, axis, key: `${kind} ${axis}`, word: `${word}, ${axis}`, seconds: s }));
  return [
    { kind: "compute", key: "compute", word: "kernels", seconds: time.compute_seconds },
    ...axes("exposed", "waiting for the network", time.exposed_seconds),
    ...axes("peers", "waiting for slower ranks", time.peers_seconds),
    { kind: "bubble", key: "bubble", word: "bubble: waiting for other stages", seconds: time.bubble_seconds },
    { kind: "streams", key: "streams", word: "waiting for other streams", seconds: time.streams_seconds },
    { kind: "host", key: "host", word: "no kernel launched yet", seconds: time.host_seconds },
  ].filter((part) => part.seconds > 0);
}

// Ranks whose bars look the same share one bar.
function timeGroups(page) {
  const groups = new Map();
  for (const rank of Object.values(page.data.simulated)) {
    if (!rank.time) continue;
    const parts = timeParts(rank.time.time), whole = rank.time.time.step_seconds;
    const key = [seconds(whole), ...parts.map((part) => [part.key, Math.round(part.seconds / whole / TIME_ALIKE)]).filter(([, n]) => n)].join();
    if (!groups.has(key)) groups.set(key, { parts, ranks: [], whole });
    groups.get(key).ranks.push(rank.rank);
  }
  for (const group of groups.values()) group.ranks.sort((a, b) => a - b);
  return [...groups.values()].sort((a, b) => a.ranks[0] - b.ranks[0]);
}

function timeBars(page) {
  const groups = timeGroups(page), chosen = page.shownBy(page.rank);
  const longest = Math.max(...groups.map((group) => group.whole), 0);
  let shown = groups.slice(0, TIME_MOST_BARS);
  const mine = groups.find((group) => group.ranks.includes(chosen));
  if (mine && !shown.includes(mine)) shown = [...shown.slice(0, -1), mine];
  const kinds = new Map(shown.flatMap((group) => group.parts).filter((part) => part.seconds > 5e-4 * longest).map((part) => [part.key, part]));
  const axes = [...new Set([...kinds.values()].filter((part) => part.axis).map((part) => part.axis))];
  const style = (part) => ({ class: `time-${part.kind}`, style: { "--shade": `${Math.max(0, axes.indexOf(part.axis)) * 100 / Math.max(1, axes.length - 1)}%` } });
  const tinted = (tag, part, more, ...inner) => { const { style: css, class: name } = style(part); const element = h(tag, { ...more, class: `${name} ${more.class ?? ""}` }, ...inner); element.style.setProperty("--shade", css["--shade"]); return element; };
  const row = (group) => h("button", { type: "button", class: "time-row", "aria-pressed": String(group === mine), "data-ranks": group.ranks.join(" "),
    "aria-label": `rank ${rankRanges(group.ranks).join(", ")}: ${group.parts.map((part) => `${part.word} ${seconds(part.seconds)}`).join(", ")}`,
    onclick: () => page.choose({ rank: group.ranks[0] }) },
    h("span", { class: "time-name", title: `rank ${rankRanges(group.ranks).join(", ")}` }, `rank ${group.ranks[0]}${group.ranks.length > 1 ? ` and ${group.ranks.length - 1} more` : ""}`),
    h("span", { class: "time-bar" }, group.parts.map((part) => tinted("span", part, { class: "time-part",
      onpointermove: (event) => tip.show(event, [part.word, `${seconds(part.seconds)}, ${percent(part.seconds, group.whole)} of the step`]), onpointerleave: () => tip.hide() }))),
    h("span", { class: "number" }, seconds(group.whole)));
  const rows = shown.map(row);
  rows.forEach((element, k) => [...element.querySelectorAll(".time-part")].forEach((part, p) => { part.style.width = `${100 * shown[k].parts[p].seconds / longest}%`; }));
  const table = mine ? timePartsTable(page, tinted) : h("p", null, `Rank ${page.rank} has no time: it did not finish, or was not simulated.`);
  const nRanks = groups.reduce((n, group) => n + group.ranks.length, 0);
  const alike = groups.length < nRanks ? h("p", { class: "faint" }, `${plural(nRanks, "simulated rank")}; those that differ by less than ${100 * TIME_ALIKE} % of the step are one bar.`) : null;
  return [h("p", { class: "time-legend" }, [...kinds.values()].map((part) => h("span", null, tinted("span", part, { class: "swatch" }), part.word))),
    h("div", { class: "time-split" }, h("div", { class: "time-rows" }, rows, alike,
      groups.length > shown.length ? h("p", { class: "faint" }, `${plural(groups.length - shown.length, "kind")} of ranks more.`) : null), table)];
}

function timePartsTable(page, tinted) {
  const rank = page.data.simulated[page.shownBy(page.rank)];
  const parts = timeParts(rank.time.time).sort((a, b) => b.seconds - a.seconds);
  const stands = page.rank === rank.rank ? "" : `, as rank ${rank.rank}`;
  return h("div", null, h("h3", null, `Rank ${page.rank}${stands}`), h("table", { class: "time-parts" }, h("tbody", null,
    parts.map((part) => h("tr", null, h("td", null, tinted("span", part, { class: "swatch" }), part.word), h("td", { class: "number" }, seconds(part.seconds)),
      h("td", { class: "number faint" }, percent(part.seconds, rank.time.time.step_seconds)))),
    h("tr", null, h("td", null, h("strong", null, "the step")), h("td", { class: "number" }, h("strong", null, seconds(rank.time.time.step_seconds))), h("td", null)))));
}

// -- one step ---------------------------------------------------------------------------------------------------------

async function timeTimeline(box, page) {
  const data = await traceUnpacked(page.data.trace), stage = h("div", { class: "time-trace" });
  const other = h("span");
  const several = data.ranks.length > 1, first = several ? "streams" : "network";
  const heading = several ? `One step of ranks ${rankCut(rankRanges(data.ranks), 4)}` : `One step of rank ${data.ranks[0]}`;
  const choice = Object.entries({ streams: "streams", network: "streams and network", all: "everything" }).map(([kind, words]) =>
    h("button", { type: "button", "data-kind": kind, "aria-pressed": String(kind === first), onclick: () => {
      for (const button of choice) button.setAttribute("aria-pressed", String(button.dataset.kind === kind));
      view.choose(TIME_KINDS[kind]);
    } }, words));
  box.append(h("h2", null, heading), h("p", { class: "faint" }, `${data.step === null ? "The whole program" : `Step ${data.step}, the last complete one`}, on one clock${several ? ", ranks under each other" : ""}. Striped: idle, with what it waits for. `, other),
    h("div", { class: "bar" }, choice, perfettoButtons(data, page.data.title)), stage);
  const view = traceView(stage, data, { wheel: "focused", kinds: TIME_KINDS[first], from: timeFrom(data), tallest: TIME_TALLEST,
    rankName: (rank) => [`rank ${rank}`, rankPlace(page.data.run.mesh ?? [], rank)].filter(Boolean).join(": ") });
  window.windtunnelTrace = view;  // for tests, as in trace.html
  return { resize: view.resize, goToRank(rank) {
    other.textContent = data.ranks.includes(rank) ? "" : `Rank ${rank} is not among them; choose others with --trace-ranks.`;
    view.goToRank(rank);
  } };
}

// When the step begins on the devices, on the clock of the whole program; the host may be ahead of it.
function timeFrom(data) {
  const starts = (tracks) => tracks.filter((track) => track.start.length).map((track) => track.start[0]);
  const steps = starts(data.tracks.filter((track) => track.kind === "phases"));
  return Math.min(...(steps.length ? steps : starts(data.tracks)));
}

// -- the chosen rank --------------------------------------------------------------------------------------------------

function timeRank(page) {
  const profile = page.document()?.time?.profile;
  if (!profile) return [];
  const whole = profile.seconds;
  const shares = (title, entries) => h("div", null, h("h3", null, title), table([
    { title: "", cell: ([name]) => name }, { title: "time", number: true, cell: ([, s]) => seconds(s) },
    { title: "of the kernels", number: true, cell: ([, s]) => percent(s, whole) },
  ], Object.entries(entries)));
  return [
    h("h2", null, `Kernels of rank ${page.rank}: ${seconds(whole)} in ${plural(profile.n_kernels, "kernel")} a step`),
    h("div", { class: "columns" }, shares("By kind of operator", profile.by_class), shares("By phase", profile.by_phase)),
    h("h2", null, "By module"), timeModules(profile),
    h("h2", null, `The ${plural(profile.operators.length, "operator")} that take longest`), timeOperators(profile),
  ];
}

function timeOperators(profile) {
  const columns = [
    { title: "operator", key: "op" }, { title: "kind", key: "op_class" }, { title: "tensors", key: "shapes" }, { title: "calls", key: "count", number: true, words: count },
    { title: "time", key: "seconds", number: true, words: seconds }, { title: "share", key: "seconds", number: true, words: (s) => percent(s, profile.seconds), isDerived: true },
    { title: "TFLOP/s", key: "tflops", number: true, words: (n) => n ? n.toFixed(1) : "" }, { title: "GB/s", key: "gbs", number: true, words: (n) => n ? count(Math.round(n)) : "" }, { title: "basis", key: "basis" },
  ];
  const box = h("div", { class: "time-operators" }), order = { key: "seconds", isDown: true };
  const draw = () => {
    const rows = [...profile.operators].sort((a, b) => (typeof a[order.key] === "number" ? a[order.key] - b[order.key] : a[order.key].localeCompare(b[order.key])) * (order.isDown ? -1 : 1));
    const head = (column) => column.isDerived ? column.title : h("button", { type: "button", class: "time-sort", "data-key": column.key, onclick: () => {
      order.isDown = order.key === column.key ? !order.isDown : Boolean(column.number);
      order.key = column.key;
      draw();
      box.querySelector(`[data-key="${column.key}"]`).focus();
    } }, `${column.title}${order.key === column.key ? (order.isDown ? " ↓" : " ↑") : ""}`);
    box.replaceChildren(table(columns.map((column) => ({ ...column, title: head(column), cell: (row) => column.words ? column.words(row[column.key]) : h("span", { class: "code" }, row[column.key]) })), rows));
  };
  draw();
  return box;
}
