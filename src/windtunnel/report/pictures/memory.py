"""Memory over time as a chart: stacked by role, with the capacity of the device and the peak.

    RankResult ──> draw_picture ──> memory.png, memory.svg

Needs matplotlib, which windtunnel does not require; colours are those of Okabe and Ito, which colour-blind
readers can tell apart.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.errors import MissingFramework, UsageError
from windtunnel.memory.analysis import Timeline
from windtunnel.memory.attribution import RoleBytes
from windtunnel.report.results.run import DeviceResult, RankResult
from windtunnel.units import GIB, MIB, format_bytes

__all__ = ["draw_picture", "open_matplotlib"]

_COLOURS = {
    "weights": "#0072B2",
    "frozen": "#004B76",
    "copies": "#7A9CB8",
    "optimizer": "#56B4E9",
    "gradients": "#009E73",
    "activations": "#E69F00",
    "inputs": "#F0E442",
    "communication": "#CC79A7",
    "workspace": "#999999",
    "temporary": "#D55E00",
}  # in drawing order: long-lived roles at the bottom, short-lived ones on top
_INK, _FAINT = "#222222", "#8A8A8A"


def draw_picture(path: Path, rank: RankResult, device: DeviceResult, *more: Path) -> None:
    """Draw one rank; the suffix of `path` sets the format. `more` get the same picture in other formats."""
    figure_class, plain_style = open_matplotlib()
    if rank.timeline is None or len(rank.timeline) == 0:
        raise UsageError(f"rank {rank.rank} has no memory over time to draw", hint="draw its representative")
    with plain_style:
        figure = figure_class(figsize=(10, 5), dpi=150, layout="constrained")
        axes = figure.subplots()
        unit, unit_name = (GIB, "GiB") if rank.peak_with_fragments_bytes >= GIB else (MIB, "MiB")
        _draw_roles(axes, rank.timeline, unit)
        _draw_limit(axes, rank, unit)
        _draw_peak(axes, rank, unit)
        _draw_steps(axes, rank.timeline)
        _dress(axes, rank, device, unit_name)
        figure.get_layout_engine().execute(figure)
        figure.set_layout_engine("none")  # or each format would be laid out again, by drawing it once more
        for file in (path, *more):
            try:
                figure.savefig(file)
            except ValueError as error:
                raise UsageError(f"cannot draw {file}: {error}", hint="name it .png or .svg") from error


def open_matplotlib() -> tuple[Any, Any]:
    """Return the figure class, and a style that does not depend on the user's settings."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure  # not pyplot: no window system, no state left behind
    except ModuleNotFoundError as error:
        if error.name != "matplotlib":
            raise
        raise MissingFramework(
            "matplotlib is not installed in this Python", hint="pip install 'windtunnel[plot]'"
        ) from error
    return Figure, rc_context({"font.size": 9, "svg.fonttype": "none", "svg.hashsalt": "windtunnel"})


def _draw_roles(axes: Any, timeline: Timeline, unit: int) -> None:
    column = {f.name: i for i, f in enumerate(fields(RoleBytes))}
    shown = [name for name in _COLOURS if timeline.role_bytes[:, column[name]].any()]
    heights = [timeline.role_bytes[:, column[name]] / unit for name in shown]
    colours = [_COLOURS[name] for name in shown]
    axes.stackplot(timeline.event, heights, labels=shown, colors=colours, step="post", linewidth=0)
    live, reserved = timeline.allocated_bytes / unit, timeline.reserved_bytes / unit
    axes.fill_between(
        timeline.event, live, reserved, step="post", color="#E4E4E4", linewidth=0, label="reserved, unused"
    )
    axes.step(timeline.event, reserved, where="post", color=_INK, linewidth=1.1, label="reserved")


def _draw_limit(axes: Any, rank: RankResult, unit: int) -> None:
    if not _shows_limit(rank):
        return
    usable = rank.usable_memory_bytes
    axes.axhline(usable / unit, color="#B00020", linestyle=(0, (5, 3)), linewidth=1.2)
    axes.annotate(
        f"usable {format_bytes(usable)}", (0, usable / unit), xycoords=("axes fraction", "data"),
        xytext=(6, 3), textcoords="offset points", color="#B00020",
    )  # fmt: skip


def _shows_limit(rank: RankResult) -> bool:
    """Whether the limit is close enough to the peak: otherwise it would squeeze the rest."""
    return 0 < rank.usable_memory_bytes <= 2 * rank.peak_with_fragments_bytes


def _draw_peak(axes: Any, rank: RankResult, unit: int) -> None:
    timeline = rank.timeline
    assert timeline is not None  # checked by draw_picture
    at = int(timeline.allocated_bytes.argmax())
    x, y = timeline.event[at], timeline.allocated_bytes[at] / unit
    span = timeline.event[-1] - timeline.event[0]
    is_late = x - timeline.event[0] > 0.6 * span
    axes.plot([x], [y], marker="o", markersize=5, color=_INK, markerfacecolor="white", zorder=5)
    moment = rank.peak_at
    parts = [f"step {moment.step} {moment.phase}", moment.module, moment.op] if moment else []
    reserved = f"{format_bytes(rank.peak_with_fragments_bytes)} with fragments"
    text = "\n".join([f"peak {format_bytes(rank.peak_bytes)}, {reserved}", ", ".join(filter(None, parts))])
    ceiling = (
        max(rank.peak_with_fragments_bytes, rank.usable_memory_bytes if _shows_limit(rank) else 0) / unit
    )
    shift = -0.015 * span if is_late else 0.015 * span
    axes.annotate(
        text, (x, y), xytext=(x + shift, ceiling * 1.06), textcoords="data",
        ha="right" if is_late else "left", va="bottom", color=_INK, linespacing=1.3,
        bbox={"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": _FAINT, "alpha": 0.9},
        arrowprops={"arrowstyle": "-", "color": _FAINT, "relpos": (1 if is_late else 0, 0)}, zorder=6,
    )  # fmt: skip


def _draw_steps(axes: Any, timeline: Timeline) -> None:
    """Draw a line at the start of each step, with its number instead of the count of events."""
    numbers, first = np.unique(timeline.step, return_index=True)
    every = max(1, len(numbers) // 20)
    begins = timeline.event[first]
    for x in begins[1:]:
        axes.axvline(x, color=_FAINT, linewidth=0.6, alpha=0.6, zorder=0.5)
    axes.set_xticks(begins[::every], [f"step {n}" for n in numbers[::every]], ha="left")


def _dress(axes: Any, rank: RankResult, device: DeviceResult, unit_name: str) -> None:
    assert rank.timeline is not None  # checked by draw_picture
    axes.set_xlim(rank.timeline.event[0], rank.timeline.event[-1])
    axes.set_ylim(0, axes.get_ylim()[1] * 1.12)  # room for the text at the peak
    axes.set_ylabel(f"device memory ({unit_name})")
    axes.set_title(
        f"Memory of rank {rank.rank} on {device.name}", loc="left", fontweight="bold", color=_INK, fontsize=11
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(color=_FAINT, labelcolor=_INK)
    axes.grid(axis="y", color=_FAINT, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(handles[::-1], labels[::-1], loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
