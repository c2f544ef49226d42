"""Bytes on a simulated device that are freed with their last reference, as torch's storages are.

    Memory.make(n_bytes) ──> Block ──last reference gone──> bytes free again

The simulator refers to blocks where the runtime refers to storages, so that lifetimes follow from Python's own
reference counts in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from windtunnel.memory import Allocator
from windtunnel.remat.value import Value

__all__ = ["BLANK", "Block", "Memory", "Recipe", "SimulatedValue"]

BLANK = object()  # content of memory that has not been written
_dead: Callable[[], Any] = ref(set())  # a reference to something already freed


class Memory:
    """Counts what is in use, and where, if there is an allocator."""

    def __init__(self, allocator: Allocator | None = None) -> None:
        self.allocator = allocator
        self.evictable_bytes = 0
        self.unevictable_bytes = 0  # the most in use besides evictable bytes
        self.floor_bytes = 0  # the same, where the runtime looked
        self.peak_live_bytes = self.peak_reserved_bytes = 0
        self._live = 0
        self._n_made = 0

    @property
    def live_bytes(self) -> int:
        return self._live if self.allocator is None else self.allocator.allocated_bytes

    def make(self, n_bytes: int) -> Block:
        """Raises PredictedOutOfMemory when the device is full."""
        self._n_made += 1
        address = self.allocator.alloc(self._n_made, n_bytes) if self.allocator is not None else 0
        self._live += n_bytes
        live = self.live_bytes
        self.peak_live_bytes = max(self.peak_live_bytes, live)
        self.unevictable_bytes = max(self.unevictable_bytes, live - self.evictable_bytes)
        if self.allocator is not None:
            self.peak_reserved_bytes = max(self.peak_reserved_bytes, self.allocator.reserved_bytes)
        return Block(self, self._n_made, n_bytes, address)

    def take_back(self, id: int, n_bytes: int) -> None:
        self._live -= n_bytes
        if self.allocator is not None:
            self.allocator.free(id)

    def look(self) -> None:
        """The runtime reads how much is in use."""
        self.floor_bytes = max(self.floor_bytes, self.live_bytes - self.evictable_bytes)

    def begin_step(self) -> None:
        self.peak_live_bytes = self.live_bytes
        self.peak_reserved_bytes = self.allocator.reserved_bytes if self.allocator is not None else 0


class Block:
    """The bytes of one storage."""

    __slots__ = ("__weakref__", "_memory", "address", "content", "holders", "id", "is_read", "n_bytes")

    def __init__(self, memory: Memory, id: int, n_bytes: int, address: int) -> None:
        self._memory = memory
        self.id = id
        self.n_bytes = n_bytes
        self.address = address
        self.content: Any = None  # a value, a weak reference to one, BLANK, or nothing known
        self.holders = 0  # names the program has for it
        self.is_read = False  # a recipe reads it as a constant

    def __del__(self) -> None:
        self._memory.take_back(self.id, self.n_bytes)

    @property
    def value(self) -> Any:
        """What is known of its content: a value, BLANK or None."""
        return self.content() if type(self.content) is ref else self.content


class Recipe:
    """How to recompute the results of a call."""

    __slots__ = ("constants", "n_bytes", "reads_vanishing", "results", "sizes", "writes")

    def __init__(
        self, constants: tuple[Block, ...], n_bytes: int, sizes: tuple[int, ...], writes: Any
    ) -> None:
        self.constants = constants  # held: never evicted, and needed as they are
        self.n_bytes = n_bytes  # that running it allocates, as the runtime reckons
        self.sizes = sizes  # of its results
        self.results: list[ref[SimulatedValue] | None] = []  # the values among them
        self.writes = writes  # the value it writes over, BLANK, or None
        self.reads_vanishing = False  # a sharded weight, which may be freed when it would run again


class SimulatedValue(Value):
    """A value whose bytes are a simulated block."""

    __slots__ = ("block", "is_counted", "overwritten", "recipe", "slots", "weak")

    parents: tuple[SimulatedValue, ...]

    def __init__(
        self, block: Block, cost: float, parents: tuple[SimulatedValue, ...], recipe: Recipe
    ) -> None:
        super().__init__(block.n_bytes, cost, parents)
        self.recipe = recipe
        self.block: Block | None = None  # held for autograd, or because it was recomputed
        self.slots: set[int] = set()  # handles that still have the tensor they saved
        self.overwritten: dict[int, Block] = {}  # handles whose tensor was changed in place since
        self.is_counted = False  # among the evictable bytes
        self.live_in(block)

    def live_in(self, block: Block) -> None:
        mine = ref(self)
        self.weak: Callable[[], Block | None] = ref(block, lambda _: _gone(mine()))
        self.address = block.address

    def leave(self) -> None:
        """Its block now holds something else."""
        self.block = None
        self.weak = _dead
        if self.is_resident:
            self.evict()

    def is_computable(self) -> bool:
        """False if it, or something unsaved that it is computed from, reads a weight that may be freed then."""
        waiting, seen = [self], {self}
        while waiting:
            each = waiting.pop()
            if each.recipe.reads_vanishing:
                return False
            for parent in each.parents:
                if not parent.saves and parent not in seen:
                    seen.add(parent)
                    waiting.append(parent)
        return True

    def must_stay(self) -> bool:
        """True for one that reads such a weight and that living values are computed from."""
        return self.recipe.reads_vanishing and next(self.children, None) is not None

    def here(self) -> Block | None:
        return self.block if self.block is not None else self.weak()


def _gone(value: SimulatedValue | None) -> None:
    if value is not None and value.is_resident:
        value.evict()
