"""A device of integers: values take bytes, computing one again is a line in a list."""

from __future__ import annotations

from collections.abc import Iterable

from windtunnel.remat.evict_and_recompute import Engine, Settings
from windtunnel.remat.value import Value


class FakeHost:
    def __init__(self, capacity: int = 1 << 40, static: int = 0) -> None:
        self.static = static  # bytes that are nobody's to drop
        self.room = capacity
        self.resident: set[Value] = set()
        self.held: set[Value] = set()  # by the program
        self.siblings: dict[Value, list[Value]] = {}  # values of one operator
        self.computed: list[Value] = []
        self.dropped: list[Value] = []
        self.peak = 0

    def live_bytes(self) -> int:
        return self.static + sum(value.n_bytes for value in self.resident)

    def capacity(self) -> int:
        return self.room

    def limit_without_threshold(self):
        return self.capacity()

    def is_held(self, value: Value) -> bool:
        return value in self.held

    def drop(self, value: Value) -> None:
        self.dropped.append(value)
        if value in self.resident and value not in self.held:
            self.resident.discard(value)
            value.evict()

    def output_bytes(self, value: Value) -> int:
        return sum(each.n_bytes for each in self.siblings.get(value, [value]))

    def compute(self, value: Value) -> Iterable[Value]:
        assert all(parent in self.resident for parent in value.parents)
        self.computed.append(value)
        made = [each for each in self.siblings.get(value, [value]) if each not in self.resident]
        self.resident.update(made)
        self.peak = max(self.peak, self.live_bytes())
        return made


class World:
    """An engine on that device, and the few words tests speak to it."""

    def __init__(self, threshold: int | None = None, **settings: object) -> None:
        self.host = FakeHost()
        self.settings = Settings(threshold=threshold, minimum_size=1, **settings)
        self.engine = Engine(self.host, self.settings)

    def run(
        self,
        key: str,
        n_bytes: int,
        cost: float = 1.0,
        parents: Iterable[Value] = (),
        *,
        is_saved: bool = True,
    ) -> Value:
        """One operator of the forward pass, with one result."""
        self.engine.before(key)
        value = Value(n_bytes, cost, tuple(parents))
        self.host.resident.add(value)
        self.host.peak = max(self.host.peak, self.host.live_bytes())
        if is_saved:
            self.engine.save(value)
        self.engine.after(key, n_bytes, cost, value.parents, [value])
        return value

    def backward(self, values: Iterable[Value]) -> None:
        """Autograd asks for each and lets it go."""
        for value in values:
            self.engine.fetch(value)
            assert value.is_resident
            assert value in self.host.resident
            self.engine.unsave(value)
