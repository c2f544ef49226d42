// Arithmetic of the memory chart: the height of each kind, and the position of single allocations within it.
//
// A step function is {row, level}: from row[i] on it is at level[i]; before the first row it is 0. A picture has
// columns; each shows the highest moment of its rows, so no peak is lost between pixels.

// All births and deaths in the order of rows: who[k] = i for the birth of allocation i, ~i for its death.
function memoryChanges(detail) {
  const { born, freed } = detail.allocations, n = born.length, rows = detail.rows;
  const starts = new Uint32Array(rows + 2);
  let deaths = 0;
  for (let i = 0; i < n; i++) if (freed[i] < rows) { starts[freed[i] + 1]++; deaths++; }
  for (let row = 1; row < starts.length; row++) starts[row] += starts[row - 1];
  const dying = new Uint32Array(deaths);
  for (let i = 0; i < n; i++) if (freed[i] < rows) dying[starts[freed[i]]++] = i;
  const row = new Uint32Array(n + deaths), who = new Int32Array(n + deaths);
  for (let i = 0, d = 0, k = 0; k < row.length; k++) {
    if (d < deaths && (i >= n || freed[dying[d]] <= born[i])) { row[k] = freed[dying[d]]; who[k] = ~dying[d++]; }
    else { row[k] = born[i]; who[k] = i++; }
  }
  return { row, who };
}

// The height of each kind, including bytes of no listed allocation: a step function for each of detail.roles.
function kindLevels(detail, changes) {
  const { bytes: sized, role } = detail.allocations, m = changes.row.length, n = detail.roles.length;
  const sizes = new Uint32Array(n), at = new Int32Array(n).fill(-1), now = new Float64Array(n);
  for (let k = 0; k < m; k++) { const who = changes.who[k]; sizes[role[who < 0 ? ~who : who]]++; }
  const found = [...sizes].map((size) => ({ row: new Uint32Array(size), level: new Float64Array(size) }));
  for (let k = 0; k < m; k++) {
    const who = changes.who[k], i = who < 0 ? ~who : who, kind = role[i], { row, level } = found[kind];
    now[kind] += who < 0 ? -sized[i] : sized[i];
    if (at[kind] < 0 || row[at[kind]] !== changes.row[k]) row[++at[kind]] = changes.row[k];
    level[at[kind]] = now[kind];
  }
  return found.map(({ row, level }, kind) => {
    const told = { row: row.subarray(0, at[kind] + 1), level: level.subarray(0, at[kind] + 1) };
    return detail.rest ? addLevels(told, { row: detail.rest.row, level: detail.rest.bytes[kind] }) : told;
  });
}

// The sum of the kinds that are shown.
function totalLevel(detail, changes, levels, isShown) {
  const { bytes: sized, role } = detail.allocations, m = changes.row.length;
  if (detail.rest) return levels.filter((_, kind) => isShown[kind]).reduce(addLevels, { row: new Uint32Array(0), level: new Float64Array(0) });
  const row = new Uint32Array(m), level = new Float64Array(m);
  let now = 0, at = -1;
  for (let k = 0; k < m; k++) {
    const who = changes.who[k], i = who < 0 ? ~who : who;
    if (!isShown[role[i]]) continue;
    now += who < 0 ? -sized[i] : sized[i];
    if (at < 0 || row[at] !== changes.row[k]) row[++at] = changes.row[k];
    level[at] = now;
  }
  return { row: row.subarray(0, at + 1), level: level.subarray(0, at + 1) };
}

function addLevels(a, b) {
  const n = a.row.length, m = b.row.length, row = new Uint32Array(n + m), level = new Float64Array(n + m);
  let at = 0;
  for (let i = 0, j = 0; i < n || j < m; at++) {
    const next = Math.min(i < n ? a.row[i] : Infinity, j < m ? b.row[j] : Infinity);
    while (i < n && a.row[i] === next) i++;
    while (j < m && b.row[j] === next) j++;
    row[at] = next;
    level[at] = (i ? a.level[i - 1] : 0) + (j ? b.level[j - 1] : 0);
  }
  return { row: row.subarray(0, at), level: level.subarray(0, at) };
}

const levelAt = (steps, row) => { const at = lastUpTo(steps.row, row); return at < 0 ? 0 : steps.level[at]; };

// The highest level within rows [from, to).
function highestLevel(steps, from, to) {
  let highest = levelAt(steps, from);
  for (let at = firstAbove(steps.row, from); at < steps.row.length && steps.row[at] < to; at++) {
    if (steps.level[at] > highest) highest = steps.level[at];
  }
  return highest;
}

// For each of n columns over rows [from, to) the row of its highest moment.
function highestRows(steps, from, to, n) {
  const rows = new Uint32Array(n), width = (to - from) / n;
  let at = lastUpTo(steps.row, from);
  for (let column = 0; column < n; column++) {
    const first = Math.floor(from + column * width), end = from + (column + 1) * width;
    while (at + 1 < steps.row.length && steps.row[at + 1] <= first) at++;
    let highest = at < 0 ? 0 : steps.level[at], row = first;
    while (at + 1 < steps.row.length && steps.row[at + 1] < end) {
      at++;
      if (steps.level[at] > highest) { highest = steps.level[at]; row = steps.row[at]; }
    }
    rows[column] = row;
  }
  return rows;
}

// The level at each of some rising rows.
function levelsAt(steps, rows) {
  const levels = new Float64Array(rows.length);
  for (let column = 0, at = -1; column < rows.length; column++) {
    while (at + 1 < steps.row.length && steps.row[at + 1] <= rows[column]) at++;
    levels[column] = at < 0 ? 0 : steps.level[at];
  }
  return levels;
}

// The bottom and the top of each kind in each column, from the lowest kind up; kinds switched off are missing.
function stackKinds(levels, rows, order) {
  const stacked = [];
  let bottom = new Float64Array(rows.length);
  for (const role of order) {
    const top = levelsAt(levels[role], rows);
    for (let column = 0; column < top.length; column++) top[column] += bottom[column];
    stacked.push({ role, bottom, top });
    bottom = top;
  }
  return stacked;
}

// The allocations to draw one by one: at least so large, alive in some column, the largest if there are too many.
function tallAllocations(detail, rows, isShown, leastBytes, most) {
  const { born, freed, bytes: sized, role } = detail.allocations, last = rows[rows.length - 1], tall = [];
  for (let i = 0, end = firstAbove(born, last); i < end; i++) {
    if (sized[i] < leastBytes || !isShown[role[i]] || freed[i] <= rows[0]) continue;
    const column = born[i] <= rows[0] ? 0 : firstAbove(rows, born[i] - 1);
    if (rows[column] < freed[i]) tall.push(i);
  }
  if (tall.length <= most) return tall;
  return tall.sort((a, b) => sized[b] - sized[a]).slice(0, most).sort((a, b) => a - b);
}

// Where each of these allocations lies: [{allocation, columns: [...], bottoms: [...]}]. Within a kind they lie in the
// order of birth; all that lies between two of them is summed up in a gap.
function placeAllocations(detail, changes, rows, stacked, chosen) {
  const { born, freed, bytes: sized, role } = detail.allocations, first = rows[0], last = rows[rows.length - 1];
  const places = chosen.map((allocation) => ({ allocation, columns: [], bottoms: [] }));
  const kinds = stacked.map(({ role: kind, bottom }) => ({ bottom, mine: places.filter((place) => role[place.allocation] === kind), kind })).filter((each) => each.mine.length);
  // Every gap and every chosen allocation has a slot: gap, allocation, gap, allocation, ..., gap, kind after kind.
  const slots = new Float64Array(kinds.reduce((n, { mine }) => n + 2 * mine.length + 1, 0));
  const next = new Int32Array(detail.roles.length).fill(-1), nextChosen = new Int32Array(detail.roles.length).fill(-1);
  let start = 0;
  for (const each of kinds) { each.start = next[each.kind] = start; each.at = 0; nextChosen[each.kind] = each.mine[0].allocation; start += 2 * each.mine.length + 1; }
  const kindOf = new Map(kinds.map((each) => [each.kind, each])), end = firstAbove(born, last), slot = new Int32Array(end);
  for (let i = 0; i < end; i++) {
    const kind = role[i];
    slot[i] = next[kind];
    if (i === nextChosen[kind]) {
      const each = kindOf.get(kind);
      slot[i] += 1;
      next[kind] += 2;
      nextChosen[kind] = each.mine[++each.at]?.allocation ?? -1;
    }
    if (slot[i] >= 0 && born[i] <= first && freed[i] > first) slots[slot[i]] += sized[i];
  }
  for (let column = 0, k = firstAbove(changes.row, first); column < rows.length; column++) {
    for (; k < changes.row.length && changes.row[k] <= rows[column]; k++) {
      const who = changes.who[k], i = who < 0 ? ~who : who;
      if (slot[i] >= 0) slots[slot[i]] += who < 0 ? -sized[i] : sized[i];
    }
    for (const { bottom, mine, start: from } of kinds) {
      let height = bottom[column];
      for (let j = 0; j < mine.length; j++) {
        height += slots[from + 2 * j];
        const size = slots[from + 2 * j + 1];
        if (size === 0) continue;
        mine[j].columns.push(column);
        mine[j].bottoms.push(height);
        height += size;
      }
    }
  }
  return places;
}

// What lies at this height at this row: {role, allocation (-1: bytes that no allocation tells)}, or null above it all.
function allocationAt(detail, levels, order, row, height) {
  let bottom = 0;
  for (const role of order) {
    const level = levelAt(levels[role], row);
    if (height < bottom + level) {
      for (const i of liveAt(detail, row)) {
        if (detail.allocations.role[i] !== role) continue;
        bottom += detail.allocations.bytes[i];
        if (height < bottom) return { role, allocation: i };
      }
      return { role, allocation: -1 };
    }
    bottom += level;
  }
  return null;
}

// A rank without details: its few points in report.json, as bytes of no listed allocation.
function detailOfTimeline(timeline) {
  const rows = (timeline.event.at(-1) ?? 0) + 1, none = new Uint32Array(0), steps = { row: [], number: [] };
  timeline.step.forEach((number, k) => { if (number !== steps.number.at(-1)) { steps.row.push(k ? timeline.event[k] : 0); steps.number.push(number); } });
  const highest = timeline.allocated_bytes.reduce((best, level, k, all) => level > all[best] ? k : best, 0);
  return {
    rows, strings: [""], roles: Object.keys(timeline.role_bytes), whats: {}, frames: {}, ops: null, maps: [], left_out: [],
    allocations: { born: none, freed: none, bytes: none, what: none, role: none },
    rest: { row: timeline.event, bytes: Object.values(timeline.role_bytes) },
    reserved: { row: timeline.event, bytes: timeline.reserved_bytes },
    phases: { row: [], phase: [], names: [] }, steps, peak_row: timeline.event[highest] ?? -1,
  };
}
