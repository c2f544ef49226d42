// Verdict first: does it fit, on which rank, by how much, what holds the memory, what to try next. Then the ranks.
//
// Sentences about the whole run come from page.data.verdict; numbers are those of the chosen rank, initially the tightest.
// What is drawn of the memory is in overview_memory.js.

addView({
  id: "overview", title: "Overview", isThere: (page) => Boolean(page.data.run),
  mount(box, page) {
    const { world_size: size } = page.data.run, answers = h("div"), memory = h("div"), tables = h("div");
    const map = size > 1 && typeof rankMap === "function" ? rankMap(page) : null;
    const update = () => {
      const rank = page.document();
      answers.replaceChildren(overviewAnswers(page, rank));
      memory.replaceChildren(rank?.peak_bytes ? overviewMemory(page, rank) : "");
      tables.replaceChildren(...rank?.peak_bytes ? overviewTables(page, rank) : []);
    };
    update();
    box.append(overviewVerdict(page), answers);
    if (map) box.append(h("h2", { id: "overview-ranks" }, `All ${plural(size, "rank")}`), map.element);
    box.append(memory, tables);
    map?.resize?.();
    return { update: () => { update(); map?.update?.(page); }, resize: () => map?.resize?.() };
  },
});

const overviewFailed = (page) => Object.values(page.data.simulated ?? {}).filter((rank) => rank.status === "failed");

// -- the verdict ------------------------------------------------------------------------------------------------------

function overviewVerdict(page) {
  const { verdict: { sentence, fits }, run: { mismatches } } = page.data, failed = overviewFailed(page);
  const word = sentence.split(":")[0].split(",")[0];
  // A sentence about memory has the fact first, then what holds it and what to try, each after a semicolon.
  const [first, ...others] = failed.length || mismatches.length ? [sentence] : sentence.split("; ");
  const whole = (part) => `${part[0].toUpperCase()}${part.slice(1).replace(/\.$/, "")}.`;
  return h("section", { class: `overview-verdict ${fits ? "fits" : "fails"}` },
    h("h1", null, h("span", { class: "overview-word" }, `${fits ? "✓" : "✗"} ${word}`),
      `${first.slice(word.length)}${others.length ? "." : ""}`),
    others.map((part) => h("p", { class: "overview-more" }, whole(part))),
    overviewLogs(failed),
    mismatches.length ? h("p", null, `${plural(mismatches.length, "call")} would wait for ever: `,
      overviewLink(page, "warnings", "see which"), ".") : null);
}

function overviewLogs(failed) {
  const shown = failed.slice(0, 8);
  const lines = shown.map((rank) => h("p", null, `Rank ${rank.rank} stopped; its output is in `,
    h("code", null, `rank${rank.rank}/run.log`), " next to this page.", rank.peak_bytes ? "" : " Nothing was measured."));
  if (failed.length > shown.length) lines.push(h("p", { class: "faint" }, `${count(failed.length - shown.length)} more failed: see Warnings.`));
  return lines;
}

// A way to another view, if this page has it.
function overviewLink(page, view, words) {
  if (!VIEWS.some((each) => each.id === view && each.isThere(page))) return words;
  const go = (event) => { event.preventDefault(); page.show(view); scrollTo(0, 0); };
  return h("a", { href: `#${view}`, onclick: go }, words);
}

// -- short answers ----------------------------------------------------------------------------------------------------

function overviewAnswers(page, rank) {
  const answers = [...overviewWorst(page)];
  if (!rank) answers.push(["Rank", `rank ${page.rank} is not in the report`]);
  else answers.push(...overviewNeed(page, rank), ...overviewTime(page), ["Ran", overviewRan(page, rank)]);
  return h("dl", { class: "overview-answers" },
    answers.flatMap(([question, ...answer]) => [h("dt", null, question), h("dd", null, answer.flat())]));
}

function overviewWorst(page) {
  const { run, verdict: { rank: worst }, ranks } = page.data, shown = page.shownBy(page.rank);
  if (run.world_size === 1 || worst === null || worst === undefined) return [];
  const most = ranks.peak_with_fragments_bytes[ranks.rank.indexOf(worst)];
  const alike = run.level ? ranks.peak_with_fragments_bytes.filter((size) => size === most).length - 1 : 0;
  const question = !run.level ? "Simulated" : overviewFailed(page).length ? "Needs most" : "Worst rank";
  const answer = [h("strong", null, `rank ${worst}`), ` of ${count(run.world_size)}`,
    alike ? `; ${plural(alike, "other rank needs", "other ranks need")} as much` : ""];
  if (typeof rankMap === "function") {
    const go = (event) => { event.preventDefault(); document.getElementById("overview-ranks")?.scrollIntoView({ block: "start" }); };
    answer.push(": ", h("a", { href: "#overview", onclick: go }, "map of all ranks"));
  }
  if (shown !== worst) {
    answer.push(`. Below: rank ${page.rank}${shown === page.rank ? "" : `, which does the same as rank ${shown}`}; `,
      h("button", { type: "button", onclick: () => page.choose({ rank: worst }) }, `show rank ${worst}`));
  }
  return [[question, ...answer]];
}

function overviewNeed(page, rank) {
  const { run } = page.data, found = [];
  if (rank.error && run.world_size > 1) found.push([`Rank ${rank.rank}`, h("span", { class: "bad" }, rank.error)]);
  if (!rank.peak_bytes) {
    const why = run.level ? "nothing was allocated on the device" : "not measured at level 0; --level 1 measures it";
    return rank.status === "failed" ? found : [...found, ["Memory", why]];
  }
  found.push([rank.status === "failed" ? "Until then" : "Room", ...overviewRoom(page, rank)]);
  if (rank.peak_at) {
    found.push(["Peak", overviewMoment(rank.peak_at), ": ", overviewLink(page, "peak", "flame graph of it"), ", ",
      overviewLink(page, "memory", "every allocation over time"), ", ", overviewLink(page, "allocator", "map of the allocator")]);
  }
  const { out_of_memory: refused, n_retries: retries, library_buffers_bytes: buffers, peak_in_pages_bytes: pages } = rank;
  if (refused) found.push(["First allocation that does not fit", `${bytes(refused.requested_bytes)} at `, overviewMoment(refused.at)]);
  if (retries && rank.fits) found.push(["Retries", `the allocator had to release its cache ${plural(retries, "time")} to fit`]);
  // The note says whether they are counted.
  const note = (rank.notes ?? []).find((each) => each.includes("communicator"));
  if (buffers) found.push(["Beside it", note ?? `about ${bytes(buffers)} of the communication library's own buffers`]);
  if (pages) found.push(["In whole pages", `${bytes(pages)}, as counted on a real device`]);
  return found;
}

const overviewHasLimit = (page, rank) => page.data.run.device.name !== "cpu" && rank.usable_memory_bytes > 0;

function overviewRoom(page, rank) {
  const need = rank.peak_with_fragments_bytes, usable = rank.usable_memory_bytes;
  const who = page.data.run.world_size > 1 ? `rank ${page.rank} ` : "", verb = rank.status === "failed" ? "needed " : "needs ";
  const fragments = need > rank.peak_bytes ? ` (${bytes(rank.peak_bytes)} live, the rest fragments)` : "";
  const needed = [who + verb, h("strong", null, bytes(need)), fragments];
  if (!overviewHasLimit(page, rank)) return needed;
  const [kind, words, of] = need > usable ? ["bad", `${bytes(need - usable)} too much`, "for"] : ["good", `${bytes(usable - need)} to spare`, "of"];
  return [...needed, ", ", h("strong", { class: kind }, words), ` ${of} ${bytes(usable)} usable`];
}

function overviewMoment(at) {
  const when = [at.step ? `step ${at.step}` : "before the first step", at.phase].filter(Boolean).join(", ");
  return h("span", null, when, at.op ? [", ", h("code", null, at.op)] : null, at.module ? [" in ", h("code", null, at.module)] : null);
}

function overviewTime(page) {
  const { time, world_size: size } = page.data.run;
  if (!time) return [];
  const facts = [];
  if (time.tokens_per_second) facts.push(`${count(Math.round(time.tokens_per_second))} tokens/s`);
  if (time.model_flops_utilisation !== null) facts.push(`MFU ${percent(time.model_flops_utilisation, 1)}`);
  if (time.bubble_share) facts.push(`pipeline bubble ${percent(time.bubble_share, 1)} on average over the ranks`);
  const found = [["Step", h("strong", null, `${seconds(time.step_seconds)} a step`), ...facts.map((fact) => `, ${fact}`),
    ": ", overviewLink(page, "time", "where the time goes")]];
  const isOneOfMany = size > 1 && time.slowest_rank !== null;
  if (time.bound_by) found.push(["Bound by", isOneOfMany ? `on rank ${time.slowest_rank}, the slowest: ` : "", time.bound_by]);
  if (isOneOfMany && time.slowest_why) found.push(["Slowest rank", `rank ${time.slowest_rank}: ${time.slowest_why}`]);
  return found;
}

function overviewRan(page, rank) {
  const { level, device, allocator } = page.data.run;
  return `${plural(rank.steps, "optimizer step")} at level ${level} on ${device.name}, allocator ${allocator}`;
}
