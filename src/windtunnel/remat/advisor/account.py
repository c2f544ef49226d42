"""Bytes in use while a program is replayed: a storage is freed when its last holder releases it.

    Program, costs, Plan ──> play ──> Played(seconds, peak, live bytes at every action)
    the same, Allocator ────────────> what it reserves for that

The program, autograd and a recomputation may hold the same storage. All plans use the same accounting, so their times
and peaks can be compared.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from windtunnel.events.model import Phase
from windtunnel.memory import Allocator
from windtunnel.remat.simulated.program import Alloc, Call, Free, Load, Op, Program, Save, Step, Unsave

__all__ = ["Account", "Costs", "Key", "Plan", "Played", "last_step", "play"]

Key = Hashable


class Costs(Protocol):
    """Seconds; `ProgramCosts` is one."""

    def op(self, signature: int) -> float:
        """Of an operator on the device."""

    def call(self, call: Call) -> float:
        """Of a call, if it is run again."""


class Account:
    """The storages that are held, their numbers of holders, and the peak."""

    def __init__(self, allocator: Allocator | None = None) -> None:
        self.live = 0
        self.peak = 0
        self._bytes: dict[Key, int] = {}
        self._holders: dict[Key, int] = {}
        self._allocator = allocator
        self._ids: dict[Key, int] = {}  # of what the allocator gave
        self._n_given = 0

    def hold(self, key: Key, n_bytes: int = 0) -> None:
        """Add a holder; the first one gives the size."""
        holders = self._holders.get(key, 0)
        if not holders:
            self._bytes[key] = n_bytes
            self.live += n_bytes
            self.peak = max(self.peak, self.live)
            if self._allocator is not None and n_bytes:
                self._ids[key] = self._give(self._allocator, n_bytes)
        self._holders[key] = holders + 1

    def release(self, key: Key) -> None:
        holders = self._holders.get(key, 0)
        if holders > 1:
            self._holders[key] = holders - 1
        elif holders:
            del self._holders[key]
            self.live -= self._bytes.pop(key)
            if self._allocator is not None and key in self._ids:
                self._allocator.free(self._ids.pop(key))

    def use_for_a_moment(self, n_bytes: int) -> None:
        """Allocate and free this many bytes."""
        self.peak = max(self.peak, self.live + n_bytes)
        if self._allocator is not None and n_bytes:
            self._allocator.free(self._give(self._allocator, n_bytes))

    def attach(self, allocator: Allocator) -> None:
        """Use this allocator from now on; it first allocates what is already held."""
        self._allocator = allocator
        self._ids = {key: self._give(allocator, n_bytes) for key, n_bytes in self._bytes.items() if n_bytes}

    def _give(self, allocator: Allocator, n_bytes: int) -> int:
        self._n_given += 1
        allocator.alloc(self._n_given, n_bytes)
        return self._n_given


class Plan:
    """Keep everything autograd saves. Other plans override this."""

    seconds = 0.0  # spent on recomputation so far

    def begin(self, account: Account) -> None:
        self.account = account

    def before(self, at: int) -> None:
        """Action `at` is about to be replayed."""

    def save(self, handle: int, key: Key) -> None:
        self.account.hold(key)

    def load(self, handle: int, key: Key) -> Key:
        """Return the storage that now holds what was saved, after recomputing it if necessary."""
        return key

    def unsave(self, handle: int, key: Key) -> None:
        self.account.release(key)

    def free(self, key: Key) -> None:
        """The program releases its storage."""
        self.account.release(key)


@dataclass(frozen=True)
class Played:
    """One step of training under a plan."""

    seconds: float
    recompute_seconds: float  # of those
    peak_bytes: int
    peak_at: int  # action
    first: int  # action the step begins with
    live_bytes: np.ndarray  # the most during each action of the step


def play(
    program: Program,
    costs: Costs,
    plan: Plan | None = None,
    allocator: Allocator | None = None,
    *,
    is_for_last_step: bool = False,
) -> Played:
    """Play all actions; time and memory are those of the last step.

    A fresh `allocator` serves all requests from the beginning, or of the last step only, if the plan is made for that
    one only; its counters then have the result. Raises PredictedOutOfMemory when it is full.
    """
    plan = plan or Plan()
    account = Account(None if is_for_last_step else allocator)
    plan.begin(account)
    first, end = last_step(program)
    live = np.zeros(end - first, np.int64)
    names: dict[int, Key] = {}  # storages made for a load -> what they really are
    saved: dict[int, Key] = {}
    seconds = recompute_before = 0.0
    actions: tuple[Any, ...] = program.actions[:end]  # dispatched on `kind`, which is cheaper than isinstance
    for at, action in enumerate(actions):
        if at == first:
            recompute_before = plan.seconds
            if is_for_last_step and allocator is not None:
                account.attach(allocator)
        account.peak = account.live
        plan.before(at)
        kind = type(action)
        if kind is Op:
            if at >= first:
                seconds += costs.op(action.signature)
        elif kind is Alloc:
            account.hold(action.storage, action.n_bytes)
        elif kind is Free:
            plan.free(names.pop(action.storage, action.storage))
        elif kind is Save:
            key = saved[action.handle] = names.get(action.storage, action.storage)
            plan.save(action.handle, key)
        elif kind is Load:
            key = plan.load(action.handle, saved[action.handle])
            if action.is_new:
                names[action.storage] = key
                account.hold(key)
        elif kind is Unsave and action.handle in saved:
            plan.unsave(action.handle, saved.pop(action.handle))
        if at >= first:
            live[at - first] = account.peak
    recompute = plan.seconds - recompute_before
    highest = int(live.argmax()) if len(live) else 0
    peak = int(live[highest]) if len(live) else 0
    return Played(seconds + recompute, recompute, peak, first + highest, first, live)


def last_step(program: Program) -> tuple[int, int]:
    """The actions of the last whole step: where it begins, and where it has ended.

    The first step begins where the model has been built.
    """
    ends = [at + 1 for at, action in enumerate(program.actions) if type(action) is Step]
    if len(ends) > 1:
        return ends[-2], ends[-1]
    phases = program.recording.columns["phase"]
    built = (at for at, action in enumerate(program.actions) if phases[action.row] != Phase.BUILD)
    return next(built, 0), ends[0] if ends else len(program.actions)
