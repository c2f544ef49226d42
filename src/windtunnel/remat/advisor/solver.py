"""What to drop and what to hold so that a step stays within a budget at the least extra time: solved, then checked.

    Problem ──> mixed-integer program (solver_model) ──HiGHS──> Choice ──> played exactly ──> Selection
                     ^────────── moments at which the played peak is still too high ──────────┘

The solver models when each result is saved and needed, that a call is recomputed at most once, and that its results
exist from the first load that needs them. It does not model bytes in use only during a recomputation. So every choice
is simulated exactly, moments that exceed the budget are added to the model, and only what really stays within the budget
is given out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from time import monotonic

import numpy as np

from windtunnel.remat.advisor.account import Costs, Played, play
from windtunnel.remat.advisor.lineage import NEVER, Lineage, trace_lineage
from windtunnel.remat.advisor.solver_model import solve
from windtunnel.remat.advisor.static_plan import Choice, StaticPlan, can_be_dropped, is_passing
from windtunnel.remat.simulated.program import Program

__all__ = ["Problem", "Selection", "gap_to", "select"]

_MOMENTS_AT_ONCE = 8
_EXACT_UNITS = 60  # with more, which calls run again early is learnt from what is played
_PROVEN = 1e-6


@dataclass(frozen=True)
class Selection:
    """The best choice found for one budget."""

    budget_bytes: int
    choice: Choice
    played: Played | None  # as it really is; None: no choice that stays within the budget is known
    bound_seconds: float  # by the solver's model no choice makes a step shorter
    is_impossible: bool = False  # by the model no choice stays within the budget

    @property
    def gap(self) -> float:
        """How much longer the step is than the bound, as a share; 0: nothing better exists."""
        if self.played is None:
            return inf
        return gap_to(self.bound_seconds, self.played.seconds)


def gap_to(bound_seconds: float, seconds: float) -> float:
    """How much longer than a bound, as a share; without a bound, no end."""
    if bound_seconds == inf:
        return inf
    gap = seconds / bound_seconds - 1 if bound_seconds else 0.0
    return gap if gap > _PROVEN else 0.0


class Problem:
    """A program with everything there is to choose from; made once, solved for many budgets."""

    def __init__(self, program: Program, costs: Costs, *, is_cuda: bool = False) -> None:
        self.program = program
        self.costs = costs
        self.is_cuda = is_cuda
        self.lineage: Lineage = trace_lineage(program, costs, is_cuda)
        self.kept = play(program, costs)  # nothing dropped
        self.droppable: dict[int, list[int]] = {}  # unit -> its results autograd alone holds
        for index, result in enumerate(self.lineage.results):
            if can_be_dropped(result) and result.first_load >= self.kept.first:
                self.droppable.setdefault(result.unit, []).append(index)
        self.first_load = {
            unit: min(self.lineage.results[r].first_load for r in results)
            for unit, results in self.droppable.items()
        }
        self.reads = self._find_reads()
        self.readers: dict[int, list[tuple[int, int]]] = {}  # unit -> unit that reads it, result
        for unit, read in self.reads.items():
            for index in read:
                self.readers.setdefault(self.lineage.results[index].unit, []).append((unit, index))
        self.holdable = {r for results in self.reads.values() for r in results if self._is_worth_holding(r)}

    def play(self, choice: Choice) -> Played:
        return play(self.program, self.costs, StaticPlan(self.program, self.lineage, choice))

    def is_wanted_by(self, unit: int, action: int) -> bool:
        return self.first_load.get(unit, NEVER) <= action

    def may_be_back_by(self, action: int) -> set[int]:
        """Units that some choice has run again by then, although nothing they saved was wanted yet."""
        waiting = [unit for unit in self.droppable if self.is_wanted_by(unit, action)]
        found: set[int] = set()
        while waiting:
            for result in self.reads[waiting.pop()]:
                unit = self.lineage.results[result].unit
                if unit not in found and not self.is_wanted_by(unit, action):
                    found.add(unit)
                    waiting.append(unit)
        return found

    def bytes_at(self, unit: int, action: int) -> int:
        """Of the droppable results of a unit, those only autograd holds then."""
        results = (self.lineage.results[r] for r in self.droppable.get(unit, ()))
        return sum(r.n_bytes for r in results if r.gone < action < r.end)

    def _find_reads(self) -> dict[int, list[int]]:
        """Every unit that may run again -> what it reads of others that may."""
        results = self.lineage.results
        found: dict[int, list[int]] = {}
        waiting = sorted(self.droppable)
        while waiting:
            unit = waiting.pop()
            if unit not in found:
                found[unit] = [
                    r for r in self.lineage.units[unit].reads
                    if is_passing(results[r]) or (can_be_dropped(results[r]) and results[r].unit in self.droppable)
                ]  # fmt: skip
                waiting += [results[r].unit for r in found[unit]]
        return found

    def _is_worth_holding(self, result: int) -> bool:
        """Not if holding what its only reader makes of it spares more and takes no more."""
        found = self.lineage.results[result]
        if not is_passing(found):
            return False
        readers = [reader for reader, r in self.readers[found.unit] if r == result]
        made = [self.lineage.results[r].n_bytes for r in self.lineage.units[readers[0]].makes]
        return len(readers) > 1 or sum(made) > found.n_bytes


def select(
    problem: Problem, budget_bytes: int, time_limit_s: float, starts: Iterable[Choice] = ()
) -> Selection:
    """The choice that keeps the peak within the budget and costs least, as far as the time allows.

    `starts` are choices to have before the solver answers.
    """
    search = _Search(problem, budget_bytes, monotonic() + time_limit_s)
    for choice in (Choice(), *starts, *_greedy(problem, budget_bytes)):
        search.take(choice, problem.play(choice))
    search.run()
    bound = inf if search.is_impossible else float(problem.kept.seconds + search.bound)
    return Selection(budget_bytes, _used(problem, search.choice), search.best, bound, search.is_impossible)


def _used(problem: Problem, choice: Choice) -> Choice:
    """Without results that the solver holds for no reader, which costs nothing."""
    read = StaticPlan(problem.program, problem.lineage, choice).schedule.last_use
    return Choice(choice.dropped, choice.held & read.keys())


def _greedy(problem: Problem, budget_bytes: int) -> Iterable[Choice]:
    """Cheapest bytes first, as few as are enough by bisection."""
    units, results = problem.lineage.units, problem.lineage.results
    size = {unit: sum(results[r].n_bytes for r in rs) for unit, rs in problem.droppable.items()}
    ordered = sorted(size, key=lambda unit: units[unit].seconds / max(size[unit], 1))
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        choice = Choice(frozenset(ordered[:middle]))
        if problem.play(choice).peak_bytes <= budget_bytes:
            yield choice
            high = middle
        else:
            low = middle + 1


class _Search:
    """Solve, simulate, add the moments that the solver missed, and repeat."""

    def __init__(self, problem: Problem, budget_bytes: int, until: float) -> None:
        self.problem = problem
        self.budget = budget_bytes
        self.until = until
        self.best: Played | None = None
        self.choice = Choice()
        self.bound = 0.0  # extra seconds
        self.is_impossible = False
        self._is_exact = len(problem.reads) <= _EXACT_UNITS
        self._moments: dict[int, set[int]] = {}  # action -> units that may be back by then
        self._reserves: dict[int, int] = {}  # action -> bytes the solver does not see
        self._add_moments(problem.kept, Choice())

    def run(self) -> None:
        if self.best is not None and self.best.recompute_seconds == 0:
            return  # it fits as it is
        while (left := self.until - monotonic()) > 0:
            solved = solve(self.problem, self.budget, self._moments, self._reserves, left)
            if not self._reserves:
                self.bound = max(self.bound, solved.bound)
                self.is_impossible = solved.is_infeasible
            if solved.choice is None:
                return
            played = self.problem.play(solved.choice)
            self.take(solved.choice, played)
            if played.peak_bytes <= self.budget:
                return
            if not self._add_moments(played, solved.choice):
                self._add_reserves(played)

    def take(self, choice: Choice, played: Played) -> None:
        is_better = self.best is None or played.seconds < self.best.seconds
        if played.peak_bytes <= self.budget and is_better:
            self.best, self.choice = played, choice

    def _add_moments(self, played: Played, choice: Choice) -> bool:
        """Add the moments that exceed the budget, and what had been recomputed by then. False: nothing new."""
        schedule = StaticPlan(self.problem.program, self.problem.lineage, choice).schedule
        is_new = False
        for at in self._too_high(played):
            if self._is_exact:
                early = self.problem.may_be_back_by(at)
            else:
                early = {
                    unit for when, unit in schedule.runs
                    if when <= at and unit in self.problem.reads and not self.problem.is_wanted_by(unit, at)
                }  # fmt: skip
            known = self._moments.get(at)
            is_new = is_new or known is None or not early <= known
            self._moments[at] = early | (known or set())
        return is_new

    def _too_high(self, played: Played) -> list[int]:
        """The highest action of each stretch over the budget, the highest few of them."""
        over = np.concatenate(([False], played.live_bytes > self.budget, [False]))
        borders = np.flatnonzero(np.diff(over.astype(np.int8)))
        stretches = zip(borders[::2], borders[1::2], strict=True)
        highest = [int(start + played.live_bytes[start:end].argmax()) for start, end in stretches]
        highest.sort(key=lambda at: -played.live_bytes[at])
        return [played.first + at for at in highest[:_MOMENTS_AT_ONCE]]

    def _add_reserves(self, played: Played) -> None:
        for at in self._too_high(played):
            excess = int(played.live_bytes[at - played.first]) - self.budget
            self._reserves[at] = self._reserves.get(at, 0) + excess
