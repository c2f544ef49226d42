// The timeline of a trace: a canvas that draws what is in view, names beside it, a search above it.
//
// traceView(box, document, options) fills `box`. Options: prefix of the elements' ids; keys: the element that receives key presses
// (the box); wheel: "always" zooms, "focused" only after a click or with Ctrl, so that a page can still be scrolled;
// kinds: which tracks to show at first; from: the nanosecond that is called 0; tallest: pixels, else it fills its box;
// rankName: what to write above a rank's tracks.

const TRACE_MOST_ARROWS = 200;

function traceView(box, data, options = {}) {
  const prefix = options.prefix ?? "trace-", from = options.from ?? 0;
  const found = traceTracks(data), { tracks, counters, slices, labels } = found;
  const search = h("input", { id: `${prefix}search`, type: "search", class: "trace-search", placeholder: "Search names, modules, lines", "aria-label": "Search slices" });
  const matchCount = h("span", { id: `${prefix}found`, role: "status", class: "faint" });
  const span = h("span", { id: `${prefix}span`, class: "faint" });
  const names = h("div", { id: `${prefix}names`, class: "trace-names" });
  const canvas = h("canvas", { id: `${prefix}picture`, class: "trace-picture", role: "img", "aria-label": "Slices of the trace over time; search for a name to read one" });
  const view = h("div", { id: `${prefix}view`, class: "trace-view", tabindex: 0, role: "group", "aria-label": "Timeline: w and s zoom, a and d move, 0 shows everything, / searches, Enter goes to the next match" }, names, canvas);
  const details = h("pre", { id: `${prefix}details`, class: "trace-details", hidden: true });
  const button = (text, title, act) => h("button", { type: "button", title, "aria-label": title, onclick: act }, text);
  const bar = h("div", { class: "bar trace-bar" }, options.title ? h("strong", null, options.title) : null, search, matchCount,
    button("+", "zoom in", () => zoom(0.6, width / 2)), button("−", "zoom out", () => zoom(1 / 0.6, width / 2)),
    button("all", "show everything", () => showAll()), span,
    h("span", { class: "faint trace-help" }, `${options.wheel === "focused" ? "Ctrl and wheel" : "wheel"}: zoom · drag: move · click: select · Enter: next match`));
  const leftOut = data.leftOut.length ? h("p", { id: `${prefix}left-out`, class: "note" }, `Not everything is shown: ${data.leftOut.join("; ")}.`) : null;
  box.classList.add("trace");
  box.append(...[bar, leftOut, view, details].filter(Boolean));

  let first = 0, last = 1;  // nanoseconds of what is shown
  let left = 0, scale = 1, width = 1, tall = 1, isPending = false, isShown = false, isWhole = true;  // scale: pixels for each nanosecond
  let selected = null, wanted = null, matches = [], atMatch = -1, drag = null, stripes = null;
  let context = canvas.getContext("2d");
  const x = (ns) => (ns - left) * scale;
  const rowOf = (track, i) => track.y + track.depth[i] * TRACE_ROW - view.scrollTop;

  // -- what is in view ----------------------------------------------------------------------------------------------

  function choose(kinds) {
    const { headings, height } = traceLayout(found, data.ranks, kinds, options.rankName ?? ((rank) => `rank ${rank}`));
    names.replaceChildren(...headings.map(({ name, y, isRank }) =>
      h("div", { title: name, class: isRank ? "trace-rank" : null, style: { top: `${y}px` } }, name)));
    names.style.height = `${height}px`;
    if (options.tallest) view.style.height = `${Math.min(height + 4, options.tallest)}px`;
    ({ first, last } = traceSpan(tracks.filter((track) => track.isShown)));
    bands = headings.filter((each) => each.isRank).map((each) => each.y);
    if (selected && !selected.track.isShown) select(null);
    gather();
    if (isShown) resize();
  }
  let bands = [];

  function resize() {
    if (!view.clientWidth) return;  // hidden: there is nothing to fit
    const before = width / scale;
    const namesWidth = names.offsetWidth;
    width = Math.max(50, view.clientWidth - namesWidth);
    tall = view.clientHeight;
    context = fitCanvas(canvas, width, tall);
    canvas.style.left = `${namesWidth}px`;
    stripes = null;
    if (isWhole) showAll(); else show(left, before);
    isShown = true;
  }

  function show(begin, length) {
    isWhole = false;
    const whole = last - first;
    length = Math.min(Math.max(length, 10), whole * 1.1);
    scale = width / length;
    left = Math.min(Math.max(begin, first - whole * 0.05), last + whole * 0.05 - length);
    draw();
  }
  const showAll = () => { show(first - (last - first) * 0.01, (last - first) * 1.02); isWhole = true; };
  const zoom = (factor, at) => show(left + at / scale * (1 - factor), width / scale * factor);

  function draw() {
    if (isPending) return;
    isPending = true;
    requestAnimationFrame(paint);
  }

  function paint() {
    isPending = false;
    const css = getComputedStyle(view);
    const colour = (name) => css.getPropertyValue(`--${name}`).trim();
    const ink = { text: colour("ink"), faint: colour("faint"), light: colour("slice-light"), wait: colour("band") };
    stripes ??= traceStripes(context, ink.wait, colour("line"));
    canvas.style.top = `${view.scrollTop}px`;
    context.fillStyle = colour("paper");
    context.fillRect(0, 0, width, tall);
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.lineWidth = 1;
    const band = (y, height, fill) => { context.fillStyle = fill; context.fillRect(0, y, width, height); };
    for (const y of bands) band(y - view.scrollTop, TRACE_HEAD, colour("band"));
    const ticks = ticksInView();
    for (const time of ticks) { context.fillStyle = colour("line"); context.fillRect(x(time), 0, 1, tall); }
    for (const track of tracks) if (track.isShown) paintTrack(track, ink);
    for (const counter of counters) if (counter.isShown) paintCounter(counter, ink);
    if (selected) paintSelected(colour("accent"));
    band(0, TRACE_RULER - 1, colour("paper"));
    band(TRACE_RULER - 1, 1, colour("line"));
    context.fillStyle = ink.faint;
    for (const time of ticks) context.fillText(traceDuration(time - from), x(time) + 4, TRACE_RULER / 2);
    span.textContent = `${traceDuration(width / scale)} in view`;
  }

  function paintTrack(track, ink) {
    track.rows.forEach((row, depth) => {
      const y = track.y + depth * TRACE_ROW - view.scrollTop;
      if (y > tall || y + TRACE_ROW < TRACE_RULER) return;
      let edge = -1;  // what ends before this pixel is there already
      for (let k = traceFirstAfter(row, track.end, left); k < row.length; k++) {
        const i = row[k], start = x(track.start[i]), to = x(track.end[i]);
        if (start > width) break;
        if (to <= edge) continue;
        const mine = labels[track.label[i]];
        const begin = Math.max(start, -2), wide = Math.max(1, Math.min(to, width + 2) - begin - (to - start > 3 ? 0.5 : 0));
        context.globalAlpha = wanted && !wanted[track.label[i]] ? 0.18 : 1;
        context.fillStyle = mine.isWaiting ? stripes : `hsl(${mine.hue} 45% ${ink.light})`;
        context.fillRect(begin, y, wide, TRACE_ROW - 2);
        if (wide > 28) {
          context.fillStyle = mine.isWaiting ? ink.faint : ink.text;
          context.fillText(traceFitted(mine.name, wide - 6), Math.max(begin, 0) + 3, y + TRACE_ROW / 2 - 0.5);
        }
        edge = Math.ceil(to);
      }
    });
    context.globalAlpha = 1;
  }

  function paintCounter(counter, ink) {
    const y = counter.y - view.scrollTop, floor = y + TRACE_COUNTER;
    if (y > tall || floor < TRACE_RULER || !counter.time.length) return;
    const up = (value) => floor - value / counter.top * (TRACE_COUNTER - 4);
    context.beginPath();
    context.moveTo(x(counter.time[0]), floor);
    counter.time.forEach((time, i) => {
      if (i) context.lineTo(x(time), up(counter.value[i - 1]));
      context.lineTo(x(time), up(counter.value[i]));
    });
    context.lineTo(x(last), up(counter.value[counter.value.length - 1]));
    context.lineTo(x(last), floor);
    context.globalAlpha = 0.35; context.fillStyle = ink.faint; context.fill(); context.globalAlpha = 1;
    context.fillStyle = ink.text;
    context.fillText(`most ${bytes(counter.top)}`, 3, y + 8);
  }

  function paintSelected(accent) {
    const { track, i } = selected, number = track.number + i;
    context.strokeStyle = accent; context.lineWidth = 2;
    context.strokeRect(x(track.start[i]), rowOf(track, i), Math.max(2, (track.end[i] - track.start[i]) * scale), TRACE_ROW - 2);
    context.lineWidth = 1;
    let n = 0;
    for (let k = 0; k < data.arrows.from.length && n < TRACE_MOST_ARROWS; k++) {
      if (data.arrows.from[k] !== number && data.arrows.to[k] !== number) continue;
      const [a, ai] = slices[data.arrows.from[k]], [b, bi] = slices[data.arrows.to[k]];
      if (!a.isShown || !b.isShown) continue;
      const x1 = x(a.start[ai]), x2 = x(b.start[bi]), y1 = rowOf(a, ai) + TRACE_ROW / 2, y2 = rowOf(b, bi) + TRACE_ROW / 2;
      context.beginPath(); context.moveTo(x1, y1);
      context.bezierCurveTo(x1 + 30, y1, x2 - 30, y2, x2, y2); context.stroke();
      context.beginPath(); context.arc(x2, y2, 3, 0, 7); context.fillStyle = accent; context.fill();
      n++;
    }
  }

  function ticksInView() {
    const rough = 110 / scale, power = 10 ** Math.floor(Math.log10(rough)), ticks = [];
    const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
    for (let k = Math.ceil((left - from) / step); x(from + k * step) < width; k++) ticks.push(from + k * step);
    return ticks;
  }

  // -- hands --------------------------------------------------------------------------------------------------------

  function at(event) {
    const place = canvas.getBoundingClientRect();
    const time = left + (event.clientX - place.left) / scale, y = event.clientY - place.top + view.scrollTop;
    if (event.clientY - place.top < TRACE_RULER || event.clientX < place.left) return null;
    const track = tracks.find((each) => each.isShown && y >= each.y && y < each.y + each.rows.length * TRACE_ROW);
    const row = track && track.rows[Math.floor((y - track.y) / TRACE_ROW)];
    if (!row) return null;
    const k = traceFirstAfter(row, track.end, time), near = 2 / scale;  // two pixels beside a slice still mean it
    if (k < row.length && track.start[row[k]] <= time) return { track, i: row[k] };
    if (k > 0 && track.end[row[k - 1]] >= time - near) return { track, i: row[k - 1] };
    return k < row.length && track.start[row[k]] <= time + near ? { track, i: row[k] } : null;
  }

  function hover(event) {
    const one = at(event);
    if (one) tip.show(event, traceWords(one, labels, from)); else tip.hide();
  }

  function select(one) {
    selected = one;
    details.hidden = !one;
    if (one) details.textContent = traceWords(one, labels, from).join("\n");
    resize();
  }

  canvas.addEventListener("pointerdown", (event) => {
    drag = { x: event.clientX, y: event.clientY, left, top: view.scrollTop, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    const dx = event.clientX - drag.x, dy = event.clientY - drag.y;
    drag.moved ||= Math.abs(dx) + Math.abs(dy) > 4;
    if (!drag.moved) return;
    tip.hide();
    view.scrollTop = drag.top - dy;
    show(drag.left - dx / scale, width / scale);
  });
  canvas.addEventListener("pointerup", (event) => {
    if (drag && !drag.moved) select(at(event));
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => { drag = null; });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("wheel", (event) => {
    const isMeant = options.wheel !== "focused" || event.ctrlKey || event.shiftKey || document.activeElement === view;
    if (!isMeant) return;
    event.preventDefault();
    if (event.shiftKey) show(left + (event.deltaY + event.deltaX) / scale, width / scale);
    else zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.008), event.clientX - canvas.getBoundingClientRect().left);
    hover(event);
  }, { passive: false });
  canvas.addEventListener("dblclick", (event) => {
    const one = at(event);
    if (one) reveal(one);
  });
  view.addEventListener("scroll", draw);

  const KEYS = {
    w: () => zoom(0.7, width / 2), "+": () => zoom(0.7, width / 2), s: () => zoom(1 / 0.7, width / 2),
    "-": () => zoom(1 / 0.7, width / 2), a: () => show(left - width / scale / 5, width / scale),
    ArrowLeft: () => show(left - width / scale / 5, width / scale),
    d: () => show(left + width / scale / 5, width / scale),
    ArrowRight: () => show(left + width / scale / 5, width / scale),
    0: showAll, Home: showAll, "/": () => search.focus(), Escape: () => select(null), Enter: () => next(),
  };
  (options.keys ?? box).addEventListener("keydown", (event) => {
    const isTyping = event.target === search, isElsewhere = event.target.tagName === "BUTTON";
    if (event.ctrlKey || event.metaKey || event.altKey || isElsewhere) return;
    if (isTyping && event.key !== "Enter" && event.key !== "Escape") return;
    const act = KEYS[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  search.addEventListener("input", () => { gather(); draw(); });

  function gather() {
    const text = search.value.trim().toLowerCase();
    wanted = text ? labels.map((each) => each.text.includes(text)) : null;
    matches = []; atMatch = -1;
    if (wanted) for (const track of tracks) if (track.isShown) track.label.forEach((l, i) => { if (wanted[l]) matches.push({ track, i }); });
    matchCount.textContent = text ? `${count(matches.length)} found` : "";
  }

  function next() {
    if (!matches.length) return;
    atMatch = (atMatch + 1) % matches.length;
    reveal(matches[atMatch]);
  }

  function reveal(one) {
    select(one);
    tip.hide();
    const { track, i } = one, length = Math.max(track.end[i] - track.start[i], 1);
    const y = track.y + track.depth[i] * TRACE_ROW;
    if (y < view.scrollTop + TRACE_RULER || y + TRACE_ROW > view.scrollTop + tall) view.scrollTop = y - tall / 2;
    show(track.start[i] - 2 * length, 5 * length);
  }

  choose(options.kinds ?? null);
  resize();
  return {
    resize, draw, choose,
    // Where the first slice of a name lies on the screen: for tests, and for scripts on this page.
    place(name) {
      const here = canvas.getBoundingClientRect();
      for (const track of tracks) for (let i = 0; track.isShown && i < track.start.length; i++) {
        if (labels[track.label[i]].name !== name) continue;
        return { x: here.left + x((track.start[i] + track.end[i]) / 2), y: here.top + rowOf(track, i) + TRACE_ROW / 2 };
      }
      return null;
    },
    goToRank(rank) { view.scrollTop = Math.max(0, (bands[data.ranks.indexOf(rank)] ?? TRACE_RULER) - TRACE_RULER); },
  };
}
