"""The mixed-integer program behind the best fixed choice, for one budget.

    Problem, budget, moments ──> rows and columns ──scipy, HiGHS──> Choice, and a bound

For each unit: drop (what it saved), run (again, some time). For each result nobody saves: keep. For each moment at
which memory may be short: back (has run again although its own results were not wanted yet) and hold (is kept, and a
run that reads it is still to come). Given drops and keeps, the others are forced from below by whole numbers, so only
those two are integer.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from windtunnel.errors import MissingFramework
from windtunnel.remat.advisor.static_plan import Choice, can_be_dropped

if TYPE_CHECKING:
    from windtunnel.remat.advisor.solver import Problem

__all__ = ["Solved", "check_solver", "solve"]

_SCALE = 1000.0  # of the objective: the solver's tolerances are absolute
_OPTIMAL_ENOUGH = 1e-6
_INFEASIBLE = 2


@dataclass(frozen=True)
class Solved:
    choice: Choice | None
    bound: float  # extra seconds
    is_infeasible: bool = False


def solve(
    problem: Problem,
    budget: int,
    moments: Mapping[int, set[int]],
    reserves: Mapping[int, int],
    time_limit_s: float,
) -> Solved:
    """Find the cheapest choice that keeps to the budget, less its reserve, at these moments.

    A moment is an action, with the units that may be back by then.
    """
    model = _Model(problem)
    for at, early in moments.items():
        model.add_moment(budget, reserves.get(at, 0), at, early)
    return model.solve(time_limit_s)


def check_solver() -> None:
    """Raise if there is no solver in this Python."""
    _scipy()


def _scipy() -> tuple[Any, Any]:
    try:
        from scipy import optimize, sparse
    except ModuleNotFoundError as error:
        if error.name != "scipy":
            raise
        raise MissingFramework(
            "scipy is not installed in this Python", hint="pip install 'windtunnel[plan]'"
        ) from error
    return optimize, sparse


@contextmanager
def _no_chatter() -> Iterator[None]:
    """HiGHS at times prints a line meant for its authors, from C++: it must not end up in ours."""
    sys.stdout.flush()
    terminal = os.dup(1)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(terminal, 1)
        os.close(terminal)
        os.close(nowhere)


class _Model:
    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self._columns: dict[tuple[Any, ...], int] = {}
        self._rows: list[tuple[dict[int, float], float]] = []  # coefficients, and their sum is at least
        self._runs_alone = {
            unit for unit in problem.reads
            if unit not in problem.droppable or any(not self._is_saved(r) for _, r in problem.readers.get(unit, ()))
        }  # fmt: skip
        for unit, results in problem.reads.items():
            if unit in problem.droppable and unit in self._runs_alone:
                self._at_least({self._run(unit): 1, self._drop(unit): -1}, 0)
            for result in results:
                if not self._is_saved(result):
                    maker = problem.lineage.results[result].unit
                    self._at_least({self._run(maker): 1, self._run(unit): -1, **self._kept(result)}, 0)

    # -- memory at one moment ------------------------------------------------------------------------------

    def add_moment(self, budget: int, reserve: int, at: int, early: set[int]) -> None:
        problem = self.problem
        live = int(problem.kept.live_bytes[at - problem.kept.first])
        row: dict[int, float] = {}
        for unit in problem.droppable:
            n_bytes = problem.bytes_at(unit, at)
            if n_bytes and not problem.is_wanted_by(unit, at):
                row[self._drop(unit)] = n_bytes / budget
                if unit in early:
                    row[self._back(unit, at)] = -n_bytes / budget
        for unit in early:
            self._add_returns(unit, at, early)
        for result in problem.holdable:
            found = problem.lineage.results[result]
            if found.gone < at and self._add_hold(result, at, early):
                row[self._column("hold", result, at)] = -found.n_bytes / budget
        self._at_least(row, (live + reserve - budget) / budget)

    def _add_returns(self, unit: int, at: int, early: set[int]) -> None:
        """It is back if a reader is, and it was away; and only if a reader is."""
        back = self._back(unit, at)
        only_if: dict[int, float] = {back: -1.0}
        is_complete = True
        for reader, result in self.problem.readers.get(unit, ()):
            if self.problem.is_wanted_by(reader, at):
                has_run, may_have_run = self._drop(reader), self._run(reader)
            elif reader in early:
                has_run = may_have_run = self._back(reader, at)
            else:
                is_complete = False
                continue
            only_if[may_have_run] = 1.0
            if self._is_saved(result):
                self._at_least({back: 1, has_run: -1, self._drop(unit): -1}, -1)
            else:
                self._at_least({back: 1, has_run: -1, **self._kept(result)}, 0)
        if is_complete:
            self._at_least(only_if, 0)
        self._at_least({self._run(unit): 1, back: -1}, 0)

    def _add_hold(self, result: int, at: int, early: set[int]) -> bool:
        """A kept result is held while a reader that will run has not."""
        is_any = False
        for reader, read in self.problem.readers[self.problem.lineage.results[result].unit]:
            if read == result and not self.problem.is_wanted_by(reader, at):
                hold, keep = self._column("hold", result, at), self._column("keep", result)
                row = {hold: 1.0, keep: -1.0, self._run(reader): -1.0}
                if reader in early:
                    row[self._back(reader, at)] = 1.0
                self._at_least(row, -1)
                is_any = True
        return is_any

    # -- columns -------------------------------------------------------------------------------------------

    def _is_saved(self, result: int) -> bool:
        return can_be_dropped(self.problem.lineage.results[result])

    def _drop(self, unit: int) -> int:
        """Of a unit that saved nothing: whether it runs is all there is."""
        return self._column("drop", unit) if unit in self.problem.droppable else self._run(unit)

    def _run(self, unit: int) -> int:
        """A unit all of whose results are saved runs again just if they are dropped."""
        return self._column("run" if unit in self._runs_alone else "drop", unit)

    def _back(self, unit: int, at: int) -> int:
        return self._column("back", unit, at)

    def _kept(self, result: int) -> dict[int, float]:
        return {self._column("keep", result): 1.0} if result in self.problem.holdable else {}

    def _column(self, *name: Any) -> int:
        return self._columns.setdefault(name, len(self._columns))

    def _at_least(self, row: dict[int, float], least: float) -> None:
        self._rows.append((row, least))

    # -- the solver ----------------------------------------------------------------------------------------

    def solve(self, time_limit_s: float) -> Solved:
        optimize, sparse = _scipy()
        costs = [(self._run(unit), self.problem.lineage.units[unit].seconds) for unit in self.problem.reads]
        if not self._columns or any(not row and least > 0 for row, least in self._rows):
            return Solved(None, float("inf"), True)  # nothing to choose, and it is not enough
        seconds = np.zeros(len(self._columns))
        for column, cost in costs:
            seconds[column] = cost
        scale = _SCALE / (seconds.sum() or 1.0)
        rows = [i for i, (row, _) in enumerate(self._rows) for _ in row]
        columns = [column for row, _ in self._rows for column in row]
        values = [value for row, _ in self._rows for value in row.values()]
        matrix = sparse.csr_array((values, (rows, columns)), shape=(len(self._rows), len(seconds)))
        with _no_chatter():
            found = optimize.milp(
                seconds * scale,
                integrality=np.array([name[0] in ("drop", "keep") for name in self._columns], int),
                bounds=optimize.Bounds(0, 1),
                constraints=optimize.LinearConstraint(matrix, [least for _, least in self._rows], np.inf),
                options={"time_limit": time_limit_s, "mip_rel_gap": _OPTIMAL_ENOUGH},
            )
        bound = getattr(found, "mip_dual_bound", None)
        bound = max(bound, 0.0) / scale if bound is not None and np.isfinite(bound) else 0.0
        if found.x is None:
            return Solved(None, bound, found.status == _INFEASIBLE)
        chosen: dict[str, set[int]] = {"drop": set(), "keep": set()}
        for name, column in self._columns.items():
            if name[0] in chosen and found.x[column] > 0.5:
                chosen[name[0]].add(name[1])
        return Solved(Choice(frozenset(chosen["drop"]), frozenset(chosen["keep"])), bound)
