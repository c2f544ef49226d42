"""The state machine that both drivers share: when to evict, what to evict, how to rematerialise it.

    before(op) ──> room for its outputs     after(op) ──> new values     save / unsave ──> candidates
    fetch(value) ──> parents first, deepest first ──> host.compute       make_room ──> policy ──> host.drop

The live runtime and the simulator call it in the same order, so with the same costs they make the same decisions:

1. Forward, for each operator that makes a value of `minimum_size` or more: `before(key)`, the operator itself,
   `after(key, n_bytes, seconds, read, made)`. The first time a key is seen its size is unknown and room is made
   afterwards instead.
2. Autograd saves a tensor: `save(value)`. It releases one: `unsave(value)`; the last release drops the value.
3. Autograd needs a saved tensor: `fetch(value)`; afterwards the value is resident.
4. A backward has ended: `end_backward()`.
5. The bytes of a value are freed for any reason: the driver calls `value.evict()`.

The clock is the sum of the costs of what ran, not wall time, so decisions are reproducible and predictable.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol
from weakref import ref

from windtunnel.remat.address_run import cheapest_run
from windtunnel.remat.guard import Guard
from windtunnel.remat.policy import DEFAULT_POLICY, Policy, policy_named
from windtunnel.remat.statistics import Statistics
from windtunnel.remat.value import Value
from windtunnel.units import MIB

__all__ = ["BY_ADDRESS", "Engine", "Host", "Settings"]

_SAFE_SHARE = 0.75  # of the device: with fragments and what backward allocates unseen, more may not fit
_KERNEL_SHARE = (
    2  # of the largest operator's results: what a kernel may allocate besides, as oneDNN's convolutions do
)
BY_ADDRESS = "contiguous"  # the policy that uses the addresses of values, not only each value alone


@dataclass
class Settings:
    """What a user may change at any time; the engine reads it at every decision."""

    threshold: int | None = None  # bytes; None: evict only when an allocation does not fit
    minimum_size: int = MIB
    is_sampling: bool = False
    policy: str = DEFAULT_POLICY
    memory_limit: int | None = None  # bytes; None: whatever the device has


class Host(Protocol):
    """What a driver must be able to do. Values are of the driver's own subclass of `Value`."""

    def live_bytes(self) -> int:
        """All bytes in use on the device now."""

    def capacity(self) -> int:
        """The most the device could hold."""

    def limit_without_threshold(self) -> int:
        """From which number of bytes on to evict when no threshold is set."""

    def is_held(self, value: Any) -> bool:
        """True if something other than its saves keeps these bytes: dropping it would free nothing."""

    def drop(self, value: Any) -> None:
        """Let go of the bytes. If that was the last reference, `value.evict()` is called."""

    def output_bytes(self, value: Any) -> int:
        """What computing this value again allocates."""

    def compute(self, value: Any) -> Iterable[Value]:
        """Compute a value again from its resident parents; return every value that this makes resident."""


class Engine:
    def __init__(self, host: Host, settings: Settings) -> None:
        self.host = host
        self.settings = settings
        self.clock = 0.0
        self.guard = Guard()
        self.statistics = Statistics()
        self.is_in_backward = False
        self.is_evicting = True  # False: nothing more is evicted; evicted values are still rematerialised
        self.needed_bytes = (
            0  # above 0: the most that could not be evicted, of those times it was over the limit
        )
        self.absent_bytes = (
            0  # of values that autograd saved and that are evicted: plain training would hold them
        )
        self._threshold = settings.threshold
        self._sizes: dict[Hashable, int] = {}  # operator and shapes -> bytes it allocates
        self._largest_size = 0
        self._candidates: list[ref[Value]] = []  # weak: a value that can no longer be needed must be freed
        self._random = random.Random(0)

    # -- called by the drivers -------------------------------------------------------------------------------

    @property
    def limit(self) -> int:
        threshold = self.settings.threshold
        if threshold != self._threshold:  # what is known is about the old one
            self._threshold = threshold
            self.guard.floor = self.needed_bytes = 0
        return max(threshold or self.host.limit_without_threshold(), self.guard.floor)

    @property
    def reachable_bytes(self) -> int:
        """A limit that can be held, as far as is known; 0 if the current one is held.

        It is what was needed plus the results of one operator: under another limit, other values are needed together.
        """
        return self.needed_bytes + self._largest_size if self.needed_bytes else 0

    def is_near(self) -> bool:
        """Whether one more operator could exceed the limit. While this is False no sizes are looked up."""
        return self.host.live_bytes() + self._largest_size > self.limit

    def before(self, key: Hashable) -> None:
        """An operator of a forward is about to run."""
        if self.is_in_backward:
            self.end_round()
        self.make_room_for(key)

    def make_room_for(self, key: Hashable) -> None:
        """Make room for what the operator allocates, if that is known."""
        n_bytes = self._sizes.get(key)
        if n_bytes is not None:
            self.make_room(n_bytes)

    def after(
        self, key: Hashable, n_bytes: int, seconds: float, read: Iterable[Value], made: Iterable[Value]
    ) -> None:
        """It has run, allocated `n_bytes` and made these values."""
        self.clock += seconds
        now = self.clock
        for value in read:
            value.last_used = now
        for value in made:
            value.last_used = now
        self.guard.n_operators += 1
        if key not in self._sizes:
            self._sizes[key] = n_bytes
            self._largest_size = max(self._largest_size, n_bytes)
            self.make_room(0)
        self._see_peak()

    def save(self, value: Value) -> None:
        value.saves += 1
        if value.position < 0:
            self._add(value)

    def unsave(self, value: Value) -> None:
        value.saves -= 1
        if value.saves == 0:
            self._come_back(value)
            self._remove(value)
            self.host.drop(value)

    def fetch(self, value: Value) -> None:
        """Make the value resident, recomputing everything it needs."""
        self.is_in_backward = True
        self.clock += value.cost  # the backward operator that needs it costs about as much as the forward one
        value.pins += 1
        try:
            if value.is_resident:
                self.make_room(0)
            else:
                self._compute_with_parents(value)
                self._hold_no_more_than_plain(0)
        finally:
            value.pins -= 1
        value.last_used = self.clock
        self._see_peak()

    def end_backward(self) -> None:
        """A backward is over and its activations are freed: what still exceeds the limit cannot be evicted."""
        self._see_peak()
        live = self.host.live_bytes()
        if self.is_evicting and live > self.limit and not self.candidates():
            self._see_unreached(live)

    def end_round(self) -> None:
        """Backward is over and a forward begins: the guard's new limit holds from here on."""
        self.is_in_backward = False
        self.guard.end_round(self.limit, self.statistics)

    # -- eviction --------------------------------------------------------------------------------------------

    def make_room(self, n_bytes: int) -> bool:
        """Evict until `n_bytes` more fit under the limit. False: not possible."""
        limit = self.limit
        short_by = self.host.live_bytes() + n_bytes - limit
        if short_by <= 0 or not self.is_evicting:
            return True
        if self.guard.is_tripped:  # the threshold is ignored for this round, the size of the device is not
            self._hold_no_more_than_plain(n_bytes)
            evictable = sum(value.n_bytes for value in self.candidates())
            needed = self.host.live_bytes() + n_bytes
            if needed - evictable > limit:
                self._see_unreached(needed - evictable)
            limit = max(limit, int(self.host.capacity() * _SAFE_SHARE))
            short_by = needed - limit
        start = perf_counter()
        while short_by > 0:
            victims = self._choose(short_by)
            for value in victims:
                self._evict(value)
            if not victims:
                self._see_unreached(limit + short_by)
                break
            short_by = self.host.live_bytes() + n_bytes - limit
        self.statistics.eviction_seconds += perf_counter() - start
        return short_by <= 0

    def evict_for(self, n_bytes: int) -> bool:
        """An allocation of `n_bytes` failed: evict at least that much, whatever the limit is."""
        freed = 0
        while freed < n_bytes:
            victims = self._choose(n_bytes - freed)
            if not victims:
                break
            for value in victims:
                freed += value.n_bytes
                self._evict(value)
        return freed > 0

    def _hold_no_more_than_plain(self, n_bytes: int) -> None:
        """Above the limit, never hold more than plain training (without rematerialisation) would.

        Recomputed values that autograd did not save are extra: plain training freed them in forward. As long as they
        are no more than the saved values that are evicted, the peak of plain training is not exceeded.
        """
        if not self.is_evicting or self.host.live_bytes() + n_bytes <= self.limit:
            return
        spare = [value for value in self._living() if not value.saves]
        needed = n_bytes + int(_KERNEL_SHARE * self._largest_size)
        short_by = sum(value.n_bytes for value in spare) + needed - self.absent_bytes
        while short_by > 0:
            victims = self._choose_among([value for value in spare if value.is_resident], short_by)
            if not victims:
                return
            for value in victims:
                self._evict(value)
                short_by -= value.n_bytes

    def candidates(self) -> list[Value]:
        """The values that may be evicted now, in no particular order."""
        return [value for value in self._living() if not value.pins and not self.host.is_held(value)]

    def _evict(self, value: Value) -> None:
        self._remove(value)
        self.host.drop(value)
        self.statistics.evictions += 1
        self.statistics.evicted_bytes += value.n_bytes
        if value.saves and not value.is_resident and not value.is_absent:
            value.is_absent = True
            self.absent_bytes += value.n_bytes

    def _come_back(self, value: Value) -> None:
        """The value is resident again, or plain training would no longer hold it either."""
        if value.is_absent:
            value.is_absent = False
            self.absent_bytes -= value.n_bytes

    def _choose(self, short_by: int) -> list[Value]:
        values = self._living()
        if not self.settings.is_sampling or len(values) < 2:
            return self._choose_among(values, short_by)
        sample = self._random.sample(values, max(int(len(values) ** 0.5), 1))
        # If the whole sample is in use, consider all values once.
        return self._choose_among(sample, short_by) or self._choose_among(values, short_by)

    def _choose_among(self, values: list[Value], short_by: int) -> list[Value]:
        if self.settings.policy == BY_ADDRESS:
            free = [value for value in values if not value.pins and not self.host.is_held(value)]
            return cheapest_run(free, short_by, self.clock)
        found = self._best(values, policy_named(self.settings.policy))
        return [] if found is None else [found]

    def _best(self, values: list[Value], policy: Policy) -> Value | None:
        now = self.clock
        scored = [(policy(value, now), i) for i, value in enumerate(values) if not value.pins]
        if not scored:
            return None
        best = values[min(scored)[1]]
        if not self.host.is_held(best):
            return best
        for _, i in sorted(scored):
            if not self.host.is_held(values[i]):
                return values[i]
        return None

    # -- rematerialisation -----------------------------------------------------------------------------------

    def _compute_with_parents(self, value: Value) -> None:
        """Depth first with an explicit stack; each waiting value pins only its own parents."""
        waiting = [value]
        pinned: list[list[Value]] = [_pin(value.parents)]
        longest = 1
        try:
            while waiting:
                top = waiting[-1]
                missing = next((parent for parent in top.parents if not parent.is_resident), None)
                if missing is not None:
                    waiting.append(missing)
                    pinned.append(_pin(missing.parents))
                    longest = max(longest, len(waiting))
                    continue
                if not top.is_resident:
                    self._compute(top)
                waiting.pop()
                _unpin(pinned.pop())
        finally:
            for values in pinned:
                _unpin(values)
        self.statistics.longest_chain = max(self.statistics.longest_chain, longest)

    def _compute(self, value: Value) -> None:
        self.make_room(self.host.output_bytes(value))
        made = list(self.host.compute(value))
        self.clock += value.cost
        self.guard.n_computed += 1
        self.statistics.rematerialisations += 1
        self.statistics.rematerialised_bytes += value.n_bytes
        self.statistics.recompute_cost += value.cost
        for each in made:
            each.restore()
            self._come_back(each)
            each.last_used = self.clock
            if each.position < 0:
                self._add(each)
        for parent in value.parents:
            parent.last_used = self.clock

    # -- candidates ------------------------------------------------------------------------------------------

    def _add(self, value: Value) -> None:
        reference = ref(value)  # first: making it may run the collector, which may call unsave
        value.position = len(self._candidates)
        self._candidates.append(reference)

    def _remove(self, value: Value) -> None:
        if value.position >= 0:
            self._take_out(value.position)
            value.position = -1

    def _take_out(self, position: int) -> None:
        last = self._candidates.pop()
        if position < len(self._candidates):
            self._candidates[position] = last
            moved = last()
            if moved is not None:
                moved.position = position

    def _living(self) -> list[Value]:
        living = [value for reference in self._candidates if (value := reference()) is not None]
        if len(living) < len(self._candidates):
            self._candidates = [ref(value) for value in living]
            for position, value in enumerate(living):
                value.position = position
        return [value for value in living if value.is_resident]

    def _see_unreached(self, n_bytes: int) -> None:
        """With everything evictable evicted, this many bytes are in use."""
        self.needed_bytes = max(self.needed_bytes, n_bytes)
        self.statistics.least_reached_bytes = max(self.statistics.least_reached_bytes, n_bytes)

    def _see_peak(self) -> None:
        live = self.host.live_bytes()
        self.statistics.peak_live_bytes = max(self.statistics.peak_live_bytes, live)
        self.guard.peak_bytes = max(self.guard.peak_bytes, live)


def _pin(values: Iterable[Value]) -> list[Value]:
    """All parents at once: one that is not resident yet is pinned from the moment it will be."""
    pinned = list(values)
    for value in pinned:
        value.pins += 1
    return pinned


def _unpin(values: Iterable[Value]) -> None:
    for value in values:
        value.pins -= 1
