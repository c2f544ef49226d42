"""Which saved results to drop so that a step stays within a budget at the least extra time: solved, then checked.

    Lineage ──> mixed-integer program ──HiGHS──> a set of calls ──> played exactly ──> Selection
                      ^───────── moments where the played peak is still too high ─────────┘

What the program knows: a call runs again once if its results are dropped, and so do the calls between it and what is
kept, each counted once; what runs again is resident from the first load that needs it. What it does not know: bytes
in use only while calls run again, and what has to be held on to for them. So its answer is a bound that no such plan
can beat, and every set it finds is played: only those that really stay within the budget are given out. Results that
together make a thousandth of all saved bytes are always kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Any

import numpy as np

from windtunnel.errors import MissingFramework
from windtunnel.remat.account import Costs, Played, play
from windtunnel.remat.lineage import Lineage, trace_lineage
from windtunnel.remat.program import Program
from windtunnel.remat.static_plan import StaticPlan, can_be_dropped, must_run_again

__all__ = ["Problem", "Selection", "check_solver", "select"]

_TOO_SMALL_TO_ASK = 0.001  # of all saved bytes, together
_MOMENTS_AT_ONCE = 8
_SCALE = 1000.0  # of the objective: the solver's tolerances are absolute
_PROVEN = 1e-6


@dataclass(frozen=True)
class Selection:
    """The best set found for one budget."""

    budget_bytes: int
    dropped: frozenset[int]  # units of the lineage
    played: Played | None  # as it really is; None: no set that stays within the budget is known
    bound_seconds: float  # no such set makes a step shorter
    is_impossible: bool = False  # proven: no set stays within the budget

    @property
    def gap(self) -> float:
        """How much longer the step is than the bound, as a share; 0: nothing better exists."""
        if self.played is None:
            return float("inf")
        gap = self.played.seconds / self.bound_seconds - 1 if self.bound_seconds else 0.0
        return gap if gap > _PROVEN else 0.0


class Problem:
    """A program with everything the sets are chosen from; made once, solved for many budgets."""

    def __init__(self, program: Program, costs: Costs, *, is_cuda: bool = False) -> None:
        self.program = program
        self.costs = costs
        self.lineage: Lineage = trace_lineage(program, costs, is_cuda)
        self.kept = play(program, costs)  # nothing dropped
        results = self.lineage.results
        found: dict[int, list[int]] = {}
        for index, result in enumerate(results):
            if can_be_dropped(result) and result.first_load >= self.kept.first:
                found.setdefault(result.unit, []).append(index)
        self.results_of = self._large_enough(found)
        self.parents = self._passing_parents()
        self.consumers: dict[int, list[int]] = {}
        for unit in self.parents:
            for result in self.lineage.units[unit].reads:
                maker = results[result].unit
                if maker in self.parents:
                    self.consumers.setdefault(maker, []).append(unit)

    def play(self, dropped: Iterable[int]) -> Played:
        return play(self.program, self.costs, StaticPlan(self.program, self.lineage, frozenset(dropped)))

    def first_load(self, unit: int) -> int:
        results = self.lineage.results
        return min((results[r].first_load for r in self.results_of.get(unit, ())), default=1 << 62)

    def bytes_at(self, unit: int, action: int) -> int:
        """Of the droppable results of a unit, those only autograd holds then."""
        results = (self.lineage.results[r] for r in self.results_of.get(unit, ()))
        return sum(r.n_bytes for r in results if r.gone < action < r.end)

    def must_follow(self, result: int) -> bool:
        """Whether this result is never kept: its maker runs again whenever a reader does."""
        return not can_be_dropped(self.lineage.results[result]) and must_run_again(self.lineage, result, ())

    def _large_enough(self, found: dict[int, list[int]]) -> dict[int, list[int]]:
        size = {
            unit: sum(self.lineage.results[r].n_bytes for r in results) for unit, results in found.items()
        }
        spare = sum(size.values()) * _TOO_SMALL_TO_ASK
        for unit in sorted(size, key=lambda unit: size[unit]):
            spare -= size[unit]
            if spare < 0:
                break
            del found[unit]
        return found

    def _passing_parents(self) -> dict[int, list[int]]:
        """Every unit that may run again -> the units that then must run as well."""
        found: dict[int, list[int]] = {}
        waiting = sorted(self.results_of)
        while waiting:
            unit = waiting.pop()
            if unit in found:
                continue
            reads = self.lineage.units[unit].reads
            found[unit] = [self.lineage.results[r].unit for r in reads if self.must_follow(r)]
            waiting += found[unit]
        return found


def select(problem: Problem, budget_bytes: int, time_limit_s: float) -> Selection:
    """The set that keeps the peak within the budget and costs least, as far as the time allows."""
    search = _Search(problem, budget_bytes, monotonic() + time_limit_s)
    search.try_sets(_greedy_sets(problem, budget_bytes))
    search.run()
    return Selection(
        budget_bytes, search.dropped, search.best, problem.kept.seconds + search.bound, search.is_impossible
    )


def check_solver() -> None:
    """Raise if there is no solver in this Python."""
    _milp()


def _milp() -> Any:
    try:
        from scipy import optimize, sparse
    except ModuleNotFoundError as error:
        if error.name != "scipy":
            raise
        raise MissingFramework(
            "scipy is not installed in this Python", hint="pip install 'windtunnel[plan]'"
        ) from error
    return optimize, sparse


def _greedy_sets(problem: Problem, budget_bytes: int) -> Iterable[frozenset[int]]:
    """Cheapest bytes first, as few as are enough by bisection: something to have before the solver answers."""
    yield frozenset()
    units = problem.lineage.units
    size = {
        unit: sum(problem.lineage.results[r].n_bytes for r in rs) for unit, rs in problem.results_of.items()
    }
    ordered = sorted(size, key=lambda unit: units[unit].seconds / max(size[unit], 1))
    low, high = 0, len(ordered)
    while low < high:
        middle = (low + high) // 2
        dropped = frozenset(ordered[:middle])
        yield dropped
        if problem.play(dropped).peak_bytes <= budget_bytes:
            high = middle
        else:
            low = middle + 1
    yield frozenset(ordered[:low])


class _Search:
    """Solve, play, tell the solver about the moments it did not know, again."""

    def __init__(self, problem: Problem, budget_bytes: int, until: float) -> None:
        self.problem = problem
        self.budget = budget_bytes
        self.until = until
        self.best: Played | None = None
        self.dropped: frozenset[int] = frozenset()
        self.bound = 0.0  # extra seconds
        self.is_impossible = False
        self._moments: dict[
            int, set[int]
        ] = {}  # action -> units that may be back by then, before their own load
        self._reserves: dict[int, int] = {}  # action -> bytes the solver does not see
        self._add_moments(problem.kept, frozenset())

    def try_sets(self, sets: Iterable[frozenset[int]]) -> None:
        for dropped in sets:
            self._take(dropped, self.problem.play(dropped))

    def run(self) -> None:
        if self.best is not None and self.best.recompute_seconds == 0:
            return  # it fits as it is
        while (left := self.until - monotonic()) > 0:
            solved = _Model(self.problem, self.budget, self._moments, self._reserves).solve(left)
            if not self._reserves:
                self.bound = max(self.bound, solved.bound)
                self.is_impossible = solved.is_infeasible
            if solved.dropped is None:
                return
            played = self.problem.play(solved.dropped)
            self._take(solved.dropped, played)
            if played.peak_bytes <= self.budget:
                return
            if not self._add_moments(played, solved.dropped):
                self._add_reserves(played)

    def _take(self, dropped: frozenset[int], played: Played) -> None:
        is_better = self.best is None or played.seconds < self.best.seconds
        if played.peak_bytes <= self.budget and is_better:
            self.best, self.dropped = played, dropped

    def _add_moments(self, played: Played, dropped: frozenset[int]) -> bool:
        """The moments the budget is exceeded, and what had been computed again by then. False: nothing new."""
        schedule = StaticPlan(self.problem.program, self.problem.lineage, dropped).schedule
        is_new = False
        for at in self._too_high(played):
            early = {
                unit for when, unit in schedule.runs
                if when <= at < self.problem.first_load(unit) and unit in self.problem.parents
            }  # fmt: skip
            known = self._moments.get(at)
            is_new = is_new or known is None or not early <= known
            self._moments[at] = early | (known or set())
        return is_new

    def _too_high(self, played: Played) -> list[int]:
        """The highest action of each stretch over the budget, the highest few of them."""
        over = played.live_bytes > self.budget
        borders = np.flatnonzero(np.diff(np.concatenate(([False], over, [False])).astype(np.int8)))
        highest = [
            int(a + played.live_bytes[a:b].argmax()) for a, b in zip(borders[::2], borders[1::2], strict=True)
        ]
        highest.sort(key=lambda at: -played.live_bytes[at])
        return [played.first + at for at in highest[:_MOMENTS_AT_ONCE]]

    def _add_reserves(self, played: Played) -> None:
        for at in self._too_high(played):
            excess = int(played.live_bytes[at - played.first]) - self.budget
            self._reserves[at] = self._reserves.get(at, 0) + excess


@dataclass(frozen=True)
class _Solved:
    dropped: frozenset[int] | None
    bound: float  # extra seconds
    is_infeasible: bool = False


class _Model:
    """The mixed-integer program for one budget.

    Variables: drop[u] (binary), run[u] >= drop[u], and back[u, moment]: run again before its own load comes. Given
    the drops, the other two are forced from below by whole numbers, so they need not be integer themselves.
    """

    def __init__(
        self, problem: Problem, budget: int, moments: dict[int, set[int]], reserves: dict[int, int]
    ) -> None:
        self.problem = problem
        self._columns: dict[Any, int] = {}
        self._rows: list[tuple[dict[int, float], float]] = []  # coefficients, at least
        self.is_hopeless = False
        for unit in sorted(problem.results_of):
            self._column("drop", unit)
        for unit, parents in problem.parents.items():
            if unit in problem.results_of and self._can_run_undropped(unit):
                self._at_least({self._run(unit): 1, self._column("drop", unit): -1}, 0)
            for parent in parents:
                self._at_least({self._run(parent): 1, self._run(unit): -1}, 0)
        for at, early in moments.items():
            self._add_moment(budget - reserves.get(at, 0), at, early)

    def _can_run_undropped(self, unit: int) -> bool:
        """Whether it may have to run for a result that is never kept, whatever happens to the others."""
        return any(self.problem.must_follow(result) for result in self.problem.lineage.units[unit].makes)

    def _run(self, unit: int) -> int:
        if unit in self.problem.results_of and not self._can_run_undropped(unit):
            return self._column("drop", unit)
        return self._column("run", unit)

    def _add_moment(self, budget: int, at: int, early: set[int]) -> None:
        problem = self.problem
        spare = budget - int(problem.kept.live_bytes[at - problem.kept.first])
        row: dict[int, float] = {}
        for unit in problem.results_of:
            n_bytes = problem.bytes_at(unit, at)
            if n_bytes and problem.first_load(unit) > at:
                row[self._column("drop", unit)] = n_bytes
                if unit in early:
                    row[self._back(unit, at)] = -n_bytes
        if sum(n for n in row.values() if n > 0) < -spare:
            self.is_hopeless = True
        self._at_least({column: n / budget for column, n in row.items()}, -spare / budget)
        for unit in early:
            for reader in problem.consumers.get(unit, ()):
                self._add_return(unit, reader, at, early)

    def _add_return(self, unit: int, reader: int, at: int, early: set[int]) -> None:
        """If the reader has run by then and this was dropped, it has run as well."""
        if self.problem.first_load(reader) <= at:
            has_run = self._column("drop", reader)
        elif reader in early:
            has_run = self._back(reader, at)
        else:
            return
        row = {self._back(unit, at): 1.0, has_run: -1.0}
        least = 0.0
        if unit in self.problem.results_of and not self._is_followed(unit, reader):
            row[self._column("drop", unit)] = -1.0
            least = -1.0
        self._at_least(row, least)

    def _is_followed(self, unit: int, reader: int) -> bool:
        return unit in self.problem.parents[reader]

    def _back(self, unit: int, at: int) -> int:
        return self._column("back", unit, at)

    def _column(self, *name: Any) -> int:
        return self._columns.setdefault(name, len(self._columns))

    def _at_least(self, row: dict[int, float], least: float) -> None:
        self._rows.append((row, least))

    def solve(self, time_limit_s: float) -> _Solved:
        if self.is_hopeless:
            return _Solved(None, float("inf"), True)
        optimize, sparse = _milp()
        seconds = np.zeros(len(self._columns))
        for unit in self.problem.parents:
            seconds[self._run(unit)] = self.problem.lineage.units[unit].seconds
        seconds = np.append(seconds, np.zeros(len(self._columns) - len(seconds)))
        scale = _SCALE / max(seconds.sum(), 1e-30)
        rows = [i for i, (row, _) in enumerate(self._rows) for _ in row]
        columns = [column for row, _ in self._rows for column in row]
        values = [value for row, _ in self._rows for value in row.values()]
        matrix = sparse.csr_array((values, (rows, columns)), shape=(len(self._rows), len(seconds)))
        is_drop = np.array([name[0] == "drop" for name in self._columns])
        found = optimize.milp(
            seconds * scale,
            integrality=is_drop.astype(int),
            bounds=optimize.Bounds(0, 1),
            constraints=optimize.LinearConstraint(matrix, [least for _, least in self._rows], np.inf),
            options={"time_limit": time_limit_s, "mip_rel_gap": 1e-6},
        )
        bound = getattr(found, "mip_dual_bound", None)
        bound = max(bound, 0.0) / scale if bound is not None and np.isfinite(bound) else 0.0
        if found.x is None:
            return _Solved(None, bound, found.status == 2)
        drops = [(name[1], column) for name, column in self._columns.items() if name[0] == "drop"]
        return _Solved(frozenset(unit for unit, column in drops if found.x[column] > 0.5), bound)
