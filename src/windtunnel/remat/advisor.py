"""Which way of computing again suits a program: every way on the same recording, time against memory.

    Program, costs ──> nothing dropped | checkpointed blocks | best fixed set | windtunnel.dtr ──> Advice

Checkpointing is what torch.utils.checkpoint would do. The fixed set is the solver's: what a plan that knows the whole
step could reach, so it also tells how far the others are from the best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from windtunnel.remat.account import Played, play
from windtunnel.remat.blocks import Block, find_blocks, name_blocks
from windtunnel.remat.checkpointing import CheckpointPlan
from windtunnel.remat.engine import Settings
from windtunnel.remat.program import Program
from windtunnel.remat.program_costs import ProgramCosts
from windtunnel.remat.selective import Problem, Selection, gap_to, select
from windtunnel.remat.selective_model import check_solver
from windtunnel.remat.simulate import simulate

__all__ = ["Advice", "Dropped", "Point", "Way", "advise", "choose_budgets", "lowest_possible"]

Way = Literal["nothing", "blocks", "fixed set", "dtr"]
Progress = Callable[[str, float], None]

_N_BUDGETS = 8
_DTR_TRIES = 6  # to find a threshold whose peak is within a budget
_SPARE = 0.05  # of the device, for what is not counted here: fragments, workspaces of libraries


@dataclass(frozen=True, slots=True)
class Dropped:
    """Calls of one operator that a set drops."""

    operator: str
    n_calls: int
    n_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Point:
    """One way at one budget: a step takes so long and this much memory at most."""

    way: Way
    label: str
    seconds: float
    peak_bytes: int
    slowdown: float  # 1.0: as long as with nothing dropped
    budget_bytes: int | None = None  # that was asked for
    n_blocks: int = 0  # checkpointed
    threshold_bytes: int = 0  # of windtunnel.dtr
    gap: float = 0.0  # of a fixed set: how much shorter a step could at best be, as a share
    dropped: tuple[Dropped, ...] = ()  # by a fixed set, most bytes first


@dataclass(frozen=True)
class Advice:
    device_bytes: int  # that the program may use
    budgets: tuple[int, ...]
    points: tuple[Point, ...]  # nothing dropped is the first
    blocks: str  # which were checkpointed
    n_blocks: int
    lowest_bytes: int  # in use at some moment whatever is dropped
    unreached_bytes: int  # the largest budget out of a fixed set's reach; 0: all were kept
    is_inferred: bool  # what autograd saves was guessed

    @property
    def room_bytes(self) -> int:
        """What a plan should stay within: the device, less a little for fragments and workspaces."""
        return int(self.device_bytes * (1 - _SPARE))

    @property
    def nothing(self) -> Point:
        return self.points[0]

    @property
    def every_block(self) -> Point | None:
        return next((p for p in self.points if p.way == "blocks" and p.n_blocks == self.n_blocks), None)

    def of(self, way: Way) -> tuple[Point, ...]:
        """The points of one way, most memory first."""
        return tuple(sorted((p for p in self.points if p.way == way), key=lambda p: -p.peak_bytes))

    def best(self, ways: Iterable[Way], budget_bytes: int) -> Point | None:
        """The fastest of these that stays within the budget; of equals, the one that takes least."""
        fitting = [p for p in self.points if p.way in ways and p.peak_bytes <= budget_bytes]
        return min(fitting, key=lambda p: (p.seconds, p.peak_bytes), default=None)


def advise(
    program: Program,
    costs: ProgramCosts,
    device_bytes: int,
    budgets: Sequence[int] | None = None,
    time_limit_s: float = 20.0,
    on_progress: Progress | None = None,
    *,
    is_cuda: bool = True,
    settings: Settings | None = None,
) -> Advice:
    """Compare all ways. `budgets` are bytes of the whole device in use; `time_limit_s` is the solver's, for all of them.

    `settings` are those of windtunnel.dtr; its threshold is set to each budget in turn.
    """
    check_solver()
    say = on_progress or (lambda text, share: None)
    say("nothing dropped", 0.0)
    problem = Problem(program, costs, is_cuda=is_cuda)
    nothing = problem.kept
    blocks = find_blocks(program)
    points = [_point("nothing", "plain training", nothing, nothing)]
    n_all = len({block.path for block in blocks})
    for n_blocks in _how_many(n_all):
        say(f"{n_blocks} of {n_all} blocks checkpointed", 0.0)
        points.append(_checkpointed(problem, blocks, n_blocks))
    every_block = points[-1] if blocks else None
    lowest = min(lowest_possible(problem), *(point.peak_bytes for point in points))
    asked = tuple(sorted(set(budgets or choose_budgets(problem, device_bytes, every_block)), reverse=True))
    unreached = 0
    for i, budget in enumerate(asked):
        say(f"best set within {budget:,} bytes", (2 * i + 1) / (2 * len(asked) + 1))
        selection = select(problem, budget, time_limit_s / len(asked))
        unreached = max(unreached, budget if selection.played is None else 0)
        points += _selected(problem, selection, every_block)
        say(f"windtunnel.dtr within {budget:,} bytes", (2 * i + 2) / (2 * len(asked) + 1))
        points.append(_dtr(program, costs, settings or Settings(), budget, nothing, is_cuda))
    return Advice(
        device_bytes, asked, tuple(points), name_blocks(blocks), n_all, lowest, unreached, program.is_inferred
    )  # fmt: skip


def lowest_possible(problem: Problem) -> int:
    """What is in use at some moment even if everything that can be dropped is away until it is wanted."""
    live = problem.kept.live_bytes.copy()
    first, end = problem.kept.first, problem.kept.first + len(live)
    change = np.zeros(len(live) + 1, np.int64)
    for results in problem.droppable.values():
        for result in (problem.lineage.results[r] for r in results):
            away, back = max(result.gone + 1, first), min(result.first_load, end)
            if away < back:
                change[away - first] += result.n_bytes
                change[back - first] -= result.n_bytes
    return int((live - np.cumsum(change[:-1])).max(initial=0))


def choose_budgets(problem: Problem, device_bytes: int, every_block: Point | None) -> list[int]:
    """Evenly from the lowest possible to the peak; what checkpointing takes; and what the device has room for."""
    lowest, peak = lowest_possible(problem), problem.kept.peak_bytes
    if every_block is not None:  # which runs calls again that nothing else may
        lowest = min(lowest, every_block.peak_bytes)
    found = {lowest + (peak - lowest) * i // _N_BUDGETS for i in range(1, _N_BUDGETS)}
    if every_block is not None and every_block.peak_bytes < peak:
        found.add(every_block.peak_bytes)
    room = int(device_bytes * (1 - _SPARE))
    if lowest <= room < peak:
        found.add(room)
    return sorted(found) or [peak]


def _how_many(n_blocks: int) -> list[int]:
    """Numbers of blocks to try: all of them last, and at most eight before."""
    steps = min(n_blocks, _N_BUDGETS)
    return sorted({round(n_blocks * (i + 1) / steps) for i in range(steps)}) if steps else []


def _checkpointed(problem: Problem, blocks: tuple[Block, ...], n_blocks: int) -> Point:
    """A block may run several times in a step, for one micro-batch after the other say."""
    paths = list(dict.fromkeys(block.path for block in blocks))
    wrapped = [block for block in blocks if block.path in paths[:n_blocks]]
    played = play(problem.program, problem.costs, CheckpointPlan(problem.program, problem.costs, wrapped))
    is_all = n_blocks == len(paths)
    label = "checkpoint every block" if is_all else f"checkpoint {n_blocks}/{len(paths)} blocks"
    return replace(_point("blocks", label, played, problem.kept), n_blocks=n_blocks)


def _selected(problem: Problem, selection: Selection, every_block: Point | None) -> list[Point]:
    budget, played = selection.budget_bytes, selection.played
    nothing = problem.kept
    is_beaten = (
        every_block is not None
        and every_block.peak_bytes <= budget
        and (played is None or every_block.seconds < played.seconds)
    )
    if is_beaten:  # checkpointed blocks are a fixed set as well
        assert every_block is not None
        gap = gap_to(selection.bound_seconds, every_block.seconds)
        return [replace(every_block, way="fixed set", budget_bytes=budget, gap=gap)]
    if played is None:
        return []
    point = _point("fixed set", "best fixed set", played, nothing)
    return [
        replace(
            point, budget_bytes=budget, gap=selection.gap, dropped=_summary(problem, selection.choice.dropped)
        )
    ]


def _summary(problem: Problem, dropped: Iterable[int]) -> tuple[Dropped, ...]:
    by_operator: dict[str, list[int]] = {}
    for unit in dropped:
        by_operator.setdefault(problem.lineage.units[unit].name, []).append(unit)
    found = []
    for operator, units in by_operator.items():
        results = [problem.lineage.results[r] for unit in units for r in problem.droppable.get(unit, ())]
        seconds = sum(problem.lineage.units[unit].seconds for unit in units)
        found.append(Dropped(operator, len(units), sum(r.n_bytes for r in results), seconds))
    return tuple(sorted(found, key=lambda d: (-d.n_bytes, d.operator)))


def _dtr(
    program: Program, costs: ProgramCosts, settings: Settings, budget: int, nothing: Played, is_cuda: bool
) -> Point:
    """The runtime with the threshold as high as its peak stays within the budget, if a few tries find one."""
    threshold = budget
    points = []
    for _ in range(_DTR_TRIES):
        outcome = simulate(program, costs, replace(settings, threshold=threshold), is_cuda=is_cuda)
        step = outcome.last_step
        if step is None:
            break
        seconds = nothing.seconds + step.extra_seconds
        slowdown = seconds / nothing.seconds if nothing.seconds else 1.0
        points.append(
            Point("dtr", "windtunnel.dtr", seconds, step.peak_live_bytes, slowdown, budget, 0, threshold)
        )
        over = step.peak_live_bytes - budget
        if over <= 0 or over >= threshold:
            break
        threshold -= max(over, budget // 100)
    within = [p for p in points if p.peak_bytes <= budget]
    return min(within, key=lambda p: p.seconds) if within else min(points, key=lambda p: p.peak_bytes)


def _point(way: Way, label: str, played: Played, nothing: Played) -> Point:
    slowdown = played.seconds / nothing.seconds if nothing.seconds else 1.0
    return Point(way, label, played.seconds, played.peak_bytes, slowdown)
