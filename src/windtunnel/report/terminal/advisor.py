"""The result of the advisor as terminal output and as JSON: every recomputation strategy, and which one to use.

Advice ──> render_advice ──> table, what the best set drops, the sentence
       └─> advice_document ──> JSON
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windtunnel.remat.advisor.advisor import Advice, Point
from windtunnel.units import format_bytes, format_us

__all__ = ["advice_document", "recommend", "recommended", "render_advice"]

_OPERATORS = 4  # of a best set, listed below the table
_NO_BOUND = 1.0  # a gap this large is no information


def render_advice(advice: Advice) -> RenderableType:
    """Return everything about one program, for a terminal."""
    chosen = recommended(advice)
    parts: list[RenderableType] = [_table(advice, chosen)]
    parts += (Text(line) for line in _below(advice))
    fits = chosen is not None
    return Group(*parts, Text(), Text(recommend(advice), style="bold" if fits else "bold red"))


def advice_document(advice: Advice) -> dict[str, Any]:
    """Return the same as plain values for JSON."""
    chosen = recommended(advice)
    points = [_point_document(advice, point) for point in advice.points]
    return {
        "format": 1,
        "device_bytes": advice.device_bytes,
        "budgets_bytes": list(advice.budgets),
        "blocks": advice.blocks,
        "in_use_whatever_is_dropped_bytes": advice.lowest_bytes,
        "points": points,
        "recommended": advice.points.index(chosen) if chosen is not None else None,
        "answer": recommend(advice),
    }


def recommended(advice: Advice) -> Point | None:
    """Return the fastest usable strategy that fits: plain training, checkpointed blocks or windtunnel.dtr."""
    return advice.best(("nothing", "blocks", "dtr"), advice.room_bytes)


# -- the table ----------------------------------------------------------------------------------------------


def _table(advice: Advice, chosen: Point | None) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("way")
    for heading in ("reserved", "peak live", "step", "extra"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("fits?", no_wrap=True)
    table.add_column("")
    last = ""
    for point in advice.points[:1] + advice.of("blocks") + advice.of("fixed set") + advice.of("dtr"):
        if last and point.way != last:
            table.add_section()
        last = point.way
        fits = _fits(advice, point)
        style = "bold green" if point is chosen else "dim" if fits == "no" else ""
        table.add_row(
            point.label, format_bytes(point.needs_bytes), format_bytes(point.peak_bytes),
            format_us(point.seconds * 1e6), _extra(point), fits, _remark(point), style=style,
        )  # fmt: skip
    return table


def _fits(advice: Advice, point: Point) -> str:
    if point.is_out_of_memory or point.needs_bytes > advice.device_bytes:
        return "no"
    return "yes" if point.needs_bytes <= advice.room_bytes else "just"


def _extra(point: Point) -> str:
    return "" if point.way == "nothing" else f"{point.slowdown - 1:+.1%}"


def _remark(point: Point) -> str:
    if point.way == "dtr" and point.is_out_of_memory:
        return f"at {format_bytes(point.threshold_bytes)}: runs out of memory"
    if point.way == "dtr" and point.budget_bytes is not None and point.needs_bytes > point.budget_bytes:
        return f"{format_bytes(point.budget_bytes)} not reached"
    if point.way == "dtr":
        return f"at {format_bytes(point.threshold_bytes)}"
    if point.way == "fixed set" and point.gap >= _NO_BOUND:
        return "nothing better known"
    if point.way == "fixed set":
        return "optimal" if point.gap < 5e-4 else f"within {point.gap:.1%} of the best"
    return ""


def _below(advice: Advice) -> Iterator[str]:
    yield f"checkpointed: {advice.blocks}"
    best = advice.best(("fixed set",), advice.room_bytes)
    if best is not None and best.dropped:
        named = [f"{d.n_calls} x {d.operator} ({format_bytes(d.n_bytes)})" for d in best.dropped[:_OPERATORS]]
        more = len(best.dropped) - _OPERATORS
        rest = f" and {more} more" if more > 0 else ""
        yield f"the best fixed set at {format_bytes(best.needs_bytes)} recomputes: {', '.join(named)}{rest}"
    yield f"cannot be dropped: {format_bytes(advice.lowest_bytes)}"
    if advice.unreached_bytes:
        yield f"no fixed set was found within {format_bytes(advice.unreached_bytes)}: each call is recomputed at most once"


# -- the sentence -------------------------------------------------------------------------------------------


def recommend(advice: Advice) -> str:
    """Say what to do on this device, with numbers."""
    nothing, device = advice.nothing, format_bytes(advice.device_bytes)
    if nothing.needs_bytes <= advice.room_bytes:
        needs = format_bytes(nothing.needs_bytes)
        return f"No recomputation is needed: plain training needs {needs} of the {device} usable."
    chosen = recommended(advice)
    best = advice.best(("fixed set",), advice.room_bytes)
    if chosen is None:
        return _too_large(advice, best)
    sentence = f"{_how(advice, chosen)}: {_costs(chosen)}"
    others = [f"{_short(p)} {p.slowdown - 1:+.1%}" for p in _others(advice, chosen)]
    if best is not None and best.slowdown < chosen.slowdown:
        others.append(f"the best fixed set {best.slowdown - 1:+.1%}")
    against = f"; {', '.join(others)}" if others else ""
    needs = format_bytes(nothing.needs_bytes)
    return f"{sentence}{against}. Plain training needs {needs}, and {device} is usable."


def _too_large(advice: Advice, best: Point | None) -> str:
    least = min(advice.points, key=lambda p: p.needs_bytes)
    device = format_bytes(advice.device_bytes)
    if best is not None:
        return (
            f"Only a fixed set fits {device}: {_costs(best)}; checkpointing and windtunnel.dtr need more, so"
            " use a smaller micro-batch or shard the model."
        )
    return (
        f"Nothing fits {device}: the least is {format_bytes(least.needs_bytes)} ({_short(least)}), so use a smaller"
        " micro-batch or shard the model."
    )


def _others(advice: Advice, chosen: Point) -> Iterator[Point]:
    for way in ("blocks", "dtr"):
        found = advice.best((way,), advice.room_bytes)
        if way != chosen.way and found is not None:
            yield found


def _how(advice: Advice, point: Point) -> str:
    if point.way == "dtr":
        return f"Use windtunnel.dtr with a threshold of {format_bytes(point.threshold_bytes)}"
    is_all = point.n_blocks == advice.n_blocks
    which = "all of" if is_all else f"the first {point.n_blocks} of"
    return f"Use torch.utils.checkpoint on {which} the {advice.blocks}"


def _short(point: Point) -> str:
    return {"nothing": "plain training", "blocks": "checkpointing", "dtr": "windtunnel.dtr"}.get(
        point.way, "the best fixed set"
    )


def _costs(point: Point) -> str:
    return f"{point.slowdown - 1:+.1%} time, needs {format_bytes(point.needs_bytes)}"


def _point_document(advice: Advice, point: Point) -> dict[str, Any]:
    document = asdict(point)
    document["gap"] = round(point.gap, 6) if point.gap < _NO_BOUND else None
    document["slowdown"] = round(point.slowdown, 6)
    document["needs_bytes"] = point.needs_bytes
    document["fits"] = _fits(advice, point) != "no"
    document["dropped"] = [asdict(dropped) for dropped in point.dropped]
    return document
