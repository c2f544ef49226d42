// All ranks at a glance, and the figures of the chosen one: rankMap(page) -> {element, update(page), resize()}.
//
// Ranks are drawn once on a hidden canvas; pointing at one only copies it and draws a ring.

const RANK_MARGIN = { left: 58, top: 20, right: 6, bottom: 6 };
const RANK_HEIGHT = 560;
const RANK_ALIKE = 0.05;  // of the largest: ranks that differ by less get nearly the same colour
const RANK_MODES = {
  fragments: { title: "peak with fragments", column: "peak_with_fragments_bytes", words: bytes, verb: "need" },
  peak: { title: "peak", column: "peak_bytes", words: bytes, verb: "need" },
  time: { title: "step time", column: "step_time_us", words: (us) => seconds(us * 1e-6), verb: "take" },
  work: { title: "same work" },
};

function rankMap(page) {
  const ranks = rankTable(page);
  const state = { mode: "fragments", grid: null, picture: null, hovered: null, at: page.rank, scale: null, worldSize: page.data.run.world_size };
  const isAlone = page.data.run.world_size < 2;
  const canvas = h("canvas", { class: "rank-canvas", tabindex: 0, role: "img", "aria-label":
    `Map of ${plural(page.data.run.world_size, "rank")}: arrow keys move, Enter chooses; the table below has the same data` });
  const status = h("p", { class: "faint rank-status", role: "status" }), legend = h("div", { class: "rank-legend" });
  const modes = Object.keys(RANK_MODES).filter((mode) => mode !== "time" || ranks.hasTime);
  const buttons = modes.map((mode) => h("button", { type: "button", "data-mode": mode, "aria-pressed": "false",
    onclick: () => { state.mode = mode; redraw(); } }, RANK_MODES[mode].title));
  const frame = h("div", { class: "rank-frame scroll" }, canvas), figures = h("div", { class: "rank-figures" });
  const classes = h("div", { class: "rank-classes" });
  const element = h("div", { class: `rank-map${page.data.run.world_size > 64 ? "" : " rank-few"}` },
    isAlone ? null : h("div", { class: "rank-picture" }, h("div", { class: "bar", role: "group", "aria-label": "Colour of the ranks" },
      h("span", { class: "faint" }, "colour:"), buttons), frame, legend, status),
    figures, isAlone ? null : classes);

  function redraw() {
    if (!isAlone) {
      for (const button of buttons) button.setAttribute("aria-pressed", String(button.dataset.mode === state.mode));
      const wide = Math.max(240, (frame.clientWidth || element.clientWidth || 700) - RANK_MARGIN.left - RANK_MARGIN.right);
      state.grid = rankGrid(page.data.run.mesh ?? [], page.data.run.world_size, wide, RANK_HEIGHT);
      state.scale = rankScale(ranks, state.mode);
      const began = performance.now();
      state.picture = rankPicture(state.grid, ranks, state);
      paint();
      canvas.dataset.drawMs = (performance.now() - began).toFixed(1);
      legend.replaceChildren(...rankLegend(page, ranks, state));
    }
    figures.replaceChildren(...rankFigures(page, ranks));
    if (!isAlone) classes.replaceChildren(...rankClasses(page, ranks));
    tell();
  }

  // What moves: where the pointer is, what is chosen.
  function paint() {
    const { grid, picture } = state, width = picture.wide, height = picture.tall;
    const pen = canvas.style.width === `${width}px` && canvas.style.height === `${height}px` ? canvas.getContext("2d") : fitCanvas(canvas, width, height);
    pen.clearRect(0, 0, width, height);
    pen.drawImage(picture.canvas, 0, 0, width, height);
    const ring = (rank, colour, line, far) => {
      if (rank === null || rank === undefined || rank < 0) return;
      const { x, y } = grid.place(rank);
      pen.strokeStyle = colour; pen.lineWidth = line;
      pen.strokeRect(RANK_MARGIN.left + x - far, RANK_MARGIN.top + y - far, grid.cell + 2 * far - 1, grid.cell + 2 * far - 1);
    };
    ring(ranks.worst, cssColour("ink"), 2, 1.5);
    ring(page.rank, cssColour("accent"), 3, 2.5);
    if (document.activeElement === canvas) ring(state.at, cssColour("ink"), 1, 4.5);
    ring(state.hovered, cssColour("ink"), 1.5, 0.5);
  }

  function tell() {
    if (!isAlone) status.textContent = rankWords(page, ranks, document.activeElement === canvas ? state.at : page.rank).join(" · ");
  }

  const pointed = (event) => {
    const box = canvas.getBoundingClientRect();
    return state.grid.rankAt(event.clientX - box.left - RANK_MARGIN.left, event.clientY - box.top - RANK_MARGIN.top);
  };
  const hover = (rank, event) => {
    if (rank === null) tip.hide(); else tip.show(event, rankWords(page, ranks, rank));
    canvas.style.cursor = rank === null ? "default" : "pointer";
    if (rank === state.hovered) return;
    state.hovered = rank;
    paint();
  };
  canvas.addEventListener("pointermove", (event) => hover(pointed(event), event));
  canvas.addEventListener("pointerleave", (event) => hover(null, event));
  canvas.addEventListener("click", (event) => { const rank = pointed(event); if (rank !== null) choose(rank); });
  canvas.addEventListener("focus", () => { state.at = page.rank; paint(); });
  canvas.addEventListener("blur", () => { paint(); tell(); });
  canvas.addEventListener("keydown", (event) => {
    const way = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[event.key];
    if (way) state.at = rankBeside(state.grid, state.at, way) ?? state.at;
    else if (event.key === "Enter" || event.key === " ") choose(state.at);
    else return;
    event.preventDefault();
    paint();
    tell();
  });
  function choose(rank) { if (ranks.at.has(rank)) { state.at = rank; page.choose({ rank }); } }

  // Where a rank lies on the screen: for tests, and for scripts on this page.
  window.windtunnelRanks = { place(rank) {
    const box = canvas.getBoundingClientRect(), { x, y } = state.grid.place(rank), half = state.grid.cell / 2;
    return { x: box.left + RANK_MARGIN.left + x + half, y: box.top + RANK_MARGIN.top + y + half, cell: state.grid.cell };
  } };
  redraw();
  return { element, update: redraw, resize: redraw };
}

// The columns of the page by rank, and what they have in common.
function rankTable(page) {
  const columns = page.data.ranks, at = new Map(), members = new Map();
  columns.rank.forEach((rank, i) => {
    at.set(rank, i);
    const shownBy = columns.same_as[i] >= 0 ? columns.same_as[i] : rank;
    if (!members.has(shownBy)) members.set(shownBy, []);
    members.get(shownBy).push(rank);
  });
  const order = new Map([...members.keys()].map((rank, i) => [rank, i]));
  const statusOf = (i) => columns.statuses[columns.status[i]];
  return { columns, at, members, order, worst: page.data.verdict.rank ?? -1, hasTime: columns.step_time_us.some((us) => us > 0), statusOf,
    isFailed: (i) => !columns.peak_bytes[i] || statusOf(i) === "failed", shownBy: (i) => columns.same_as[i] >= 0 ? columns.same_as[i] : columns.rank[i] };
}

// From the least to the most, but never so stretched that small differences look large.
function rankScale(ranks, mode) {
  const { column } = RANK_MODES[mode];
  if (!column) return null;
  let low = Infinity, high = 0;
  ranks.columns[column].forEach((value, i) => { if (!ranks.isFailed(i) && value > 0) { low = Math.min(low, value); high = Math.max(high, value); } });
  if (!(low <= high)) return { low: 0, high: 0, from: 0, to: 1, isEqual: true };
  const spare = Math.max(0, RANK_ALIKE * high - (high - low)) / 2;
  const { words } = RANK_MODES[mode];
  return { low, high, from: low - spare, to: high + spare, isEqual: words(low) === words(high) };
}

function rankPicture(grid, ranks, state) {
  const canvas = document.createElement("canvas");
  const wide = RANK_MARGIN.left + grid.width + RANK_MARGIN.right, tall = RANK_MARGIN.top + grid.height + RANK_MARGIN.bottom;
  const pen = fitCanvas(canvas, wide, tall), size = grid.cell > 5 ? grid.cell - 1 : grid.cell;
  const shades = rankShades(), { columns } = ranks, { column } = RANK_MODES[state.mode];
  const ink = cssColour("ink"), none = cssColour("line");
  pen.font = "11px system-ui, sans-serif"; pen.fillStyle = cssColour("faint"); pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const { text, at } of grid.labels.y) pen.fillText(text, RANK_MARGIN.left - 6, RANK_MARGIN.top + at, RANK_MARGIN.left - 8);
  pen.textAlign = "center";
  for (const { text, at } of grid.labels.x) pen.fillText(text, RANK_MARGIN.left + at, RANK_MARGIN.top / 2 - 1);
  if (columns.rank.length < state.worldSize) {  // a place for each rank that was not simulated
    pen.fillStyle = cssColour("band");
    for (let rank = 0; rank < state.worldSize; rank++) {
      if (ranks.at.has(rank)) continue;
      const { x, y } = grid.place(rank);
      pen.fillRect(RANK_MARGIN.left + x, RANK_MARGIN.top + y, size, size);
    }
  }
  const byColour = new Map();  // setting a colour costs more than a rectangle
  const colourOf = (i) => {
    if (ranks.isFailed(i)) return none;
    if (!column) return rankClassColour(ranks.order.get(ranks.shownBy(i)));
    const t = (columns[column][i] - state.scale.from) / (state.scale.to - state.scale.from || 1);
    return (columns.fits[i] || column === "step_time_us" ? shades.fit : shades.over)[Math.round(63 * Math.min(1, Math.max(0, t)))];
  };
  columns.rank.forEach((rank, i) => {
    const colour = colourOf(i);
    if (!byColour.has(colour)) byColour.set(colour, []);
    byColour.get(colour).push(i);
  });
  const cellOf = (i) => { const { x, y } = grid.place(columns.rank[i]); return [RANK_MARGIN.left + x, RANK_MARGIN.top + y]; };
  for (const [colour, mine] of byColour) { pen.fillStyle = colour; for (const i of mine) pen.fillRect(...cellOf(i), size, size); }
  rankMarks(pen, ranks, cellOf, size, ink);
  return { canvas, wide, tall };
}

// What must not be told by colour alone: a cross for a rank that does not fit, a bar for one that failed.
function rankMarks(pen, ranks, cellOf, size, ink) {
  pen.strokeStyle = ink; pen.fillStyle = ink; pen.lineWidth = size > 12 ? 1.5 : 1;
  const near = size * 0.25, far = size * 0.75, isSmall = size < 8;
  pen.beginPath();
  ranks.columns.rank.forEach((rank, i) => {
    const isFailed = ranks.isFailed(i);
    if (!isFailed && ranks.columns.fits[i]) return;
    const [x, y] = cellOf(i);
    if (isSmall) { if (isFailed) pen.rect(x, y + size / 2 - 0.5, size, 1); else pen.rect(x + size / 2 - 1, y + size / 2 - 1, 2, 2); return; }
    if (isFailed) { pen.moveTo(x + near, y + size / 2); pen.lineTo(x + far, y + size / 2); return; }
    pen.moveTo(x + near, y + near); pen.lineTo(x + far, y + far);
    pen.moveTo(x + far, y + near); pen.lineTo(x + near, y + far);
  });
  if (isSmall) pen.fill(); else pen.stroke();
}

function rankShades() {
  const [paper, middle, high] = ["paper", "middle", "high"].map((name) => rankRgb(cssColour(name)));
  const mix = (a, b, t) => `rgb(${a.map((each, k) => Math.round(each + (b[k] - each) * t)).join(" ")})`;
  const ramp = (a, b, from) => Array.from({ length: 64 }, (_, k) => mix(a, b, from + (1 - from) * k / 63));
  return { fit: ramp(paper, middle, 0.28), over: ramp(middle, high, 0.55) };
}
const rankRgb = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const rankClassColour = (k) => `hsl(${(k * 137.508 + 210) % 360} 45% ${52 + 12 * (Math.floor(k / 8) % 2)}%)`;

// The nearest rank in a direction, over gaps.
function rankBeside(grid, rank, [dx, dy]) {
  const { x, y } = grid.place(rank), half = grid.cell / 2;
  for (let far = grid.cell; far <= grid.cell + 2 * RANK_GAPS.at(-1); far += 1) {
    const found = grid.rankAt(x + half + dx * far, y + half + dy * far);
    if (found !== null && found !== rank) return found;
  }
  return null;
}

// "pp 1, dp 0, tp 3"; "axis of 4: 3" where an axis has no short name.
const rankPlace = (mesh, rank) => mesh.map((axis) => `${axis.name}${axis.name.includes(" ") ? ":" : ""} ${Math.floor(rank / axis.stride) % axis.size}`).join(", ");
