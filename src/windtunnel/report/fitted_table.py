"""Tables that stay readable on a narrow terminal.

    cells, each with shorter forms ──> FittedTable ──> the longest forms that fit the width

A cell is a text, or a tuple of texts from long to short, the last of which may be empty. If a table is too wide,
columns are shortened in a given order, and finally names in the middle: names of modules differ at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod, RenderResult
from rich.table import Table
from rich.text import Text

__all__ = ["Cell", "FittedTable", "plain_table", "shorten"]

Cell = str | tuple[str, ...]

_NUMBERS = ("bytes", "share", "count", "times", "time", "peak", "with fragments")
_GAP, _NARROW_GAP = 3, 2  # between two columns
_NARROWEST = 18  # of a shortened name


@dataclass(frozen=True)
class FittedTable:
    """Rows under titles; `giving` lists the columns to shorten, in this order."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    giving: tuple[str, ...] = ()
    name_column: str = ""  # the last to be shortened, cell by cell

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ellipsis = "…" if options.encoding.lower().startswith("utf") else "~"
        columns, rows, gap = self._fit(options.max_width)
        yield plain_table(columns, [[cell.replace("…", ellipsis) for cell in row] for row in rows], gap)

    def _fit(self, width: int) -> tuple[list[str], list[list[str]], int]:
        forms = dict.fromkeys(self.columns, 0)
        columns, rows = self._formed(forms)
        gap = _GAP if _width(columns, rows, _GAP) <= width else _NARROW_GAP
        for column in self.giving:
            while _width(columns, rows, gap) > width and forms[column] < self._n_forms(column) - 1:
                forms[column] += 1
                columns, rows = self._formed(forms)
        if self.name_column:
            index = columns.index(self.name_column)
            widest = max((cell_len(row[index]) for row in rows), default=0)
            room = max(_NARROWEST, widest - max(0, _width(columns, rows, gap) - width))
            for row, cells in zip(rows, self.rows, strict=True):
                row[index] = _longest_form(cells[self.columns.index(self.name_column)], room)
        return columns, rows, gap

    def _n_forms(self, column: str) -> int:
        cells = [row[self.columns.index(column)] for row in self.rows]
        return max((len(cell) for cell in cells if isinstance(cell, tuple)), default=1)

    def _formed(self, forms: dict[str, int]) -> tuple[list[str], list[list[str]]]:
        """Return the cells in these forms, without columns that became empty."""
        texts = [
            [_form(cell, forms[c]) for cell, c in zip(row, self.columns, strict=True)] for row in self.rows
        ]
        kept = [i for i, c in enumerate(self.columns) if not forms[c] or any(row[i] for row in texts)]
        return [self.columns[i] for i in kept], [[row[i] for i in kept] for row in texts]


def plain_table(columns: Sequence[str], rows: Sequence[Sequence[str]], gap: int = _GAP) -> Table:
    """Return a table with a rule under its titles and right-aligned numbers."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=gap == _NARROW_GAP)
    for column in columns:
        is_number = column in _NUMBERS
        justify: JustifyMethod = "right" if is_number else "left"
        table.add_column(column, justify=justify, no_wrap=is_number, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # as Text: brackets in a name are not markup
    return table


def shorten(name: str, width: int) -> str:
    """`model.layers.0-31.mlp.gate_proj.weight` -> `model.l….gate_proj.weight`: keep mostly the end."""
    if len(name) <= width:
        return name
    end = (width - 1) * 3 // 4
    return f"{name[: width - 1 - end]}…{name[-end:]}"


def _longest_form(cell: Cell, width: int) -> str:
    forms = (cell,) if isinstance(cell, str) else cell
    return next((form for form in forms if cell_len(form) <= width), shorten(forms[-1], width))


def _form(cell: Cell, index: int) -> str:
    return cell if isinstance(cell, str) else cell[min(index, len(cell) - 1)]


def _width(columns: Sequence[str], rows: Sequence[Sequence[str]], gap: int) -> int:
    return sum(max(map(cell_len, column)) + gap for column in zip(columns, *rows, strict=True)) - gap
