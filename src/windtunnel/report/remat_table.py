"""The answer of `windtunnel remat` in a terminal: a row for each threshold, and the one to take.

RematResult ──> render_remat ──> table, what failed, the sentence, what it rests on
"""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windtunnel.remat.curve import Point
from windtunnel.remat.thresholds import write_size
from windtunnel.report.remat_result import RematResult, answer, assumptions, describe_failure
from windtunnel.units import format_bytes, format_us

__all__ = ["render_remat"]

_NUMBERS = ("step time", "extra", "evicted", "again", "peak live", "peak reserved", "retries")


def render_remat(result: RematResult) -> RenderableType:
    """Everything about one curve."""
    rank = f", rank {result.rank} of {result.world_size}" if result.world_size > 1 else ""
    steps = f"{result.n_steps} step{'' if result.n_steps == 1 else 's'}"
    usable = format_bytes(result.curve.usable_bytes)
    title = f"{result.subject}{rank}: {steps} on {result.device.id} ({usable} usable)"
    parts: list[RenderableType] = [Text(title, style="bold", overflow="fold"), _table(result)]
    parts += (Text(line) for line in _below(result))
    colour = "bold" if result.curve.best is not None else "bold red"
    parts += (Text(), Text(answer(result), style=colour), Text())
    parts += (Text(f"assumed: {line}", style="dim") for line in assumptions(result))
    return Group(*parts)


def _table(result: RematResult) -> Table:
    curve = result.curve
    has_policies = len(curve.policies) > 1
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("threshold", justify="right", no_wrap=True)
    if has_policies:
        table.add_column("policy", no_wrap=True)
    for heading in _NUMBERS:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("fits?", no_wrap=True)
    for point in (curve.without, *curve.points):
        cells = [_threshold(point), *([point.policy or ""] if has_policies else []), *_numbers(point)]
        style = "" if point.fits else "red"
        table.add_row(*cells, _fits(result, point), style="bold green" if point is curve.best else style)
    return table


def _threshold(point: Point) -> str:
    return "off" if point.threshold is None else write_size(point.threshold)


def _numbers(point: Point) -> Iterator[str]:
    step = point.step
    if point.fits or point.threshold is None:
        yield format_us(point.step_seconds * 1e6)
        yield f"{step.slowdown - 1:+.1%}"
    else:
        yield from ("-", "-")  # of a step that did not end
    yield f"{step.evictions:,}"
    yield f"{step.rematerialisations:,}"
    yield format_bytes(point.peak_live_bytes)
    yield format_bytes(point.peak_reserved_bytes)
    yield f"{point.n_stalls:,}"


def _fits(result: RematResult, point: Point) -> str:
    if not point.fits:
        return "no"
    if point is result.curve.best:
        return "yes, best"
    return "yes" if result.curve.has_margin(point) else "just"


def _below(result: RematResult) -> Iterator[str]:
    curve = result.curve
    yield f"never evicted: {format_bytes(curve.floor_bytes)} at once (weights, gradients, what a kernel reads and writes)"
    guarded = [point for point in curve.points if point.outcome.statistics.guarded_rounds]
    if guarded:
        names = ", ".join(_threshold(point) for point in guarded)
        yield f"too low to hold: {names} (the runtime stops evicting when a step computes more again than it has operators)"
    if any(point.n_stalls for point in curve.points):
        yield "retries: allocations that were met only by evicting more, or by giving the allocator's cache back"
    failed: dict[str, list[str]] = {}  # where -> the thresholds that fail there
    for point in curve.points:
        if not point.fits:
            policy = f" {point.policy}" if len(curve.policies) > 1 else ""
            failed.setdefault(describe_failure(point), []).append(f"{_threshold(point)}{policy}")
    for where, names in failed.items():
        yield f"out of memory in {where}: {', '.join(names)}"
    for note in result.notes:
        yield f"note: {note}"
