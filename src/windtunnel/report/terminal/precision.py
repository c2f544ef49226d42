"""The result of a comparison as terminal output: the verdict, the place, the counts.

CompareResult ──> render_compare ──> console
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rich.console import Group, RenderableType
from rich.text import Text

from windtunnel.probe.compare.first_divergence import Divergence, ItemRow
from windtunnel.probe.compare.tolerance import DIFFERENT
from windtunnel.report.fitted_table import Cell, FittedTable
from windtunnel.report.results.compare import JUDGED, CompareResult, counts, headline

__all__ = ["render_compare"]


def render_compare(result: CompareResult) -> RenderableType:
    first = result.findings.first
    colour = "bold green" if first is None else "bold red"
    parts: list[RenderableType] = [Text(headline(result), style=colour)]
    if first is not None:
        parts += [Text(f"  {line}") for line in _details(first)]
        parts += [Text(), _table(first), Text()]
    parts.append(Text(counts(result)))
    parts += [Text(f"Note: {note}.") for note in result.findings.notes]
    return Group(*parts)


def _details(first: Divergence) -> Iterator[str]:
    yield from (f"{sentence[0].upper()}{sentence[1:]}." for sentence in first.sentences)
    if first.item_b != first.item:
        yield f"B calls it {first.item_b}."
    if first.line:
        yield f"At {first.line}"


def _table(first: Divergence) -> FittedTable:
    rows: list[tuple[Cell, ...]] = []
    for row in first.rows:
        mark = "<-" if row.judged == DIFFERENT else ""
        rows.append(
            (_name(row, first), row.a, row.b, _error(row), (f"{JUDGED[row.judged]} {mark}".strip(), mark))
        )
    return FittedTable(("value", "A (norm)", "B (norm)", "error", "is"), tuple(rows), ("is",), "value")


def _name(row: ItemRow, first: Divergence) -> str:
    return row.name if row.role == "call" else f"  {row.name}"


def _error(row: ItemRow) -> str:
    return "" if math.isnan(row.error) else "0" if row.error == 0 else f"{row.error:.1e}"
