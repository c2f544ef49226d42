"""Two runs side by side as terminal output: what changed in sentences, and a row for each role of memory.

RunDifference ──> render_comparison ──> console
"""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windtunnel.report.results.two_runs import RunDifference, role_word, sentences
from windtunnel.units import format_bytes, format_us

__all__ = ["render_comparison"]


def render_comparison(found: RunDifference, a_name: str, b_name: str) -> RenderableType:
    first, *others = sentences(found)
    parts: list[RenderableType] = [
        Text(f"A: {a_name}\nB: {b_name}", overflow="fold"),
        Text(),
        Text(first, style="bold"),
        *(Text(sentence) for sentence in others),
    ]
    if found.has_memory:
        parts += [Text(), _table(found)]
    return Group(*parts)


def _table(found: RunDifference) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    ranks = (found.a_rank, found.b_rank)
    table.add_column("at the peak", no_wrap=True)
    is_world = max(found.a.world_size, found.b.world_size) > 1
    for name, rank in zip("AB", ranks, strict=True):
        table.add_column(f"{name} (rank {rank.rank})" if is_world else name, justify="right", no_wrap=True)
    table.add_column("change", justify="right", no_wrap=True)
    for change in found.roles:
        if change.a_bytes or change.b_bytes:
            table.add_row(role_word(change.role), *_cells(change.a_bytes, change.b_bytes))
    needs = [rank.peak_with_fragments_bytes for rank in ranks]
    table.add_row("needs", *_cells(*needs), style="bold")
    table.add_row("usable", *_cells(*(rank.usable_memory_bytes for rank in ranks)), style="dim")
    if found.a.time is not None and found.b.time is not None:
        before, after = found.a.time.step_seconds * 1e6, found.b.time.step_seconds * 1e6
        change_us = f"{'-' if after < before else '+'}{format_us(abs(after - before))}"
        table.add_row("step", format_us(before), format_us(after), change_us if after != before else "")
    return table


def _cells(a: int, b: int) -> tuple[str, str, str]:
    return format_bytes(a), format_bytes(b), f"{'+' if b > a else ''}{format_bytes(b - a)}" if b != a else ""
