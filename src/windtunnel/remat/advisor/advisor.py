"""Compare the recomputation strategies for a program on the same recording: time against memory.

    Program, costs ──> nothing dropped | checkpointed blocks | best fixed set | windtunnel.dtr ──> Advice

Whether a way fits is the allocator's word: bytes reserved on the device, fragments included, as `run` has it.
Checkpointing is what torch.utils.checkpoint would do. The fixed set is the solver's: what a plan that knows the whole
step could reach, so it also shows how far the others are from the optimum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from windtunnel.memory import Allocator
from windtunnel.remat.advisor.account import Plan, Played, play
from windtunnel.remat.advisor.blocks import Block, find_blocks, in_every_step, name_blocks
from windtunnel.remat.advisor.checkpointing import CheckpointPlan
from windtunnel.remat.advisor.solver import Problem, Selection, gap_to, select
from windtunnel.remat.advisor.solver_model import check_solver
from windtunnel.remat.advisor.static_plan import StaticPlan
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.simulated.curve import MARGIN, MakeAllocator
from windtunnel.remat.simulated.program import Program
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.remat.simulated.simulate import simulate

__all__ = [
    "Advice",
    "Dropped",
    "Point",
    "Way",
    "advise",
    "checkpointing_points",
    "choose_budgets",
    "lowest_possible",
]

Way = Literal["nothing", "blocks", "fixed set", "dtr"]
Progress = Callable[[str, float], None]

_N_BUDGETS = 8
_DTR_TRIES = 6  # to find a threshold that stays within a budget
_DTR_STEPS = 100  # of the budget: the least that a threshold is lowered by


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
    budget_bytes: int | None = None  # that was requested
    n_blocks: int = 0  # checkpointed
    threshold_bytes: int = 0  # of windtunnel.dtr
    gap: float = 0.0  # of a fixed set: how much shorter a step could at best be, as a share
    dropped: tuple[Dropped, ...] = ()  # by a fixed set, most bytes first
    reserved_bytes: int = 0  # by the allocator, in the whole run; 0: it was not asked
    is_out_of_memory: bool = False  # on the device, or there only by giving the allocator's cache back
    is_confirmed: bool = False  # by a dry run of the program with this change

    @property
    def needs_bytes(self) -> int:
        """What a device must have room for."""
        return self.reserved_bytes or self.peak_bytes


@dataclass(frozen=True)
class Advice:
    device_bytes: int  # that the program may use
    budgets: tuple[int, ...]
    points: tuple[Point, ...]  # nothing dropped is the first
    blocks: str  # which were checkpointed
    n_blocks: int
    lowest_bytes: int  # in use at some moment whatever is dropped
    unreached_bytes: int  # the largest budget out of a fixed set's reach; 0: all were kept
    block_paths: tuple[str, ...] = ()  # in the order in which they are checkpointed

    @property
    def room_bytes(self) -> int:
        """What a plan should stay within: the device, less a little for what is not simulated."""
        return int(self.device_bytes * (1 - MARGIN))

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
        fitting = [
            p
            for p in self.points
            if p.way in ways and p.needs_bytes <= budget_bytes and not p.is_out_of_memory
        ]
        return min(fitting, key=lambda p: (p.seconds, p.needs_bytes), default=None)


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
    make_allocator: MakeAllocator | None = None,
) -> Advice:
    """Compare all ways. `budgets` are bytes of the whole device in use; `time_limit_s` is the solver's, for all of them.

    `settings` are those of windtunnel.dtr; its threshold is set to each budget in turn. Without `make_allocator`,
    memory is bytes in use.
    """
    check_solver()
    say = on_progress or (lambda text, share: None)
    say("nothing dropped", 0.0)
    problem = Problem(program, costs, is_cuda=is_cuda)
    judge = _Judge(problem, costs, device_bytes, make_allocator)
    blocks = find_blocks(program)
    nothing = judge.point("nothing", "plain training", problem.kept, Plan)
    points = [nothing]
    n_all = len({block.path for block in blocks})
    for n_blocks in _how_many(n_all):
        say(f"{n_blocks} of {n_all} blocks checkpointed", 0.0)
        points.append(_checkpointed(judge, blocks, n_blocks))
    every_block = points[-1] if blocks else None
    lowest = min(lowest_possible(problem), *(point.peak_bytes for point in points))
    chosen = budgets or choose_budgets(problem, device_bytes, every_block, nothing.needs_bytes)
    asked = tuple(sorted(set(chosen), reverse=True))
    unreached = 0
    for i, budget in enumerate(asked):
        say(f"best set within {budget:,} bytes", (2 * i + 1) / (2 * len(asked) + 1))
        within = budget * nothing.peak_bytes // nothing.needs_bytes if nothing.needs_bytes else budget
        selection = replace(select(problem, within, time_limit_s / len(asked)), budget_bytes=budget)
        unreached = max(unreached, budget if selection.played is None else 0)
        points += _selected(judge, selection, every_block)
        say(f"windtunnel.dtr within {budget:,} bytes", (2 * i + 2) / (2 * len(asked) + 1))
        points.append(judge.dtr(settings or Settings(), budget))
    return Advice(
        device_bytes, asked, tuple(points), name_blocks(blocks), n_all, lowest, unreached,
        tuple(dict.fromkeys(block.path for block in blocks)),
    )  # fmt: skip


def checkpointing_points(
    program: Program, costs: ProgramCosts, device_bytes: int, make_allocator: MakeAllocator, *, is_cuda: bool
) -> tuple[tuple[Point, ...], str, tuple[str, ...]]:
    """Half of the blocks and every block checkpointed; the blocks in words, and their paths. Nothing if nothing repeats."""
    judge = _Judge(Problem(program, costs, is_cuda=is_cuda), costs, device_bytes, make_allocator)
    blocks = find_blocks(program)
    paths = tuple(dict.fromkeys(block.path for block in blocks))
    numbers = sorted({len(paths) // 2, len(paths)} - {0})
    points = tuple(_checkpointed(judge, blocks, n_blocks) for n_blocks in numbers)
    return points, name_blocks(blocks), paths


class _Judge:
    """Asks the allocator what a way reserves, and whether the device has it."""

    def __init__(
        self,
        problem: Problem,
        costs: ProgramCosts,
        device_bytes: int,
        make_allocator: MakeAllocator | None,
    ) -> None:
        self.problem = problem
        self._costs = costs
        self._device_bytes = device_bytes
        self._make_allocator = make_allocator

    def point(
        self, way: Way, label: str, played: Played, make_plan: Callable[[], Plan], *, is_whole: bool = True
    ) -> Point:
        """`is_whole`: the plan is for all steps, not for the last one only."""
        nothing = self.problem.kept
        slowdown = played.seconds / nothing.seconds if nothing.seconds else 1.0
        point = Point(way, label, played.seconds, played.peak_bytes, slowdown)
        if self._make_allocator is None:
            return replace(point, is_out_of_memory=played.peak_bytes > self._device_bytes)
        free = self._make_allocator(None)
        self._play(make_plan(), free, is_whole)
        reserved = free.peak_reserved_bytes
        is_full = reserved > self._device_bytes  # then it may still live by giving its cache back, stalling
        return replace(point, reserved_bytes=reserved, is_out_of_memory=is_full)

    def _play(self, plan: Plan, allocator: Allocator, is_whole: bool) -> None:
        play(self.problem.program, self.problem.costs, plan, allocator, is_for_last_step=not is_whole)

    def dtr(self, settings: Settings, budget: int) -> Point:
        """The runtime with the threshold as high as it stays within the budget, if a few tries find one."""
        threshold = budget
        points: list[Point] = []
        for _ in range(_DTR_TRIES):
            point = self._dtr_at(replace(settings, threshold=threshold), budget)
            if point is None:
                break
            points.append(point)
            over = point.needs_bytes - budget
            if (over <= 0 and not point.is_out_of_memory) or over >= threshold:
                break
            threshold -= max(over, budget // _DTR_STEPS)
            if threshold <= 0:
                break
        within = [p for p in points if p.needs_bytes <= budget and not p.is_out_of_memory]
        if within:
            return min(within, key=lambda p: p.seconds)
        return min(points, key=lambda p: (p.is_out_of_memory, p.needs_bytes))

    def _dtr_at(self, settings: Settings, budget: int) -> Point | None:
        problem = self.problem
        allocator = self._make_allocator(self._device_bytes) if self._make_allocator is not None else None
        outcome = simulate(problem.program, self._costs, settings, allocator, is_cuda=problem.is_cuda)
        step = outcome.last_step
        if step is None:
            return None
        stalls = sum(each.allocation_retries + each.cache_flushes for each in outcome.steps)
        reserved = max(each.peak_reserved_bytes for each in outcome.steps)
        live = max(each.peak_live_bytes for each in outcome.steps) if allocator else step.peak_live_bytes
        seconds = problem.kept.seconds + step.extra_seconds
        slowdown = seconds / problem.kept.seconds if problem.kept.seconds else 1.0
        is_full = outcome.out_of_memory is not None or bool(stalls) or live > self._device_bytes
        return Point(
            "dtr", "windtunnel.dtr", seconds, live, slowdown, budget, 0, settings.threshold or 0,
            reserved_bytes=reserved, is_out_of_memory=is_full,
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


def choose_budgets(
    problem: Problem, device_bytes: int, every_block: Point | None, needs_bytes: int | None = None
) -> list[int]:
    """Evenly from the lowest possible to the need; what checkpointing takes; and what the device has room for."""
    lowest, peak = lowest_possible(problem), needs_bytes or problem.kept.peak_bytes
    if every_block is not None:  # which runs calls again that nothing else may
        lowest = min(lowest, every_block.needs_bytes)
    found = {lowest + (peak - lowest) * i // _N_BUDGETS for i in range(1, _N_BUDGETS)}
    if every_block is not None and every_block.needs_bytes < peak:
        found.add(every_block.needs_bytes)
    room = int(device_bytes * (1 - MARGIN))
    if lowest <= room < peak:
        found.add(room)
    return sorted(found) or [peak]


def _how_many(n_blocks: int) -> list[int]:
    """Numbers of blocks to try: all of them last, and at most eight before."""
    steps = min(n_blocks, _N_BUDGETS)
    return sorted({round(n_blocks * (i + 1) / steps) for i in range(steps)}) if steps else []


def _checkpointed(judge: _Judge, blocks: tuple[Block, ...], n_blocks: int) -> Point:
    """A block may run several times in a step, for example once per micro-batch."""
    paths = list(dict.fromkeys(block.path for block in blocks))
    program, costs = judge.problem.program, judge.problem.costs
    wrapped = in_every_step(program, (block for block in blocks if block.path in paths[:n_blocks]))
    played = play(program, costs, CheckpointPlan(program, costs, wrapped))
    is_all = n_blocks == len(paths)
    label = "checkpoint every block" if is_all else f"checkpoint {n_blocks}/{len(paths)} blocks"
    point = judge.point("blocks", label, played, lambda: CheckpointPlan(program, costs, wrapped))
    return replace(point, n_blocks=n_blocks)


def _selected(judge: _Judge, selection: Selection, every_block: Point | None) -> list[Point]:
    budget, played, problem = selection.budget_bytes, selection.played, judge.problem
    is_beaten = (
        every_block is not None
        and every_block.needs_bytes <= budget
        and (played is None or every_block.seconds < played.seconds)
    )
    if is_beaten:  # checkpointed blocks are a fixed set as well
        assert every_block is not None
        gap = gap_to(selection.bound_seconds, every_block.seconds)
        return [replace(every_block, way="fixed set", budget_bytes=budget, gap=gap)]
    if played is None:
        return []
    point = judge.point(
        "fixed set",
        "best fixed set",
        played,
        lambda: StaticPlan(problem.program, problem.lineage, selection.choice),
        is_whole=False,
    )
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
