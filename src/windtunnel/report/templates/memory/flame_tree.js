// Trees of live memory: what is alive at a moment, by module path or by the lines of Python that allocated it.
//
// An item is tensors alike: {name, op, module, role, shape, where, frame, bytes, count}. A node is {name, path, parent,
// depth, bytes, count, roles, children, items}; children are sorted, largest first.

// Everything alive right after a row, one item for each kind of tensor; what no allocation tells is an item as well.
function flameItems(detail, row) {
  const { what, bytes: sized } = detail.allocations, found = new Map();
  for (const allocation of liveAt(detail, row)) {
    const label = what[allocation], item = found.get(label);
    if (item) { item.bytes += sized[allocation]; item.count += 1; }
    else found.set(label, { ...describe(detail, allocation), frame: detail.whats.frame[label], count: 1 });
  }
  const rest = restAt(detail, row).map((size, i) => ({ ...FLAME_UNTOLD, role: detail.roles[i], bytes: size }));
  return [...found.values(), ...rest.filter((item) => item.bytes > 0)];
}
const FLAME_UNTOLD = { name: "", op: "(smaller tensors)", module: "(not listed one by one)", shape: "", where: "", stack: [], frame: -1, count: 0 };

// Of a rank without details: by module only, at its peak.
function flameShares(document) {
  return document.at_peak_by_module.map(({ module, role, bytes: size }) =>
    ({ ...FLAME_UNTOLD, op: "", module, role, bytes: size }));
}

function flameTree(items, pathOf) {
  const root = flameNode("everything", null);
  for (const item of items) {
    flameAdd(root, item);
    let node = root;
    for (const name of pathOf(item)) {
      if (!node.children.has(name)) node.children.set(name, flameNode(name, node));
      node = node.children.get(name);
      flameAdd(node, item);
    }
    node.items.push(item);
  }
  const sort = (node) => {
    node.children = [...node.children.values()].sort((a, b) => b.bytes - a.bytes || (a.name < b.name ? -1 : 1));
    node.children.forEach(sort);
  };
  sort(root);
  return root;
}

function flameNode(name, parent) {
  const path = !parent?.parent ? name : `${parent.path} › ${name}`;
  return { name, path, parent, depth: parent ? parent.depth + 1 : 0, bytes: 0, count: 0, roles: {}, children: new Map(), items: [] };
}

function flameAdd(node, item) {
  node.bytes += item.bytes;
  node.count += item.count;
  node.roles[item.role] = (node.roles[item.role] ?? 0) + item.bytes;
}

// What is made of a tensor inside its module: a weight by its name, another by its operator and shape.
function flameLeaf(item) {
  const own = item.name.split(".").pop();
  if (own) return `${own}${{ gradients: " (gradient)", optimizer: " (optimizer state)" }[item.role] ?? ""}`;
  return [item.op || item.where || (item.count ? "(no operator)" : ""), item.shape].filter(Boolean).join(" ");
}

function flameByModule(items, isFolded) {
  const folded = isFolded ? flameFold(items.map((item) => item.module)) : null;
  return (item) => {
    const module = folded ? folded.get(item.module) : item.module;
    return [...module ? module.split(".") : ["(outside of modules)"], flameLeaf(item)].filter(Boolean);
  };
}

const FLAME_NO_LINE = "(no line of Python: backward, or a library)";
const flameHasStacks = (detail) => detail.frames.parent.some((parent) => parent >= 0);

// From the outermost line inwards; a recording without whole stacks has the innermost line only, below its file.
function flameByLine(detail) {
  const isDeep = flameHasStacks(detail), short = (line) => line.replace(/^.*[\\/]/, "");
  const innermost = (line) => [short(line).replace(/:\d+ .*$/, ""), short(line)];
  return (item) => {
    if (!item.count) return [item.module, flameLeaf(item)];
    if (item.frame < 0) return [FLAME_NO_LINE, item.module || "(outside of modules)", flameLeaf(item)];
    return [...isDeep ? flameOwn(item.stack).map(short) : innermost(item.stack[0]), flameLeaf(item)].filter(Boolean);
  };
}

// The stack from the script on: what started the script is the same for all.
function flameOwn(stack) {
  const outside = [...stack].reverse(), first = outside.findIndex((line) => !/^<frozen |[\\/]windtunnel[\\/](commands|session|capture)[\\/]/.test(line));
  return first < 0 ? outside : outside.slice(first);
}

// `layers.3.mlp` -> `layers.0-27.mlp`: the numbers of all siblings, so that alike layers share one branch.
function flameFold(paths) {
  const numbers = new Map(), template = (parts) => parts.map((part) => /^\d+$/.test(part) ? "#" : part).join(".");
  const unique = [...new Set(paths)].map((path) => [path, path.split(".")]);
  const each = (parts, act) => parts.forEach((part, i) => { if (/^\d+$/.test(part)) act(template(parts.slice(0, i + 1)), i, part); });
  for (const [, parts] of unique) each(parts, (key, _, part) => (numbers.get(key) ?? numbers.set(key, new Set()).get(key)).add(Number(part)));
  return new Map(unique.map(([path, parts]) => {
    const folded = [...parts];
    each(parts, (key, i) => { folded[i] = numberRanges(numbers.get(key)); });
    return [path, folded.join(".")];
  }));
}

// The same for single paths, as the terminal folds them: only paths that differ in nothing but their numbers.
function foldPaths(paths) {
  const alike = new Map(), isNumber = (part) => /^\d+$/.test(part);
  for (const path of new Set(paths)) {
    const parts = path.split("."), key = parts.map((part) => isNumber(part) ? "#" : part).join(".");
    (alike.get(key) ?? alike.set(key, []).get(key)).push([path, parts]);
  }
  const folded = new Map();
  for (const members of alike.values()) {
    const text = members[0][1].map((part, i) => isNumber(part) ? numberRanges(new Set(members.map(([, parts]) => Number(parts[i])))) : part).join(".");
    for (const [path] of members) folded.set(path, text);
  }
  return folded;
}

// {0, 1, 2, 5} -> "0-2,5"
function numberRanges(numbers) {
  const runs = [];
  for (const n of [...numbers].sort((a, b) => a - b)) {
    if (runs.length && n === runs[runs.length - 1][1] + 1) runs[runs.length - 1][1] = n;
    else runs.push([n, n]);
  }
  return runs.map(([a, b]) => a === b ? `${a}` : `${a}-${b}`).join(",");
}

// Tensors that differ in nothing but their layer, largest first.
function flameGroups(node, isFolded) {
  const items = [], gather = (each) => { items.push(...each.items); each.children.forEach(gather); };
  gather(node);
  const modules = isFolded ? foldPaths(items.map((item) => item.module)) : null, names = isFolded ? foldPaths(items.map((item) => item.name)) : null;
  const groups = new Map();
  for (const item of items) {
    const module = modules?.get(item.module) ?? item.module, name = names?.get(item.name) ?? item.name;
    const key = JSON.stringify([name, item.op, module, item.role, item.shape, item.where]);
    const group = groups.get(key);
    if (group) { group.bytes += item.bytes; group.count += item.count; } else groups.set(key, { ...item, module, name });
  }
  return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
}
