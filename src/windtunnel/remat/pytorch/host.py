"""The engine's host on a real device: storages as values, and what must not be evicted.

    Engine ──> is_held, drop, compute ──> LiveValue on a torch storage
    recorder, saved tensors ──> record_made, before_write, overwritten, with_retry

This is the state that the recorder, the saved tensors and the runtime share. Only what autograd alone holds is ever
dropped: a tensor the program can still reach is never touched.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any
from weakref import WeakSet, ref

import torch

from windtunnel.remat.evict_and_recompute import Engine, Settings
from windtunnel.remat.pytorch.costs import Costs
from windtunnel.remat.pytorch.meter import Meter, meter_for
from windtunnel.remat.pytorch.recipe import Blank, LiveValue, Recipe, value_of, without_modes
from windtunnel.remat.pytorch.sharded_weights import ShardedWeights
from windtunnel.remat.value import Value
from windtunnel.units import MIB, format_bytes, parse_bytes

__all__ = ["LiveHost"]

_dead: Callable[[], Any] = ref(set())  # a reference to something already freed
_HOST_SHARE = 0.85  # of the free memory of a host: it does not refuse an allocation, it kills the process
_MADE = 4096  # values to remember before checking which of them still exist


class LiveHost:
    """One per process; it manages one device."""

    def __init__(self, settings: Settings, device: torch.device, costs: Costs | None = None) -> None:
        self.settings = settings
        self.device = device
        self.meter: Meter = meter_for(device)
        self.costs = costs or Costs(device)
        self.lock: Any = threading.RLock()  # Any: its stubs lack `_is_owned`
        self.engine = Engine(self, settings)
        self.live_bytes = self.meter.live_bytes
        self.is_recording = False
        self._capacity: int | None = None
        self._readers: WeakSet[LiveValue] = WeakSet()  # their recipes read something that is not a value
        self._vanishing = ShardedWeights()
        self._made: list[tuple[ref[LiveValue], int]] = []  # since the last backward, with the thread
        self._made_elsewhere: list[
            ref[LiveValue]
        ] = []  # before it, in threads that may still be in a forward
        self._most_made = _MADE

    # -- what the engine asks for ---------------------------------------------------------------------------

    def capacity(self) -> int:
        if self._capacity is None:
            self._capacity = self.meter.capacity()
        return min(self._capacity, self.settings.memory_limit or self._capacity)

    def limit_without_threshold(self) -> int:
        if self.device.type == "cpu" and not self.settings.memory_limit:
            return int(self.capacity() * _HOST_SHARE)
        return self.capacity()

    def is_held(self, value: LiveValue) -> bool:
        storage = value.storage
        if storage is None:
            return True
        if torch._C._storage_Use_Count(storage._cdata) > 1 + len(value.slots):
            return True
        return not self._vanishing.is_computable(value)

    def drop(self, value: LiveValue) -> None:
        if self._vanishing.must_stay(value):
            return
        storage: Any = value.storage
        value.storage = None
        value.slots.clear()
        is_in_use = storage is not None and torch._C._storage_Use_Count(storage._cdata) > 1
        if is_in_use and value_of(storage) is value:
            storage._windtunnel = value  # the program still holds the storage, so it owns the value again

    def output_bytes(self, value: LiveValue) -> int:
        return value.recipe.n_bytes

    def compute(self, value: LiveValue) -> Iterable[Value]:
        start = perf_counter()
        recipe = value.recipe
        with without_modes():
            taken = self._before_content(recipe)
            result, written = self.retrying(lambda: recipe.run(self.device, taken))
            made = self._settle(value, recipe, result, written)
        self.engine.statistics.rematerialisation_seconds += perf_counter() - start
        return made

    def _before_content(self, recipe: Recipe) -> torch.UntypedStorage | None:
        """The storage an in-place operator writes into again: its parent's own if nothing else needs that."""
        target = recipe.writes
        if target is None or isinstance(target, Blank):
            return None
        parent = target.value
        storage = parent.here()
        if parent.storage is not None and not parent.saves and parent.pins == 1 and not self.is_held(parent):
            parent.storage = None
            parent.weak = _dead
            parent.evict()
            return storage
        assert storage is not None  # a parent is resident while its child is computed
        return storage.clone()

    def _settle(self, value: LiveValue, recipe: Recipe, result: Any, written: Any) -> list[Value]:
        if written is not None:
            self._keep(value, written)
            return [value]
        outputs = (result,) if isinstance(result, torch.Tensor) else result
        made: list[Value] = []
        for reference, tensor in zip(recipe.results, outputs, strict=True):
            sibling = reference() if reference is not None else None
            if sibling is not None and not sibling.is_resident and (sibling is value or sibling.saves):
                self._keep(sibling, tensor.untyped_storage())
                made.append(sibling)
        return made

    def _keep(self, value: LiveValue, storage: Any) -> None:
        if storage.nbytes() != value.n_bytes:
            raise RuntimeError(
                f"{value.recipe.operator} returned {storage.nbytes()} bytes when recomputed, but {value.n_bytes} the"
                " first time, so it cannot be rematerialised; please report this"
            )
        value.storage = storage
        value.live_in(storage, self.gone)
        storage._windtunnel = ref(value)

    @staticmethod
    def gone(value: LiveValue | None) -> None:
        """The last reference to a value's bytes was dropped."""
        if value is not None and value.is_resident:
            value.evict()

    # -- what may not be dropped ----------------------------------------------------------------------------

    def freeze(self, value: LiveValue) -> None:
        """Never drop this value again."""
        value.pins += 1
        if not value.is_resident:
            is_in_backward = self.engine.is_in_backward
            self.engine.fetch(value)
            self.engine.is_in_backward = is_in_backward  # a write in the middle of forward does not end it
        storage: Any = value.here()
        value.storage = storage
        if storage is not None:
            storage._windtunnel = ref(value)

    def note_constants(self, recipe: Recipe, made: Iterable[LiveValue]) -> None:
        for constant in recipe.constants():
            storage: Any = constant.tensor.untyped_storage()
            storage._windtunnel_is_read = True
            self._vanishing.look_at(constant.tracker, storage)
        self._readers.update(made)

    def before_write(self, tensor: torch.Tensor) -> None:
        """An operator is about to change a tensor: first rematerialise what is needed and computed from it."""
        storage = tensor.untyped_storage()
        value = value_of(storage)
        if isinstance(value, LiveValue) and value.pins:  # frozen: it could not be recomputed for its children
            for child in list(value.children):
                self.freeze(child)
        if not self._readers or not storage.__dict__.get("_windtunnel_is_read"):
            return
        for value in list(self._readers):
            if any(
                each.tensor.untyped_storage()._cdata == storage._cdata for each in value.recipe.constants()
            ):
                self.freeze(value)
                self._readers.discard(value)

    def overwritten(self, tensor: torch.Tensor) -> None:
        """The tensor's storage no longer has the value it had."""
        storage = tensor.untyped_storage()
        value = value_of(storage)
        storage.__dict__.pop("_windtunnel", None)
        if isinstance(value, LiveValue):
            # A node that saved it gets the new content, as without us (or torch's error); what was computed from
            # the old content is recomputed from the old content.
            value.overwritten.update(value.slots)
            value.slots.clear()
            value.storage, value.weak = None, _dead
            if value.is_resident:
                value.evict()

    # -- values of finished forwards ------------------------------------------------------------------------

    def record_made(self, values: list[LiveValue]) -> None:
        thread = threading.get_ident()
        self._made += [(ref(value), thread) for value in values]
        if len(self._made) > self._most_made:  # a program that never calls backward
            self._made = [each for each in self._made if each[0]() is not None]
            self._most_made = max(_MADE, 2 * len(self._made))

    def release_recipes(self) -> None:
        """Forget how to compute what finished forwards made and autograd has not saved."""
        for reference in self._finished():
            value = reference()
            storage: Any = value.weak() if value is not None and not value.saves else None
            if storage is not None and value_of(storage) is value:
                # The program keeps the tensor, such as a metric; its inputs need not be kept for that.
                del storage._windtunnel

    def _finished(self) -> list[ref[LiveValue]]:
        """Values of finished forwards: those of this thread and of threads that have ended, and values of other
        threads that are older than one backward."""
        here, alive = threading.get_ident(), {thread.ident for thread in threading.enumerate()}
        finished = self._made_elsewhere
        unfinished: list[ref[LiveValue]] = []
        for reference, thread in self._made:
            (finished if thread == here or thread not in alive else unfinished).append(reference)
        self._made, self._made_elsewhere = [], unfinished
        return finished

    # -- when memory runs out -------------------------------------------------------------------------------

    def with_retry(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an operator; where its results do not fit, evict something first."""
        if self.device.type != "cpu":
            return self.retrying(lambda: func(*args, **kwargs))
        if not self.settings.memory_limit:
            return func(*args, **kwargs)
        before = self.meter.live_bytes()
        out = self.retrying(lambda: func(*args, **kwargs))
        if self.meter.live_bytes() > max(before, self.settings.memory_limit):
            self._make_fit(self.settings.memory_limit)
        return out

    def _make_fit(self, limit: int) -> None:
        """A host grants every request, so the limit is enforced here: as soon as an operator has exceeded it."""
        with self.lock:
            while (short_by := self.meter.live_bytes() - limit) > 0:
                if not self.engine.evict_for(short_by):
                    raise torch.OutOfMemoryError(
                        f"CPU out of memory: dtr.memory_limit is {format_bytes(limit)}, and"
                        f" {format_bytes(short_by)} more are needed. {self.describe_usage()}"
                    )
                self.engine.statistics.failed_allocations += 1

    def retrying(self, call: Callable[[], Any]) -> Any:
        """Run; while the device is full, evict and run again, until nothing is left to evict."""
        while True:
            try:
                return call()
            except torch.OutOfMemoryError as error:
                with self.lock:
                    if not self.engine.evict_for(_requested_bytes(error)):
                        raise torch.OutOfMemoryError(f"{error} {self.describe_usage()}") from error
                    self.engine.statistics.failed_allocations += 1

    def describe_usage(self) -> str:
        evictable = sum(value.n_bytes for value in self.engine.candidates())
        live = self.meter.live_bytes()
        return (
            f"windtunnel.dtr: {format_bytes(live)} are in use, of which {format_bytes(evictable)} could be evicted;"
            " the rest are weights, gradients, optimizer state and the operands of the current operator."
        )


def _requested_bytes(error: BaseException) -> int:
    """The size of the failed request, from torch's message; a megabyte if the message has changed."""
    found = re.search(r"Tried to allocate ([\d.]+ [KMGT]?i?B)", str(error))
    return parse_bytes(found.group(1)) if found else MIB
