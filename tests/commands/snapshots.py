"""Small files of every kind `replay` reads, with numbers that can be checked by hand."""

from __future__ import annotations

import pickle

from tests.memory.recorded import unplayed
from windtunnel.events.file import RecordingWriter, read_recording, record_events, row_of
from windtunnel.events.model import Alloc, Free, Op, Phase, Signature, Step
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.files.memory_block import write_memory_block
from windtunnel.memory.files.snapshot_writer import write_snapshot

MIB = 1 << 20

# Two blocks of 30 MiB leave two holes that 60 MiB fits only if segments can grow together:
# default 30 + 30 + 60 = 120 MiB reserved, expandable 60 MiB.
FRAGMENTING = [Alloc(1, 30 * MIB), Alloc(2, 30 * MIB), Free(1), Free(2), Alloc(3, 60 * MIB), Free(3)]


def write_recording(path, events=FRAGMENTING):
    record_events(path, events)
    return path


def write_torch_snapshot(path, events=FRAGMENTING, **settings):
    """A snapshot as torch dumps it, with `settings` as its allocator settings."""
    recording = path.with_suffix(".arrows")
    record_events(recording, events)
    write_snapshot(path, unplayed(read_recording(recording)), Allocator.named("cuda"))
    snapshot = pickle.loads(path.read_bytes())
    snapshot["allocator_settings"] = settings
    path.write_bytes(pickle.dumps(snapshot))
    return path


def write_blocks(path, events=FRAGMENTING):
    recording = path.with_suffix(".arrows")
    record_events(recording, events)
    write_memory_block(path, unplayed(read_recording(recording)), Allocator.named("mindspore"))
    return path


def write_labelled_recording(path, last_mib=60):
    """One step; the last allocation is asked for by aten.mm in layers.3, in backward."""
    writer = RecordingWriter(path, {"device": "t4-16gb", "torch": "2.13.0"})
    module = writer.name("layers.3")
    mm = writer.signature(Signature("aten.mm.default", (), (), ""))
    events = [
        *FRAGMENTING[:4],
        Step(1),
        Alloc(3, last_mib * MIB, op=0, module=module, phase=Phase.BACKWARD),
        Op(0, mm, (), (3,), module=module, phase=Phase.BACKWARD),
    ]
    writer.rows.extend(row_of(event) for event in events)
    writer.close({"status": "ok"})
    return path
