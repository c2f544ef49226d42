"""The time of a run as terminal output.

RunResult ──> step time and what it means, where it goes on each rank, operators, modules
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from windtunnel.cluster.step_time import RankTime
from windtunnel.memory.attribution import fold_paths
from windtunnel.report.fitted_table import Cell, FittedTable, plain_table
from windtunnel.report.results.run import RunResult
from windtunnel.report.results.time import RankTimeResult, TimeResult
from windtunnel.units import format_us

if TYPE_CHECKING:
    from windtunnel.timing.step_profile import OperatorTime

__all__ = ["time_parts"]

_TOP_OPERATORS = 10
_MODULE_ROWS = 10
_RANK_ROWS = 12
_SMALLEST_SHARE = 0.005


def time_parts(result: RunResult) -> list[RenderableType]:
    """Return everything about time, as parts to print; none below level 3."""
    if result.time is None:
        return []
    timed = {
        rank.rank: rank.time for rank in result.ranks if rank.time is not None and rank.status != "same_as"
    }
    shown_by = {rank.rank: rank.rank if rank.same_as is None else rank.same_as for rank in result.ranks}
    slowest = result.time.slowest_rank
    shown = timed.get(shown_by.get(slowest, -1)) if slowest is not None else None
    parts: list[RenderableType] = [Text(), Text(_headline(result.time), style="bold"), *_facts(result.time)]
    if len(timed) > 1:
        parts += _titled("Time of a step by rank", _rank_table(timed))
    if shown is not None:
        parts += _titled(
            f"The {_TOP_OPERATORS} most expensive operators{_of(timed, shown)}", _operator_table(shown)
        )
        parts += _titled(f"Time by module{_of(timed, shown)}", _module_table(shown))
    parts += [Text(), Text(result.time.bound_by)]
    parts += [Text(f"Note: {note}.") for note in result.time.notes]
    return parts


def _headline(time: TimeResult) -> str:
    if not time.n_steps:
        return f"Everything after the model is built takes {_seconds(time.step_seconds)}"
    text = f"One step takes {_seconds(time.step_seconds)}"
    if time.warm_up_seconds is not None:
        text += f" (the first, with one-time work, {_seconds(time.warm_up_seconds)})"
    return text


def _facts(time: TimeResult) -> list[RenderableType]:
    lines = [f"Operator times: {time.source}"]
    if time.tokens_per_second is not None:
        lines.append(f"Tokens: {time.tokens_per_second:,.0f} per second ({time.tokens_basis})")
    model, hardware = time.model_flops_utilisation, time.hardware_flops_utilisation
    if model is not None and hardware is not None:
        again = (
            "" if time.hardware_flops == time.model_flops else f"; with recomputation {_percent(hardware)}"
        )
        lines.append(f"Model flops utilisation: {_percent(model)} of the {time.peak_of} peak{again}")
    if time.bubble_share:
        lines.append(f"Pipeline bubble: {_percent(time.bubble_share)} of the step")
    exposed = {axis: s for axis, s in time.exposed_seconds.items() if s > 0}
    if exposed:
        named = ", ".join(
            f"{axis} {_seconds(s)}" for axis, s in sorted(exposed.items(), key=lambda item: -item[1])
        )
        lines.append(f"Exposed communication: {named} (mean over the ranks; {time.network})")
    if time.slowest_rank is not None and time.slowest_why:
        lines.append(f"Slowest: rank {time.slowest_rank}; {time.slowest_why}")
    return [Text(line) for line in lines]


def _rank_table(timed: dict[int, RankTimeResult]) -> FittedTable:
    chosen = sorted(timed.values(), key=lambda t: -(t.time.step_seconds - t.time.waiting_for_others))[
        :_RANK_ROWS
    ]
    rows: list[tuple[Cell, ...]] = []
    for each in sorted(chosen, key=lambda t: t.time.rank):
        time = each.time
        rows.append((str(time.rank), *(_share(s, time) for s in _parts(time))))
    if len(timed) > len(chosen):
        rows.append((f"(and {len(timed) - len(chosen)} more)", *[""] * 6))
    return FittedTable(
        ("rank", "kernels", "network", "peers", "bubble", "other streams", "host"), tuple(rows), ()
    )


def _parts(time: RankTime) -> tuple[float, ...]:
    return (
        time.compute_seconds,
        sum(time.exposed_seconds.values()),
        sum(time.peers_seconds.values()),
        time.bubble_seconds,
        time.streams_seconds,
        time.host_seconds,
    )


def _operator_table(shown: RankTimeResult) -> FittedTable:
    whole = shown.profile.seconds or 1.0
    rows: list[tuple[Cell, ...]] = []
    for op in shown.profile.operators[:_TOP_OPERATORS]:
        plain = [part.partition(" ")[0] for part in op.shapes.split(", ") if not part.startswith("and ")]
        large = [shape for shape in plain if "x" in shape] or plain  # not the bias
        shapes: Cell = (op.shapes, " · ".join(plain), " · ".join(large[:2]), large[0])
        rows.append(
            (
                op.op,
                _seconds(op.seconds),
                f"{100 * op.seconds / whole:.1f}%",
                str(op.count),
                _reached(op),
                shapes,
            )
        )
    return FittedTable(
        ("operator", "time", "share", "calls", "reaches", "shapes"), tuple(rows), ("shapes",), "operator"
    )


def _reached(op: OperatorTime) -> str:
    """Return FLOP/s for operators that compute, bytes per second for the others; empty if neither is known."""
    if op.tflops:
        return f"{op.tflops:.1f} Tflop/s" if op.tflops >= 0.1 else f"{1000 * op.tflops:.1f} Gflop/s"
    return f"{op.gbs:.0f} GB/s" if op.gbs else ""


def _module_table(shown: RankTimeResult) -> RenderableType:
    by_module = shown.profile.by_module
    whole = sum(by_module.values()) or 1.0
    deepest = max((name.count(".") + 1 for name in by_module), default=1)
    rows: list[tuple[str, float]] = []
    for depth in range(deepest, 0, -1):
        cut: dict[str, float] = {}
        for name, seconds in by_module.items():
            key = ".".join(name.split(".")[:depth])
            cut[key] = cut.get(key, 0.0) + seconds
        folded = fold_paths(set(cut))
        sums: dict[str, float] = {}
        for name, seconds in cut.items():
            sums[folded[name]] = sums.get(folded[name], 0.0) + seconds
        rows = [
            item
            for item in sorted(sums.items(), key=lambda item: -item[1])
            if item[1] >= _SMALLEST_SHARE * whole
        ]
        if len(rows) <= _MODULE_ROWS:
            break
    table = [
        (name or "(outside modules)", _seconds(seconds), f"{100 * seconds / whole:.1f}%")
        for name, seconds in rows[:_MODULE_ROWS]
    ]
    return plain_table(("module", "time", "share"), table)


def _of(timed: dict[int, RankTimeResult], shown: RankTimeResult) -> str:
    return f" of rank {shown.time.rank}" if len(timed) > 1 else ""


def _share(seconds: float, time: RankTime) -> str:
    text = f"{100 * seconds / time.step_seconds:.1f}%" if time.step_seconds else ""
    return "" if text == "0.0%" else text


def _seconds(seconds: float) -> str:
    return format_us(seconds * 1e6)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _titled(title: str, table: RenderableType) -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), table]
