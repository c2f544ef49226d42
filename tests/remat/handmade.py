"""Programs written by hand, action by action, for the plans that are played on a recording.

Tape: enter, call, save, free, load, step ... ──> recording ──> Program, Seconds
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from windtunnel.events.file import RecordingWriter, read_recording, row_of
from windtunnel.events.model import (
    Alloc,
    Call,
    CallFlag,
    Free,
    Load,
    ModuleEnter,
    ModuleExit,
    Op,
    Phase,
    Return,
    Save,
    Signature,
    Step,
    Unsave,
)
from windtunnel.remat.simulated import program as p


class Seconds:
    """Seconds by signature; a call takes as long as its parts."""

    def __init__(self, by_signature: dict[int, float]) -> None:
        self._by_signature = by_signature

    def op(self, signature: int) -> float:
        return self._by_signature[signature]

    def call(self, call: p.Call) -> float:
        return sum(self._by_signature[part] for part in call.parts)

    def key(self, call: p.Call) -> str:
        return str(call.signature)


class Tape:
    """Storages and handles are numbers, counted from 0."""

    def __init__(self) -> None:
        self._events: list[object] = []
        self._names: dict[str, int] = {}
        self._signatures: dict[Signature, int] = {}
        self._seconds: dict[int, float] = {}
        self._n_storages = self._n_handles = self._n_ops = self._n_steps = 0
        self._modules: list[int] = []
        self._sizes: dict[int, int] = {}
        self._origin: dict[int, int] = {}  # handle -> storage
        self._alive: set[int] = set()
        self.phase = Phase.FORWARD

    def emit(self, *events: object) -> None:
        self._events += events

    @property
    def _module(self) -> int:
        return self._modules[-1] if self._modules else -1

    def enter(self, path: str) -> None:
        module = self._names.setdefault(path, len(self._names))
        self.emit(ModuleEnter(module, self.phase))
        self._modules.append(module)

    def exit(self) -> None:
        self.emit(ModuleExit(self._modules.pop(), self.phase))

    def alloc(self, n_bytes: int) -> int:
        storage, self._n_storages = self._n_storages, self._n_storages + 1
        self._sizes[storage] = n_bytes
        self._alive.add(storage)
        self.emit(Alloc(storage, n_bytes, module=self._module, phase=self.phase))
        return storage

    def free(self, *storages: int) -> None:
        for storage in storages:
            self._alive.discard(storage)
            self.emit(Free(storage, module=self._module, phase=self.phase))

    def call(
        self, reads: Sequence[int], makes: Sequence[int], seconds: float = 1.0, name: str = "aten.mm.default",
        *, writes: int | None = None, scratch: int = 0,
    ) -> list[int]:  # fmt: skip
        """An operator of the forward: reads storages, makes some of these sizes, or writes into one."""
        signature = self._signature(name, seconds)
        call, self._n_ops = self._n_ops, self._n_ops + 1
        flags = CallFlag.GRAD | CallFlag.COVERS
        inputs = (writes, *reads) if writes is not None else tuple(reads)
        self.emit(Call(call, signature, inputs, flags, self._module, self.phase))
        made = [self.alloc(n_bytes) for n_bytes in makes]
        if scratch:
            self.free(self.alloc(scratch))
        self.emit(Op(call, signature, inputs, tuple(made), self._module, self.phase))
        written = () if writes is None else (writes,)
        self.emit(Return(call, written, tuple(made) or written))
        return made

    def op(self, seconds: float) -> None:
        """An operator of backward or of the optimizer."""
        signature = self._signature("aten.mul.Tensor", seconds)
        self.emit(Op(self._n_ops, signature, module=self._module, phase=self.phase))
        self._n_ops += 1

    def save(self, storage: int) -> int:
        handle, self._n_handles = self._n_handles, self._n_handles + 1
        self._origin[handle] = storage
        self.emit(Save(handle, storage, self._module, self.phase))
        return handle

    def load(self, handle: int) -> int | None:
        """What backward was given, if it was made for it."""
        self.phase = Phase.BACKWARD
        origin = self._origin[handle]
        if origin in self._alive:
            self.emit(Load(handle, origin, False, self._module, self.phase))
            return None
        copy = self.alloc(self._sizes[origin])
        self.emit(Load(handle, copy, True, self._module, self.phase))
        return copy

    def unsave(self, *handles: int) -> None:
        self.emit(*(Unsave(handle, self._module, self.phase) for handle in handles))

    def backward(self, handles: Sequence[int], grad: int = 0, seconds: float = 1.0) -> None:
        """One node: loads what it saved, works with a gradient of so many bytes, lets go of all of it."""
        self.phase = Phase.BACKWARD
        copies = [copy for copy in map(self.load, handles) if copy is not None]
        gradient = self.alloc(grad) if grad else None
        self.op(seconds)
        self.free(*copies)
        self.unsave(*handles)
        if gradient is not None:
            self.free(gradient)

    def step(self) -> None:
        self._n_steps += 1
        self.emit(Step(self._n_steps))
        self.phase = Phase.FORWARD

    def program(self) -> tuple[p.Program, Seconds]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "recording.arrows"
            writer = RecordingWriter(path, {"rank": 0})
            assert [writer.name(name) for name in self._names] == list(self._names.values())
            assert [writer.signature(s) for s in self._signatures] == list(self._signatures.values())
            writer.rows.extend(row_of(event) for event in self._events)
            writer.close()
            return p.read_program(read_recording(path)), Seconds(self._seconds)

    def _signature(self, name: str, seconds: float) -> int:
        index = self._signatures.setdefault(Signature(name, (), (), f"{seconds!r}"), len(self._signatures))
        self._seconds[index] = seconds
        return index


def chain(sizes: Sequence[int], seconds: Sequence[float], blocks: Sequence[Sequence[int]] = ()) -> Tape:
    """y = f(y) again and again, each saving what it made; backward in reverse. `blocks` are runs of its calls.

    The input is 1 byte and stays. A gradient is as large as the result it is for.
    """
    tape = Tape()
    before = tape.alloc(1)
    kept = before
    handles = []
    first = {block[0]: i for i, block in enumerate(blocks)}
    last = {block[-1] for block in blocks}
    for i, (n_bytes, cost) in enumerate(zip(sizes, seconds, strict=True)):
        if i in first:
            tape.enter(f"layers.{first[i]}")
        (made,) = tape.call([before], [n_bytes], cost, "aten.exp.default")
        handles.append(tape.save(made))
        if i in last:
            tape.exit()
        if before != kept:
            tape.free(before)
        before = made
    tape.free(before)
    for handle, n_bytes in zip(reversed(handles), reversed(sizes), strict=True):
        tape.backward([handle], n_bytes)
    tape.step()
    return tape
