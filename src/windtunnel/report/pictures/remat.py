"""Time and peak memory versus the threshold: two panels, a line for each policy.

    RematResult ──> draw_remat ──> remat.png, remat.svg

Needs matplotlib, which windtunnel does not require; colours are those of Okabe and Ito.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from windtunnel.errors import UsageError
from windtunnel.remat.simulated.curve import Curve, Point
from windtunnel.remat.simulated.thresholds import write_size
from windtunnel.report.pictures.memory import open_matplotlib
from windtunnel.report.results.remat import RematResult
from windtunnel.units import GIB, MIB, format_bytes

__all__ = ["draw_remat"]

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
_INK, _FAINT, _RED = "#222222", "#8A8A8A", "#B00020"


def draw_remat(path: Path, result: RematResult) -> None:
    """Draw the curve; the suffix of `path` sets the format."""
    figure_class, plain_style = open_matplotlib()
    curve = result.curve
    largest = max(point.threshold or 0 for point in curve.points)
    unit, unit_name = (GIB, "GiB") if largest >= GIB else (MIB, "MiB")
    with plain_style:
        figure = figure_class(figsize=(10, 4.2), dpi=150, layout="constrained")
        times, peaks = figure.subplots(1, 2)
        for policy, colour in zip(curve.policies, _colours(len(curve.policies)), strict=True):
            points = [point for point in curve.points if point.policy == policy]
            _draw_times(times, points, policy, colour, unit)
            _draw_peaks(peaks, points, colour, unit)
        _draw_unlimited(times, curve)
        _draw_failures(times, curve, unit)
        _draw_limits(peaks, curve, unit)
        _draw_best(times, peaks, curve, unit)
        _dress(times, f"threshold ({unit_name})", "step time (s)", curve, unit)
        _dress(peaks, f"threshold ({unit_name})", f"peak memory ({unit_name})", curve, unit)
        if len(curve.policies) > 1:
            times.legend(frameon=False)
        figure.suptitle(
            f"Rematerialisation of {Path(result.subject).name} on {result.device.id}",
            x=0.01, ha="left", fontweight="bold", color=_INK, fontsize=11,
        )  # fmt: skip
        try:
            figure.savefig(path)
        except ValueError as error:
            raise UsageError(f"cannot draw {path}: {error}", hint="name it .png or .svg") from error


def _colours(n: int) -> list[str]:
    return [_COLOURS[i % len(_COLOURS)] for i in range(n)]


def _draw_times(axes: Any, points: Sequence[Point], policy: str, colour: str, unit: int) -> None:
    fitting = [point for point in points if point.fits]
    axes.plot(
        [(p.threshold or 0) / unit for p in fitting], [p.step_seconds for p in fitting],
        color=colour, marker="o", markersize=4, linewidth=1.4, label=policy,
    )  # fmt: skip


def _draw_peaks(axes: Any, points: Sequence[Point], colour: str, unit: int) -> None:
    x = [(point.threshold or 0) / unit for point in points]
    reserved = [point.peak_reserved_bytes / unit for point in points]
    live = [point.peak_live_bytes / unit for point in points]
    axes.plot(x, reserved, color=colour, marker="o", markersize=4, linewidth=1.4)
    axes.plot(x, live, color=colour, linewidth=1.0, linestyle=(0, (2, 2)))


def _draw_unlimited(axes: Any, curve: Curve) -> None:
    seconds = curve.without.step_seconds
    axes.axhline(seconds, color=_FAINT, linewidth=0.8)
    axes.annotate(
        "with nothing evicted", (0, seconds), xycoords=("axes fraction", "data"), xytext=(6, -3),
        textcoords="offset points", color=_FAINT, va="top",
    )  # fmt: skip


def _draw_failures(axes: Any, curve: Curve, unit: int) -> None:
    """A cross at the foot of the panel, where there is no time to show."""
    x = sorted({(point.threshold or 0) / unit for point in curve.points if not point.fits})
    if x:
        axes.plot(x, [0.03] * len(x), "x", color=_RED, transform=axes.get_xaxis_transform(), clip_on=False)
        axes.annotate(
            "out of memory", (x[-1], 0.03), xycoords=axes.get_xaxis_transform(), xytext=(0, 6),
            textcoords="offset points", ha="right", color=_RED,
        )  # fmt: skip


def _draw_limits(axes: Any, curve: Curve, unit: int) -> None:
    usable = curve.usable_bytes / unit
    axes.axhline(usable, color=_RED, linestyle=(0, (5, 3)), linewidth=1.2)
    axes.annotate(
        f"usable {format_bytes(curve.usable_bytes)}", (0, usable), xycoords=("axes fraction", "data"),
        xytext=(6, 3), textcoords="offset points", color=_RED,
    )  # fmt: skip
    sizes = [(point.threshold or 0) / unit for point in curve.points]
    axes.plot([min(sizes), max(sizes)], [min(sizes), max(sizes)], color=_FAINT, linewidth=0.8)
    for word, style in (("reserved", "-"), ("live", (0, (2, 2)))):
        axes.plot([], [], color=_INK, linestyle=style, linewidth=1.2, label=f"peak {word}")
    axes.plot([], [], color=_FAINT, linewidth=0.8, label="the threshold itself")
    axes.legend(frameon=False, loc="lower right")


def _draw_best(times: Any, peaks: Any, curve: Curve, unit: int) -> None:
    best = curve.best
    if best is None:
        return
    x = (best.threshold or 0) / unit
    style = {"marker": "o", "markersize": 9, "markerfacecolor": "none", "markeredgewidth": 1.6, "color": _INK}
    times.plot([x], [best.step_seconds], **style)
    peaks.plot([x], [best.peak_reserved_bytes / unit], **style)
    times.annotate(
        f"best: {write_size(best.threshold or 0)}", (x, best.step_seconds), xytext=(0, 12),
        textcoords="offset points", ha="center", color=_INK, fontweight="bold",
    )  # fmt: skip


def _dress(axes: Any, x_label: str, y_label: str, curve: Curve, unit: int) -> None:
    sizes = sorted({(point.threshold or 0) / unit for point in curve.points})
    every = max(1, len(sizes) // 12)
    axes.set_xticks(sizes[::every], [f"{size:g}" for size in sizes[::every]])
    room = 0.04 * (sizes[-1] - sizes[0]) or 0.5
    axes.set_xlim(sizes[0] - room, sizes[-1] + room)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.08)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.tick_params(color=_FAINT, labelcolor=_INK)
    axes.grid(axis="y", color=_FAINT, alpha=0.25, linewidth=0.6)
    axes.set_axisbelow(True)
