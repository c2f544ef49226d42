// Where each rank of a job lies in a picture: axes of the mesh become columns and rows, outer axes blocks of them.
//
// Every axis goes left to right or top to bottom, or is folded into rows like text. Of all ways the one with the
// largest cells that fits is taken; no axis and no size is special.

const RANK_GAPS = [0, 5, 10, 16, 24];  // pixels between blocks, by how deep they are nested
const RANK_CELL = { least: 2, most: 32 };

// -> {cell, width, height, place(rank), rankAt(x, y), labels, words}
function rankGrid(mesh, worldSize, wide, tall) {
  const axes = (mesh.length ? mesh : [{ name: "rank", size: worldSize, stride: 1 }]).slice().reverse();  // innermost first
  let best = null;
  for (const way of rankWays(axes, 0)) {
    const sides = { x: [], y: [] };
    way.forEach((parts, i) => parts.forEach((part, k) => sides[part.side].push({ ...part, axis: i, isFold: k > 0 })));
    const [x, y] = [rankSide(sides.x), rankSide(sides.y)];
    const cell = Math.floor(Math.min((wide - x.gaps) / x.cells, (tall - y.gaps) / y.cells, RANK_CELL.most));
    const nFolds = way.filter((parts) => parts.length > 1).length;
    // Among equally large cells: whole axes, the innermost as columns, the outermost as rows.
    const order = [-cell, nFolds, way[0][0].side === "x" ? 0 : 1, way.at(-1).at(-1).side === "y" ? 0 : 1, y.cells];
    if (!best || rankIsBefore(order, best.order)) best = { order, x, y, cell };
  }
  const cell = Math.max(best.cell, RANK_CELL.least);
  const columns = rankSteps(best.x, cell), rows = rankSteps(best.y, cell);
  const digit = (rank, axis) => Math.floor(rank / axes[axis].stride) % axes[axis].size;
  const place = (rank) => ({ x: rankOffset(columns, (axis) => digit(rank, axis)), y: rankOffset(rows, (axis) => digit(rank, axis)) });
  const spread = (steps) => steps.length ? steps.at(-1).extent : cell;
  return {
    cell, place, width: spread(columns), height: spread(rows),
    rankAt(x, y) {
      const found = new Array(axes.length).fill(0);
      if (!rankDigits(columns, x, cell, found) || !rankDigits(rows, y, cell, found)) return null;
      let rank = 0;
      for (let i = 0; i < axes.length; i++) {
        if (found[i] >= axes[i].size) return null;
        rank += found[i] * axes[i].stride;
      }
      return rank < worldSize ? rank : null;
    },
    labels: { x: rankLabels(columns, axes, 36), y: rankLabels(rows, axes, 15) },
    words: [rankDirection("left to right", columns, axes), rankDirection("top to bottom", rows, axes)].filter(Boolean).join("; "),
  };
}

// All ways to lay out the axes from `i` on: a list of parts for each, inner part first.
function rankWays(axes, i) {
  if (i === axes.length) return [[]];
  const { size } = axes[i];
  const ways = [[{ side: "x", size, unit: 1, of: size }], [{ side: "y", size, unit: 1, of: size }]];
  for (let columns = 8; columns < size; columns *= 2) {
    ways.push([{ side: "x", size: columns, unit: 1, of: columns }, { side: "y", size: Math.ceil(size / columns), unit: columns, of: size }]);
  }
  const rest = rankWays(axes, i + 1);
  return ways.flatMap((way) => rest.map((others) => [way, ...others]));
}

// Parts along one side of the picture, innermost first: how many cells, and how many pixels of gaps between them.
function rankSide(parts) {
  let cells = 1, gaps = 0, depth = 0;
  const gapOf = parts.map((part, k) => k === 0 || part.isFold ? 0 : RANK_GAPS[Math.min(++depth, RANK_GAPS.length - 1)]);
  parts.forEach((part, k) => { cells *= part.size; gaps = part.size * gaps + (part.size - 1) * gapOf[k]; });
  return { parts, gapOf, cells, gaps };
}

function rankSteps({ parts, gapOf }, cell) {
  let inner = cell;
  return parts.map((part, k) => {
    const step = inner + gapOf[k], body = inner;
    inner = part.size * step - gapOf[k];
    return { ...part, step, body, extent: inner };
  });
}

const rankOffset = (steps, digit) => steps.reduce((sum, part) => sum + Math.floor(digit(part.axis) / part.unit) % part.size * part.step, 0);

// The digits that a distance means; false in a gap.
function rankDigits(steps, distance, cell, found) {
  if (distance < 0) return false;
  for (const part of [...steps].reverse()) {
    const at = Math.floor(distance / part.step);
    distance -= at * part.step;
    if (at >= part.size || distance >= part.body) return false;
    found[part.axis] += at * part.unit;
  }
  return steps.length > 0 || distance < cell;
}

function rankIsBefore(a, b) {
  const k = a.findIndex((value, i) => value !== b[i]);
  return k >= 0 && a[k] < b[k];
}

// Names of the positions on the outermost axis of a side, as many as are not too close.
function rankLabels(steps, axes, room) {
  const outer = steps.at(-1);
  if (!outer) return [];
  const every = [1, 2, 4, 8, 16, 32, 64, 128, 256].find((n) => n * outer.step >= room) ?? outer.size;
  const labels = [];
  for (let at = 0; at < outer.size; at += every) {
    const { name } = axes[outer.axis];
    labels.push({ text: `${name.includes(" ") ? "" : `${name} `}${at * outer.unit}`, at: at * outer.step + outer.body / 2 });
  }
  return labels;
}

function rankDirection(word, steps, axes) {
  const names = steps.map((part) => part.isFold ? `more of ${axes[part.axis].name}` : axes[part.axis].name).reverse();
  return names.length ? `${word}: ${names.join(", and in it ")}` : "";
}

// 0,1,2,3,8,10,12,14 -> "0-3, 8-14 by 2"
function rankRanges(ranks) {
  const found = [];
  for (let i = 0; i < ranks.length;) {
    const step = i + 1 < ranks.length ? ranks[i + 1] - ranks[i] : 1;
    let n = 1;
    while (i + n < ranks.length && ranks[i + n] - ranks[i + n - 1] === step) n++;
    if (n < 3 && step > 1) n = 1;  // two numbers are not a pattern
    found.push(n === 1 ? `${ranks[i]}` : `${ranks[i]}-${ranks[i + n - 1]}${step > 1 ? ` by ${step}` : ""}`);
    i += n;
  }
  return found;
}
