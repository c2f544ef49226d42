"""MegEngine's own runtime for the same program: what `mge.dtr` of version 1.4 would do at a threshold.

    Instruction, … ──> MegEngine(threshold) ──> best-fit pool of the card ──> Outcome of the last step

It differs from ours where it matters for the curve: it owns every tensor, so it may evict any that has a recorded
operator, used or not by the program; it evicts before an operator runs, without counting what the operator makes; it
takes bytes for cost; and when an allocation finds no room it copies everything to the host and back. The rules follow
imperative/src/impl/interpreter and blob_manager_impl.cpp of v1.4.0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.dtr.reference.tensor_program import Apply, Delete, Instruction, StepEnd
from windtunnel.errors import PredictedOutOfMemory
from windtunnel.memory.allocators.models.megengine import MegEngineAllocator
from windtunnel.remat.value import Neighbourhood, Value
from windtunnel.units import MIB

__all__ = ["MegEngineCard", "MegEngineOutcome", "run_megengine"]

_HOST_BYTES_S = 5e9  # pageable memory over PCIe 3, one way
_RETRY_S = 0.2  # the allocator sleeps before it gives up
_NEVER_RECORDED = frozenset(  # operators that draw numbers or communication to other ranks
    "bernoulli dropout multinomial native_dropout normal poisson rand rand_like randint randn randn_like randperm".split()
)
_MOST_WORK = 100  # times the operators of the program: then it is called thrashing and stopped


@dataclass(frozen=True)
class MegEngineCard:
    """The device as MegEngine sees it."""

    usable_bytes: int
    # Of every convolution. Nobody has measured it: this one makes the published curve come out.
    workspace_bytes: int = 900 * MIB


@dataclass(frozen=True)
class MegEngineOutcome:
    """The last step of a run at one threshold."""

    threshold: int
    step_seconds: float
    n_evictions: int
    n_computed_again: int
    n_defragmentations: int
    peak_bytes: int  # of the whole run
    peak_reserved_bytes: int
    failure: str | None = None

    @property
    def fits(self) -> bool:
        return self.failure is None


def run_megengine(
    instructions: Sequence[Instruction], threshold: int, card: MegEngineCard | None = None,
    minimum_size: int = MIB,
) -> MegEngineOutcome:  # fmt: skip
    """Simulate a whole program; a `threshold` of 0 evicts nothing. Without a device, memory is unlimited."""
    runtime = _Runtime(threshold, card, minimum_size)
    most_work = _MOST_WORK * len(instructions)
    last = (0.0, 0, 0, 0)
    before = runtime.totals()
    failure = None
    try:
        for instruction in instructions:
            match instruction:
                case Apply():
                    runtime.apply(instruction)
                case Delete():
                    runtime.delete(instruction.tensor)
                case StepEnd():
                    now = runtime.totals()
                    last = tuple(b - a for a, b in zip(before, now, strict=True))
                    before = now
            if runtime.n_computed_again > most_work:
                failure = f"computed {runtime.n_computed_again:,} tensors again without an end in sight"
                break
    except PredictedOutOfMemory as error:
        failure = error.message
    return MegEngineOutcome(
        threshold, *last, runtime.allocator.peak_allocated_bytes, runtime.allocator.peak_reserved_bytes, failure
    )  # fmt: skip


class _Path:
    """A recorded operator: what a tensor can be computed from again."""

    __slots__ = ("has_workspace", "inputs", "outputs", "seconds", "work")

    def __init__(self, call: Apply, inputs: list[_Tensor], outputs: list[_Tensor], work: float) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.seconds = call.seconds
        self.has_workspace = call.has_workspace
        self.work = work


class _Tensor(Value):
    """A tensor, and what MegEngine keeps of it beyond a value's."""

    __slots__ = ("dependents", "id", "is_deleted", "path", "times_computed")

    def __init__(self, id: int, n_bytes: int, cost: float, now: float) -> None:
        super().__init__(n_bytes, cost, last_used=now)
        self.id = id
        self.path: _Path | None = None  # None: it cannot be recomputed
        self.dependents = 0  # living tensors whose path reads this one
        self.is_deleted = False  # by the program
        self.times_computed = 0
        self.neighbourhood = Neighbourhood(cost)

    @property
    def is_gone(self) -> bool:
        return not self.is_resident


class _Runtime:
    def __init__(self, threshold: int, card: MegEngineCard | None, minimum_size: int) -> None:
        self.allocator = MegEngineAllocator(card.usable_bytes if card else None)
        self.seconds = 0.0
        self.n_evictions = self.n_computed_again = self.n_defragmentations = 0
        self._threshold = threshold
        self._workspace_bytes = card.workspace_bytes if card else 0
        self._minimum_size = minimum_size
        self._clock = 0.0
        self._tensors: dict[int, _Tensor] = {}
        self._candidates: dict[int, _Tensor] = {}

    def totals(self) -> tuple[float, int, int, int]:
        return self.seconds, self.n_evictions, self.n_computed_again, self.n_defragmentations

    # -- commands of the interpreter -----------------------------------------------------------------------

    def apply(self, call: Apply) -> None:
        inputs = [self._tensors[id] for id in call.inputs]
        _pin(inputs)
        for tensor in inputs:
            if tensor.is_gone:
                self._regenerate(tensor)
            tensor.last_used = self._clock
        self._evict_down()
        work = float(sum(t.n_bytes for t in inputs) + sum(n for _, n in call.outputs))
        outputs = [_Tensor(id, n_bytes, work, self._clock) for id, n_bytes in call.outputs]
        self._allocate(outputs, inputs, call.has_workspace)
        self.seconds += call.seconds
        self._clock += work / 1e8
        _unpin(inputs)
        for tensor in outputs:
            tensor.last_used = self._clock
            self._tensors[tensor.id] = tensor
            if tensor.n_bytes > self._minimum_size:
                self._candidates[tensor.id] = tensor
        for id in call.written:
            self._forget_path(self._tensors[id])
        if outputs and _is_recorded(call.name):
            self._record(call, inputs, outputs, work)

    def delete(self, id: int) -> None:
        tensor = self._tensors.pop(id)
        tensor.is_deleted = True
        if not tensor.dependents:
            self._free(tensor)
        elif tensor.path is not None and tensor.is_resident:
            # Kept as an input for recomputation, but not in memory: it may never be needed.
            tensor.is_resident = False
            self.allocator.free(tensor.id)

    # -- memory --------------------------------------------------------------------------------------------

    def _allocate(self, outputs: Iterable[_Tensor], inputs: Iterable[_Tensor], has_workspace: bool) -> None:
        fixed = {tensor.id for tensor in inputs}  # what the running operator reads and writes does not move
        for tensor in outputs:
            self._alloc(tensor.id, tensor.n_bytes, fixed)
            fixed.add(tensor.id)
        if has_workspace and self._workspace_bytes:
            self._alloc(-1, self._workspace_bytes, fixed)
            self.allocator.free(-1)

    def _alloc(self, id: int, n_bytes: int, fixed: set[int]) -> None:
        try:
            self.allocator.alloc(id, n_bytes)
        except PredictedOutOfMemory:
            self.seconds += _RETRY_S
            self._defragment(fixed)
            self.allocator.alloc(id, n_bytes)

    def _defragment(self, fixed: set[int]) -> None:
        """Copy everything to the host, free the device, and place everything again in the order it was made."""
        moved = sorted(
            (block.id, block.requested_bytes)
            for segment in self.allocator.segments()
            for block in segment.blocks
            if block.state == "active" and block.id not in fixed
        )
        for id, _ in moved:
            self.allocator.free(id)
        self.allocator.empty_cache()
        total = sum(n_bytes for _, n_bytes in moved)
        self.seconds += 2 * total / _HOST_BYTES_S
        self.n_defragmentations += 1
        try:
            self.allocator.alloc(-2, sum(-(-n // 512) * 512 for _, n in moved))
            self.allocator.free(-2)
        except PredictedOutOfMemory:
            pass  # what does not move is in the way: it goes on without one piece
        for id, n_bytes in moved:
            self.allocator.alloc(id, n_bytes)

    def _evict_down(self) -> None:
        while self._threshold and self.allocator.allocated_bytes > self._threshold:
            victim = min(self._evictable(), key=self._score, default=None)
            if victim is None:
                return
            self.n_evictions += 1
            self.allocator.free(victim.id)
            victim.is_resident = False
            self._join(victim)

    def _evictable(self) -> list[_Tensor]:
        return [t for t in self._candidates.values() if t.is_resident and not t.pins and t.path is not None]

    def _score(self, tensor: _Tensor) -> float:
        """Cheap to rematerialise, large together with adjacent holes, long unused. Its own cost is not counted."""
        path = tensor.path
        assert path is not None  # _evictable has looked
        cost = sum(
            max(near.neighbourhood.cost, near.cost) for near in (*path.inputs, *path.outputs) if near.is_gone
        )
        room = (tensor.n_bytes + self.allocator.free_beside(tensor.id)) / MIB
        return (
            (cost + 1e-3) * 1.0001**tensor.times_computed / (room * (self._clock - tensor.last_used + 1e-3))
        )

    # -- recomputation -------------------------------------------------------------------------------------

    def _regenerate(self, tensor: _Tensor) -> None:
        """Depth first; every operator on the way keeps its inputs pinned until it has run."""
        waiting = [_begin(tensor)]
        while waiting:
            path = waiting[-1]
            missing = next((t for t in path.inputs if t.is_gone), None)
            if missing is not None:
                waiting.append(_begin(missing))
                continue
            waiting.pop()
            if any(t.is_gone for t in path.outputs):
                self._run_again(path)
            _unpin(path.inputs)

    def _run_again(self, path: _Path) -> None:
        for tensor in path.inputs:
            tensor.last_used = self._clock
        self._evict_down()
        self._allocate([t for t in path.outputs if t.is_gone], path.inputs, path.has_workspace)
        self.seconds += path.seconds
        self.n_computed_again += 1
        self._clock += path.work / 1e8
        for tensor in path.outputs:
            tensor.times_computed += 1
            if tensor.is_gone:
                tensor.is_resident = True
                tensor.last_used = self._clock
                tensor.neighbourhood.leave(tensor.cost)
                tensor.neighbourhood = Neighbourhood(tensor.cost)

    # -- the graph of recorded operators -------------------------------------------------------------------

    def _record(self, call: Apply, inputs: list[_Tensor], outputs: list[_Tensor], work: float) -> None:
        """Small outputs stay in memory, so they need no path."""
        large = [tensor for tensor in outputs if tensor.n_bytes > self._minimum_size]
        path = _Path(call, inputs, large, work)
        for tensor in large:
            tensor.path = path
            for parent in inputs:
                parent.dependents += 1

    def _join(self, victim: _Tensor) -> None:
        path = victim.path
        assert path is not None  # _evictable has looked
        for near in (*path.inputs, *path.outputs):
            if near.is_gone and near is not victim:
                victim.neighbourhood.join(near.neighbourhood)

    def _free(self, tensor: _Tensor) -> None:
        stack = [tensor]
        while stack:
            dead = stack.pop()
            if dead.is_resident:
                self.allocator.free(dead.id)
                dead.is_resident = False
            self._candidates.pop(dead.id, None)
            stack += self._forget_path(dead)

    def _forget_path(self, tensor: _Tensor) -> list[_Tensor]:
        """Cut a tensor off from what it was made of; returns what is no longer needed."""
        path, tensor.path = tensor.path, None
        if path is None:
            return []
        path.outputs.remove(tensor)
        unneeded = []
        for parent in path.inputs:
            parent.dependents -= 1
            if not parent.dependents and parent.is_deleted:
                unneeded.append(parent)
        return unneeded


def _begin(tensor: _Tensor) -> _Path:
    assert tensor.path is not None  # only what has a path is ever evicted
    _pin(tensor.path.inputs)
    return tensor.path


def _pin(tensors: Iterable[_Tensor]) -> None:
    for tensor in tensors:
        tensor.pins += 1


def _unpin(tensors: Iterable[_Tensor]) -> None:
    for tensor in tensors:
        tensor.pins -= 1


def _is_recorded(name: str) -> bool:
    namespace, _, rest = name.partition(".")
    return namespace == "aten" and rest.partition(".")[0] not in _NEVER_RECORDED
