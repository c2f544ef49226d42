"""The vocabulary that all packages share: what a running program did, as small frozen records.

    capture ──> rows (columns of ints) ──> file ──> Recording ──> memory, timing, remat, report

A recording is one table with a row per event, in program order. What repeats (names, operator signatures, Python
frames) is interned and referred to by index. `Recording.events()` turns rows back into the records below; the
analyses read the columns directly, which is about fifty times faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from windtunnel.events.kinds import CallFlag, Kind, Phase, Role

__all__ = [
    "COLUMNS", "CONSTANT", "NO_NAME", "Alloc", "BackwardEnd", "Build", "Call", "CallFlag", "Collective", "EmptyCache",
    "Event", "EventRecord", "EventWait", "Frame", "Free", "Group", "Kind", "Load", "Mark", "ModuleEnter",
    "ModuleExit", "Op", "Part", "Phase", "RecordStream", "Recording", "Resize", "Return", "Role", "Save", "Signature",
    "Step", "Sync", "TensorSpec", "Unsave", "Wait",
]  # fmt: skip

NO_NAME = -1  # "no module", "no frame": an index that points nowhere
CONSTANT = "constant"  # name of a temporary storage that holds a constant of a compiled graph


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """Shape, strides and dtype of one tensor argument or result."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Signature:
    """An operator with everything that decides its result's shape and its cost."""

    name: str  # "aten.mm.default"
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    scalars: str  # the other arguments, as Python writes them


@dataclass(frozen=True, slots=True)
class Frame:
    """One line of Python, and the frame that called it (an index into `Recording.frames`)."""

    file: str
    line: int
    function: str
    parent: int = NO_NAME


@dataclass(frozen=True, slots=True)
class Op:
    id: int
    signature: int
    inputs: tuple[int, ...] = ()  # storages
    outputs: tuple[int, ...] = ()
    module: int = NO_NAME
    phase: Phase = Phase.FORWARD
    stream: int = 0
    device: int = 0
    frame: int = NO_NAME


@dataclass(frozen=True, slots=True)
class Alloc:
    """A storage is allocated. `op` is the operator that requested it (the next `Op` row with this id, or none)."""

    storage: int
    n_bytes: int
    op: int = -1
    role: Role = Role.UNKNOWN
    module: int = NO_NAME
    phase: Phase = Phase.FORWARD
    stream: int = 0
    device: int = 0
    frame: int = NO_NAME


@dataclass(frozen=True, slots=True)
class Free:
    """A storage is freed: its last reference is gone."""

    storage: int
    module: int = NO_NAME
    phase: Phase = Phase.FORWARD
    stream: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class Mark:
    """A storage turned out to be a weight, a gradient, optimizer state or an input, with this name."""

    storage: int
    role: Role
    name: int = NO_NAME


@dataclass(frozen=True, slots=True)
class RecordStream:
    """`tensor.record_stream(stream)`: a free must wait for that stream."""

    storage: int
    stream: int
    device: int = 0


@dataclass(frozen=True, slots=True)
class Sync:
    """The host waited for a stream (or, with stream -1, for the whole device)."""

    stream: int = -1
    device: int = 0
    is_read: bool = False  # to read a value, not by an explicit synchronisation


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event was recorded in a stream: it completes when all earlier work in the stream is done."""

    event: int
    stream: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class EventWait:
    """A stream (-1: the host) waits until an event completes."""

    event: int
    stream: int = 0
    device: int = 0


@dataclass(frozen=True, slots=True)
class EmptyCache:
    device: int = 0


@dataclass(frozen=True, slots=True)
class ModuleEnter:
    module: int
    phase: Phase = Phase.FORWARD
    is_again: bool = False  # autograd runs: until the exit, this is a recomputation


@dataclass(frozen=True, slots=True)
class ModuleExit:
    module: int
    phase: Phase = Phase.FORWARD
    is_again: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """An optimizer step ended; steps count from 1."""

    number: int


@dataclass(frozen=True, slots=True)
class Build:
    """A module took this long to construct (children included)."""

    module: int
    time_us: int


@dataclass(frozen=True, slots=True)
class Group:
    """A process group this rank is a member of. Ids are this rank's own; `ranks` are global, in group order."""

    id: int
    ranks: tuple[int, ...]
    name: int = NO_NAME
    frame: int = NO_NAME
    device: int = 0  # -1: its library runs on the host (gloo)


@dataclass(frozen=True, slots=True)
class Collective:
    """Communication was started. The signature's name is its kind (`c10d.all_reduce`, `c10d.send`, ...);
    its scalars are words such as `peer=3 op=SUM`: the global rank of a root or peer, the reduction."""

    id: int
    signature: int
    group: int
    inputs: tuple[int, ...] = ()  # storages
    outputs: tuple[int, ...] = ()
    is_async: bool = False
    module: int = NO_NAME
    phase: Phase = Phase.FORWARD
    stream: int = 0
    device: int = 0
    frame: int = NO_NAME


@dataclass(frozen=True, slots=True)
class Wait:
    """The program waited for a collective to end."""

    collective: int
    stream: int = 0


@dataclass(frozen=True, slots=True)
class Save:
    """Autograd saved a tensor for backward. The storage's FREE is when the program itself released it."""

    handle: int
    storage: int
    is_result: bool = False  # of the operator that saves it, which has returned; else it is about to run
    module: int = NO_NAME
    phase: Phase = Phase.FORWARD


@dataclass(frozen=True, slots=True)
class Load:
    """Autograd loaded what it saved. `storage` is what it got: a fresh one if the program had released it."""

    handle: int
    storage: int
    is_fresh: bool = False  # made for this: its ALLOC is the row before
    module: int = NO_NAME
    phase: Phase = Phase.BACKWARD


@dataclass(frozen=True, slots=True)
class Unsave:
    """Autograd no longer needs what it saved."""

    handle: int
    module: int = NO_NAME
    phase: Phase = Phase.BACKWARD


@dataclass(frozen=True, slots=True)
class Call:
    """The program called an operator; the rows up to its `Return` are the operators that it runs on this device."""

    id: int
    signature: int
    inputs: tuple[int, ...] = ()  # a storage for each tensor of the signature; -1: not on the device
    flags: CallFlag = CallFlag.GRAD
    module: int = NO_NAME
    phase: Phase = Phase.FORWARD


@dataclass(frozen=True, slots=True)
class Return:
    """The operator returned: what it wrote into, and the storages of its results."""

    call: int
    written: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BackwardEnd:
    """A `backward()` returned."""


@dataclass(frozen=True, slots=True)
class Resize:
    """A weight's storage was emptied and filled again (sharded training); a call met it under another number."""

    storage: int
    was: int


@dataclass(frozen=True, slots=True)
class Part:
    """Another part of a training step began: a rollout, a reference's or a reward's forward pass, the update."""

    name: int  # an index into `Recording.names`


Event = (
    Op | Alloc | Free | Mark | RecordStream | Sync | EmptyCache | ModuleEnter | ModuleExit | Step | Build
    | Group | Collective | Wait | Save | Load | Unsave | Call | Return | BackwardEnd | Resize | EventRecord | EventWait
    | Part
)  # fmt: skip

# Column name -> numpy type. `subject` and `value` depend on the kind:
#   OP id, signature | ALLOC storage, bytes | FREE storage, - | MARK storage, name | RECORD_STREAM storage, -
#   MODULE_* module, - | STEP number, - | SYNC -, - | BUILD module, microseconds | GROUP id, name
#   COLLECTIVE id, signature | WAIT collective, - | SAVE handle, storage | LOAD handle, storage | UNSAVE handle, -
#   CALL id, signature | RETURN id of the call, - | BACKWARD_END -, - | RESIZE storage, its number before
#   EVENT_* event, - | PART name, -
# `extra` is the op id of an ALLOC (-1: none) and the group of a COLLECTIVE; 1 for a LOAD whose storage was made for
# it, for a SAVE of the result of the operator that saves, for a SYNC that reads a value and for the MODULE_* rows around a
# recomputation; the flags of a CALL. `role` is set for ALLOC and MARK; for a COLLECTIVE it is 1 if the program holds a
# handle to wait on, for a FREE if Python's cycle collector did it. The ranks of a GROUP and what a RETURN wrote into
# are in `inputs`.
COLUMNS: dict[str, Any] = {
    "kind": np.uint8,
    "subject": np.int64,
    "value": np.int64,
    "extra": np.int64,
    "role": np.uint8,
    "module": np.int32,
    "phase": np.uint8,
    "stream": np.int32,
    "device": np.int16,
    "frame": np.int32,
}


@dataclass(frozen=True)
class Recording:
    """Everything one rank did. Columns are parallel arrays, one element per event."""

    header: dict[str, Any]
    names: tuple[str, ...]
    signatures: tuple[Signature, ...]
    frames: tuple[Frame, ...]
    columns: dict[str, np.ndarray]
    inputs: tuple[np.ndarray, np.ndarray]  # offsets (one more than events), storage ids
    outputs: tuple[np.ndarray, np.ndarray]
    is_complete: bool = True  # False: the program was killed; everything up to the last flush is here
    footer: dict[str, Any] = field(default_factory=dict)
    is_damaged: bool = (
        False  # the file was damaged after it was written; everything before the damage is here
    )

    def __len__(self) -> int:
        return len(self.columns["kind"])

    def name(self, index: int) -> str:
        return self.names[index] if index >= 0 else ""

    def stack(self, frame: int) -> tuple[Frame, ...]:
        """The Python frames that led to `frame`, outermost first."""
        found: list[Frame] = []
        while frame >= 0:
            found.append(self.frames[frame])
            frame = self.frames[frame].parent
        return tuple(reversed(found))

    def events(self) -> Iterator[Event]:
        """Rows as records. For analysis of large recordings, read `columns`."""
        lists = [self.columns[name].tolist() for name in COLUMNS]
        for i, row in enumerate(zip(*lists, strict=True)):
            yield self._record(i, row)

    def _record(self, i: int, row: tuple[int, ...]) -> Event:
        kind, subject, value, extra, role, module, phase, stream, device, frame = row
        match kind:
            case Kind.OP:
                return Op(
                    subject, value, self._storages(self.inputs, i), self._storages(self.outputs, i),
                    module, Phase(phase), stream, device, frame,
                )  # fmt: skip
            case Kind.ALLOC:
                return Alloc(subject, value, extra, Role(role), module, Phase(phase), stream, device, frame)
            case Kind.FREE:
                return Free(subject, module, Phase(phase), stream, device)
            case Kind.MARK:
                return Mark(subject, Role(role), value)
            case Kind.RECORD_STREAM:
                return RecordStream(subject, stream, device)
            case Kind.SYNC:
                return Sync(stream, device, extra == 1)
            case Kind.EVENT_RECORD:
                return EventRecord(subject, stream, device)
            case Kind.EVENT_WAIT:
                return EventWait(subject, stream, device)
            case Kind.EMPTY_CACHE:
                return EmptyCache(device)
            case Kind.MODULE_ENTER:
                return ModuleEnter(subject, Phase(phase), extra == 1)
            case Kind.MODULE_EXIT:
                return ModuleExit(subject, Phase(phase), extra == 1)
            case Kind.STEP:
                return Step(subject)
            case Kind.GROUP:
                return Group(subject, self._storages(self.inputs, i), value, frame, device)
            case Kind.COLLECTIVE:
                return Collective(
                    subject, value, extra, self._storages(self.inputs, i), self._storages(self.outputs, i),
                    bool(role), module, Phase(phase), stream, device, frame,
                )  # fmt: skip
            case Kind.WAIT:
                return Wait(subject, stream)
            case Kind.SAVE:
                return Save(subject, value, extra == 1, module, Phase(phase))
            case Kind.LOAD:
                return Load(subject, value, extra == 1, module, Phase(phase))
            case Kind.UNSAVE:
                return Unsave(subject, module, Phase(phase))
            case Kind.CALL:
                read = self._storages(self.inputs, i)
                return Call(subject, value, read, CallFlag(extra), module, Phase(phase))
            case Kind.BACKWARD_END:
                return BackwardEnd()
            case Kind.PART:
                return Part(subject)
            case Kind.RESIZE:
                return Resize(subject, value)
            case Kind.RETURN:
                return Return(subject, self._storages(self.inputs, i), self._storages(self.outputs, i))
            case _:
                return Build(subject, value)

    @staticmethod
    def _storages(ragged: tuple[np.ndarray, np.ndarray], i: int) -> tuple[int, ...]:
        offsets, ids = ragged
        return tuple(ids[offsets[i] : offsets[i + 1]].tolist())
