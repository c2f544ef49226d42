"""The result of `windtunnel remat` as terminal output: a row for each threshold, and the one to use.

RematResult ──> render_remat ──> table, failures, answer, assumptions
"""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.table import Table
from rich.text import Text

from windtunnel.remat.simulated.curve import Point
from windtunnel.remat.simulated.thresholds import write_size
from windtunnel.report.results.remat import RematResult, answer, assumptions, describe_failure
from windtunnel.units import format_bytes, format_us

__all__ = ["render_remat"]

_ANY_WIDTH = 1000
_COUNTS = ("evicted", "again", "stalls")  # left out on a narrow terminal


def render_remat(result: RematResult) -> RenderableType:
    """Everything about one curve."""
    rank = f", rank {result.rank} of {result.world_size}" if result.world_size > 1 else ""
    steps = f"{result.n_steps} step{'' if result.n_steps == 1 else 's'}"
    usable = format_bytes(result.curve.usable_bytes)
    title = f"{result.subject}{rank}: {steps} on {result.device.id} ({usable} usable)"
    parts: list[RenderableType] = [Text(title, style="bold", overflow="fold"), _FittingTable(result)]
    parts += (Text(line) for line in _below(result))
    colour = "bold" if result.curve.best is not None else "bold red"
    parts += (Text(), Text(answer(result), style=colour))
    parts += [Text(result.cheaper.sentence, style="bold")] if result.cheaper is not None else []
    parts.append(Text())
    parts += (Text(f"assumed: {line}", style="dim") for line in assumptions(result))
    return Group(*parts)


class _FittingTable:
    """The table, without its counts if it would be too wide."""

    def __init__(self, result: RematResult) -> None:
        self._result = result

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        whole = _table(self._result, leaves_out=())
        is_wide = (
            console.measure(whole, options=options.update(max_width=_ANY_WIDTH)).maximum <= options.max_width
        )
        yield whole if is_wide else _table(self._result, leaves_out=_COUNTS)


def _table(result: RematResult, leaves_out: tuple[str, ...]) -> Table:
    curve = result.curve
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0), pad_edge=False)
    rows = [_cells(result, point) for point in (curve.without, *curve.points)]
    shown = [heading for heading in rows[0] if heading not in leaves_out]
    if len(curve.policies) == 1:
        shown.remove("policy")
    for heading in shown:
        is_word = heading in ("policy", "fits?")
        table.add_column(heading, justify="left" if is_word else "right", no_wrap=True)
    for point, cells in zip((curve.without, *curve.points), rows, strict=True):
        style = "bold green" if point is curve.best else "" if point.fits else "red"
        table.add_row(*(cells[heading] for heading in shown), style=style)
    return table


def _cells(result: RematResult, point: Point) -> dict[str, str]:
    step = point.step
    has_time = point.fits or point.threshold is None  # otherwise the step did not finish
    return {
        "threshold": _threshold(point),
        "policy": point.policy or "",
        "time": format_us(point.step_seconds * 1e6) if has_time else "-",
        "extra": f"{step.slowdown - 1:+.1%}" if has_time else "-",
        "evicted": f"{step.evictions:,}",
        "again": f"{step.rematerialisations:,}",
        "peak live": format_bytes(point.peak_live_bytes),
        "reserved": format_bytes(point.peak_reserved_bytes),
        "stalls": f"{point.n_stalls:,}",
        "fits?": _fits(result, point),
    }


def _threshold(point: Point) -> str:
    return "off" if point.threshold is None else write_size(point.threshold)


def _name(result: RematResult, point: Point) -> str:
    return _threshold(point) if len(result.curve.policies) == 1 else f"{_threshold(point)} {point.policy}"


def _fits(result: RematResult, point: Point) -> str:
    if not point.fits:
        return "no"
    if point is result.curve.best:
        return "best"
    return "yes" if result.curve.has_margin(point) else "just"


def _below(result: RematResult) -> Iterator[str]:
    curve = result.curve
    yield f"never evicted: {format_bytes(curve.floor_bytes)} (weights, gradients, inputs and outputs of a kernel)"
    guarded = [point for point in curve.points if point.outcome.statistics.guarded_rounds]
    if guarded:
        names = ", ".join(_name(result, point) for point in guarded)
        yield f"too low to keep: {names} (the runtime stops evicting when a step recomputes more operators than it has)"
    if any(point.n_stalls for point in curve.points):
        yield "stalls: allocations that succeeded only after evicting more, or after releasing the allocator's cache"
    failed: dict[str, list[str]] = {}  # where -> the thresholds that fail there
    for point in curve.points:
        if not point.fits:
            failed.setdefault(describe_failure(point), []).append(_name(result, point))
    for where, thresholds in failed.items():
        yield f"out of memory in {where}: {', '.join(thresholds)}"
    for note in result.notes:
        yield f"note: {note}"
