"""A fixed choice of what to drop and what to hold, simulated exactly to check the solver's prediction.

    Lineage, Choice ──> schedule (what runs again, when) ──> StaticPlan ──> account.play ──> true time and peak

Every dropped call runs again once: when backward first wants something that needs it, together with the calls
between what is kept and what is wanted. Whatever it made is then held until its last use, by autograd or by a
later run. Results that autograd does not save can be held as well, if running from them is cheaper.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.remat.advisor.account import Account, Key, Plan
from windtunnel.remat.advisor.lineage import NEVER, Lineage, Result
from windtunnel.remat.simulated.program import Load, Program

__all__ = ["Choice", "Schedule", "StaticPlan", "can_be_dropped", "is_passing"]


@dataclass(frozen=True)
class Choice:
    """What a step does otherwise than plain training."""

    dropped: frozenset[int] = frozenset()  # units whose saved tensors are dropped
    held: frozenset[int] = frozenset()  # results that are not saved, held until the last run that reads them


def can_be_dropped(result: Result) -> bool:
    """Saved, held by autograd alone when backward wants it, and some call can make it again."""
    is_autograds = bool(result.handles) and result.gone < result.first_load < NEVER
    return is_autograds and result.unit >= 0 and not result.is_overwritten


def is_passing(result: Result) -> bool:
    """Not saved, and freed before backward begins: it exists again only if its call runs again."""
    is_gone = result.gone < result.first_load and (result.is_overwritten or not result.handles)
    return is_gone and result.unit >= 0


class Schedule:
    """The runs in order, and what each of them needs."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, int]] = []  # action of the load, unit
        self.run_of: dict[int, int] = {}  # unit -> position in runs
        self.last_use: dict[int, int] = {}  # result -> position in runs of the last one that reads it


def _make_schedule(program: Program, lineage: Lineage, choice: Choice) -> Schedule:
    schedule = Schedule()
    for at, action in enumerate(program.actions):
        if type(action) is Load and action.handle in lineage.of_handle:
            result = lineage.results[lineage.of_handle[action.handle]]
            if can_be_dropped(result) and result.unit in choice.dropped:
                _run_with_parents(lineage, choice, schedule, at, result.unit)
    return schedule


def _run_with_parents(lineage: Lineage, choice: Choice, schedule: Schedule, at: int, unit: int) -> None:
    """Depth first, with an explicit stack: chains may be as long as the program."""
    waiting = [] if unit in schedule.run_of else [(unit, _missing(lineage, choice, unit))]
    while waiting:
        top, missing = waiting[-1]
        parent = next((each for each in missing if each not in schedule.run_of), None)
        if parent is not None:
            waiting.append((parent, _missing(lineage, choice, parent)))
            continue
        waiting.pop()
        if top not in schedule.run_of:
            position = schedule.run_of[top] = len(schedule.runs)
            schedule.runs.append((at, top))
            for result in lineage.units[top].reads:
                schedule.last_use[result] = position


def _missing(lineage: Lineage, choice: Choice, unit: int) -> Iterator[int]:
    for result in lineage.units[unit].reads:
        if _is_gone(lineage, choice, result):
            yield lineage.results[result].unit


def _is_gone(lineage: Lineage, choice: Choice, result: int) -> bool:
    """Whether a call that reads this result, run again, does not find it."""
    found = lineage.results[result]
    if can_be_dropped(found):
        return found.unit in choice.dropped
    return result not in choice.held and is_passing(found)


class StaticPlan(Plan):
    def __init__(self, program: Program, lineage: Lineage, choice: Choice) -> None:
        self.lineage = lineage
        self.choice = choice
        self.schedule = _make_schedule(program, lineage, choice)
        self._next = 0  # of the runs
        self._open: dict[int, int] = {}  # result -> handles autograd has on it
        self._extended = self._find_extended()  # action -> results to hold on to before it

    def _find_extended(self) -> dict[int, list[int]]:
        """What is kept, but let go of before the last run that reads it: the plan holds it until then."""
        found: dict[int, list[int]] = {}
        for result, position in self.schedule.last_use.items():
            if not self._comes_again(result) and self.lineage.results[result].gone < NEVER:
                at = self.schedule.runs[position][0]
                if self.lineage.results[result].gone < at:
                    found.setdefault(self.lineage.results[result].gone, []).append(result)
        return found

    def _comes_again(self, result: int) -> bool:
        unit = self.lineage.results[result].unit
        return unit in self.schedule.run_of and _is_gone(self.lineage, self.choice, result)

    def begin(self, account: Account) -> None:
        self.account = account
        self.seconds = 0.0

    def before(self, at: int) -> None:
        for result in self._extended.get(at, ()):
            self.account.hold(self._key(result), self.lineage.results[result].n_bytes)

    def save(self, handle: int, key: Key) -> None:
        result = self._dropped_result(handle)
        if result is None:
            self.account.hold(key)
        else:
            self._open[result] = self._open.get(result, 0) + 1

    def load(self, handle: int, key: Key) -> Key:
        result = self._dropped_result(handle)
        if result is None:
            return key
        wanted = self.schedule.run_of[self.lineage.results[result].unit]
        while self._next <= wanted:
            self._run(self._next)
            self._next += 1
        return self._key(result)

    def unsave(self, handle: int, key: Key) -> None:
        result = self._dropped_result(handle)
        if result is None:
            self.account.release(key)
            return
        self._open[result] -= 1
        if self.schedule.run_of.get(self.lineage.results[result].unit, NEVER) < self._next:
            self.account.release(self._key(result))

    def _run(self, position: int) -> None:
        unit = self.lineage.units[self.schedule.runs[position][1]]
        self.seconds += unit.seconds
        replaced = unit.replaces
        ends = [r for r in unit.reads if self.schedule.last_use.get(r) == position and self._is_ours(r)]
        if replaced in ends:  # written in place: the same memory
            ends.remove(replaced)
            self.account.release(self._key(replaced))
        account = self.account
        for result in unit.makes:
            account.hold(("again", result), self.lineage.results[result].n_bytes)
        account.use_for_a_moment(unit.extra_bytes)
        for result in unit.makes:
            if self._comes_again(result):
                is_read_later = self.schedule.last_use.get(result, -1) > position
                for _ in range(self._open.get(result, 0) + is_read_later):
                    account.hold(("again", result))
            account.release(("again", result))
        for result in ends:
            account.release(self._key(result))

    def _is_ours(self, result: int) -> bool:
        """Whether this plan holds it for the runs."""
        if self._comes_again(result):
            return True
        return result in self._extended.get(self.lineage.results[result].gone, ())

    def _key(self, result: int) -> Key:
        if self._comes_again(result):
            return ("again", result)
        found = self.lineage.results[result]
        return ("before", result) if found.is_overwritten else found.storage

    def _dropped_result(self, handle: int) -> int | None:
        result = self.lineage.of_handle.get(handle)
        if result is None:
            return None
        found = self.lineage.results[result]
        return result if can_be_dropped(found) and found.unit in self.choice.dropped else None
