"""A value: the content of a storage after an operator wrote it, and how to recompute it.

    operator ──> Value(parents, cost, bytes) ──> resident | evicted (then part of a Neighbourhood)

Values are immutable: an operator that writes into a storage makes a new value of it. So they form a graph without
cycles, with edges from a value to its parents, and a value that is no longer needed is freed by reference count.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import inf
from typing import Any, TypeVar
from weakref import ref

__all__ = ["Neighbourhood", "Value"]

SomeValue = TypeVar("SomeValue", bound="Value")


class Neighbourhood:
    """A set of evicted values connected through evicted values, and what it costs to compute all of them.

    A union-find tree: `join` merges two sets, and nothing is ever split. A recomputed value leaves its
    set by subtracting its cost (the estimate of Kirisame et al., ICLR 2021, section 4).
    """

    __slots__ = ("_above", "_cost")

    def __init__(self, cost: float) -> None:
        self._above: Neighbourhood | None = None
        self._cost = cost

    @property
    def root(self) -> Neighbourhood:
        node = self
        while node._above is not None:
            if node._above._above is not None:
                node._above = node._above._above
            node = node._above
        return node

    @property
    def cost(self) -> float:
        return self.root._cost

    def join(self, other: Neighbourhood) -> None:
        mine, theirs = self.root, other.root
        if mine is not theirs:
            theirs._above = mine
            mine._cost += theirs._cost

    def leave(self, cost: float) -> None:
        root = self.root
        root._cost -= cost


class Value:
    """What a policy may read. Drivers (the simulators, the live runtime) add what they need to compute it."""

    __slots__ = (
        "__weakref__",
        "_ancestor_cost",
        "_children",
        "_is_counted",
        "address",
        "cost",
        "is_absent",
        "is_resident",
        "last_used",
        "n_bytes",
        "neighbourhood",
        "parents",
        "pins",
        "position",
        "saves",
    )

    def __init__(
        self, n_bytes: int, cost: float, parents: Sequence[Value] = (), last_used: float = 0.0
    ) -> None:
        self.n_bytes = n_bytes
        self.cost = cost  # seconds to compute it from its parents
        self.parents = tuple(parents)
        self.last_used = last_used  # on the driver's clock
        self.is_resident = True
        self.is_absent = False  # evicted though autograd has saved it
        self.saves = 0  # how many handles autograd (or the program) holds on it
        self.pins = 0  # above zero while an operator that reads it is being prepared
        self.address = 0  # where it lies, for policies that care; 0 = unknown
        self.position = -1  # in the candidates; -1 = not one
        self.neighbourhood: Neighbourhood | None = None  # of an evicted value
        self._ancestor_cost: float | None = None  # as long as it is known to hold
        self._is_counted = False  # whether someone's remembered cost depends on this value being here or gone
        self._children: list[ref[Any]] = []  # weak: a child keeps its parents, never the other way
        for parent in self.parents:
            parent._children.append(ref(self))

    @property
    def children(self: SomeValue) -> Iterator[SomeValue]:
        """Of the same class: each driver has one class of values."""
        for reference in self._children:
            child = reference()
            if child is not None:
                yield child

    def evict(self) -> None:
        """Mark as evicted and join the evicted values around it."""
        self.is_resident = False
        mine = self.neighbourhood = Neighbourhood(self.cost)
        for other in (*self.parents, *self.children):
            if other.neighbourhood is not None and other is not self:
                mine.join(other.neighbourhood)
        self._disturb()

    def restore(self) -> None:
        """Mark as recomputed."""
        self.is_resident = True
        if self.neighbourhood is not None:
            self.neighbourhood.leave(self.cost)
            self.neighbourhood = None
        self._disturb()

    def known_ancestor_cost(self) -> float:
        """The same as `ancestor_cost()`, remembered until something that this value would need comes or goes."""
        if self._ancestor_cost is None:
            total: float = 0
            seen: set[Value] = set()
            stack: list[Value] = [self]
            while stack:
                for parent in stack.pop().parents:
                    parent._is_counted = True
                    if not parent.is_resident and parent not in seen:
                        seen.add(parent)
                        stack.append(parent)
                        total += parent.cost
            self._ancestor_cost = total
        return self._ancestor_cost

    def _disturb(self) -> None:
        """What is computed from this value, directly or through evicted values, no longer costs what it did."""
        if not self._is_counted:
            return
        self._is_counted = False
        seen, stack = {self}, [self]
        while stack:
            for child in stack.pop().children:
                if child not in seen:
                    seen.add(child)
                    child._ancestor_cost = None
                    if not child.is_resident:
                        stack.append(child)

    def ancestor_cost(self, limit: float = inf, most: float = inf) -> float:
        """Seconds to compute every evicted value that this one would need first.

        The search ends, and the answer is `limit`, once they cost that much or are more than `most`.
        """
        total: float = 0
        seen: set[Value] = set()
        stack: list[Value] = [self]
        while stack:
            for parent in stack.pop().parents:
                if not parent.is_resident and parent not in seen:
                    seen.add(parent)
                    stack.append(parent)
                    total += parent.cost
            if total >= limit or len(seen) > most:
                return limit
        return total
