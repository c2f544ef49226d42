"""Memory over time, drawn with characters.

    Timeline ──> columns (the highest point of each) ──> lines of text

    79.1 GiB ┄┄┄┄┄┄┄┄┄┄┄┄  capacity of the device
    52.0 GiB │   ▄█░▄█░█   live, and reserved behind it
             │▁▃▇██░██░█
             └───────────
              step 1  2  3

`ASCII` draws the same with plain characters, for streams without these.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.memory.analysis import Timeline
from windtunnel.units import format_bytes

__all__ = ["ASCII", "UNICODE", "Pencils", "draw_memory"]


@dataclass(frozen=True, slots=True)
class Pencils:
    """The characters to draw with."""

    levels: str  # from an empty cell to a full one
    reserved: str
    capacity: str
    left: str
    corner: str
    bottom: str


UNICODE = Pencils(" ▁▂▃▄▅▆▇█", "░", "┄", "│", "└", "─")
ASCII = Pencils(" #", ".", "-", "|", "+", "-")


def draw_memory(
    timeline: Timeline, capacity_bytes: int, pencils: Pencils, width: int = 72, height: int = 10
) -> tuple[str, ...]:
    """Return lines of text, top first; the peak and, if close enough to show, the capacity are labelled at the left."""
    if len(timeline) == 0:
        return ()
    column = _columns(timeline.event, width)
    live = _highest(timeline.allocated_bytes, column, width)
    reserved = _highest(timeline.reserved_bytes, column, width)
    peak = max(reserved)
    shows_capacity = 0 < capacity_bytes <= 2 * peak
    top = max(peak, capacity_bytes if shows_capacity else 0) or 1
    labels = {_row(peak, top, height): format_bytes(peak)}
    limit = _row(capacity_bytes, top, height) if shows_capacity else -1
    if limit >= 0:
        labels[limit] = format_bytes(capacity_bytes)
    margin = max(len(text) for text in labels.values())
    lines = []
    for row in range(height - 1, -1, -1):
        cells = [_cell(live[x], reserved[x], row, top / height, row == limit, pencils) for x in range(width)]
        lines.append(f"{labels.get(row, ''):>{margin}} {pencils.left}{''.join(cells)}".rstrip())
    lines.append(f"{'':>{margin}} {pencils.corner}{pencils.bottom * width}")
    lines.append(f"{'':>{margin}}  {_steps(timeline.step, column, width)}".rstrip())
    return tuple(lines)


def _columns(event: np.ndarray, width: int) -> np.ndarray:
    """Return the column of each point."""
    span = max(1, int(event[-1] - event[0]) + 1)
    return (event - event[0]) * width // span


def _highest(values: np.ndarray, column: np.ndarray, width: int) -> list[int]:
    """The highest value in each column; a column without a point continues the last value before it."""
    highest = np.full(width, -1, np.int64)
    np.maximum.at(highest, column, values)
    last = dict(zip(column.tolist(), values.tolist(), strict=True))
    found, before = [], 0
    for x in range(width):
        found.append(max(int(highest[x]), before) if highest[x] < 0 else int(highest[x]))
        before = last.get(x, before)
    return found


def _row(n_bytes: int, top: int, height: int) -> int:
    return min(height - 1, n_bytes * height // top)


def _cell(live: int, reserved: int, row: int, row_bytes: float, is_limit: bool, pencils: Pencils) -> str:
    filled = (live - row * row_bytes) / row_bytes
    level = min(len(pencils.levels) - 1, int(filled * (len(pencils.levels) - 1) + 0.5))
    if level > 0:
        return pencils.levels[level]
    if reserved > (row + 0.5) * row_bytes:
        return pencils.reserved
    return pencils.capacity if is_limit else " "


def _steps(step: np.ndarray, column: np.ndarray, width: int) -> str:
    """Return `step 1      2      3`, each under the column where it starts, as far as there is room."""
    text = [" "] * (width + 8)
    numbers, first = np.unique(step, return_index=True)
    free_from = 0
    for number, index in zip(numbers.tolist(), first.tolist(), strict=True):
        label = f"step {number}" if free_from == 0 else str(number)
        at = int(column[index])
        if at >= free_from and at + len(label) <= width:
            text[at : at + len(label)] = label
            free_from = at + len(label) + 1
    return "".join(text).rstrip()
