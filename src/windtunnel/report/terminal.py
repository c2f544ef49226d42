"""The result of a run for a person at a terminal.

    RunResult ──> show_run ──> five facts per rank, what holds the peak, memory over time, the verdict

The command decides on which console. Plain facts come first, unstyled and unwrapped,
so that programs which read the log of a dry run line by line find them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from rich import box
from rich.console import Console, ConsoleOptions, Group, JustifyMethod, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from windtunnel.memory.analysis import Timeline
from windtunnel.memory.attribution import ModuleShare, fold_layers, fold_paths, to_depth
from windtunnel.report.facts import five_facts
from windtunnel.report.result import RankResult, RunResult
from windtunnel.report.text_graph import ASCII, UNICODE, Pencils, draw_memory
from windtunnel.report.verdict import verdict
from windtunnel.units import format_bytes, format_us

__all__ = ["pencils_for", "render_run", "show_run"]

_BAR_WIDTH = 24
_MODULE_ROWS = 12
_TENSOR_ROWS = 8
_BUILD_ROWS = 5
_UNKNOWN_ROWS = 10
_GRAPH_WIDTH = 96
_GRAPH_MARGIN = 13  # for the sizes at its left
_NARROWEST = 20
_SMALLEST_SHARE = 0.01  # of the peak: what is smaller is added up in a last row


def show_run(console: Console, result: RunResult) -> None:
    """Write everything about a run to a console."""
    pencils = pencils_for(console.file)
    with console.capture() as captured:
        # Not cropped to the width of the terminal: a fact cut short is no fact.
        console.print(render_run(result, pencils), crop=False)
    # A module or a file may be named in letters this stream does not have.
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    console.file.write(captured.get().encode(encoding, "replace").decode(encoding))


def pencils_for(stream: IO[str]) -> Pencils:
    """Block characters where the stream can write them, plain ASCII where it cannot."""
    try:
        UNICODE.levels.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def render_run(result: RunResult, pencils: Pencils = UNICODE) -> RenderableType:
    """Everything about a run, the tightest rank in detail."""
    parts: list[RenderableType] = [*_facts(result)]
    rank = result.tightest
    if rank is not None and rank.peak_bytes:
        parts.append(_peak_line(rank))
        parts += _titled("What holds the memory at the peak", _role_table(rank, pencils))
        parts += _titled("By module at the peak", _module_table(rank))
        parts += _titled("Largest tensors at the peak", _tensor_table(rank))
        parts += _graph(rank, pencils)
    if rank is not None and rank.unknown_values:
        title = "Values a simulated device cannot know (set them with windtunnel.mock)"
        parts += _titled(title, _unknown_table(rank))
    if rank is not None and rank.build_time_us:
        parts += _titled("Longest to build", _build_table(rank))
    if rank is not None and rank.notes:
        parts += [Text(), *(Text(f"Note: {note}.") for note in rank.notes)]
    colour = "bold green" if result.fits else "bold red"
    return Group(*parts, Text(), Text(verdict(result), style=colour))


def _facts(result: RunResult) -> Iterator[RenderableType]:
    for rank in result.ranks:
        if rank.status == "same_as":
            continue
        if result.world_size > 1:
            yield _plain(_rank_line(rank, result))
        if rank.error:
            yield Text(f"rank {rank.rank} failed: {rank.error}", style="red")
        for line in five_facts(rank, result.device):
            yield _plain(line)


def _rank_line(rank: RankResult, result: RunResult) -> str:
    alike = sum(1 for other in result.ranks if other.same_as == rank.rank)
    others = f" (and {alike} more that do the same)" if alike else ""
    return f"rank {rank.rank} of {result.world_size}{others}: {rank.status}"


def _plain(line: str) -> Text:
    return Text(line, no_wrap=True, overflow="ignore")


def _peak_line(rank: RankResult) -> Text:
    if rank.peak_at is None:
        return Text()
    at = rank.peak_at
    parts = [f"step {at.step}", at.phase, at.module, at.op]
    text = Text(f"\nPeak of rank {rank.rank}: {format_bytes(rank.peak_bytes)} live, ")
    text.append(f"{format_bytes(rank.peak_with_fragments_bytes)} with fragments, at ")
    text.append(", ".join(part for part in parts if part))
    if rank.out_of_memory is not None:
        oom = rank.out_of_memory
        where = ", ".join(p for p in (f"step {oom.at.step}", oom.at.phase, oom.at.module, oom.at.op) if p)
        text.append(
            f"\nFirst does not fit: {format_bytes(oom.requested_bytes)} asked for at {where}", style="red"
        )
    return text


def _role_table(rank: RankResult, pencils: Pencils) -> Table:
    table = _table("role", "bytes", "share", "")
    held = sorted(rank.at_peak_bytes.items(), key=lambda item: -item[1])
    largest = held[0][1]
    for role, n_bytes in held:
        if n_bytes:
            bar = _bar(n_bytes / largest, pencils)
            _add(table, role, format_bytes(n_bytes), _percent(n_bytes, rank.peak_bytes), bar)
    return table


def _module_table(rank: RankResult) -> Table:
    table = _table("module", "bytes", "share", "of which")
    rest = rank.peak_bytes
    for module, shares in _collapsed(rank):
        total = sum(share.n_bytes for share in shares)
        rest -= total
        roles = ", ".join(f"{share.role} {format_bytes(share.n_bytes)}" for share in shares[:3])
        _add(
            table, module or "(outside modules)", format_bytes(total), _percent(total, rank.peak_bytes), roles
        )
    if rest > 0:
        _add(table, "(others)", format_bytes(rest), _percent(rest, rank.peak_bytes), "")
    return table


def _collapsed(rank: RankResult) -> list[tuple[str, list[ModuleShare]]]:
    """Module paths, layers folded, at the greatest depth that still fits the table."""
    deepest = max((share.module.count(".") + 1 for share in rank.at_peak_by_module), default=1)
    for depth in range(deepest, 0, -1):
        by_module: dict[str, list[ModuleShare]] = {}
        for share in fold_layers(to_depth(rank.at_peak_by_module, depth)):
            by_module.setdefault(share.module, []).append(share)
        rows = sorted(by_module.items(), key=lambda item: -sum(share.n_bytes for share in item[1]))
        shown = [row for row in rows if sum(s.n_bytes for s in row[1]) >= _SMALLEST_SHARE * rank.peak_bytes]
        if len(shown) <= _MODULE_ROWS:
            break
    return shown[:_MODULE_ROWS]


def _tensor_table(rank: RankResult) -> Table:
    table = _table("what", "bytes", "count", "shape", "role", "line")
    for tensors in rank.largest_at_peak[:_TENSOR_ROWS]:
        if tensors.n_bytes < _SMALLEST_SHARE * rank.peak_bytes:
            break
        what = tensors.name or " ".join(part for part in (tensors.op, tensors.module) if part) or "(unnamed)"
        shape = "" if tensors.shape is None else f"{'x'.join(map(str, tensors.shape))} {tensors.dtype}"
        _add(
            table, what, format_bytes(tensors.n_bytes), str(tensors.count), shape, tensors.role, tensors.where
        )
    return table


def _graph(rank: RankResult, pencils: Pencils) -> list[RenderableType]:
    if rank.timeline is None:
        return []
    legend = (
        f"Memory over time: live {pencils.levels[-1]}, reserved {pencils.reserved}, usable {pencils.capacity}"
    )
    return [Text(), Text(legend, style="bold"), _Graph(rank.timeline, rank.usable_memory_bytes, pencils)]


@dataclass(frozen=True)
class _Graph:
    """Memory over time, as wide as the console allows."""

    timeline: Timeline
    usable_bytes: int
    pencils: Pencils

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = min(_GRAPH_WIDTH, max(_NARROWEST, options.max_width - _GRAPH_MARGIN))
        for line in draw_memory(self.timeline, self.usable_bytes, self.pencils, width):
            yield _plain(line)


def _unknown_table(rank: RankResult) -> Table:
    table = _table("line", "what", "taken as", "times")
    for value in rank.unknown_values[:_UNKNOWN_ROWS]:
        _add(table, value.where, value.what, repr(value.value), str(value.count))
    if len(rank.unknown_values) > _UNKNOWN_ROWS:
        _add(table, f"(and {len(rank.unknown_values) - _UNKNOWN_ROWS} more lines)", "", "", "")
    return table


def _build_table(rank: RankResult) -> Table:
    table = _table("module", "time")
    folded = fold_paths(set(rank.build_time_us))
    total: dict[str, int] = {}
    for module, time_us in rank.build_time_us.items():
        total[folded[module]] = total.get(folded[module], 0) + time_us
    for module, time_us in sorted(total.items(), key=lambda item: -item[1])[:_BUILD_ROWS]:
        _add(table, module or "(the model)", format_us(time_us))
    return table


def _titled(title: str, table: Table) -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), table]


def _add(table: Table, *cells: str) -> None:
    table.add_row(*(Text(cell) for cell in cells))  # as Text: brackets in a name are not markup


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for column in columns:
        is_number = column in ("bytes", "share", "count", "times", "time")
        justify: JustifyMethod = "right" if is_number else "left"
        table.add_column(column, justify=justify, no_wrap=is_number, overflow="fold")
    return table


def _bar(share: float, pencils: Pencils) -> str:
    """A bar to an eighth of a character where the characters allow it."""
    eighths = "▏▎▍▌▋▊▉█" if pencils is UNICODE else "#"
    parts = max(1, round(share * _BAR_WIDTH * len(eighths)))
    whole, rest = divmod(parts, len(eighths))
    return eighths[-1] * whole + (eighths[rest - 1] if rest else "")


def _percent(part: int, whole: int) -> str:
    return f"{part * 100 / whole:.1f}%"
