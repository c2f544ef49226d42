"""Replay an op log within a budget of bytes: evict, recompute, and count the cost.

    OpLog + budget + policy ──> Replay (compute with and without, evictions, recomputations, peak)

The rules are those of the DTR paper's runtime with eager eviction, so that its published figures can be checked:

- the unit of eviction is a storage; its views are evicted with it, and recreating them is part of its cost;
- an operator first pins its resident inputs, then recomputes the others, each by the same rules;
- memory is allocated for all outputs of an operator before it runs, even if only one of them was missing;
- constants and results are pinned permanently; a storage is evicted as soon as the program releases it;
- of equal scores, the storage that last returned to the pool is evicted first; a score of zero ends the search.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from math import inf
from typing import Protocol

from benchmarks.dtr.reference.op_log import Compute, Hold, OpLog, Pin, Release
from windtunnel.remat.policy import Policy
from windtunnel.remat.value import Neighbourhood, Value

__all__ = ["THRASHING", "Outcome", "RecordedStep", "Replay", "Stored", "Watcher", "recorded_step", "replay"]

THRASHING = 2.0  # times the compute of the program alone, the limit of the published runs


class Outcome(Enum):
    DONE = "done"
    OUT_OF_MEMORY = "out of memory"  # nothing left to evict
    THRASHING = "thrashing"  # more time for recomputation than for the program


@dataclass(frozen=True, slots=True)
class RecordedStep:
    """A step without a budget: when each operator began, the bytes in use after it, and the readers of each storage."""

    began_ns: tuple[int, ...]  # one more than operators: the last is the end
    used_bytes: tuple[int, ...]
    uses: tuple[tuple[int, ...], ...]  # for each storage in order, the operators that read it

    @property
    def compute_ns(self) -> int:
        return self.began_ns[-1]

    @property
    def peak_bytes(self) -> int:
        return max(self.used_bytes, default=0)


@dataclass(frozen=True, slots=True)
class Replay:
    outcome: Outcome
    base_ns: int  # compute of the program alone
    total_ns: int  # compute done, until the end or the failure
    n_evictions: int  # without storages that the program released
    n_recomputed: int  # operators run again
    peak_bytes: int

    @property
    def overhead(self) -> float:
        return self.total_ns / self.base_ns if self.base_ns else 1.0


class Stored(Value):
    """A storage: the value that a policy scores, and the tensors in it."""

    __slots__ = ("_costs", "children", "holds", "is_pinned", "needed_at", "next_use", "tensors", "weight")

    def __init__(self, n_bytes: int, costs: _AncestorCosts) -> None:
        super().__init__(n_bytes, 0)
        self.parents: dict[Stored, None] = {}  # ordered sets, because a view may add to them
        self.children: dict[Stored, None] = {}
        self.tensors: list[_Tensor] = []
        self.holds = 0  # how often the program refers to it
        self.is_pinned = False
        self.next_use = self.needed_at = inf  # for a watcher, as is the next
        self.weight = 1.0
        # Not computed yet: its cost is not part of what is lost.
        self.is_resident = False
        self.neighbourhood = Neighbourhood(0)
        self._costs = costs  # one for all storages of a replay

    def evict(self) -> None:
        super().evict()
        self._costs.note_evicted(self)

    def restore(self) -> None:
        super().restore()
        self._costs.note_restored(self)

    def ancestor_cost(self, limit: float = inf, most: float = inf) -> float:
        return self._costs.of(self, limit, most)


class _AncestorCosts:
    """Ancestor costs as long as they hold, because a replay asks for them millions of times.

    A change is only noted. At the next question all costs are dropped that can be reached from one through evicted
    storages.
    """

    def __init__(self) -> None:
        self._cost_of: dict[Stored, float] = {}
        self._limit = inf  # it and the most are the same in every question of a replay
        self._evicted: list[Stored] = []
        self._restored: list[Stored] = []

    def note_evicted(self, stored: Stored) -> None:
        if self._cost_of:  # else nobody has asked
            self._evicted.append(stored)

    def note_restored(self, stored: Stored) -> None:
        if self._cost_of:
            self._restored.append(stored)

    def of(self, stored: Stored, limit: float, most: float) -> float:
        if self._evicted or self._restored:
            self._drop_behind(self._restored, inf)
            self._drop_behind(self._evicted, self._limit)  # what had reached the limit still has
            self._evicted, self._restored = [], []
        cost = self._cost_of.get(stored)
        if cost is None:
            self._limit = limit
            cost = self._cost_of[stored] = Value.ancestor_cost(stored, limit, most)
        return cost

    def _drop_behind(self, changed: list[Stored], limit: float) -> None:
        cost_of = self._cost_of
        seen, stack = set(changed), changed
        for stored in changed:
            cost_of.pop(stored, None)
        while stack:
            for child in stack.pop().children:
                if child not in seen:
                    seen.add(child)
                    if cost_of.get(child, inf) < limit:
                        del cost_of[child]
                    if not child.is_resident:
                        stack.append(child)


class Watcher(Protocol):
    """What may be told of a replay as it goes on, to know more at the next decision than a value shows."""

    def made(self, stored: Stored) -> None:
        """A storage that was not there before is about to be computed; they come in the same order each time."""

    def ran(self, touched: Iterable[Stored]) -> None:
        """The next operator of the program is done; it read or made these."""

    def evicted(self, stored: Stored) -> None:
        """A storage was evicted, for lack of room or because the program released it."""


class _Operator:
    __slots__ = ("cost", "inputs", "outputs", "total_bytes")

    def __init__(self, cost: int, inputs: list[_Tensor], total_bytes: int) -> None:
        self.cost = cost
        self.inputs = inputs
        self.outputs: list[_Tensor] = []
        self.total_bytes = total_bytes


class _Tensor:
    __slots__ = ("is_defined", "n_bytes", "operator", "stored")

    def __init__(self, operator: _Operator, stored: Stored, n_bytes: int) -> None:
        self.operator = operator
        self.stored = stored
        self.n_bytes = n_bytes  # its own: none if it is a view
        self.is_defined = False


class _Failure(Exception):
    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome


def recorded_step(log: OpLog) -> RecordedStep:
    """Follow the program alone: everything, constants too, is freed when the program releases it."""
    began, used, sizes, holds, storage_of = [0], [], [], [], []
    uses: list[list[int]] = []
    now = 0
    for one in log.steps:
        match one:
            case Compute():
                for storage in {storage_of[tensor] for tensor in one.inputs}:
                    uses[storage].append(len(used))
                for n_bytes, alias in zip(one.sizes, one.aliases, strict=True):
                    storage_of.append(len(sizes) if alias < 0 else storage_of[one.inputs[alias]])
                    if alias < 0:
                        sizes.append(n_bytes)
                        holds.append(0)
                        uses.append([])
                        now += n_bytes
                    holds[storage_of[-1]] += 1
                used.append(now)
                began.append(began[-1] + one.cost_ns)
            case Hold():
                holds[storage_of[one.tensor]] += 1
            case Release():
                storage = storage_of[one.tensor]
                holds[storage] -= 1
                if holds[storage] == 0:
                    now -= sizes[storage]
            case Pin():
                uses[storage_of[one.tensor]].append(len(used))
    return RecordedStep(tuple(began), tuple(used), tuple(map(tuple, uses)))


def replay(
    log: OpLog, budget: int, policy: Policy, watcher: Watcher | None = None, most: float = THRASHING
) -> Replay:
    """Run the program of `log` with at most `budget` bytes, forgetting what `policy` scores lowest.

    It is given up as thrashing once recomputation takes more than `most - 1` times the program's own compute.
    """
    return _Runtime(log, budget, policy, watcher, most).run()


class _Runtime:
    def __init__(self, log: OpLog, budget: int, policy: Policy, watcher: Watcher | None, most: float) -> None:
        self._log = log
        self._budget = budget
        self._policy = policy
        self._watcher = watcher
        self._clock = 0
        self._n_bytes = 0
        self._peak = 0
        self._base = sum(step.cost_ns for step in log.steps if isinstance(step, Compute))
        self._recompute_ns = 0
        self._most_recompute_ns = (most - 1) * self._base
        self._n_evictions = 0
        self._n_recomputed = 0
        self._pool: dict[Stored, None] = {}  # evictable storages, in order of arrival
        self._tensors: list[_Tensor] = []
        self._costs = _AncestorCosts()

    def run(self) -> Replay:
        outcome = Outcome.DONE
        try:
            for step in self._log.steps:
                match step:
                    case Compute():
                        self._compute(step)
                    case Hold():
                        self._tensors[step.tensor].stored.holds += 1
                    case Release():
                        self._release(self._tensors[step.tensor].stored)
                    case Pin():
                        self._pin(self._tensors[step.tensor])
        except _Failure as failure:
            outcome = failure.outcome
        return Replay(outcome, self._base, self._clock, self._n_evictions, self._n_recomputed, self._peak)

    def _compute(self, step: Compute) -> None:
        inputs = [self._tensors[tensor] for tensor in step.inputs]
        operator = _Operator(step.cost_ns, inputs, sum(step.sizes))
        for n_bytes, alias in zip(step.sizes, step.aliases, strict=True):
            stored = self._new(n_bytes) if alias < 0 else inputs[alias].stored
            tensor = _Tensor(operator, stored, n_bytes)
            if all(sibling.stored is not stored for sibling in operator.outputs):
                stored.cost += step.cost_ns
            stored.tensors.append(tensor)
            stored.holds += 1
            operator.outputs.append(tensor)
            for other in inputs:
                if other.stored is not stored:
                    stored.parents[other.stored] = None
                    other.stored.children[stored] = None
        self._tensors += operator.outputs
        self._materialise(operator.outputs[0], is_first=True)
        for tensor in operator.outputs:
            tensor.stored.last_used = self._clock
        if self._watcher is not None:
            self._watcher.ran([tensor.stored for tensor in (*inputs, *operator.outputs)])

    def _new(self, n_bytes: int) -> Stored:
        stored = Stored(n_bytes, self._costs)
        if self._watcher is not None:
            self._watcher.made(stored)
        return stored

    def _release(self, stored: Stored) -> None:
        stored.holds -= 1
        if stored.holds == 0 and stored.is_resident and not stored.is_pinned:
            self._evict(stored)

    def _pin(self, tensor: _Tensor) -> None:
        if not tensor.is_defined:
            self._materialise(tensor)
        if not tensor.stored.is_pinned:
            self._lock(tensor.stored)
            tensor.stored.is_pinned = True

    def _materialise(self, tensor: _Tensor, is_first: bool = False) -> None:
        """Compute a tensor, and before it what it needs; with a stack of our own, because chains are long."""
        stack = [(tensor, self._begin(tensor))]
        while stack:
            tensor, missing = stack[-1]
            for needed in missing:
                if not needed.is_defined:
                    stack.append((needed, self._begin(needed)))
                    break
                self._lock(needed.stored)
            else:
                stack.pop()
                self._run(tensor, is_first and not stack)
                if stack:
                    self._lock(tensor.stored)

    def _begin(self, tensor: _Tensor) -> Iterable[_Tensor]:
        """Pin the inputs that are there, and return the others, which are to be pinned when they are."""
        inputs = tensor.operator.inputs
        for needed in inputs:
            needed.stored.last_used = self._clock
        for needed in inputs:
            if needed.is_defined:
                self._lock(needed.stored)
        return iter([needed for needed in inputs if not needed.is_defined])

    def _run(self, tensor: _Tensor, is_first: bool) -> None:
        operator = tensor.operator
        self._make_room(operator.total_bytes)
        self._clock += operator.cost
        self._peak = max(self._peak, self._n_bytes + operator.total_bytes)
        for other in operator.outputs:
            if other is not tensor:
                self._appear(other)
        self._appear(tensor)  # last into the pool, so first out of it among equals
        for needed in operator.inputs:
            self._unlock(needed.stored)
        if not is_first:
            self._n_recomputed += 1
            self._recompute_ns += operator.cost
            if self._recompute_ns > self._most_recompute_ns:
                raise _Failure(Outcome.THRASHING)

    def _appear(self, tensor: _Tensor) -> None:
        tensor.is_defined = True
        stored = tensor.stored
        if not stored.is_resident:
            stored.restore()
            self._n_bytes += stored.n_bytes
            self._pool[stored] = None

    def _make_room(self, n_bytes: int) -> None:
        while self._n_bytes + n_bytes > self._budget:
            if not self._pool:
                raise _Failure(Outcome.OUT_OF_MEMORY)
            self._evict(self._least())
            self._n_evictions += 1

    def _least(self) -> Stored:
        policy, now = self._policy, self._clock
        best, least = None, float("inf")
        for stored in self._pool:
            score = policy(stored, now)
            if score <= least:
                best, least = stored, score
            if score == 0:
                break
        return best

    def _evict(self, stored: Stored) -> None:
        stored.evict()
        for tensor in stored.tensors:
            tensor.is_defined = False
        self._n_bytes -= stored.n_bytes
        del self._pool[stored]
        if self._watcher is not None:
            self._watcher.evicted(stored)

    def _lock(self, stored: Stored) -> None:
        if stored.pins == 0:
            del self._pool[stored]
        stored.pins += 1

    def _unlock(self, stored: Stored) -> None:
        stored.pins -= 1
        if stored.pins == 0:
            self._pool[stored] = None
