// The allocator's memory at a peak: every segment it took from the device, the blocks in it, and the holes between them.

addView({
  id: "allocator", title: "Allocator", isThere: (page) => Object.values(page.data.details ?? {}).some((detail) => detail.maps.length > 0),
  mount: (box, page) => openAllocator(box, page),
});

async function openAllocator(box, page) {
  const state = { detail: null, map: null, which: 0, order: "address", zoom: 1, chosen: null };
  const label = "Map of the allocator's segments: left and right move through blocks, up and down through segments";
  const parts = {
    title: h("h2"), note: h("div"), maps: h("div", { class: "bar", role: "group", "aria-label": "Moment" }), sum: h("p"),
    tools: allocatorTools(state, layout), legend: h("div", { class: "bar" }), scroll: h("div", { class: "allocator-scroll" }),
    sheet: h("div"), canvas: h("canvas", { tabindex: 0, role: "img", "aria-label": label }), said: h("p", { class: "allocator-said", role: "status" }),
  };
  const { scroll, sheet, canvas, said } = parts;
  scroll.append(sheet, canvas);
  box.append(parts.title, parts.note, parts.maps, parts.sum, parts.tools, parts.legend, scroll, said);
  const under = (event) => {
    const corner = canvas.getBoundingClientRect();
    return allocatorAt(state, event.clientX - corner.left, event.clientY - corner.top + scroll.scrollTop);
  };
  scroll.addEventListener("scroll", draw);
  canvas.addEventListener("pointermove", (event) => {
    const block = under(event);
    if (block >= 0) tip.show(event, allocatorWords(state, block)); else tip.hide();
  });
  canvas.addEventListener("pointerleave", () => tip.hide());
  canvas.addEventListener("click", (event) => { const block = under(event); if (block >= 0) choose(block); });
  canvas.addEventListener("keydown", (event) => {
    const block = allocatorStep(state, event.key);
    if (block === null) return;
    event.preventDefault();
    choose(block);
  });

  async function load() {
    const { rank } = page, detail = await rankDetail(page, rank), isThere = Boolean(detail?.maps.length);
    if (rank !== page.rank) return;  // another choice came in between
    state.detail = detail;
    parts.title.replaceChildren(page.data.run.world_size > 1 ? `The allocator of rank ${rank}` : "The allocator");
    parts.note.replaceChildren(isThere ? "" : h("p", { class: "note" }, rankUnseen(page) ?? `${flameTold(page)}: of rank ${rank} there is no map.`));
    for (const name of ["maps", "sum", "tools", "legend", "scroll", "said"]) parts[name].hidden = !isThere;
    if (isThere) pick(Math.min(state.which, detail.maps.length - 1));
    else state.map = null;
  }

  function pick(which) {
    state.which = which;
    state.map = state.detail.maps[which];
    state.chosen = null;
    const button = (map, i) => h("button", { type: "button", "aria-pressed": String(i === which),
      onclick: () => { pick(i); parts.maps.children[i].focus(); } }, `at the ${map.title}`);
    parts.maps.replaceChildren(...state.detail.maps.map(button));
    allocatorPrepare(state);
    allocatorSummary(state, parts);
    said.replaceChildren("Point at a block to see whose it is.");
    layout();
  }

  function layout() {
    if (!state.map) return;
    allocatorLayout(state, scroll.clientWidth);
    const height = state.lines.length * ALLOCATOR_STEP;
    scroll.style.height = `${Math.min(height + 8, Math.max(260, innerHeight * 0.66))}px`;
    sheet.style.height = `${height + 4}px`;
    draw();
  }

  function draw() { if (state.map) allocatorDraw(state, canvas, scroll); }

  function choose(block) {
    state.chosen = block;
    const top = ALLOCATOR_STEP * state.lines.findIndex((pieces) => pieces.some((piece) => piece.blocks.includes(block)));
    if (top < scroll.scrollTop || top + ALLOCATOR_STEP > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top - scroll.clientHeight / 3;
    const [title, ...more] = allocatorWords(state, block);
    said.replaceChildren(h("strong", null, title), more.filter(Boolean).map((line) => `; ${line}`).join(""));
    draw();
  }

  await load();
  return { update: load, resize: layout };
}

function allocatorTools(state, layout) {
  const select = (words, options, change) => h("label", null, `${words} `,
    h("select", { onchange: (event) => { change(event.target.value); layout(); } }, options.map(([value, text]) => h("option", { value }, text))));
  return h("div", { class: "bar" },
    select("order", [["address", "by address"], ["unused", "most unused first"], ["size", "largest first"]], (value) => { state.order = value; }),
    select("scale", [[1, "everything"], ...[4, 16, 64, 256].map((times) => [times, `${times} times`])], (value) => { state.zoom = Number(value); }));
}

function allocatorSummary(state, parts) {
  const { segments, blocks, allocated_bytes: allocated, reserved_bytes: reserved } = state.map;
  let largest = 0, holes = 0, pending = 0;
  const roles = new Set();
  for (let block = 0; block < blocks.bytes.length; block++) {
    const size = blocks.bytes[block];
    if (blocks.state[block] === ALLOCATOR_HOLE) { holes += 1; largest = Math.max(largest, size); } else roles.add(allocatorRole(state, block));
    if (blocks.state[block] === ALLOCATOR_PENDING) pending += size;
  }
  const lost = reserved - allocated, taken = segments.bytes.reduce((sum, size) => sum + size, 0);
  // MindSpore takes whole blocks from the device, and counts of each what it ever handed out.
  const untouched = taken > reserved
    ? ` The segments are ${bytes(taken)} long; what was never handed out of them is not counted, though it is hatched as holes are.` : "";
  const where = untouched ? "between them" : `${plural(holes, "hole")}, the largest ${bytes(largest)}`;
  const waiting = pending ? `; ${bytes(pending)} waits for another stream` : "";
  parts.sum.replaceChildren(
    h("strong", { id: "allocator-allocated" }, bytes(allocated)), " of ", h("strong", { id: "allocator-reserved" }, bytes(reserved)),
    ` reserved in ${plural(segments.bytes.length, "segment")} is in use. `,
    ...lost > 0 ? [h("strong", { id: "allocator-lost" }, bytes(lost)), ` (${percent(lost, reserved)}) is not: ${where}${waiting}.`] : ["Nothing is lost."],
    untouched);
  const swatch = (words, attributes) => h("span", null, h("span", attributes), words);
  parts.legend.replaceChildren(
    ...STACKED.filter((role) => roles.has(role)).map((role) => swatch(roleWord(role), { class: "swatch", style: { background: `var(--role-${role})` } })),
    roles.has(null) ? swatch("in use, by no tensor of the recording", { class: "swatch allocator-other" }) : "",
    swatch("hole", { class: "swatch allocator-hole" }), pending ? swatch("waits for another stream", { class: "swatch allocator-pending" }) : "");
}

// Whose a block is, or how large a hole, and where it lies.
function allocatorWords(state, block) {
  const { segments, blocks, base } = state.map, segment = blocks.segment[block], allocation = blocks.allocation[block];
  const address = (offset) => `0x${(BigInt(base) + BigInt(offset)).toString(16)}`, start = segments.address[segment];
  const pool = state.detail.strings[segments.pool[segment]], size = bytes(blocks.bytes[block]);
  const place = [
    `block at ${address(start + blocks.offset[block])}; segment of ${bytes(segments.bytes[segment])} at ${address(start)}`,
    pool && `${pool} pool`, segments.stream[segment] && `stream ${segments.stream[segment]}`,
    segments.expandable[segment] && "expandable", `${bytes(state.unused[segment])} of it unused`,
  ];
  const lines = [place.filter(Boolean).join(", ")], waits = blocks.state[block] === ALLOCATOR_PENDING ? ", freed, but waiting for another stream" : "";
  if (blocks.state[block] === ALLOCATOR_HOLE) return [`hole of ${size}`, ...lines];
  if (allocation < 0) return [`${size} in use${waits}`, "by no tensor of the recording", ...lines];
  const owner = describe(state.detail, allocation), made = owner.where && `made at ${owner.where}`;
  const name = owner.name || [owner.op, owner.module].filter(Boolean).join(" in ") || roleWord(owner.role);
  return [name, `${size}, ${roleWord(owner.role)}${waits}`, [owner.shape, made].filter(Boolean).join(", "), ...lines];
}
