"""Predict what the runtime would do to a program: the same engine, driven by a recording instead of torch.

    Program, costs, settings ──> simulate ──> Outcome

It makes the runtime's calls to the engine in the runtime's order (`pytorch/recorder.py` and `pytorch/runtime.py` are the
originals), on blocks instead of storages. The difference is that no operators run here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakSet, ref

from windtunnel.errors import PredictedOutOfMemory
from windtunnel.events.model import CallFlag
from windtunnel.memory import Allocator
from windtunnel.remat.evict_and_recompute import Engine, Settings
from windtunnel.remat.rerunnable import (
    is_blank,
    is_fill,
    is_rerunnable,
    writes_first_input,
)
from windtunnel.remat.simulated import program as p
from windtunnel.remat.simulated.memory import BLANK, Block, Memory, Recipe, SimulatedValue
from windtunnel.remat.simulated.outcome import Outcome, OutOfMemory
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.remat.simulated.reads import Reads, running_statistics
from windtunnel.remat.simulated.step_figures import StepFigures
from windtunnel.remat.value import Value

__all__ = ["floor_bytes", "simulate"]

_FAR_BELOW = 0.5  # of the limit: a round that stays under this needs no recorder
_NO_LIMIT = 1 << 62
_HOST_GENERATOR_BYTES = 5056  # on a CPU, a saved generator state takes memory of the device itself


def simulate(
    program: p.Program,
    costs: ProgramCosts,
    settings: Settings,
    allocator: Allocator | None = None,
    *,
    is_cuda: bool = True,
    capacity: int | None = None,
) -> Outcome:
    """Run the program under these settings.

    With an allocator, memory is counted by it, fragments included, and a full device causes evictions; it must be fresh.
    `capacity` is the limit when the settings have no threshold: the allocator's own, if not given.
    """
    if capacity is None:
        capacity = allocator.device_bytes if allocator is not None and allocator.device_bytes else _NO_LIMIT
    return _Simulation(program, costs, settings, Memory(allocator), is_cuda, capacity).run()


def floor_bytes(
    program: p.Program, costs: ProgramCosts, settings: Settings, *, is_cuda: bool = True
) -> tuple[int, int]:
    """Return the range of useful thresholds: what cannot be evicted where the runtime acts, and the peak it sees."""
    free = simulate(program, costs, replace(settings, threshold=_NO_LIMIT), is_cuda=is_cuda)
    peak = max((step.peak_live_bytes for step in free.steps), default=0)
    # Just reached, so that the runtime watches but never evicts.
    watched = simulate(program, costs, replace(settings, threshold=max(peak, 1)), is_cuda=is_cuda)
    return watched.floor_bytes, watched.statistics.peak_live_bytes


class _Simulation:
    """The engine's host, and the follower of the program."""

    def __init__(self, program: p.Program, costs: ProgramCosts, settings: Settings, memory: Memory,
                 is_cuda: bool, capacity: int) -> None:  # fmt: skip
        self.program = program
        self.costs = costs
        self.settings = settings
        self.memory = memory
        self.is_cuda = is_cuda
        self.engine = Engine(self, settings)
        self._capacity = capacity
        self._storages: dict[int, Block] = {}  # what the program holds, by its numbers
        self._handles: dict[int, SimulatedValue | Block] = {}
        self._call: p.Call | None = None  # that is running
        self._write: tuple[Reads, Recipe] | None = None  # what it will have written
        self._is_recording = True
        self._is_too_late = False  # for the next call: its operator had begun when the recorder woke
        self._readers: WeakSet[SimulatedValue] = WeakSet()
        self._made: list[ref[SimulatedValue]] = []  # since the last backward
        self._steps = StepFigures(memory, self.engine.statistics)
        self._skipped: dict[int, frozenset[int]] = {}  # by signature: running statistics among the inputs

    def run(self) -> Outcome:
        follow: dict[type, Callable[[Any], None]] = {
            p.Call: self._begin_call, p.Return: self._end_call, p.Op: self._op, p.Alloc: self._alloc,
            p.Free: self._free, p.Save: self._save, p.Load: self._load, p.Unsave: self._unsave,
            p.BackwardEnd: self._end_backward, p.Step: lambda action: self._steps.end(action.number),
        }  # fmt: skip
        failure = None
        action: p.Action
        for action in self.program.actions:
            try:
                follow[type(action)](action)
            except PredictedOutOfMemory as error:
                failure = self._describe(action, error)
                break
        if failure is not None or not self._steps.done:
            self._steps.end(len(self._steps.done) + 1)
        self._steps.close()
        return Outcome(
            self.settings.threshold, tuple(self._steps.done), self.engine.statistics, self.memory.unevictable_bytes,
            self.memory.floor_bytes, failure,
        )  # fmt: skip

    # -- the engine's host ----------------------------------------------------------------------------------

    def live_bytes(self) -> int:
        return self.memory.live_bytes

    def capacity(self) -> int:
        return self._capacity

    def limit_without_threshold(self) -> int:
        return self._capacity

    def is_held(self, value: SimulatedValue) -> bool:
        if value.block is None or value.block.holders > 0:
            return True
        return bool(self.program.vanishing) and not value.is_computable()

    def drop(self, value: SimulatedValue) -> None:
        if value.must_stay():
            return
        block, value.block = value.block, None
        value.slots.clear()
        self._count(value)
        if block is not None and block.holders and block.value is value:
            block.content = value  # the program still holds the block, so it owns the value again

    def output_bytes(self, value: SimulatedValue) -> int:
        return value.recipe.n_bytes

    def compute(self, value: SimulatedValue) -> Iterable[Value]:
        recipe = value.recipe
        if recipe.writes is not None:
            self._keep(value, self._written_again(recipe))
            return [value]
        blocks = [self._make(n_bytes) for n_bytes in recipe.sizes]
        made: list[Value] = []
        for reference, block in zip(recipe.results, blocks, strict=True):
            sibling = reference() if reference is not None else None
            if sibling is not None and not sibling.is_resident and (sibling is value or sibling.saves):
                self._keep(sibling, block)
                made.append(sibling)
        return made

    def _written_again(self, recipe: Recipe) -> Block:
        """The block an in-place operator writes into again: its parent's own if nothing else needs that."""
        parent = recipe.writes
        if parent is BLANK:
            return self._make(recipe.n_bytes)
        if parent.block is not None and not parent.saves and parent.pins == 1 and not self.is_held(parent):
            block = parent.block
            parent.leave()
            self._count(parent)
            return block
        return self._make(recipe.n_bytes)

    def _keep(self, value: SimulatedValue, block: Block) -> None:
        value.block = block
        value.live_in(block)
        block.content = ref(value)
        self._count(value)

    def _count(self, value: SimulatedValue) -> None:
        """Keep the sum of what could be evicted."""
        is_evictable = not self.is_held(value)
        if is_evictable != value.is_counted:
            value.is_counted = is_evictable
            self.memory.evictable_bytes += value.n_bytes if is_evictable else -value.n_bytes

    # -- memory ---------------------------------------------------------------------------------------------

    def _make(self, n_bytes: int) -> Block:
        """Allocate; on a full device, evict and try again until there is room or nothing is left to evict."""
        while True:
            try:
                return self.memory.make(n_bytes)
            except PredictedOutOfMemory:
                if not self.engine.evict_for(n_bytes):
                    raise
                self.engine.statistics.failed_allocations += 1

    def _alloc(self, action: p.Alloc) -> None:
        # Only a call that the recorder watches can be tried again; backward's own allocations cannot.
        is_watched = self._call is not None and self._is_recording
        block = self._make(action.n_bytes) if is_watched else self.memory.make(action.n_bytes)
        self._hold(action.storage, block)

    def _hold(self, storage: int, block: Block | None) -> None:
        if block is not None:
            self._storages[storage] = block
            block.holders += 1

    def _free(self, action: p.Free) -> None:
        block = self._storages.pop(action.storage, None)
        if block is not None:
            block.holders -= 1
            value = block.value
            if isinstance(value, SimulatedValue):
                self._count(value)

    def _op(self, action: p.Op) -> None:
        self._steps.base_seconds += self.costs.op(action.signature)

    # -- calls ----------------------------------------------------------------------------------------------

    def _begin_call(self, call: p.Call) -> None:
        if self._is_too_late:
            self._is_too_late = False
            return
        self._call = call
        if not self._is_recording:
            return
        if call.written:
            self._begin_write(call)
        elif self._is_plain(call) and (self.engine.is_in_backward or self.engine.is_near()):
            self.engine.before(self.costs.key(call))

    def _end_call(self, action: p.Return) -> None:
        call, self._call = self._call, None
        if call is None or not self._is_recording:
            return
        if call.written:
            self._end_write(call)
        elif is_blank(call.name) and call.flags & CallFlag.GRAD:
            for block in self._blocks(call.outputs):
                block.content = BLANK
        elif self._is_plain(call):
            self._record(call)

    def _is_plain(self, call: p.Call) -> bool:
        return bool(call.flags & CallFlag.GRAD) and is_rerunnable(call.name, self.is_cuda)

    def _record(self, call: p.Call) -> None:
        """What a call made becomes values, if it is large enough."""
        blocks = self._blocks(call.outputs)
        sizes = tuple(block.n_bytes for block in blocks)
        minimum = max(self.settings.minimum_size, 1)
        if max(sizes, default=0) < minimum:
            return
        key, seconds = self.costs.key(call), self.costs.call(call)
        found = self._reads(call)
        made: list[SimulatedValue] = []
        if found.is_possible:
            recipe = self._recipe(call, found, sum(sizes), sizes, None)
            parents = tuple(found.values)
            for block in blocks:
                value = None
                if block.n_bytes >= minimum and block.content is None and block not in found.blocks:
                    value = block.content = SimulatedValue(block, seconds, parents, recipe)
                    made.append(value)
                recipe.results.append(None if value is None else ref(value))
            self._note_made(made, found)
        self.engine.after(key, sum(sizes), seconds, found.values, made)
        self.memory.look()

    def _begin_write(self, call: p.Call) -> None:
        """References are taken before the write: they are to what it reads."""
        targets = self._blocks(call.written)
        for target in targets:
            self._before_write(target)
        self._write = None
        old = targets[0].value if len(call.written) == len(targets) == 1 else None
        can_rerun = (
            old is not None
            and writes_first_input(call.name)
            and is_rerunnable(call.name, self.is_cuda)
            and call.flags & CallFlag.GRAD
            and (old is not BLANK or (is_fill(call.name) and call.flags & CallFlag.COVERS))
        )
        if can_rerun:
            found = self._reads(call, targets[0])
            if found.is_possible:
                n_bytes = targets[0].n_bytes
                self._write = found, self._recipe(call, found, n_bytes, (n_bytes,), old)

    def _end_write(self, call: p.Call) -> None:
        targets = self._blocks(call.written)
        for target in targets:
            self._overwritten(target)
        write, self._write = self._write, None
        if write is None or targets[0].n_bytes < max(self.settings.minimum_size, 1):
            return
        found, recipe = write
        seconds = self.costs.call(call)
        value = targets[0].content = SimulatedValue(targets[0], seconds, tuple(found.values), recipe)
        recipe.results.append(ref(value))
        self._note_made([value], found)
        self.engine.after(self.costs.key(call), 0, seconds, found.values, [value])

    def _recipe(self, call: p.Call, found: Reads, n_bytes: int, sizes: tuple[int, ...], old: Any) -> Recipe:
        """A recipe keeps blocks that are not values, and the state of the generator it uses."""
        held = tuple(found.constants)
        if call.flags & CallFlag.SEEDED and not self.is_cuda:
            held = (*held, self.memory.make(_HOST_GENERATOR_BYTES))
        recipe = Recipe(held, n_bytes, sizes, old)
        recipe.reads_vanishing = found.reads_vanishing
        return recipe

    def _note_made(self, made: list[SimulatedValue], found: Reads) -> None:
        self._made += map(ref, made)
        if made and found.has_constants:
            for block in found.constants:
                block.is_read = True
            self._readers.update(made)

    def _before_write(self, block: Block) -> None:
        """First rematerialise what is needed and computed from a block that is about to change."""
        content = block.value
        if (
            isinstance(content, SimulatedValue) and content.pins
        ):  # frozen: it could not be recomputed for its children
            for child in list(content.children):
                self._freeze(child)
        if not block.is_read:
            return
        for value in list(self._readers):
            if block in value.recipe.constants:
                self._freeze(value)
                self._readers.discard(value)

    def _freeze(self, value: SimulatedValue) -> None:
        value.pins += 1
        if not value.is_resident:
            self.engine.fetch(value)
        block = value.block = value.here()
        if block is not None:
            block.content = ref(value)
        self._count(value)

    def _overwritten(self, block: Block) -> None:
        """A node that saved it gets the new content; values computed from it are recomputed from the old content."""
        value, block.content = block.value, None
        if isinstance(value, SimulatedValue):
            value.overwritten |= dict.fromkeys(value.slots, block)
            value.slots.clear()
            value.leave()
            self._count(value)

    def _blocks(self, storages: Iterable[int]) -> list[Block]:
        return [self._storages[storage] for storage in storages if storage in self._storages]

    def _reads(self, call: p.Call, written: Block | None = None) -> Reads:
        skipped = self._skipped.get(call.signature)
        if skipped is None:
            signature = self.program.signatures[call.signature]
            skipped = self._skipped[call.signature] = running_statistics(signature)
        return Reads(call, self._storages, self.program.vanishing, skipped, written)

    # -- autograd -------------------------------------------------------------------------------------------

    def _save(self, action: p.Save) -> None:
        block = self._storages.get(action.storage)
        if block is None:
            return
        value = block.value
        if not self._is_recording:
            self._is_recording = self.live_bytes() > self.engine.limit * _FAR_BELOW
            self._is_too_late = self._is_recording and not action.is_result
            value = None
        if not isinstance(value, SimulatedValue):
            self._handles[action.handle] = block  # kept as it is
            return
        value.block = block
        value.slots.add(action.handle)
        block.content = ref(value)
        self._handles[action.handle] = value
        self.engine.save(value)

    def _load(self, action: p.Load) -> None:
        saved = self._handles.get(action.handle)
        if isinstance(saved, SimulatedValue) and action.handle in saved.overwritten:
            saved = saved.overwritten[action.handle]
        if isinstance(saved, SimulatedValue):
            saved.slots.discard(action.handle)
            self.engine.fetch(saved)
            if action.is_new:
                self._hold(action.storage, saved.here())
            self._count(saved)
            self.memory.look()
        elif saved is not None and action.is_new:
            self._hold(action.storage, saved)

    def _unsave(self, action: p.Unsave) -> None:
        saved = self._handles.pop(action.handle, None)
        if isinstance(saved, SimulatedValue):
            saved.slots.discard(action.handle)
            saved.overwritten.pop(action.handle, None)
            self.engine.unsave(saved)

    def _end_backward(self, action: p.BackwardEnd) -> None:
        """Release recipes, and pause recording if memory stayed far below the limit."""
        for reference in self._made:
            value = reference()
            block = value.weak() if value is not None and not value.saves else None
            if block is not None and block.value is value:
                block.content = None
        self._made.clear()
        self.engine.end_backward()
        is_far_below = self.engine.guard.peak_bytes < self.engine.limit * _FAR_BELOW
        if self._is_recording and is_far_below and not self.engine.candidates():
            self._is_recording = False

    def _describe(self, action: Any, error: PredictedOutOfMemory) -> OutOfMemory:
        call = self._call
        name = call.name if call is not None else self._next_op_name(action.row)
        return OutOfMemory(
            len(self._steps.done) + 1, name, self.program.place(action.row), error.requested_bytes, self.live_bytes(),
            self.memory.evictable_bytes,
        )  # fmt: skip

    def _next_op_name(self, row: int) -> str:
        """The row of an operator comes after its allocations."""
        following = (a for a in self.program.actions if isinstance(a, p.Op) and a.row >= row)
        found = next(following, None)
        return self.program.signatures[found.signature].name if found is not None else ""
