// Time by module as a tree: paths -> nodes with what is below them -> rows that open and close.
//
// Layers that only differ by their number are one row, until the reader wants them apart.

function timeTree(byModule, isFolded) {
  const root = { name: "", own: 0, total: 0, children: new Map(), n: 1 };
  for (const [path, own] of Object.entries(byModule)) {
    let node = root;
    node.total += own;
    for (const name of path ? path.split(".") : []) {
      if (!node.children.has(name)) node.children.set(name, { name, own: 0, total: 0, children: new Map(), n: 1 });
      node = node.children.get(name);
      node.total += own;
    }
    node.own += own;
  }
  return timeShortened(isFolded ? timeFolded(root) : root, true);
}

function timeFolded(node) {
  const numbered = [...node.children.values()].filter((child) => /^\d+$/.test(child.name));
  const others = [...node.children.values()].filter((child) => !/^\d+$/.test(child.name)).map(timeFolded);
  if (numbered.length > 1) others.push(timeFolded({ ...numbered.reduce(timeMerged), name: rankRanges(numbered.map((each) => Number(each.name)).sort((a, b) => a - b)).join(","), n: numbered.length }));
  else others.push(...numbered.map(timeFolded));
  return { ...node, children: new Map(others.map((child) => [child.name, child])) };
}

function timeMerged(a, b) {
  const children = new Map(a.children);
  for (const [name, child] of b.children) children.set(name, children.has(name) ? timeMerged(children.get(name), child) : child);
  return { ...a, own: a.own + b.own, total: a.total + b.total, children };
}

// module.module.decoder: one row, where a module has nothing of its own and one child.
function timeShortened(node, isRoot) {
  const children = [...node.children.values()].map((child) => timeShortened(child, false));
  if (!isRoot && children.length === 1 && !node.own) return { ...children[0], name: `${node.name}.${children[0].name}`, n: Math.max(node.n, children[0].n) };
  children.sort((a, b) => b.total - a.total);
  return { ...node, children };
}

const TIME_OPEN_SHARE = 0.3;  // of all kernels: what is opened at first

function timeModules(profile) {
  const body = h("tbody"), box = h("div");
  const isFolded = { value: true };
  const fold = h("button", { type: "button", "aria-pressed": "true", onclick: () => { isFolded.value = !isFolded.value; draw(); } }, "layers together");
  function draw() {
    fold.setAttribute("aria-pressed", String(isFolded.value));
    const tree = timeTree(profile.by_module, isFolded.value), known = tree.total, rows = [];
    const add = (node, depth, hosts) => {
      const row = timeModuleRow(node, depth, profile.seconds, tree.children[0]?.total ?? node.total);
      rows.push(row.element);
      body.append(row.element);
      hosts.push(row);
      const inner = [];
      for (const child of node.children) add(child, depth + 1, inner);
      row.hold(inner, node.total > TIME_OPEN_SHARE * profile.seconds);
    };
    body.replaceChildren();
    for (const node of tree.children) add(node, 0, []);
    const outside = [["outside of modules", tree.own], ["modules that take less, not listed", profile.seconds - known]];
    for (const [name, own] of outside) if (own > 1e-6 * profile.seconds) body.append(timeModuleRow({ name, own, total: own, children: [], n: 1 }, 0, profile.seconds, tree.children[0]?.total ?? own).element);
  }
  draw();
  box.append(h("div", { class: "bar" }, fold, h("span", { class: "faint" }, "seconds of the kernels that a module launches, in forward and backward")),
    h("div", { class: "scroll" }, h("table", { class: "time-modules" }, h("thead", null, h("tr", null,
      ["module", "with all in it", "of the kernels", "", "its own"].map((title, k) => h("th", { scope: "col", class: k === 0 || k === 3 ? null : "number" }, title)))), body)));
  return box;
}

function timeModuleRow(node, depth, whole, longest) {
  const mark = h("span", { class: "time-mark", "aria-hidden": "true" }, node.children.length ? "▸" : "");
  const words = [mark, h("span", { class: "code" }, node.name || "(outside of modules)"), node.n > 1 ? h("span", { class: "faint" }, ` × ${node.n}`) : null];
  const name = node.children.length ? h("button", { type: "button", class: "time-toggle", "aria-expanded": "false", onclick: () => turn(!isOpen) }, words) : h("span", null, words);
  const element = h("tr", null, h("td", { style: { paddingLeft: `${depth * 1.1}em` } }, name), h("td", { class: "number" }, seconds(node.total)),
    h("td", { class: "number" }, percent(node.total, whole)), h("td", { class: "rank-bar" }, h("div", { class: "time-compute", style: { width: `${100 * node.total / (longest || 1)}%` } })),
    h("td", { class: "number faint" }, node.own ? seconds(node.own) : ""));
  let inner = [], isOpen = false;
  function turn(isNow) {
    isOpen = isNow;
    mark.textContent = node.children.length ? (isOpen ? "▾" : "▸") : "";
    if (node.children.length) name.setAttribute("aria-expanded", String(isOpen));
    for (const row of inner) row.show(isOpen && !element.hidden);
  }
  return { element, hold(rows, isFirstOpen) { inner = rows; turn(isFirstOpen); }, show(isShown) { element.hidden = !isShown; turn(isOpen); } };
}
