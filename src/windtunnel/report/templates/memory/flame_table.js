// Beneath the flame graph: the largest groups of tensors of what is zoomed to, each with its stack.

function flameTable(state, parts) {
  const groups = state.detail ? flameGroups(state.zoom, state.isFolded) : flameLargest(state.document), shown = groups.slice(0, FLAME_GROUPS);
  const columns = ["what", "kind", "bytes", "share", "count", "shape", "line"];
  const kindOf = (title) => ["bytes", "share", "count"].includes(title) ? "number" : null;
  const where = state.detail && state.zoom !== state.root ? ` in ${state.zoom.path}` : "";
  parts.groups.replaceChildren(
    h("h2", null, `Largest tensors${where}`),
    h("div", { class: "scroll" }, h("table", { id: "flame-groups" },
      h("thead", null, h("tr", null, columns.map((title) => h("th", { scope: "col", class: kindOf(title) }, title)))),
      h("tbody", null, shown.flatMap((group) => flameRows(state, group, columns.length))))),
    groups.length > shown.length ? h("p", { class: "faint" }, `and ${plural(groups.length - shown.length, "smaller group")}`) : "");
}

// Of a rank without details: what its report names.
function flameLargest(document) {
  const shape = (group) => group.shape ? `${group.shape.join("x")} ${group.dtype}` : "";
  return (document?.largest_at_peak ?? []).map((group) => ({ ...group, stack: [], shape: shape(group) }));
}

// A row, and beneath it the stack that it opens.
function flameRows(state, group, n) {
  const number = (words) => h("td", { class: "number" }, words), hasStack = group.stack.length > 0;
  const cells = [h("td", null, h("code", null, tensorWords(group))), h("td", null, overviewSwatch(group.role), roleWord(group.role)),
    number(bytes(group.bytes)), number(percent(group.bytes, state.total)), number(group.count ? count(group.count) : ""),
    h("td", null, group.shape), h("td", null, group.where, hasStack ? h("span", { class: "faint" }, " ▸") : "")];
  if (!hasStack) return [h("tr", null, cells)];
  const stack = h("tr", { hidden: true, class: "flame-stack" }, h("td", { colspan: n }, h("pre", null, group.stack.join("\n"))));
  const open = () => { stack.hidden = !stack.hidden; row.setAttribute("aria-expanded", String(!stack.hidden)); };
  const row = h("tr", { tabindex: 0, "aria-expanded": "false", title: "the whole stack", onclick: open,
    onkeydown: (event) => { if (event.key === "Enter" || event.key === " ") { open(); event.preventDefault(); } } }, cells);
  return [row, stack];
}
