"""A program for a runtime that owns its tensors: apply an operator, delete a tensor.

    Program ──> tensor_program ──> Apply(inputs, outputs), Delete(tensor), StepEnd, …

Such a runtime (MegEngine's) does not distinguish whether the program or autograd holds a tensor: it is deleted when
neither does. Tensors are renumbered: what autograd saves and what it loads is the same tensor, and an operator that
writes into the result of another operator makes a new tensor, as if tensors were immutable. Weights are written in place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from windtunnel.remat.rerunnable import is_view, writes_first_input
from windtunnel.remat.simulated.program import Alloc, Free, Load, Op, Program, Save, Step, Unsave

__all__ = ["Apply", "Delete", "Instruction", "StepEnd", "tensor_program"]


@dataclass(frozen=True, slots=True)
class Apply:
    """Run an operator, which makes `outputs`; an operator without a name only brings a tensor in from outside."""

    name: str
    seconds: float
    inputs: tuple[int, ...] = ()
    outputs: tuple[tuple[int, int], ...] = ()  # (tensor, bytes)
    written: tuple[int, ...] = ()  # inputs that it changes: they are no longer what their operator made
    has_workspace: bool = False  # it needs scratch memory: a convolution


@dataclass(frozen=True, slots=True)
class Delete:
    tensor: int


@dataclass(frozen=True, slots=True)
class StepEnd:
    number: int


Instruction = Apply | Delete | StepEnd


def tensor_program(program: Program, seconds: Sequence[float]) -> tuple[Instruction, ...]:
    """The instructions of a program; `seconds` has the cost of each of its signatures."""
    return tuple(_instructions(program, seconds, _Tensors()))


class _Tensors:
    """Which tensor a storage or a handle means now, and how many hold it."""

    def __init__(self) -> None:
        self.of_storage: dict[int, int] = {}
        self.of_handle: dict[int, int] = {}
        self.n_bytes: list[int] = []
        self.computed: set[int] = set()  # made by an operator, not brought in from outside
        self._holders: list[int] = []

    def make(self, storage: int, n_bytes: int) -> tuple[int, int]:
        tensor = self.of_storage[storage] = len(self._holders)
        self._holders.append(1)
        self.n_bytes.append(n_bytes)
        return tensor, n_bytes

    def hold(self, tensor: int) -> None:
        self._holders[tensor] += 1

    def let_go(self, tensor: int) -> Iterator[Delete]:
        self._holders[tensor] -= 1
        if self._holders[tensor] == 0:
            yield Delete(tensor)


def _instructions(program: Program, seconds: Sequence[float], tensors: _Tensors) -> Iterator[Instruction]:
    recording = program.recording
    made_by = recording.columns["extra"]
    ids = recording.columns["subject"]
    made: dict[int, list[tuple[int, int]]] = {}  # operator -> what was allocated for it
    offsets, storages = recording.inputs
    for action in program.actions:
        match action:
            case Alloc():
                output = tensors.make(action.storage, action.n_bytes)
                maker = int(made_by[action.row])
                if maker >= 0:
                    made.setdefault(maker, []).append(output)
                else:
                    yield Apply("", 0.0, outputs=(output,))
            case Op():
                signature = program.signatures[action.signature]
                read = storages[offsets[action.row] : offsets[action.row + 1]].tolist()
                call = Apply(
                    signature.name,
                    seconds[action.signature],
                    outputs=tuple(made.pop(int(ids[action.row]), ())),
                    has_workspace="convolution" in signature.name,
                )
                yield from _apply(call, [s for s in read if s in tensors.of_storage], tensors)
            case Save():
                tensor = tensors.of_handle[action.handle] = tensors.of_storage[action.storage]
                tensors.hold(tensor)
            case Load() if action.is_new:
                tensor = tensors.of_storage[action.storage] = tensors.of_handle[action.handle]
                tensors.hold(tensor)
            case Unsave():
                yield from tensors.let_go(tensors.of_handle.pop(action.handle))
            case Free():
                yield from tensors.let_go(tensors.of_storage.pop(action.storage))
            case Step():
                yield StepEnd(action.number)


def _apply(call: Apply, storages: list[int], tensors: _Tensors) -> Iterator[Instruction]:
    new = {tensor for tensor, _ in call.outputs}
    inputs = tuple(dict.fromkeys(tensors.of_storage[s] for s in storages if tensors.of_storage[s] not in new))
    tensors.computed |= new
    if call.outputs or not inputs or is_view(call.name):
        yield replace(call, inputs=inputs)
    elif inputs[0] in tensors.computed and writes_first_input(call.name) and "_foreach_" not in call.name:
        output = tensors.make(storages[0], tensors.n_bytes[inputs[0]])
        tensors.computed.add(output[0])
        yield replace(call, inputs=inputs, outputs=(output,))
        yield from tensors.let_go(inputs[0])
    else:
        # Which of the tensors of a foreach operator are its targets is not told: all of them, to be safe.
        yield replace(call, inputs=inputs, written=inputs)
