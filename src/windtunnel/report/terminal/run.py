"""The result of a run as terminal output.

    RunResult ──> show_run ──> all ranks, the peak, what holds it, memory over time, the verdict

The command chooses the console. For a MindSpore script the five facts of MindSpore's own dry run come first, unstyled
and unwrapped, so that existing parsers of its output find them; `run.log` has them for every script.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from windtunnel.isolation.file_changes import KINDS, FileChange, Files
from windtunnel.memory.analysis import Timeline
from windtunnel.memory.attribution import LiveTensors, ModuleShare, fold_layers, fold_paths, to_depth
from windtunnel.report.facts import five_facts
from windtunnel.report.fitted_table import Cell, FittedTable, plain_table
from windtunnel.report.results.fit_verdict import verdict
from windtunnel.report.results.run import CompiledCode, RankResult, RunResult
from windtunnel.report.terminal.ranks import members_of, ranks_table
from windtunnel.report.terminal.time import time_parts
from windtunnel.report.text_graph import ASCII, UNICODE, Pencils, draw_memory
from windtunnel.units import format_bytes, format_us

__all__ = ["pencils_for", "render_run", "show_run"]

_BAR_WIDTH = 24
_MODULE_ROWS = 12
_TENSOR_ROWS = 8
_BUILD_ROWS = 5
_UNKNOWN_ROWS = 10
_MISMATCH_ROWS = 10
_FILE_ROWS = 10
_FEW_RANKS = 4  # up to this many ranks, the facts of all are shown
_GRAPH_WIDTH = 96
_GRAPH_MARGIN = 13  # for the labels at its left
_NARROWEST = 20
_SMALLEST_SHARE = 0.01  # of the peak: smaller items are summed up in a last row
_SMALLEST_ROLE = 0.0005  # of the peak: would be shown as 0.0%
_SHORT_TYPES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16", "int64": "i64"}


def show_run(console: Console, result: RunResult) -> None:
    """Print everything about a run to a console."""
    pencils = pencils_for(console.file)
    with console.capture() as captured:
        # Not cropped to the width of the terminal: parsers need whole lines.
        console.print(render_run(result, pencils), crop=False)
    # Names of modules and files may have characters that the encoding of this stream lacks.
    encoding = getattr(console.file, "encoding", None) or "utf-8"
    console.file.write(captured.get().encode(encoding, "replace").decode(encoding))


def pencils_for(stream: IO[str]) -> Pencils:
    """Return block characters if the stream can write them, otherwise plain ASCII."""
    try:
        UNICODE.levels.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


def render_run(result: RunResult, pencils: Pencils = UNICODE) -> RenderableType:
    """Return everything about a run, with the tightest rank in detail; for a failed run only what helps to fix it."""
    members = members_of(result)
    parts: list[RenderableType] = [*_facts(result, members)]
    rank = result.tightest
    has_failed = any(each.status == "failed" for each in result.ranks)
    if len(members) > 1:
        title = f"All {len(result.ranks)} ranks" if len(result.ranks) == result.world_size else "Ranks"
        parts += _titled(title, ranks_table(result, members))
    if rank is not None and rank.peak_bytes:
        parts += [Text(), _peak_line(rank)]
        parts += _titled("What holds the memory at the peak", _role_table(rank, pencils))
        if rank.memory_by_phase:
            parts += _titled("By phase of the step, and what the next one finds", _phase_table(rank))
        if not has_failed:
            parts += _titled("By module at the peak", _module_table(rank))
            parts += _titled("Largest tensors at the peak", _tensor_table(rank))
            parts += _graph(rank, pencils)
    parts += time_parts(result)
    if rank is not None and rank.unknown_values:
        title = (
            "Values unknown on a simulated device (set them with windtunnel.mock, or MindSpore's dryrun.mock)"
        )
        parts += _titled(title, _unknown_table(rank))
    if rank is not None and rank.compiled is not None:
        parts += [Text(), Text(_compiled_line(rank.compiled))]
        if rank.compiled.graph_breaks or rank.compiled.recompilations:
            parts += _titled(
                "Where compiled code was interrupted or compiled again", _compiler_table(rank.compiled)
            )
    if rank is not None and rank.build_time_us and not has_failed:
        parts += _titled("Slowest modules to build (CPU time)", _build_table(rank))
    if rank is not None and rank.notes:
        parts += [Text(), *(Text(f"Note: {note}.") for note in rank.notes)]
    parts += _files(result)
    parts += _mismatches(result)
    if result.advice:
        title = (
            "What else would fit (simulated)"
            if result.fits
            else "What would make it fit (each was simulated)"
        )
        parts += _titled(title, _advice_table(result))
    while parts and isinstance(parts[0], Text) and not parts[0].plain:
        del parts[0]
    colour = "bold green" if result.fits and not result.mismatches else "bold red"
    return Group(*parts, Text(), Text(verdict(result), style=colour))


def _facts(result: RunResult, members: dict[int, list[int]]) -> Iterator[RenderableType]:
    has_facts = result.framework == "mindspore"
    for rank in _in_full(result):
        if result.world_size > 1 and (has_facts or len(members) == 1):  # of several, a table follows
            yield _plain(_rank_line(rank, result, len(members[rank.rank]) - 1))
        for line in five_facts(rank, result.device) if has_facts else ():
            yield _plain(line)


def _in_full(result: RunResult) -> list[RankResult]:
    """Return all simulated ranks if they are few; otherwise the tightest, and the first that failed."""
    simulated = [rank for rank in result.ranks if rank.status != "same_as"]
    if len(simulated) <= _FEW_RANKS:
        return simulated
    failed = [rank for rank in simulated if rank.status == "failed"][:_FEW_RANKS]
    return [rank for rank in simulated if rank is result.tightest or rank in failed]


def _rank_line(rank: RankResult, result: RunResult, n_alike: int) -> str:
    others = f" (and {n_alike} more that do the same)" if n_alike else ""
    return f"rank {rank.rank} of {result.world_size}{others}: {rank.status}"


def _files(result: RunResult) -> list[RenderableType]:
    files = result.files
    if files is None:
        return []
    parts: list[RenderableType] = []
    if files.changes:
        parts = _titled("What the script would have written", _files_table(files))
    if files.protection == "guard":
        parts += [Text(), Text(f"Note: {files.sentence}.")]
    return parts + [Text(f"Note: {note}.") for note in files.notes]


def _advice_table(result: RunResult) -> FittedTable:
    rows = [
        (remedy.what, remedy.need, "yes" if remedy.fits else "no", remedy.how) for remedy in result.advice
    ]
    return FittedTable(("change", "needs", "fits?", "how"), tuple(rows), (), "how")


def _files_table(files: Files) -> FittedTable:
    """List changes to existing files first, then the largest; paths are relative to the working directory."""
    here = os.getcwd() + os.sep

    def n_bytes(change: FileChange) -> int:
        return (change.n_bytes_before if change.n_bytes is None else change.n_bytes) or 0

    ordered = sorted(files.changes, key=lambda c: (KINDS.index(c.what), -n_bytes(c), c.path))
    rows = [
        (change.what, format_bytes(n_bytes(change)), change.path.removeprefix(here))
        for change in ordered[:_FILE_ROWS]
    ]
    n_more = len(files.changes) + files.n_more - len(rows)
    if n_more:
        rest = sum(map(n_bytes, ordered[_FILE_ROWS:])) + files.more_bytes
        rows.append((f"(and {n_more:,} more)", format_bytes(rest), "listed in report.json"))
    return FittedTable(("what", "bytes", "file"), tuple(rows), (), "file")


def _mismatches(result: RunResult) -> list[RenderableType]:
    if not result.mismatches:
        return []
    shown = [Text(f"- {mismatch.sentence}") for mismatch in result.mismatches[:_MISMATCH_ROWS]]
    if len(result.mismatches) > _MISMATCH_ROWS:
        shown.append(Text(f"- (and {len(result.mismatches) - _MISMATCH_ROWS} more in report.json)"))
    return [Text(), Text("Mismatched collectives: on a cluster this would hang", style="bold red"), *shown]


def _plain(line: str) -> Text:
    return Text(line, no_wrap=True, overflow="ignore")


def _peak_line(rank: RankResult) -> Text:
    if rank.peak_at is None:
        return Text()
    at = rank.peak_at
    parts = [f"step {at.step}", at.phase, at.module, at.op]
    text = Text(f"Peak of rank {rank.rank}: {format_bytes(rank.peak_bytes)} live, ")
    text.append(f"{format_bytes(rank.peak_with_fragments_bytes)} with fragments, at ")
    text.append(", ".join(part for part in parts if part))
    if rank.out_of_memory is not None:
        oom = rank.out_of_memory
        where = ", ".join(p for p in (f"step {oom.at.step}", oom.at.phase, oom.at.module, oom.at.op) if p)
        text.append(
            f"\nFirst allocation that does not fit: {format_bytes(oom.requested_bytes)} at {where}",
            style="red",
        )
    return text


def _role_table(rank: RankResult, pencils: Pencils) -> Table:
    held = sorted(rank.at_peak_bytes.items(), key=lambda item: -item[1])
    largest = held[0][1]
    rows = [
        (role, format_bytes(n), _percent(n, rank.peak_bytes), _bar(n / largest, pencils))
        for role, n in held
        if n >= _SMALLEST_ROLE * rank.peak_bytes
    ]
    return plain_table(("role", "bytes", "share", ""), rows)


def _phase_table(rank: RankResult) -> FittedTable:
    rows: list[tuple[Cell, ...]] = [
        (
            part.part,
            str(part.times),
            *(format_bytes(n) for n in (part.peak_bytes, part.peak_with_fragments_bytes)),
            *(format_bytes(n) for n in (part.left_bytes, part.left_with_fragments_bytes)),
        )
        for part in rank.memory_by_phase
    ]
    columns = ("phase", "times", "peak", "reserved", "left after", "reserved after")
    return FittedTable(columns, tuple(rows), ("times",), "phase")


def _module_table(rank: RankResult) -> FittedTable:
    rows: list[tuple[Cell, ...]] = []
    rest = rank.peak_bytes
    for module, shares in _collapsed(rank):
        total = sum(share.n_bytes for share in shares)
        rest -= total
        main = [share for share in shares[:3] if share.n_bytes >= _SMALLEST_SHARE * total]
        long = ", ".join(f"{share.role} {format_bytes(share.n_bytes)}" for share in main)
        short = [f"{share.role} {share.n_bytes * 100 // total}%" for share in main]
        share = _percent(total, rank.peak_bytes)
        rows.append(
            (
                module or "(outside modules)",
                format_bytes(total),
                share,
                (long, *(", ".join(short[:n]) for n in (3, 2, 1))),
            )
        )
    if rest > 0:
        rows.append(("(others)", format_bytes(rest), _percent(rest, rank.peak_bytes), ""))
    return FittedTable(("module", "bytes", "share", "of which"), tuple(rows), ("of which",), "module")


def _collapsed(rank: RankResult) -> list[tuple[str, list[ModuleShare]]]:
    """Return module paths with layers folded, at the greatest depth that fits the table."""
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


def _tensor_table(rank: RankResult) -> FittedTable:
    rows: list[tuple[Cell, ...]] = []
    for tensors in rank.largest_at_peak[:_TENSOR_ROWS]:
        if tensors.n_bytes < _SMALLEST_SHARE * rank.peak_bytes:
            break
        shape: Cell = ""
        if tensors.shape is not None:
            sizes = "x".join(map(str, tensors.shape))
            shape = (f"{sizes} {tensors.dtype}", f"{sizes} {_SHORT_TYPES.get(tensors.dtype, tensors.dtype)}")
        where = (tensors.where, tensors.where.rpartition("/")[2])
        size, count = format_bytes(tensors.n_bytes), str(tensors.count)
        rows.append((_what(tensors), size, count, shape, (tensors.role, ""), where))
    columns = ("what", "bytes", "count", "shape", "role", "line")
    return FittedTable(columns, tuple(rows), ("line", "shape", "role"), "what")


def _what(tensors: LiveTensors) -> Cell:
    if tensors.name or not tensors.op:
        return tensors.name or tensors.module or "(unnamed)"
    op = tensors.op.removeprefix("aten.").removeprefix("ms.")
    short = (f"{op} {tensors.module.rpartition('.')[2]}", op) if tensors.module else (op,)
    return (f"{tensors.op} {tensors.module}".rstrip(), *short)


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


def _unknown_table(rank: RankResult) -> FittedTable:
    rows: list[tuple[Cell, ...]] = [
        ((value.where, value.where.rpartition("/")[2]), value.what, repr(value.value), str(value.count))
        for value in rank.unknown_values[:_UNKNOWN_ROWS]
    ]
    if len(rank.unknown_values) > _UNKNOWN_ROWS:
        rows.append((f"(and {len(rank.unknown_values) - _UNKNOWN_ROWS} more lines)", "", "", ""))
    return FittedTable(("line", "what", "taken as", "times"), tuple(rows), ("line",))


def _compiled_line(compiled: CompiledCode) -> str:
    counts = (
        (compiled.n_graphs, "graph"),
        (compiled.n_graph_breaks, "graph break"),
        (compiled.n_recompilations, "recompilation"),
    )
    return "torch.compile: " + ", ".join(f"{n:,} {word}{'s' if n != 1 else ''}" for n, word in counts)


def _compiler_table(compiled: CompiledCode) -> FittedTable:
    notes = [("graph break", note) for note in compiled.graph_breaks]
    notes += [("recompilation", note) for note in compiled.recompilations]
    rows: list[tuple[Cell, ...]] = [
        ((note.where, note.where.rpartition("/")[2]), what, note.why, str(note.count))
        for what, note in notes[:_UNKNOWN_ROWS]
    ]
    if len(notes) > _UNKNOWN_ROWS:
        rows.append((f"(and {len(notes) - _UNKNOWN_ROWS} more lines)", "", "", ""))
    return FittedTable(("line", "what", "why", "times"), tuple(rows), ("line",))


def _build_table(rank: RankResult) -> FittedTable:
    folded = fold_paths(set(rank.build_time_us))
    total: dict[str, int] = {}
    for module, time_us in rank.build_time_us.items():
        total[folded[module]] = total.get(folded[module], 0) + time_us
    longest = sorted(total.items(), key=lambda item: -item[1])[:_BUILD_ROWS]
    rows = tuple((module or "(the model)", format_us(time_us)) for module, time_us in longest)
    return FittedTable(("module", "time"), rows, (), "module")


def _titled(title: str, table: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), table]


def _bar(share: float, pencils: Pencils) -> str:
    """A bar to an eighth of a character where the characters allow it."""
    eighths = "▏▎▍▌▋▊▉█" if pencils is UNICODE else "#"
    parts = max(1, round(share * _BAR_WIDTH * len(eighths)))
    whole, rest = divmod(parts, len(eighths))
    return eighths[-1] * whole + (eighths[rest - 1] if rest else "")


def _percent(part: int, whole: int) -> str:
    return f"{part * 100 / whole:.1f}%"
