"""Convert the files of MindSpore's tracker to a recording, with the same events as a torch program.

TrackedProgram, marks, ModelNames ──> rows in the order in which things happened ──> recording.arrows
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from windtunnel.capture.mindspore.tracker.files import Block
from windtunnel.capture.mindspore.tracker.graph import TrackedOp
from windtunnel.capture.mindspore.tracker.groups import ParticipantFinder
from windtunnel.capture.mindspore.tracker.marks import Mark
from windtunnel.capture.mindspore.tracker.model_names import ModelNames
from windtunnel.capture.mindspore.tracker.module_and_phase import Places, Where
from windtunnel.capture.mindspore.tracker.program import Allocated, Freed, TrackedProgram
from windtunnel.capture.mindspore.tracker.scope_names import place_of
from windtunnel.capture.mindspore.tracker.user_lines import UserFrames
from windtunnel.capture.mindspore.tracker.words import OWN_TASK, collective_of, is_kernel, requested_bytes
from windtunnel.events.file import RecordingWriter, row_of
from windtunnel.events.model import (
    CONSTANT,
    NO_NAME,
    Alloc,
    Collective,
    Event,
    Group,
    Kind,
    Op,
    Phase,
    Role,
    Signature,
    TensorSpec,
)

__all__ = ["write_rows"]

_ROLES = {"Weight": Role.WEIGHT, "PyNativeInput": Role.INPUT, "WorkSpace": Role.WORKSPACE}
_NAMED_ROLES = {"weight": Role.WEIGHT, "gradient": Role.GRADIENT, "optimizer": Role.OPTIMIZER}
_WORKSPACES = ("", "WorkSpace")
_INPUT_ACTORS = ("HostDSActor", "HostQueueDSActor", "DeviceQueueDSActor")  # bring a graph its data
_DYNAMIC = "PyNative"  # the task of everything that is not part of a compiled graph
_END_OF_GRAPH = "UpdateOutputDeviceAddress"


def write_rows(
    program: TrackedProgram,
    marks: Iterable[Mark],
    writer: RecordingWriter,
    device: int = 0,
    is_tracking_stacks: bool = False,
    names: ModelNames | None = None,
) -> None:
    """Write the rows of a recording, in the order in which things happened."""
    rows = _Rows(program, writer, device, UserFrames(writer, is_tracking_stacks), names or ModelNames())
    for entry in program.in_order(marks):
        match entry:
            case Mark():
                rows.mark(entry)
            case Allocated(block):
                rows.allocate(block)
            case Freed(block):
                rows.free(block)
            case (number, operator):
                rows.operator(number, operator)
        writer.flush_if_due()
    rows.finish()


class _Rows:
    """The state of the program while its rows are written."""

    def __init__(
        self,
        program: TrackedProgram,
        writer: RecordingWriter,
        device: int,
        frames: UserFrames,
        names: ModelNames,
    ) -> None:
        self._program, self._writer, self._device, self._frames = program, writer, device, frames
        self._rows = writer.rows
        self._names = names
        self._places = Places(names)
        self._participants = ParticipantFinder(program.communication)
        self._owner = program.owners()
        self._op_at = {operator.tick: number for number, operator in enumerate(program.operators)}
        self._where: dict[int, Where] = {}  # of operators that have begun to allocate
        self._storage: dict[int, int] = {}  # tick of allocation -> storage
        self._by_address: dict[int, int] = {}  # of live blocks -> storage
        self._signatures: dict[Signature, int] = {}
        self._groups: dict[str, int] = {}
        self._named: set[int] = set()  # storages whose role is known
        self._added_to: set[int] = set()  # blocks that backward wrote into and read
        self._again: list[bool] = []  # of each open module: is it a recomputation
        self._is_marked = self._has_graph_step = False
        self._n_steps = 0

    # -- marks ---------------------------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        values = mark.values
        match mark.kind:
            case "enter":
                self._places.enter(str(values[0]))
                self._again.append(bool(values[1]))
                self._module_row(Kind.MODULE_ENTER, str(values[0]))
            case "exit" if self._again:
                self._module_row(Kind.MODULE_EXIT, self._places.now().module or "")
                self._places.exit()
                self._again.pop()
            case "backward" if values[0]:
                self._places.begin_backward()
            case "backward":
                self._plain(Kind.BACKWARD_END)
                self._places.end_backward()
            case "optimizer":
                self._is_marked = bool(values[0])
                self._places.optimizer(self._is_marked)
            case "step":
                self._end_step()
            case "graph_step" if (
                not self._program.operators
            ):  # a killed program: nothing else shows its steps
                self._end_step()
            case "read":
                self._plain(Kind.SYNC, extra=1)
            case "build":
                name = self._writer.name(str(values[0]))
                self._plain(Kind.BUILD, name, int(values[1]), module=name)
            case "tensor":
                address, role, text = values
                storage = self._by_address.get(address)
                if storage is not None and role in _NAMED_ROLES:
                    self._name_storage(storage, _NAMED_ROLES[role], text)
            case _:
                pass  # from a later version

    def finish(self) -> None:
        if self._has_graph_step:
            self._end_step()

    def _end_step(self) -> None:
        self._has_graph_step = False
        self._n_steps += 1
        self._places.new_step()
        self._plain(Kind.STEP, self._n_steps)

    def _module_row(self, kind: Kind, path: str) -> None:
        name = self._writer.name(path)
        self._plain(kind, name, extra=1 if self._again[-1] else -1, module=name)

    def _name_storage(self, storage: int, role: Role, name: str) -> None:
        self._plain(Kind.MARK, storage, self._writer.name(name) if name else NO_NAME, role=role)
        self._named.add(storage)
        self._places.learn(storage, role, name)

    # -- memory --------------------------------------------------------------------------------------------

    def allocate(self, block: Block) -> None:
        storage = self._storage[block.start] = len(self._storage)
        self._by_address[block.address] = storage
        number = self._owner.get(block.start)
        if number is None and block.kind in _WORKSPACES:
            number = self._op_at.get(block.task)
        operator = self._program.operators[number] if number is not None else None
        if number is None or operator is None:
            where = self._places.now()
        else:
            where = self._where_is(number, operator)
        if where.phase == Phase.BACKWARD and self._again and self._again[-1]:
            where = where._replace(phase=Phase.FORWARD)  # recomputed for backward: still an activation
        # The sizes of constants do not matter, and the order in which a graph creates them differs between ranks.
        is_sized = block.kind != "ConstantValue"
        spec = _spec_of(operator, block.start) if operator is not None and is_sized else None
        stack = operator.stack if operator is not None else block.stack
        n_bytes = requested_bytes(block.n_bytes, spec)
        self._write(
            Alloc(
                storage,
                n_bytes,
                -1 if number is None else number,
                _role(block),
                self._module(where),
                where.phase,
                block.stream,
                self._device,
                self._frames.frame(stack),
            )
        )
        task = self._program.tasks.get(block.task)
        if block.kind == "Weight" and task is not None and task.name == "SyncTensorData":
            self._name_storage(
                storage, *self._names.role_and_name(task.node)
            )  # a weight of a graph, by its own name
        elif block.kind == "ConstantValue":
            self._name_storage(storage, Role.TEMPORARY, CONSTANT)  # in the pool of weights, but not a weight
        elif block.is_persistent and block.node.endswith(_INPUT_ACTORS):
            self._plain(Kind.MARK, storage, role=Role.INPUT)  # a graph keeps its first batch in that pool too

    def free(self, block: Block) -> None:
        storage = self._storage.get(block.start)
        if storage is None:
            return
        if self._by_address.get(block.address) == storage:
            del self._by_address[block.address]
        self._places.release(storage)
        self._plain(Kind.FREE, storage, stream=block.stream)

    # -- operators -----------------------------------------------------------------------------------------

    def operator(self, number: int, operator: TrackedOp) -> None:
        place = place_of(operator.name)
        name = place.operator.removeprefix("PrimFunc_")
        if name in ("RecordEvent", "WaitEvent") and (event := operator.number("event")) is not None:
            kind = Kind.EVENT_RECORD if name == "RecordEvent" else Kind.EVENT_WAIT
            self._plain(kind, event, stream=operator.stream)
            return
        if name == _END_OF_GRAPH and self._has_graph_step:
            self._end_step()
        if not is_kernel(name, self._task(operator)):
            return
        where = self._where_is(number, operator)
        self._where.pop(number, None)
        if where.phase == Phase.OPTIMIZER and not self._is_marked:
            self._has_graph_step = True  # a compiled graph takes the whole step: it ends with the graph
        collective, is_view, group = collective_of(name), _is_view(operator), -1
        if collective is None:
            overload = ".view" if is_view else ""
            signature = Signature(f"ms.{name}{overload}", operator.inputs, operator.outputs, "")
        else:
            participants = self._participants.of(operator, name)
            words = "" if participants.peer is None else f"peer={participants.peer}"
            signature = Signature(collective, *_given_and_got(collective, operator), words)
            group = self._group(participants.group, participants.ranks)
        if not is_view:
            self._follow_gradients(operator, where.phase)
        columns: dict[str, Any] = {
            "signature": self._signature(signature),
            "inputs": self._storages(operator.read),
            "outputs": self._storages(operator.written),
            "module": self._module(where),
            "phase": where.phase,
            "stream": operator.stream,
            "device": self._device,
            "frame": self._frames.frame(operator.stack),
        }
        row = row_of(
            Op(number, **columns) if collective is None else Collective(number, group=group, **columns)
        )
        if not place.is_again:
            self._rows.append(row)
            return
        self._again.append(True)  # a graph's recomputation has no cell of its own
        self._module_row(Kind.MODULE_ENTER, where.module or "")
        self._rows.append(row)
        self._module_row(Kind.MODULE_EXIT, where.module or "")
        self._again.pop()

    def _follow_gradients(self, operator: TrackedOp, phase: Phase) -> None:
        """What backward accumulates into and the optimizer reads is a gradient, whatever created the buffer."""
        if phase == Phase.BACKWARD:
            self._added_to |= set(operator.read) & set(operator.written)
        elif phase == Phase.OPTIMIZER and self._added_to:
            for block in self._added_to.intersection(operator.read):
                storage = self._storage.get(block)
                if storage is not None and storage not in self._named:
                    self._name_storage(storage, Role.GRADIENT, "")
            self._added_to.difference_update(operator.read)

    def _where_is(self, number: int, operator: TrackedOp) -> Where:
        """Determined once per operator: at its first allocation, or when it runs."""
        found = self._where.get(number)
        if found is None:
            read, written = self._storages(operator.read), self._storages(operator.written)
            if self._task(operator) == _DYNAMIC or "/" not in operator.name:
                found = self._places.of_dynamic(operator.name, read, written)
            else:
                found = self._places.of_compiled(operator.name, read, written)
            self._where[number] = found
        return found

    def _task(self, operator: TrackedOp) -> str:
        task = self._program.tasks.get(operator.tick)
        if task is None or (task.name == OWN_TASK and task.node != operator.name):
            return _DYNAMIC  # the very first operator has the tick of our own mark
        return task.name

    def _group(self, name: str, ranks: tuple[int, ...]) -> int:
        if name not in self._groups:
            self._groups[name] = len(self._groups)
            self._write(Group(self._groups[name], ranks, self._writer.name(name), device=self._device))
        return self._groups[name]

    # -- words ---------------------------------------------------------------------------------------------

    def _module(self, where: Where) -> int:
        return self._writer.name(where.module) if where.module is not None else NO_NAME

    def _storages(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._storage[block] for block in blocks if block in self._storage)

    def _signature(self, signature: Signature) -> int:
        if signature not in self._signatures:
            self._signatures[signature] = self._writer.signature(signature)
        return self._signatures[signature]

    def _write(self, event: Event) -> None:
        self._rows.append(row_of(event))

    def _plain(
        self, kind: Kind, subject: int = -1, value: int = -1, *, extra: int = -1, role: Role = Role.UNKNOWN,
        module: int = NO_NAME, stream: int = 0,
    ) -> None:  # fmt: skip
        phase = self._places.now().phase
        self._rows.append(
            (kind, subject, value, extra, role, module, phase, stream, self._device, NO_NAME, (), ())
        )


def _role(block: Block) -> Role:
    """The role of a block, as far as MindSpore knows it; it decides whether the pool of weights is used."""
    if block.is_persistent:
        return Role.WEIGHT
    if block.node.endswith(_INPUT_ACTORS):
        return Role.INPUT
    return _ROLES.get(block.kind or "WorkSpace", Role.UNKNOWN)


def _given_and_got(
    collective: str, operator: TrackedOp
) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
    """The inputs and outputs of a collective: a buffer that it only writes is also listed as its first argument."""
    inputs = operator.inputs
    if collective == "c10d.recv" and operator.outputs:
        return (), operator.outputs  # a graph's receive has an argument that only orders it
    if len(operator.read) == len(inputs) > 1:
        pairs = zip(operator.read, inputs, strict=True)
        inputs = tuple(spec for block, spec in pairs if block not in operator.written) or inputs
    return inputs, operator.outputs


def _is_view(operator: TrackedOp) -> bool:
    """Whether every result is in a block that the operator reads, with another shape: nothing is computed."""
    if not operator.written or len(operator.outputs) != len(operator.written):
        return False
    given: dict[int, set[TensorSpec]] = {}
    if len(operator.inputs) == len(operator.read):
        for block, spec in zip(operator.read, operator.inputs, strict=True):
            given.setdefault(block, set()).add(spec)
    pairs = zip(operator.written, operator.outputs, strict=True)
    return all(block in given and spec not in given[block] for block, spec in pairs)


def _spec_of(operator: TrackedOp, block: int) -> TensorSpec | None:
    """The tensor that an operator put into a block."""
    if block not in operator.written or len(operator.outputs) != len(operator.written):
        return None
    return operator.outputs[operator.written.index(block)]
