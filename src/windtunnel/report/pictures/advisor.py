"""Time versus memory: every recomputation strategy as one line in one chart.

    Advice ──> draw_advice ──> advice.png, advice.svg

Needs matplotlib, which windtunnel does not require; colours are those of Okabe and Ito.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windtunnel.errors import UsageError
from windtunnel.remat.advisor.advisor import Advice, Point, Way
from windtunnel.report.pictures.memory import open_matplotlib
from windtunnel.units import GIB, MIB, format_bytes

__all__ = ["draw_advice"]

_LINES: tuple[tuple[Way, str, str, str], ...] = (
    ("blocks", "torch.utils.checkpoint, the first blocks to all", "#E69F00", "s"),
    ("dtr", "windtunnel.dtr", "#0072B2", "o"),
    ("fixed set", "best fixed set (solver)", "#009E73", "^"),
)
_INK, _FAINT, _RED = "#222222", "#8A8A8A", "#B00020"


def draw_advice(path: Path, advice: Advice, subject: str = "") -> None:
    """Draw the advice; the suffix of `path` sets the format."""
    figure_class, plain_style = open_matplotlib()
    unit, unit_name = (GIB, "GiB") if advice.nothing.peak_bytes >= GIB else (MIB, "MiB")
    with plain_style:
        figure = figure_class(figsize=(8, 4.6), dpi=150, layout="constrained")
        axes = figure.subplots()
        for way, label, colour, marker in _LINES:
            _draw_line(axes, advice.of(way), label, colour, marker, unit)
        _draw_nothing(axes, advice, unit)
        _draw_limits(axes, advice, unit)
        _dress(axes, subject, unit_name)
        try:
            figure.savefig(path)
        except ValueError as error:
            raise UsageError(f"cannot draw {path}: {error}", hint="name it .png or .svg") from error


def _draw_line(axes: Any, points: tuple[Point, ...], label: str, colour: str, marker: str, unit: int) -> None:
    if not points:
        return
    within = [p for p in points if p.budget_bytes is None or p.needs_bytes <= p.budget_bytes]
    beyond = [p for p in points if p not in within]
    axes.plot(
        *_coordinates(within, unit), color=colour, marker=marker, markersize=5, linewidth=1.4, label=label
    )
    # Hollow: the requested budget could not be met.
    axes.plot(
        *_coordinates(beyond, unit), color=colour, marker=marker, markersize=5, linestyle="none", mfc="white"
    )


def _coordinates(points: list[Point], unit: int) -> tuple[list[float], list[float]]:
    return [p.needs_bytes / unit for p in points], [100 * (p.slowdown - 1) for p in points]


def _draw_nothing(axes: Any, advice: Advice, unit: int) -> None:
    nothing = advice.nothing
    axes.plot([nothing.needs_bytes / unit], [0], color=_INK, marker="D", markersize=6, linestyle="none",
              label="plain training")  # fmt: skip


def _draw_limits(axes: Any, advice: Advice, unit: int) -> None:
    low, high = advice.lowest_bytes, advice.nothing.needs_bytes
    axes.axvline(low / unit, color=_FAINT, linewidth=0.8, linestyle=":")
    axes.annotate("cannot be dropped", (low / unit, 1), xycoords=("data", "axes fraction"), xytext=(3, -3),
                  textcoords="offset points", rotation=90, va="top", color=_FAINT, fontsize=7)  # fmt: skip
    if low / 2 <= advice.device_bytes <= 1.5 * high:  # farther away it would squeeze the rest
        axes.axvline(advice.device_bytes / unit, color=_RED, linestyle=(0, (5, 3)), linewidth=1.2)
        axes.annotate(f"usable {format_bytes(advice.device_bytes)}", (advice.device_bytes / unit, 1),
                      xycoords=("data", "axes fraction"), xytext=(3, -3), textcoords="offset points", rotation=90,
                      va="top", color=_RED, fontsize=7)  # fmt: skip


def _dress(axes: Any, subject: str, unit_name: str) -> None:
    axes.set_xlabel(f"peak memory reserved ({unit_name})")
    axes.set_ylabel("extra time of a step (%)")
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    title = "Time versus memory" + (f": {Path(subject).name}" if subject else "")
    axes.set_title(title, loc="left", fontweight="bold", color=_INK, fontsize=11)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(color=_FAINT, labelcolor=_INK)
    axes.grid(color=_FAINT, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="upper right")
