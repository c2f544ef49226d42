"""Write and read recordings: one Arrow IPC stream per rank, a batch at a time.

    rows ──> RecordingWriter ──> recording.arrows ──> read_recording ──> Recording

Every batch carries the names, signatures and frames first used in it, and a checksum of all that: a file cut
off by a crash or a full disk, or damaged later, is readable up to its last complete batch, and the two cases differ.
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from windtunnel.errors import CorruptFile, UsageError
from windtunnel.events.model import (
    COLUMNS,
    NO_NAME,
    Alloc,
    BackwardEnd,
    Build,
    Call,
    Collective,
    EmptyCache,
    Event,
    EventRecord,
    EventWait,
    Frame,
    Free,
    Group,
    Kind,
    Load,
    Mark,
    ModuleEnter,
    ModuleExit,
    Op,
    Part,
    Phase,
    Recording,
    RecordStream,
    Resize,
    Return,
    Role,
    Save,
    Signature,
    Step,
    Sync,
    TensorSpec,
    Unsave,
    Wait,
)
from windtunnel.events.unpacked_size import unpacked_bytes
from windtunnel.foreign_files import open_file
from windtunnel.interrupts import held

__all__ = ["FLUSH_EVERY", "RecordingWriter", "Row", "read_recording", "record_events", "row_of"]

FORMAT_VERSION = 1
FLUSH_EVERY = 1 << 14  # rows: about a second of simulation, a quarter of a megabyte
_SCHEMA = pa.schema(
    [(name, pa.from_numpy_dtype(dtype)) for name, dtype in COLUMNS.items()]
    + [("inputs", pa.list_(pa.int64())), ("outputs", pa.list_(pa.int64()))]
)

_MOST_EXPANSION = 100  # bytes of a batch for each packed one: real ones have 5 to 10
_FREE_EXPANSION = 1 << 20  # and so many more, for small ones

# What Arrow, JSON and our own records raise on damaged bytes; MemoryError: a damaged length.
_DAMAGE = (
    pa.ArrowException,
    OSError,
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    MemoryError,
    RecursionError,
)

# (kind, subject, value, extra, role, module, phase, stream, device, frame, inputs, outputs)
Row = tuple[int, int, int, int, int, int, int, int, int, int, Sequence[int], Sequence[int]]


class RecordingWriter:
    """Collects rows and flushes them in batches. `rows` may be appended to directly by a hot loop."""

    def __init__(self, path: Path, header: dict[str, Any]) -> None:
        self.rows: list[Row] = []
        self.names: dict[str, int] = {}
        self.signatures: list[Signature] = []
        self.frames: dict[Frame, int] = {}
        self.before_flush: Callable[[], None] = lambda: None  # for a reader that follows the rows
        self.failure: str | None = None  # why nothing more could be written, as on a full disk
        self._written = {"names": 0, "signatures": 0, "frames": 0}
        self._path, self._process = path, os.getpid()
        self._lock = threading.Lock()  # one thread flushes at a time
        self._sink = pa.OSFile(str(path), "wb")
        schema = _SCHEMA.with_metadata(
            {"windtunnel": json.dumps({"version": FORMAT_VERSION, "header": header})}
        )
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        self._stream = pa.ipc.new_stream(self._sink, schema, options=options)

    def name(self, text: str) -> int:
        """Intern a string."""
        return self.names.setdefault(text, len(self.names))

    def frame(self, file: str, line: int, function: str, parent: int = NO_NAME) -> int:
        """Intern a Python frame."""
        return self.frames.setdefault(Frame(file, line, function, parent), len(self.frames))

    def signature(self, signature: Signature) -> int:
        """Add a signature; the caller keeps the index and does not add it twice."""
        self.signatures.append(signature)
        return len(self.signatures) - 1

    def flush_if_due(self) -> None:
        if len(self.rows) >= FLUSH_EVERY and self._lock.acquire(blocking=False):
            try:
                self.flush()
            finally:
                self._lock.release()

    def flush(self, footer: dict[str, Any] | None = None) -> None:
        """Write what was collected; a batch on disk survives whatever happens next."""
        if not self._is_writing:
            self.rows.clear()
            return
        self.before_flush()
        with held():  # rows that were taken from the list are on disk, or nowhere
            self._write(footer)

    def _write(self, footer: dict[str, Any] | None) -> None:
        n_rows = len(self.rows)  # another thread may append meanwhile: those stay for the next batch
        rows = self.rows[:n_rows]
        del self.rows[:n_rows]
        if not rows and footer is None:
            return
        columns = list(zip(*rows, strict=True)) if rows else [()] * len(_SCHEMA)
        batch = pa.record_batch(
            [pa.array(c, type=f.type) for c, f in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
        )
        extra = {"new": json.dumps(self._unwritten())}
        if footer is not None:
            extra["footer"] = json.dumps(footer)
        extra["checksum"] = str(_checksum(batch, extra))
        n_good_bytes = self._sink.tell()
        try:
            self._stream.write_batch(batch, custom_metadata=extra)
            self._sink.flush()
        except OSError as error:
            self._fail(error, n_good_bytes)

    def close(self, footer: dict[str, Any] | None = None) -> None:
        """Write the rest. A failed write is reported by `failure` only: the program has already ended."""
        try:
            self.flush(footer or {})
            if self._is_writing:
                self._stream.close()
            self._sink.close()
        except (OSError, UsageError) as error:
            self.failure = self.failure or str(error)

    @property
    def _is_writing(self) -> bool:
        # A forked worker shares the file, and its rows are not this program's.
        return self.failure is None and not self._sink.closed and os.getpid() == self._process

    def _fail(self, error: OSError, n_good_bytes: int) -> None:
        reason = os.strerror(error.errno) if error.errno else str(error)
        self.failure = f"cannot write {self._path}: {reason}"
        os.truncate(self._path, n_good_bytes)  # half a batch is of no use
        raise UsageError(self.failure, hint="free some space, or name another folder with --out") from None

    def _unwritten(self) -> dict[str, list[Any]]:
        tables: dict[str, list[Any]] = {
            "names": list(self.names),
            "signatures": [_signature_json(s) for s in self.signatures[self._written["signatures"] :]],
            "frames": [astuple(f) for f in self.frames],
        }
        for table in ("names", "frames"):
            tables[table] = tables[table][self._written[table] :]
        for table, rows in tables.items():
            self._written[table] += len(rows)
        return tables


def read_recording(path: Path) -> Recording:
    """Read a recording; one cut off by a crash is read up to its last complete batch."""
    sources, stream, messages, header = _open(path)
    size = sources[0].size()
    is_damaged = False
    names: list[str] = []
    signatures: list[Signature] = []
    frames: list[Frame] = []
    batches: list[pa.RecordBatch] = []
    footer: dict[str, Any] | None = None
    while True:
        try:
            _refuse_bomb(path, messages.read_next_message())
            found = stream.read_next_batch_with_custom_metadata()
        except StopIteration:
            break
        except _DAMAGE:
            # Or the file was cut off, and there was no more to read.
            is_damaged = max(source.tell() for source in sources) < size
            break
        try:
            part = _part_of(found)
        except _DAMAGE:
            is_damaged = True
            break
        names += part.names
        signatures += part.signatures
        frames += part.frames
        batches.append(part.batch)
        footer = part.footer if part.footer is not None else footer
    if is_damaged and not batches:
        raise CorruptFile(
            f"{path} is damaged: not one of the events in its {size:,} bytes can be read",
            hint="copy it again from where it was made, or record it again",
        )
    columns, inputs, outputs = _columns_of(pa.Table.from_batches(batches, schema=stream.schema))
    return Recording(
        header, tuple(names), tuple(signatures), tuple(frames), columns, inputs, outputs,
        is_complete=footer is not None and not is_damaged, footer=footer or {}, is_damaged=is_damaged,
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Part:
    """One batch, and what it adds to the tables."""

    batch: pa.RecordBatch
    names: list[str]
    signatures: list[Signature]
    frames: list[Frame]
    footer: dict[str, Any] | None


def _open(
    path: Path,
) -> tuple[list[pa.MemoryMappedFile], pa.RecordBatchStreamReader, pa.MessageReader, dict[str, Any]]:
    try:
        with open_file(path):  # Arrow would wait for a pipe
            sources = [pa.memory_map(str(path)), pa.memory_map(str(path))]
        stream = pa.ipc.open_stream(sources[0])
        messages = pa.ipc.MessageReader.open_stream(sources[1])
        messages.read_next_message()  # the schema: from here on, both are at the same batch
        description = json.loads(stream.schema.metadata[b"windtunnel"])
        version, header = description["version"], dict(description["header"])
        is_known = stream.schema.equals(_SCHEMA)
    except FileNotFoundError:
        raise CorruptFile(f"there is no recording at {path}", hint="run `windtunnel run` first") from None
    except _DAMAGE as error:
        reason = " ".join(str(error).split())[:100] or type(error).__name__
        raise CorruptFile(
            f"{path} is not a windtunnel recording: {reason}", hint="record it again"
        ) from error
    if version != FORMAT_VERSION:
        raise CorruptFile(
            f"{path} is a recording of format {version}, and this windtunnel reads format {FORMAT_VERSION}",
            hint="record it again",
        )
    if not is_known:
        raise CorruptFile(f"{path} does not have the columns of a recording", hint="record it again")
    return sources, stream, messages, header


def _refuse_bomb(path: Path, message: pa.Message) -> None:
    """Refuse a batch that would take far more memory than its file, before Arrow unpacks it."""
    most = _MOST_EXPANSION * message.body.size + _FREE_EXPANSION
    if (n_bytes := unpacked_bytes(message)) > most:
        raise CorruptFile(
            f"{path} has a batch of {message.body.size:,} bytes that unpacks to {n_bytes:,}; the limit is {most:,}",
            hint="record it again",
        )


def _part_of(found: pa.RecordBatchWithMetadata) -> _Part:
    found.batch.validate(full=True)  # offsets that point outside would be read as they are
    if any(column.null_count or _values_of(column).null_count for column in found.batch.columns):
        raise ValueError("a row lacks a number")
    extra = {key.decode(): value.decode() for key, value in found.custom_metadata.items()}
    if int(extra.pop("checksum")) != _checksum(found.batch, extra):
        raise ValueError("the checksum is wrong")
    new = json.loads(extra["new"])
    return _Part(
        found.batch,
        [*new["names"]],
        [_signature_of(signature) for signature in new["signatures"]],
        [Frame(*frame) for frame in new["frames"]],
        json.loads(extra["footer"]) if "footer" in extra else None,
    )


def _values_of(column: pa.Array) -> pa.Array:
    return column.values if isinstance(column, pa.ListArray) else column


def _checksum(batch: pa.RecordBatch, extra: dict[str, str]) -> int:
    """Checksum of everything in a batch: its columns, and the texts beside them."""
    total = 0
    for column in batch.columns:
        parts = (column.offsets, column.values) if isinstance(column, pa.ListArray) else (column,)
        for part in parts:
            total = zlib.crc32(np.ascontiguousarray(part.to_numpy(zero_copy_only=False)).data, total)
    for key in sorted(extra):
        total = zlib.crc32(extra[key].encode(), total)
    return total


def record_events(
    path: Path,
    events: Iterable[Event],
    names: Iterable[str] = (),
    signatures: Iterable[Signature] = (),
    frames: Iterable[Frame] = (),
) -> None:
    """Write records as a recording: for tests and for programs that already have events."""
    writer = RecordingWriter(path, header={})
    for text in names:
        writer.name(text)
    for signature in signatures:
        writer.signature(signature)
    for frame in frames:
        writer.frame(frame.file, frame.line, frame.function, frame.parent)
    for event in events:
        writer.rows.append(row_of(event))
    writer.close()


def row_of(event: Event) -> Row:
    """A record as a row of the table: one case per kind, and the two that fill a recording written out."""
    match event:
        case Op():
            return (
                Kind.OP, event.id, event.signature, -1, 0, event.module, event.phase, event.stream,
                event.device, event.frame, event.inputs, event.outputs,
            )  # fmt: skip
        case Alloc():
            return (
                Kind.ALLOC, event.storage, event.n_bytes, event.op, event.role, event.module, event.phase,
                event.stream, event.device, event.frame, (), (),
            )  # fmt: skip
        case Free():
            return _row(
                Kind.FREE, event.storage, module=event.module, phase=event.phase, stream=event.stream, device=event.device
            )  # fmt: skip
        case Mark():
            return _row(Kind.MARK, event.storage, event.name, role=event.role)
        case RecordStream():
            return _row(Kind.RECORD_STREAM, event.storage, stream=event.stream, device=event.device)
        case Sync():
            extra = 1 if event.is_read else -1
            return _row(Kind.SYNC, extra=extra, stream=event.stream, device=event.device)
        case EventRecord():
            return _row(Kind.EVENT_RECORD, event.event, stream=event.stream, device=event.device)
        case EventWait():
            return _row(Kind.EVENT_WAIT, event.event, stream=event.stream, device=event.device)
        case EmptyCache():
            return _row(Kind.EMPTY_CACHE, device=event.device)
        case ModuleEnter() | ModuleExit():
            kind = Kind.MODULE_ENTER if isinstance(event, ModuleEnter) else Kind.MODULE_EXIT
            extra = 1 if event.is_again else -1
            return _row(kind, event.module, extra=extra, module=event.module, phase=event.phase)
        case Step():
            return _row(Kind.STEP, event.number)
        case Build():
            return _row(Kind.BUILD, event.module, event.time_us, module=event.module, phase=Phase.BUILD)
        case Group():
            return _row(
                Kind.GROUP, event.id, event.name, phase=Phase.BUILD, device=event.device, frame=event.frame, inputs=event.ranks
            )  # fmt: skip
        case Collective():
            return _row(
                Kind.COLLECTIVE, event.id, event.signature, extra=event.group, role=int(event.is_async), module=event.module,
                phase=event.phase, stream=event.stream, device=event.device, frame=event.frame, inputs=event.inputs,
                outputs=event.outputs,
            )  # fmt: skip
        case Wait():
            return _row(Kind.WAIT, event.collective, stream=event.stream)
        case Save():
            extra = 1 if event.is_result else -1
            return _row(
                Kind.SAVE, event.handle, event.storage, extra=extra, module=event.module, phase=event.phase
            )
        case Load():
            extra = 1 if event.is_fresh else -1
            return _row(
                Kind.LOAD, event.handle, event.storage, extra=extra, module=event.module, phase=event.phase
            )
        case Unsave():
            return _row(Kind.UNSAVE, event.handle, module=event.module, phase=event.phase)
        case Call():
            return _row(
                Kind.CALL, event.id, event.signature, extra=event.flags, module=event.module, phase=event.phase,
                inputs=event.inputs,
            )  # fmt: skip
        case BackwardEnd():
            return _row(Kind.BACKWARD_END)
        case Part():
            return _row(Kind.PART, event.name)
        case Resize():
            return _row(Kind.RESIZE, event.storage, event.was)
        case Return():
            return _row(Kind.RETURN, event.call, inputs=event.written, outputs=event.outputs)


def _row(
    kind: Kind,
    subject: int = -1,
    value: int = -1,
    *,
    extra: int = -1,
    role: int = Role.UNKNOWN,
    module: int = NO_NAME,
    phase: Phase = Phase.FORWARD,
    stream: int = 0,
    device: int = 0,
    frame: int = NO_NAME,
    inputs: tuple[int, ...] = (),
    outputs: tuple[int, ...] = (),
) -> Row:
    """The defaults are what a kind leaves out."""
    return (kind, subject, value, extra, role, module, phase, stream, device, frame, inputs, outputs)


def _columns_of(
    table: pa.Table,
) -> tuple[dict[str, np.ndarray], tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    table = table.combine_chunks()
    columns = {name: table.column(name).to_numpy() for name in COLUMNS}
    return columns, _ragged(table.column("inputs")), _ragged(table.column("outputs"))


def _ragged(column: pa.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    if column.num_chunks == 0:
        return np.zeros(1, np.int64), np.zeros(0, np.int64)
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0)
    return array.offsets.to_numpy().astype(np.int64), array.values.to_numpy()


def _signature_json(signature: Signature) -> list[Any]:
    specs = [[[*s.shape], [*s.strides], s.dtype] for s in (*signature.inputs, *signature.outputs)]
    return [signature.name, len(signature.inputs), specs, signature.scalars]


def _signature_of(row: list[Any]) -> Signature:
    name, n_inputs, rows, scalars = row
    specs = tuple(TensorSpec(tuple(shape), tuple(strides), dtype) for shape, strides, dtype in rows)
    return Signature(name, specs[:n_inputs], specs[n_inputs:], scalars)
