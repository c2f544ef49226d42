"""Dynamic tensor rematerialisation for real training: the recorder, autograd's hooks, and the engine between them.

    forward ──> Recorder ──> values       autograd saves ──> pack ──> engine.save
    backward ──> unpack ──> engine.fetch ──> recipes run again          node done ──> engine.unsave

Only what autograd alone holds is ever dropped: a tensor the program can still reach is never touched.
"""

from __future__ import annotations

import os
import re
import threading
import warnings
from collections.abc import Callable, Hashable, Iterable
from time import perf_counter
from typing import Any
from weakref import WeakSet, ref

import torch

from windtunnel.remat.engine import Engine, Settings
from windtunnel.remat.torch_costs import Costs
from windtunnel.remat.torch_interception import Interception
from windtunnel.remat.torch_meter import Meter, meter_for
from windtunnel.remat.torch_recipe import Blank, LiveValue, Recipe, without_modes
from windtunnel.remat.torch_recorder import Recorder, value_of
from windtunnel.remat.torch_saved_tensors import SavedTensors
from windtunnel.remat.torch_vanishing import VanishingWeights
from windtunnel.remat.value import Value
from windtunnel.units import MIB, format_bytes, parse_bytes

__all__ = ["Runtime", "device_bytes", "runtime_here"]

_dead = ref(set())  # answers None for ever
_QUIET = 0.9  # of the limit: up to here a rough count of live bytes will do
_MADE = 4096  # values to remember before looking which of them are still there
_FAR_BELOW = 0.5  # of the limit: a round that stays under this needs no recorder


class Runtime:
    """The host of the engine. One per process; it manages one device."""

    def __init__(self, settings: Settings, device: torch.device, costs: Costs | None = None) -> None:
        self.settings = settings
        self.device = device
        self.meter: Meter = meter_for(device)
        self.costs = costs or Costs(device)
        self.lock = threading.RLock()
        self.engine = Engine(self, settings)
        self.live_bytes = self.meter.live_bytes
        self.is_recording = False
        self._recorder = Recorder(self)
        self._readers: WeakSet[LiveValue] = WeakSet()  # their recipes read something that is not a value
        self._capacity: int | None = None
        self._vanishing = VanishingWeights()
        self._saved = SavedTensors(self)
        self._interception = Interception(self._recorder, self._saved.pack, self._saved.unpack)
        self._interception.is_recording = lambda: self.is_recording
        self._interception.after_backward = self.end_round
        self._interception.who_holds = self._who_holds
        self._made: list[tuple[ref[LiveValue], int]] = []  # since the last backward, and in which thread
        self._made_elsewhere: list[ref[LiveValue]] = []  # before it, in threads that may be amid a forward
        self._most_made = _MADE
        self._home_stream: Any = None
        self._n_unseen = 0  # backwards since `start`, as long as nothing has been saved
        self._told: set[tuple[str, int | None]] = set()  # which warning, at which threshold

    # -- the engine's host ----------------------------------------------------------------------------------

    def capacity(self) -> int:
        if self._capacity is None:
            self._capacity = self.meter.capacity()
        return self._capacity

    def is_held(self, value: LiveValue) -> bool:  # type: ignore[override]
        storage = value.storage
        if storage is None:
            return True
        if torch._C._storage_Use_Count(storage._cdata) > 1 + len(value.slots):
            return True
        return not self._vanishing.is_computable(value)

    def drop(self, value: LiveValue) -> None:  # type: ignore[override]
        if self._vanishing.must_stay(value):
            return
        storage, value.storage = value.storage, None
        value.slots.clear()
        is_in_use = storage is not None and torch._C._storage_Use_Count(storage._cdata) > 1
        if is_in_use and value_of(storage) is value:
            storage._windtunnel = value  # the program holds it still: so the value hangs on it again

    def output_bytes(self, value: LiveValue) -> int:  # type: ignore[override]
        return value.recipe.n_bytes

    def compute(self, value: LiveValue) -> Iterable[Value]:  # type: ignore[override]
        start = perf_counter()
        recipe = value.recipe
        with without_modes():
            taken = self._before_content(recipe)
            result, written = self._retrying(lambda: recipe.run(self.device, taken))
            made = self._settle(value, recipe, result, written)
        self.engine.statistics.rematerialisation_seconds += perf_counter() - start
        return made

    def _before_content(self, recipe: Recipe) -> torch.UntypedStorage | None:
        """The storage an in-place operator writes into again: its parent's own if nobody else needs that."""
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

    def _keep(self, value: LiveValue, storage: torch.UntypedStorage) -> None:
        if storage.nbytes() != value.n_bytes:
            raise RuntimeError(
                f"{value.recipe.operator} gave {storage.nbytes()} bytes when run again and {value.n_bytes} before;"
                " it cannot be rematerialised: please report it"
            )
        value.storage = storage
        value.live_in(storage, self.gone)
        storage._windtunnel = ref(value)

    @staticmethod
    def gone(value: LiveValue | None) -> None:
        """The last reference to a value's bytes went away."""
        if value is not None and value.is_resident:
            value.evict()

    # -- what may not be dropped ----------------------------------------------------------------------------

    def freeze(self, value: LiveValue) -> None:
        """Never drop this value again."""
        value.pins += 1
        if not value.is_resident:
            is_in_backward = self.engine.is_in_backward
            self.engine.fetch(value)
            self.engine.is_in_backward = is_in_backward  # a write amid the forward does not end it
        storage = value.here()
        value.storage = storage
        if storage is not None:
            storage._windtunnel = ref(value)

    def note_constants(self, recipe: Recipe, made: Iterable[LiveValue]) -> None:
        for constant in recipe.constants():
            storage = constant.tensor.untyped_storage()
            storage._windtunnel_is_read = True
            self._vanishing.look_at(constant.tracker, storage)
        self._readers.update(made)

    def before_write(self, tensor: torch.Tensor) -> None:
        """An operator is about to change a tensor: what was computed from it and is needed must be had first."""
        storage = tensor.untyped_storage()
        value = value_of(storage)
        if isinstance(value, LiveValue) and value.pins:  # frozen: it could not be computed again for them
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
            # Who saved it gets what is there now, as without us (or torch's refusal); what was computed from it is
            # computed again from what it was.
            value.overwritten.update(value.slots)
            value.slots.clear()
            value.storage, value.weak = None, _dead
            if value.is_resident:
                value.evict()

    # -- on and off -----------------------------------------------------------------------------------------

    @property
    def is_on(self) -> bool:
        return self._interception.is_on

    def start(self) -> None:
        if not self.is_on:
            self._home_stream = None if self.device.type == "cpu" else torch.accelerator.current_stream()
            self._saved.has_packed = False
            self._n_unseen = 0
        self._interception.start()
        self.is_recording = self.engine.is_evicting = True

    def stop(self) -> None:
        """Stop recording and evicting. What is gone comes back all the same when backward asks for it."""
        self.is_recording = self.engine.is_evicting = False
        self._interception.stop()

    def made(self, values: list[LiveValue]) -> None:
        thread = threading.get_ident()
        self._made += [(ref(value), thread) for value in values]
        if len(self._made) > self._most_made:  # a program that never calls backward
            self._made = [each for each in self._made if each[0]() is not None]
            self._most_made = max(_MADE, 2 * len(self._made))

    def end_round(self) -> None:
        """A backward has ended: let go of recipes, and if memory never came near the limit, rest until it does."""
        with self.lock:
            self._saved.let_go_released()
            for reference in self._ended():
                value = reference()
                storage = value.weak() if value is not None and not value.saves else None
                if storage is not None and value_of(storage) is value:
                    # The program keeps the tensor, a metric say; what it was computed from need not be kept for that.
                    del storage._windtunnel
            self.engine.end_backward()
            self._tell_what_failed()
            self.meter.quiet_below = int(self.engine.limit * _QUIET)
        is_far_below = self.engine.guard.peak_bytes < self.engine.limit * _FAR_BELOW
        if self._interception.is_on and self.is_recording and is_far_below and not self.engine.candidates():
            self.is_recording = False
            self._interception.rest()

    def _ended(self) -> list[ref[LiveValue]]:
        """What was made by forwards that are over: this thread's, those of threads that are gone, and of the others
        what is older than one backward."""
        here, alive = threading.get_ident(), {thread.ident for thread in threading.enumerate()}
        ended, going_on = self._made_elsewhere, []
        for reference, thread in self._made:
            (ended if thread == here or thread not in alive else going_on).append(reference)
        self._made, self._made_elsewhere = [], going_on
        return ended

    def before(self, key: Hashable) -> None:
        """A recorded operator is about to run: make room, and if all backwards are over, a round has ended."""
        if self._interception.n_backwards:
            self.engine.make_room_for(key)  # another thread's is running
        else:
            self.engine.before(key)

    def attend(self) -> None:
        """Something is saved in this thread, which may be another than `start` was called in."""
        self._interception.attend()

    def wake_if_near(self) -> None:
        """Something is saved while we rest: is it time to record again?"""
        if self._interception.is_on and self.meter.live_bytes() > self.engine.limit * _FAR_BELOW:
            self.is_recording = True

    def is_on_side_stream(self) -> bool:
        """True on another stream than `start` was called on: what is made there is left alone."""
        if self._home_stream is None or torch.accelerator.current_stream() == self._home_stream:
            return False
        self._tell(
            "stream",
            "forward runs on another stream than dtr.enable() did: what it makes there is not evicted, because only"
            " one stream is managed; call dtr.disable(), then dtr.enable() on the stream you train on",
        )
        return True

    # -- when memory runs out -------------------------------------------------------------------------------

    def with_retry(self, func: Any, args: Any, kwargs: Any) -> Any:
        return (
            self._retrying(lambda: func(*args, **kwargs))
            if self.device.type != "cpu"
            else func(*args, **kwargs)
        )

    def _retrying(self, call: Callable[[], Any]) -> Any:
        """Run; if the device has no room, evict and run again until it has or nothing is left to evict."""
        while True:
            try:
                return call()
            except torch.OutOfMemoryError as error:
                with self.lock:
                    if not self.engine.evict_for(_asked_bytes(error)):
                        raise torch.OutOfMemoryError(f"{error} {self._who_holds()}") from error
                    self.engine.statistics.failed_allocations += 1

    def _who_holds(self) -> str:
        evictable = sum(value.n_bytes for value in self.engine.candidates())
        live = self.meter.live_bytes()
        return (
            f"windtunnel.dtr: {format_bytes(live)} are in use, of which {format_bytes(evictable)} could be evicted;"
            " the rest are weights, gradients, optimizer state and the operands of the current operator."
        )

    def _tell_what_failed(self) -> None:
        """After a backward: a threshold that was not held, once for each; or that there was nothing to work on."""
        needed, reachable = self.engine.needed_bytes, self.engine.reachable_bytes
        asked = f"the threshold of {format_bytes(self.settings.threshold or 0)}"
        if needed:
            self._tell(
                "floor",
                f"{asked} is below what cannot be evicted: {format_bytes(needed)} were needed at once. Training goes on"
                " with all evicted that can be, which costs time and gains nothing; set dtr.eviction_threshold to"
                f" {reachable} or more",
            )
        if self.engine.guard.is_tripped:
            raised = self.engine.guard.raised(self.engine.limit)
            self._tell(
                "guard",
                f"{asked} made one step compute more than twice as many values again as it has operators;"
                f" {format_bytes(raised)} is used from the next step on, and more if that is not enough; set"
                f" dtr.eviction_threshold to {max(raised, reachable)} or more",
            )
        self._n_unseen = 0 if self._saved.has_packed else self._n_unseen + 1
        # The first backward may be that of a forward from before.
        if self._n_unseen > 1 and self.is_on and self.meter.live_bytes() > self.engine.limit:
            self._tell(
                "unseen",
                f"{format_bytes(self.meter.live_bytes())} are in use, more than {asked}, but nothing that autograd"
                " saved has been seen since dtr.enable(). If the forward runs in a thread that began before, call"
                " dtr.enable() in that thread; inside torch.func and other saved-tensor hooks nothing is evicted",
            )

    def _tell(self, what: str, sentence: str) -> None:
        if (what, self.settings.threshold) not in self._told:
            self._told.add((what, self.settings.threshold))
            warnings.warn(f"windtunnel.dtr: {sentence}", stacklevel=2)


def _asked_bytes(error: BaseException) -> int:
    """How much was asked for, from torch's own words; a megabyte if they have changed."""
    found = re.search(r"Tried to allocate ([\d.]+ [KMGT]?i?B)", str(error))
    return parse_bytes(found.group(1)) if found else MIB


def runtime_here(settings: Settings) -> Runtime:
    """A runtime for the device this process trains on: the current accelerator, or the host."""
    return Runtime(settings, _device_here())


def device_bytes() -> int:
    """All the memory of that device."""
    device = _device_here()
    if device.type == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return getattr(torch, device.type).mem_get_info(device)[1]


def _device_here() -> torch.device:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None:
        return torch.device("cpu")
    return torch.device(accelerator.type, torch.accelerator.current_device_index())
