// The modules as a tree with keyboard navigation: each shows the state of its values by sign, word and colour.

const PRECISION_MOST_CHILDREN = 300;

// hands: {choose(node)}; returns {element, reveal(node), choose(node), onlyDifferent(is)}
function precisionTree(found, hands) {
  const tree = h("div", { class: "precision-tree", role: "tree", "aria-label": "Modules and APIs, in the order in which they run" });
  const items = new Map();  // node -> {row, group, isOpen, isFilled}
  const first = precisionFirst(found), firstNode = first < 0 ? -1 : found.calls.node[first];
  const open = new Set();
  let chosen = -1, isOnly = false;

  const isShown = (node) => !isOnly || found.nodes.different[node] > 0 || found.nodes.one_sided[node] > 0;

  function item(node, level) {
    const kids = found.children[node], state = precisionState(found, node), origin = precisionOrigin(found, node);
    const name = found.nodes.names[node], kind = found.nodes.classes[node];
    const row = h("div", { class: `precision-node ${["equal", "rounding", "different", "one", "none"][state]} ${origin}`, role: "treeitem", tabindex: -1, "aria-level": level, "aria-selected": "false",
      "aria-expanded": kids.length ? "false" : null, "data-node": node, style: { paddingLeft: `${0.5 + (level - 1) * 1.1}em` },
      onclick: () => { choose(node, true); },
      ondblclick: () => toggle(node) },
      h("span", { class: "precision-caret", "aria-hidden": "true", onclick: (event) => { event.stopPropagation(); toggle(node); } }, kids.length ? "▸" : ""),
      h("span", { class: "precision-sign", "aria-hidden": "true" }, origin === "begins" ? "✗" : origin === "inherits" ? "↳" : PRECISION_SIGNS[state]),
      h("span", { class: "precision-name" }, name, kind ? h("span", { class: "faint" }, ` ${kind}`) : null),
      node === firstNode ? h("span", { class: "precision-first" }, "first divergence") : null,
      h("span", { class: "precision-word" }, precisionWords(found, node)));
    const group = h("div", { role: "group", hidden: true });
    items.set(node, { row, group, level, isFilled: false });
    return [row, group];
  }

  function fill(node) {
    const entry = items.get(node);
    if (entry.isFilled) return;
    entry.isFilled = true;
    place(entry.group, found.children[node].filter(isShown), entry.level + 1, PRECISION_MOST_CHILDREN);
  }

  function place(box, nodes, level, most) {
    box.append(...nodes.slice(0, most).flatMap((node) => item(node, level)));
    if (nodes.length > most) {
      const more = h("button", { type: "button", onclick: () => { more.remove(); place(box, nodes.slice(most), level, most * 4); } }, `show ${count(nodes.length - most)} more`);
      box.append(more);
    }
  }

  function toggle(node, isOpen = !open.has(node)) {
    if (!found.children[node].length || !items.has(node)) return;
    if (isOpen) { fill(node); open.add(node); } else open.delete(node);
    const { row, group } = items.get(node);
    group.hidden = !isOpen;
    row.setAttribute("aria-expanded", String(isOpen));
    row.querySelector(".precision-caret").textContent = isOpen ? "▾" : "▸";
  }

  function choose(node, tells) {
    if (items.has(chosen)) { items.get(chosen).row.setAttribute("aria-selected", "false"); items.get(chosen).row.tabIndex = -1; }
    chosen = node;
    const row = items.get(node)?.row;
    if (row) { row.setAttribute("aria-selected", "true"); row.tabIndex = 0; }
    if (tells) hands.choose(node);
  }

  // Open everything above a node, and bring it into sight of the tree, not of the page.
  function reveal(node) {
    const above = [];
    for (let at = found.nodes.parent[node]; at >= 0; at = found.nodes.parent[at]) above.unshift(at);
    for (const each of above) toggle(each, true);
    if (!items.has(node) && isOnly) { onlyDifferent(false); return reveal(node); }
    choose(node, false);
    const row = items.get(node)?.row;
    if (row) tree.scrollTop = Math.max(0, row.offsetTop - tree.clientHeight / 3);
    return undefined;
  }

  function fillAll() {
    items.clear();
    tree.replaceChildren();
    const was = new Set(open);
    open.clear();
    place(tree, found.roots.filter(isShown), 1, PRECISION_MOST_CHILDREN);
    for (const node of [...was].sort((x, y) => x - y)) toggle(node, true);
    if (found.roots.length === 1) toggle(found.roots[0], true);
    const start = tree.querySelector("[role=treeitem]");
    if (start) start.tabIndex = 0;
  }

  function onlyDifferent(is) { isOnly = is; fillAll(); if (items.has(chosen)) choose(chosen, false); }

  tree.addEventListener("keydown", (event) => {
    const rows = [...tree.querySelectorAll("[role=treeitem]")].filter((row) => row.offsetParent !== null);
    const at = rows.indexOf(document.activeElement), node = Number(document.activeElement?.dataset?.node ?? -1);
    if (at < 0) return;
    const go = (row) => { if (row) { choose(Number(row.dataset.node), true); row.focus({ preventScroll: false }); } };
    const isOpen = open.has(node), isParent = found.children[node].length > 0;
    const acts = {
      ArrowDown: () => go(rows[at + 1]), ArrowUp: () => go(rows[at - 1]), Home: () => go(rows[0]), End: () => go(rows[rows.length - 1]),
      ArrowRight: () => { if (isParent && !isOpen) toggle(node, true); else if (isParent) go(rows[at + 1]); },
      ArrowLeft: () => { if (isOpen) toggle(node, false); else go(items.get(found.nodes.parent[node])?.row); },
      Enter: () => choose(node, true), " ": () => toggle(node),
    };
    if (acts[event.key]) { event.preventDefault(); acts[event.key](); }
  });
  fillAll();
  return { element: tree, reveal, onlyDifferent, expandAll: (is) => { for (let node = 0; node < found.children.length && items.size < 4000; node++) toggle(node, is); } };
}

// The counts of a node in words.
function precisionWords(found, node) {
  const { different, one_sided: one, rounding, equal, error } = found.nodes;
  const parts = [];
  if (different[node]) parts.push(`${count(different[node])} different`);
  if (one[node]) parts.push(`${count(one[node])} on one side`);
  if (!parts.length && rounding[node]) parts.push("rounding");
  if (!parts.length) parts.push(equal[node] ? "equal" : "");
  if (error[node] > 0) parts.push(precisionError(error[node]));
  return parts.join(", ");
}
