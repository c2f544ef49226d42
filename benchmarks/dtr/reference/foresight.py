"""Choose by simulation how to stay within a budget, for a step that was seen before.

    OpLog (step 1) ──> RecordedStep ──> Foresight: a policy that knows when each value is needed next
    OpLog + budget ──> a few settings of it, replayed ──> the best, varied a little, replayed ──> Plan (step 2)

Training repeats itself: after one step it is known when each value is read again, and when memory will be short.
So where a policy without foresight looks at how long a value lay idle, this one looks at how much shortage it would
still sit through before it is needed:

    score = (its cost + the cost of its evicted ancestors) / (bytes x shortage until it is needed ^ 0.5)

A value is needed when the program reads it, or earlier, to compute an evicted value from it. One that is not needed
any more scores zero. Shortage is the time by which the program alone would exceed the budget, each moment weighted
by how far it would. The exponents are a `Setting`; none fits every program best, so several are tried.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import exp, inf
from typing import Literal

from benchmarks.dtr.reference.log_replay import (
    THRASHING,
    Outcome,
    RecordedStep,
    Replay,
    Stored,
    recorded_step,
    replay,
)
from benchmarks.dtr.reference.op_log import OpLog
from windtunnel.remat.policy import dtr, neighbour_cost

__all__ = ["SETTINGS", "Foresight", "Plan", "Setting", "plan"]

_FREE_MOMENT = 1e-3  # weight of a time at which memory is not short: small, but later is still better
_DEAR = 0.1  # of the step's compute: ancestors that cost more are too dear to be told apart,
_MANY = 64  # and so are those that are more
_WORK = 60_000  # operators to replay while varying a plan: a small program can be varied more often
_FEWEST, _MOST = 8, 48  # variations


@dataclass(frozen=True, slots=True)
class Setting:
    """Exponents of the score."""

    distance: float = 0.5
    size: float = 1.0
    shortage: float | None = 1.0  # 0: only whether memory is short, not how much; None: plain time instead
    lost: Literal["ancestors", "neighbours"] = "ancestors"  # evicted values whose cost counts beside its own


# In the order in which they help most beside those before them, over models and budgets.
SETTINGS = (
    Setting(),
    Setting(distance=1.0, shortage=0.0),
    Setting(distance=0.5, shortage=None, lost="neighbours"),
    Setting(distance=0.25, size=0.8),
    Setting(distance=1.0, shortage=0.0, lost="neighbours"),
    Setting(distance=0.5, shortage=None),
    Setting(distance=0.5, size=0.8, shortage=0.0),
    Setting(distance=0.0, size=0.8),
    Setting(distance=0.0),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """The best way found, and how the step went with it."""

    setting: Setting | None  # None: the policy `dtr`, which needs no foresight
    bias: Mapping[int, float]  # factors on the scores of single storages, by number
    replay: Replay
    n_replays: int


def plan(log: OpLog, budget: int) -> Plan:
    """Replay a recorded step with several settings and keep the one with the least compute.

    The result is the same each time: variations are drawn with a fixed seed, and their number depends on the length
    of the log and not on the clock.
    """
    step = recorded_step(log)
    best = Plan(None, {}, replay(log, budget, dtr), 1)
    for setting in SETTINGS:
        best = _better(best, log, budget, step, setting, {})[0]
    if best.replay.n_evictions == 0:
        return best
    return _varied(best, log, budget, step)


class Foresight:
    """A policy and the watcher that feeds it. Good for one replay."""

    def __init__(
        self, step: RecordedStep, budget: int, setting: Setting, bias: Mapping[int, float] | None = None
    ) -> None:
        self.evictees: list[int] = []  # numbers of the storages it was asked to score and that went
        self._setting = setting
        self._bias = bias or {}
        self._dear = _DEAR * step.compute_ns
        self._lost = self._ancestor_cost if setting.lost == "ancestors" else neighbour_cost
        self._shortage = _shortage_until(step, budget, setting.shortage)
        self._uses = iter(step.uses)
        self._uses_of: dict[Stored, Iterator[int]] = {}
        self._number_of: dict[Stored, int] = {}
        self._n_ran = 0

    def __call__(self, stored: Stored, now: float) -> float:
        if not stored.n_bytes:
            return inf
        needed_at = stored.next_use
        for child in stored.children:
            if child.needed_at < needed_at and not child.is_resident:
                needed_at = child.needed_at
        if needed_at == inf:
            return 0
        ahead = self._shortage[needed_at] - self._shortage[self._n_ran] + 1
        return stored.weight * (stored.cost + self._lost(stored)) / ahead**self._setting.distance

    def made(self, stored: Stored) -> None:
        number = len(self._number_of)
        self._number_of[stored] = number
        self._uses_of[stored] = iter(next(self._uses))
        if stored.n_bytes:
            stored.weight = self._bias.get(number, 1.0) / stored.n_bytes**self._setting.size
        stored.next_use = -1

    def ran(self, touched: Iterable[Stored]) -> None:
        self._n_ran += 1
        for stored in touched:
            while stored.next_use < self._n_ran:
                stored.next_use = next(self._uses_of[stored], inf)

    def evicted(self, stored: Stored) -> None:
        """Note when it is needed again, and that what it is computed from is needed then, too."""
        if stored.holds:
            self.evictees.append(self._number_of[stored])
        gone = (child.needed_at for child in stored.children if not child.is_resident)
        stored.needed_at = min(stored.next_use, min(gone, default=inf))
        stack = [stored]
        while stack:
            child = stack.pop()
            for parent in child.parents:
                if parent.needed_at > child.needed_at and not parent.is_resident:
                    parent.needed_at = child.needed_at
                    stack.append(parent)

    def _ancestor_cost(self, stored: Stored) -> float:
        return stored.ancestor_cost(self._dear, _MANY)


def _shortage_until(step: RecordedStep, budget: int, exponent: float | None) -> list[float]:
    """For each operator, the time before it, weighted by how short of memory it is at a moment."""

    def weight(used: int) -> float:
        if exponent is None:
            return 1.0
        return ((used - budget) / max(budget, 1)) ** exponent if used > budget else _FREE_MOMENT

    times = zip(step.began_ns, step.began_ns[1:], step.used_bytes, strict=False)
    return list(accumulate(((end - begin) * weight(used) for begin, end, used in times), initial=0.0))


def _better(
    best: Plan, log: OpLog, budget: int, step: RecordedStep, setting: Setting, bias: Mapping[int, float]
) -> tuple[Plan, list[int]]:
    """Replay once more, giving up as soon as it is worse; the better plan, and what this replay evicted."""
    is_done = best.replay.outcome is Outcome.DONE
    foresight = Foresight(step, budget, setting, bias)
    most = best.replay.overhead if is_done else THRASHING
    found = replay(log, budget, foresight, foresight, most)
    if found.outcome is Outcome.DONE and (not is_done or found.total_ns < best.replay.total_ns):
        return Plan(setting, bias, found, best.n_replays + 1), foresight.evictees
    return Plan(best.setting, best.bias, best.replay, best.n_replays + 1), foresight.evictees


def _varied(best: Plan, log: OpLog, budget: int, step: RecordedStep) -> Plan:
    """Make some of the values that were evicted dearer or cheaper, and keep what helps."""
    draw = random.Random(0)
    setting = best.setting or SETTINGS[0]
    _, evictees = _better(best, log, budget, step, setting, best.bias)
    for _ in range(min(max(_WORK // len(step.used_bytes), _FEWEST), _MOST)):
        share, spread = draw.choice(((0.03, 1.5), (0.1, 0.7), (0.3, 0.7)))
        bias = dict(best.bias)
        for number in dict.fromkeys(evictees):
            if draw.random() < share:
                bias[number] = bias.get(number, 1.0) * exp(draw.gauss(0, spread))
        found, tried = _better(best, log, budget, step, setting, bias)
        if found.replay is not best.replay:
            evictees = tried
        best = found
    return best
