// Painting of the memory chart: bands, lines and marks on the chart's canvas, and the strips around it.
//
// `picture` is what memory.js computed for the rows in view: {rows (one for each column), stacked, places}. `area` is
// {left, top, width, height, dots, step (a column), x(row), y(bytes)} in pixels of the canvas.

function paintBands(context, area, picture, detail) {
  const { stacked, places } = picture;
  for (const { role, bottom, top } of stacked) {
    context.fillStyle = roleColour(detail.roles[role]);
    memoryBand(context, area, null, top, bottom);
    context.fill();
  }
  const paper = cssColour("paper");
  context.lineWidth = 1;
  places.forEach((place, number) => {
    const tops = place.bottoms.map((bottom) => bottom + detail.allocations.bytes[place.allocation]);
    memoryBand(context, area, place.columns, tops, place.bottoms);
    if (number % 2) { context.fillStyle = "rgb(255 255 255 / 14%)"; context.fill(); }
    context.strokeStyle = paper;
    // Lines between thin bands would be all that is seen of them.
    context.globalAlpha = Math.min(0.5, 0.07 * (area.y(0) - area.y(detail.allocations.bytes[place.allocation])) / area.dots);
    context.stroke();
    context.globalAlpha = 1;
  });
  paintNames(context, area, picture, detail);
}

// The outline of a band: columns are neighbours or leave gaps; null: all of them.
function memoryBand(context, area, columns, tops, bottoms) {
  const n = tops.length, column = (k) => columns ? columns[k] : k, x = (k) => area.left + column(k) * area.step;
  context.beginPath();
  for (let from = 0, to; from < n; from = to) {
    to = from + 1;
    while (to < n && column(to) === column(to - 1) + 1) to++;
    context.moveTo(x(from), area.y(tops[from]));
    for (let k = from; k < to; k++) {
      if (k > from && tops[k] === tops[k - 1]) continue;
      if (k > from) context.lineTo(x(k), area.y(tops[k - 1]));
      context.lineTo(x(k), area.y(tops[k]));
    }
    context.lineTo(x(to - 1) + area.step, area.y(tops[to - 1]));
    for (let k = to - 1; k >= from; k--) {
      if (k < to - 1 && bottoms[k] === bottoms[k + 1]) continue;
      if (k < to - 1) context.lineTo(x(k) + area.step, area.y(bottoms[k + 1]));
      context.lineTo(x(k) + area.step, area.y(bottoms[k]));
    }
    context.lineTo(x(from), area.y(bottoms[from]));
    context.closePath();
  }
}

// The name in a band, where it lies still for long enough.
function paintNames(context, area, picture, detail) {
  const dots = area.dots;
  context.font = `${11 * dots}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const still = 2 * dots / (area.y(0) - area.y(1));  // bytes of two pixels
  for (const { allocation, columns, bottoms } of picture.places) {
    const tall = area.y(0) - area.y(detail.allocations.bytes[allocation]);
    if (tall < 13 * dots) continue;
    let best = 0, length = 0;
    for (let from = 0, to; from < columns.length; from = to) {
      to = from + 1;
      while (to < columns.length && columns[to] === columns[to - 1] + 1 && Math.abs(bottoms[to] - bottoms[from]) < still) to++;
      if (to - from > length) { best = from; length = to - from; }
    }
    const room = length * area.step - 10 * dots;
    if (room < 70 * dots) continue;
    const text = fittingText(context, memoryTitle(describe(detail, allocation)), room);
    if (!text) continue;
    context.fillStyle = "rgb(10 14 22 / 92%)";
    context.fillText(text, area.left + columns[best] * area.step + 5 * dots, area.y(bottoms[best]) - tall / 2);
  }
}

function memoryTitle(one) {
  const what = one.name || one.op || (one.where ? `allocation at ${one.where}` : "allocation");
  return `${what}${one.shape ? ` ${one.shape}` : ""}`;
}

// As much of a text as has room, or nothing.
function fittingText(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  const letters = Math.floor(text.length * room / context.measureText(text).width) - 1;
  return letters < 4 ? "" : `${text.slice(0, letters)}…`;
}

// A step function as a line over the columns: its highest in each.
function paintLevel(context, area, steps, from, to, colour) {
  const n = Math.round(area.width / area.step), levels = levelsAt(steps, highestRows(steps, from, to, n));
  context.beginPath();
  for (let column = 0; column < n; column++) {
    const x = area.left + column * area.step, y = area.y(levels[column]);
    if (column === 0) context.moveTo(x, y); else if (levels[column] !== levels[column - 1]) { context.lineTo(x, area.y(levels[column - 1])); context.lineTo(x, y); }
    if (column === n - 1) context.lineTo(x + area.step, y);
  }
  context.strokeStyle = colour;
  context.lineWidth = 1.5 * area.dots;
  context.stroke();
}

function paintLine(context, area, x0, y0, x1, y1, colour, dashes = []) {
  context.beginPath();
  context.moveTo(x0, y0);
  context.lineTo(x1, y1);
  // Seen on every colour: a light edge around it.
  context.strokeStyle = cssColour("paper");
  context.globalAlpha = 0.5;
  context.lineWidth = 3.4 * area.dots;
  context.stroke();
  context.globalAlpha = 1;
  context.setLineDash(dashes.map((dash) => dash * area.dots));
  context.strokeStyle = colour;
  context.lineWidth = 1.4 * area.dots;
  context.stroke();
  context.setLineDash([]);
}

// A short text on a plate, kept within the chart.
function paintLabel(context, area, text, x, y, colour) {
  const { dots } = area;
  context.font = `600 ${11.5 * dots}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "left";
  const width = context.measureText(text).width + 10 * dots, tall = 17 * dots;
  const left = Math.max(area.left + 2, Math.min(x, area.left + area.width - width - 2));
  const top = Math.max(area.top + 1, Math.min(y, area.top + area.height - tall));
  context.fillStyle = cssColour("paper");
  context.globalAlpha = 0.86;
  context.fillRect(left, top, width, tall);
  context.globalAlpha = 1;
  context.fillStyle = colour;
  context.fillText(text, left + 5 * dots, top + tall / 2 + 0.5);
}

function paintAxisName(context, area, text) {
  context.font = `${11 * area.dots}px system-ui, sans-serif`;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillStyle = cssColour("faint");
  context.fillText(text, area.left - 8 * area.dots, area.top + area.height + 20 * area.dots);
}

// -- the strips below the chart ----------------------------------------------------------------------------------------

// Bars with words on them. bars: [{from, to, text, short, colour}] in rows; words only where they fit. With `spills` a
// short word may reach over its neighbours, so that of many narrow bars some are named.
function paintBars(context, bars, x, top, tall, room, spills) {
  const ink = cssColour("ink"), colours = new Map(bars.map(({ colour }) => [colour, ""]));
  for (const name of colours.keys()) colours.set(name, cssColour(name));
  let free = 0;
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  for (const { from, to, text, short, colour } of bars) {
    const left = Math.max(room.left, x(from)), right = Math.min(room.left + room.width, x(to));
    if (right <= left) continue;
    context.fillStyle = colours.get(colour);
    context.globalAlpha = 0.32;
    context.fillRect(left, top, Math.max(0.6, right - left - (right - left > 4 ? 1 : 0)), tall);
    context.globalAlpha = 1;
    const space = right - left - 6, isLong = space > 40 || context.measureText(text).width <= space;
    const fitting = isLong ? fittingText(context, text, space) : spills || context.measureText(short).width <= space ? short : "";
    if (!fitting || left < free || left + 3 + context.measureText(fitting).width > room.left + room.width) continue;
    context.fillStyle = ink;
    context.fillText(fitting, left + 3, top + tall / 2 + 0.5);
    free = spills ? left + context.measureText(fitting).width + 10 : 0;
  }
}

// The whole run with a window on the part in view.
function paintOverview(canvas, width, tall, room, total, rows, from, to) {
  const context = fitCanvas(canvas, width, tall), n = Math.max(1, Math.round(room.width));
  const levels = levelsAt(total, highestRows(total, 0, rows, n));
  const highest = levels.reduce((a, b) => Math.max(a, b), 1), y = (level) => tall - 1 - (tall - 4) * level / highest;
  context.fillStyle = cssColour("band");
  context.fillRect(room.left, 0, room.width, tall);
  context.beginPath();
  context.moveTo(room.left, tall);
  levels.forEach((level, column) => { context.lineTo(room.left + column, y(level)); context.lineTo(room.left + column + 1, y(level)); });
  context.lineTo(room.left + room.width, tall);
  context.fillStyle = cssColour("faint");
  context.globalAlpha = 0.5;
  context.fill();
  context.globalAlpha = 1;
  const left = room.left + room.width * from / rows, right = room.left + room.width * to / rows;
  context.fillStyle = cssColour("paper");
  context.globalAlpha = 0.6;
  context.fillRect(room.left, 0, left - room.left, tall);
  context.fillRect(right, 0, room.left + room.width - right, tall);
  context.globalAlpha = 1;
  context.strokeStyle = cssColour("accent");
  context.lineWidth = 1.5;
  context.strokeRect(left + 0.5, 1, Math.max(2, right - left - 1), tall - 2);
}
