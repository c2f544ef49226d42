"""From MindSpore's tracker to a recording: the same events that a torch program leaves.

    blocks, operators, tasks, communication, marks ──> one order of ticks ──> rows ──> recording.arrows

The tracker books an allocation to the task it heard of last, which is the wrong operator for those that do not announce
themselves. Here an allocation belongs to the operator that lists it as a result.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from windtunnel.capture.backward_modules import BackwardModules
from windtunnel.capture.scope_names import Place, place_of
from windtunnel.capture.tracker_files import (
    Block,
    Communication,
    Task,
    read_blocks,
    read_communication,
    read_tasks,
)
from windtunnel.capture.tracker_frames import UserFrames
from windtunnel.capture.tracker_graph import TrackedOp, read_operators
from windtunnel.capture.tracker_marks import Mark
from windtunnel.capture.tracker_words import collective_of, is_kernel, requested_bytes
from windtunnel.events.file import RecordingWriter
from windtunnel.events.model import NO_NAME, Kind, Phase, Role, Signature, TensorSpec

__all__ = ["TrackedProgram", "find_tracked", "write_rows"]

_ROLES = {
    "Weight": Role.WEIGHT,
    "ConstantValue": Role.WEIGHT,
    "PyNativeInput": Role.INPUT,
    "WorkSpace": Role.WORKSPACE,
}
_NAMED_ROLES = {"weight": Role.WEIGHT, "gradient": Role.GRADIENT, "optimizer": Role.OPTIMIZER}
_WORKSPACES = ("", "WorkSpace")


@dataclass(frozen=True)
class TrackedProgram:
    """Everything MindSpore wrote about one rank."""

    blocks: list[Block]
    operators: list[TrackedOp]
    tasks: dict[int, Task]
    communication: list[Communication]


def find_tracked(folder: Path) -> TrackedProgram | None:
    """Read the files below a folder, wherever in it MindSpore put them; None if there are none."""
    found = sorted(folder.rglob("memory_block.csv"))
    if not found:
        return None
    home = found[0].parent
    graph, tasks = home / "tracker_graph.ir", home / "task.csv"
    orders = sorted(folder.rglob("comm_execute_order.csv"))
    return TrackedProgram(
        list(read_blocks(found[0])),
        list(read_operators(graph)) if graph.exists() else [],
        {task.tick: task for task in read_tasks(tasks)} if tasks.exists() else {},
        list(read_communication(orders[0])) if orders else [],
    )


def write_rows(
    program: TrackedProgram,
    marks: Iterable[Mark],
    writer: RecordingWriter,
    device: int,
    is_tracking_stacks: bool,
    optimizer_names: frozenset[str] = frozenset(),
) -> None:
    """Write the rows of a recording, in the order in which things happened."""
    rows = _Rows(program, writer, device, UserFrames(writer, is_tracking_stacks), optimizer_names)
    for entry in _in_order(program, marks):
        match entry:
            case Mark():
                rows.mark(entry)
            case (Block() as block, True):
                rows.alloc(block)
            case (Block() as block, False):
                rows.free(block)
            case TrackedOp():
                rows.operator(entry)
        writer.flush_if_due()
    rows.finish()


def _in_order(program: TrackedProgram, marks: Iterable[Mark]) -> Iterator[object]:
    """All that happened by tick: a mark before what has its tick, an operator after its own allocations."""
    entries: list[tuple[int, int, int, object]] = []
    for mark in marks:
        entries.append((mark.tick, -1, len(entries), mark))
    for block in program.blocks:
        entries.append((block.start, 0, len(entries), (block, True)))
        if block.end is not None:
            entries.append((block.end, 0, len(entries), (block, False)))
    now = 0
    for operator in program.operators:  # the file's order is the order of execution, its ticks are not
        now = max(now, operator.tick, *operator.written)
        entries.append((now, 1, len(entries), operator))
    return (entry[-1] for entry in sorted(entries, key=lambda entry: entry[:3]))


class _Rows:
    """The state of the program while its rows are written."""

    def __init__(
        self,
        program: TrackedProgram,
        writer: RecordingWriter,
        device: int,
        frames: UserFrames,
        states: frozenset[str],
    ) -> None:
        self._program, self._writer, self._device, self._frames = program, writer, device, frames
        self._states = states  # names of the optimizer's own parameters
        self._rows = writer.rows
        self._owner = _owners(program.operators)
        self._op_at = {operator.tick: number for number, operator in enumerate(program.operators)}
        self._number = {id(operator): number for number, operator in enumerate(program.operators)}
        self._storage: dict[int, int] = {}  # tick of allocation -> storage
        self._by_address: dict[int, int] = {}  # of live blocks -> storage
        self._signatures: dict[Signature, int] = {}
        self._groups: dict[str, int] = {}
        self._talk: dict[str, deque[Communication]] = {}
        for call in program.communication:
            self._talk.setdefault(call.primitive, deque()).append(call)
        self._modules: list[tuple[str, bool]] = []
        self._backward = BackwardModules()
        self._backward_depth: int | None = None  # how many modules were open when backward began
        self._is_optimizer = self._has_begun = self._is_in_graph_step = False
        self._n_steps = 0

    # -- marks ---------------------------------------------------------------------------------------------

    def mark(self, mark: Mark) -> None:
        values = mark.values
        match mark.kind:
            case "enter":
                self._has_begun = True
                self._modules.append((str(values[0]), bool(values[1])))
                self._module_row(Kind.MODULE_ENTER)
            case "exit" if self._modules:
                self._module_row(Kind.MODULE_EXIT)
                self._modules.pop()
            case "backward":
                self._has_begun = True
                self._backward_depth = len(self._modules) if values[0] else None
                if not values[0]:
                    self._plain(Kind.BACKWARD_END)
            case "optimizer":
                self._is_optimizer = bool(values[0])
            case "step":
                self._end_step()
            case "read":
                self._plain(Kind.SYNC, extra=1)
            case "build":
                name = self._writer.name(str(values[0]))
                self._plain(Kind.BUILD, name, int(values[1]), module=name)
            case "tensor":
                self._name_tensor(*values)
            case _:
                pass

    def finish(self) -> None:
        if self._is_in_graph_step:
            self._end_step()

    def _end_step(self) -> None:
        self._is_in_graph_step = False
        self._n_steps += 1
        self._backward.new_step()
        self._plain(Kind.STEP, self._n_steps)

    def _module_row(self, kind: Kind) -> None:
        path, is_again = self._modules[-1]
        name = self._writer.name(path)
        self._plain(kind, name, extra=1 if is_again else -1, module=name)

    def _name_tensor(self, address: int, role: str, name: str) -> None:
        storage = self._by_address.get(address)
        if storage is not None and role in _NAMED_ROLES:
            self._mark_storage(storage, _NAMED_ROLES[role], name)

    def _mark_storage(self, storage: int, role: Role, name: str) -> None:
        self._plain(Kind.MARK, storage, self._writer.name(name), role=role)

    # -- memory --------------------------------------------------------------------------------------------

    def alloc(self, block: Block) -> None:
        storage = self._storage[block.start] = len(self._storage)
        self._by_address[block.address] = storage
        number, place = self._booked(block)
        operator = self._program.operators[number] if number is not None else None
        spec = _spec_of(operator, block.start) if operator is not None else None
        role = Role.WEIGHT if block.is_persistent else _ROLES.get(block.kind, Role.UNKNOWN)
        if not block.kind and operator is not None:
            role = Role.WORKSPACE
        stack = operator.stack if operator is not None else block.stack
        phase = self._phase(place)
        module = self._module(place, phase, operator)
        op = number if number is not None else -1
        self._rows.append((
            Kind.ALLOC, storage, requested_bytes(block.n_bytes, spec), op, role, module, phase, block.stream,
            self._device, self._frames.frame(stack), (), (),
        ))  # fmt: skip
        task = self._program.tasks.get(block.task)
        if block.kind == "Weight" and task is not None and task.name == "SyncTensorData":
            role = Role.OPTIMIZER if task.node in self._states else Role.WEIGHT
            self._mark_storage(storage, role, task.node)  # a graph's parameters, by their own names

    def free(self, block: Block) -> None:
        storage = self._storage.get(block.start)
        if storage is None:
            return
        if self._by_address.get(block.address) == storage:
            del self._by_address[block.address]
        self._backward.release(storage)
        self._plain(Kind.FREE, storage, stream=block.stream)

    def _booked(self, block: Block) -> tuple[int | None, Place]:
        """The operator an allocation belongs to, and where that stands."""
        number = self._owner.get(block.start)
        if number is None and block.kind in _WORKSPACES:
            number = self._op_at.get(block.task)
        if number is not None:
            return number, place_of(self._program.operators[number].name)
        return None, place_of("")

    # -- operators -----------------------------------------------------------------------------------------

    def operator(self, operator: TrackedOp) -> None:
        place = place_of(operator.name)
        name = place.operator.removeprefix("PrimFunc_")
        task = self._program.tasks.get(operator.tick)
        if name in ("RecordEvent", "WaitEvent") and "event" in operator.attributes:
            kind = Kind.EVENT_RECORD if name == "RecordEvent" else Kind.EVENT_WAIT
            self._plain(kind, int(operator.attributes["event"]), stream=operator.stream)
            return
        if not is_kernel(name, task.name if task is not None else ""):
            return
        if place.phase is not None:
            self._follow_graph(place.phase)
        read, written = self._storages(operator.read), self._storages(operator.written)
        phase = self._phase(place)
        module = self._module(place, phase, operator)
        if place.phase is None and phase == Phase.FORWARD and module != NO_NAME:
            self._backward.forward(module, (*read, *written))
        collective = collective_of(name)
        if collective is None:
            overload = ".view" if _is_view(operator) else ""
            signature = self._signature(
                Signature(f"ms.{name}{overload}", operator.inputs, operator.outputs, "")
            )
            kind, extra = Kind.OP, -1
        else:
            kind, extra, scalars = Kind.COLLECTIVE, *self._group_of(operator, name)
            signature = self._signature(Signature(collective, operator.inputs, operator.outputs, scalars))
        self._rows.append((
            kind, self._number[id(operator)], signature, extra, 0, module, phase, operator.stream, self._device,
            self._frames.frame(operator.stack), read, written,
        ))  # fmt: skip

    def _follow_graph(self, phase: Phase) -> None:
        """A compiled graph runs forward, backward and optimizer in one go: the next forward is the next step."""
        self._has_begun = True
        if phase == Phase.OPTIMIZER:
            self._is_in_graph_step = True
        elif self._is_in_graph_step and phase == Phase.FORWARD:
            self._end_step()

    def _group_of(self, operator: TrackedOp, name: str) -> tuple[int, str]:
        """The group's id and the words of the call; of a dynamic graph both stand in a list of their own."""
        attributes = operator.attributes
        group, ranks = attributes.get("group", ""), attributes.get("comm_rank", "")
        members = tuple(int(rank) for rank in ranks.split() if rank.isdecimal())
        peer = next((int(attributes[key]) for key in ("src_rank", "dst_rank", "dest_rank", "root_rank")
                     if attributes.get(key, "").isdecimal()), None)  # fmt: skip
        if not members:
            calls = self._talk.get(name)
            if calls:
                call = calls.popleft()
                group, members = call.group, call.ranks
                peer = next((p for p in (call.source, call.target, call.root) if p is not None), None)
        if group not in self._groups:
            self._groups[group] = len(self._groups)
            self._rows.append((
                Kind.GROUP, self._groups[group], self._writer.name(group), -1, 0, NO_NAME, Phase.BUILD, 0, self._device,
                NO_NAME, members, (),
            ))  # fmt: skip
        return self._groups[group], "" if peer is None else f"peer={peer}"

    # -- where ---------------------------------------------------------------------------------------------

    def _phase(self, place: Place) -> Phase:
        if place.phase is not None:
            return place.phase
        if self._is_optimizer:
            return Phase.OPTIMIZER
        if self._backward_depth is not None:
            return Phase.BACKWARD
        return Phase.FORWARD if self._has_begun else Phase.BUILD

    def _module(self, place: Place, phase: Phase, operator: TrackedOp | None) -> int:
        if place.module:
            return self._writer.name(place.module)
        is_inside = len(self._modules) > (self._backward_depth or 0)
        if self._backward_depth is not None and not is_inside and operator is not None:
            found = self._backward.backward(
                (*self._storages(operator.read), *self._storages(operator.written))
            )
            return NO_NAME if found is None else found
        return self._writer.name(self._modules[-1][0]) if self._modules else NO_NAME

    def _storages(self, blocks: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self._storage[block] for block in blocks if block in self._storage)

    def _signature(self, signature: Signature) -> int:
        if signature not in self._signatures:
            self._signatures[signature] = self._writer.signature(signature)
        return self._signatures[signature]

    def _plain(
        self, kind: Kind, subject: int = -1, value: int = -1, *, extra: int = -1, role: Role = Role.UNKNOWN,
        module: int = NO_NAME, stream: int = 0,
    ) -> None:  # fmt: skip
        phase = self._phase(place_of(""))
        self._rows.append(
            (kind, subject, value, extra, role, module, phase, stream, self._device, NO_NAME, (), ())
        )


def _owners(operators: list[TrackedOp]) -> dict[int, int]:
    """Tick of allocation -> the operator that made the block: the first one to write it without having read it."""
    found: dict[int, int] = {}
    for number, operator in enumerate(operators):
        for block in operator.written:
            if block not in operator.read:
                found.setdefault(block, number)
    return found


def _is_view(operator: TrackedOp) -> bool:
    """Every result lies in a block it reads, with another shape: nothing is computed."""
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
