"""Recordings come back as written, survive being cut off anywhere, and are distinguished from other files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windtunnel.errors import CorruptFile
from windtunnel.events import file as recording_file
from windtunnel.events.file import RecordingWriter, read_recording, record_events, row_of
from windtunnel.events.model import (
    COLUMNS,
    NO_NAME,
    Alloc,
    BackwardEnd,
    Build,
    Call,
    CallFlag,
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

ids = st.integers(0, 2**62)
names = st.integers(NO_NAME, 2**31 - 1)
streams = st.integers(-1, 2**31 - 1)
devices = st.integers(-1, 2**15 - 1)
phases = st.sampled_from(Phase)
roles = st.sampled_from(Role)
storages = st.lists(ids, max_size=4).map(tuple)

EVENTS = {
    Op: st.builds(Op, ids, ids, storages, storages, names, phases, streams, devices, names),
    Alloc: st.builds(Alloc, ids, ids, st.integers(-1, 2**62), roles, names, phases, streams, devices, names),
    Free: st.builds(Free, ids, names, phases, streams, devices),
    Mark: st.builds(Mark, ids, roles, names),
    RecordStream: st.builds(RecordStream, ids, streams, devices),
    Sync: st.builds(Sync, streams, devices, st.booleans()),
    EventRecord: st.builds(EventRecord, ids, streams, devices),
    EventWait: st.builds(EventWait, ids, streams, devices),
    EmptyCache: st.builds(EmptyCache, devices),
    ModuleEnter: st.builds(ModuleEnter, names, phases, st.booleans()),
    ModuleExit: st.builds(ModuleExit, names, phases, st.booleans()),
    Step: st.builds(Step, st.integers(1, 2**31)),
    Build: st.builds(Build, names, st.integers(0, 2**40)),
    Group: st.builds(Group, ids, storages, names, names, devices),
    Collective: st.builds(
        Collective, ids, ids, ids, storages, storages, st.booleans(), names, phases, streams, devices, names
    ),
    Wait: st.builds(Wait, ids, streams),
    Save: st.builds(Save, ids, ids, st.booleans(), names, phases),
    Load: st.builds(Load, ids, ids, st.booleans(), names, phases),
    Unsave: st.builds(Unsave, ids, names, phases),
    Call: st.builds(Call, ids, ids, storages, st.integers(0, 15).map(CallFlag), names, phases),
    Return: st.builds(Return, ids, storages, storages),
    BackwardEnd: st.builds(BackwardEnd),
    Resize: st.builds(Resize, ids, ids),
    Part: st.builds(Part, names),
}
specs = st.builds(
    TensorSpec, st.lists(ids, max_size=4).map(tuple), st.lists(ids, max_size=4).map(tuple), st.text()
)
signatures = st.builds(
    Signature, st.text(), st.lists(specs).map(tuple), st.lists(specs).map(tuple), st.text()
)
frames = st.builds(Frame, st.text(), st.integers(0, 2**31 - 1), st.text(), names)
same_directory = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def test_every_kind_of_event_is_generated_below():
    assert set(EVENTS) == set(Event.__args__)
    assert {Kind(row_of(example)[0]) for example in _one_of_each()} == set(Kind)


@same_directory
@given(events=st.lists(st.one_of(*EVENTS.values()), max_size=30), texts=st.lists(st.text(), unique=True))
def test_events_come_back_as_they_were_written(tmp_path, events, texts):
    record_events(tmp_path / "r.arrows", events, texts)
    recording = read_recording(tmp_path / "r.arrows")
    assert list(recording.events()) == events
    assert recording.names == tuple(texts)
    assert len(recording) == len(events)
    assert recording.is_complete


@same_directory
@given(
    batches=st.lists(
        st.tuples(
            st.lists(st.one_of(*EVENTS.values()), max_size=5),
            st.lists(st.text(), max_size=3),
            st.lists(signatures, max_size=3),
            st.lists(frames, max_size=3),
        ),
        max_size=4,
    )
)
def test_what_is_interned_comes_back_in_order_whatever_batch_it_came_in(tmp_path, batches):
    writer = RecordingWriter(tmp_path / "r.arrows", {"rank": 3})
    expected_signatures = []
    for events, texts, new_signatures, new_frames in batches:
        writer.rows.extend(row_of(event) for event in events)
        for text in texts:
            assert _interned(writer, text) == text
        for signature in new_signatures:
            assert writer.signature(signature) == len(expected_signatures)
            expected_signatures.append(signature)
        for frame in new_frames:
            writer.frame(frame.file, frame.line, frame.function, frame.parent)
        writer.flush()
    all_names, all_frames = tuple(writer.names), tuple(writer.frames)
    writer.close({"steps": 2})
    recording = read_recording(tmp_path / "r.arrows")
    assert (recording.header, recording.footer) == ({"rank": 3}, {"steps": 2})
    assert (recording.names, recording.frames) == (all_names, all_frames)
    assert recording.signatures == tuple(expected_signatures)
    assert list(recording.events()) == [event for events, *_ in batches for event in events]


def test_columns_have_the_promised_types(tmp_path):
    record_events(tmp_path / "r.arrows", _one_of_each())
    recording = read_recording(tmp_path / "r.arrows")
    assert {name: column.dtype for name, column in recording.columns.items()} == {
        name: np.dtype(dtype) for name, dtype in COLUMNS.items()
    }


def test_an_empty_recording_is_a_recording(tmp_path):
    record_events(tmp_path / "r.arrows", [])
    recording = read_recording(tmp_path / "r.arrows")
    assert (len(recording), list(recording.events()), recording.is_complete) == (0, [], True)


def test_a_stack_is_outermost_first(tmp_path):
    writer = RecordingWriter(tmp_path / "r.arrows", {})
    outer = writer.frame("train.py", 41, "main")
    inner = writer.frame("model.py", 7, "forward", outer)
    writer.close()
    recording = read_recording(tmp_path / "r.arrows")
    assert [f.line for f in recording.stack(inner)] == [41, 7]
    assert recording.stack(NO_NAME) == ()
    assert recording.name(NO_NAME) == ""


def test_a_recording_cut_at_any_byte_is_whole_batches_or_a_clear_refusal(tmp_path):
    """A kill or a full disk can end the file anywhere: what comes back is always a beginning of the truth."""
    path, cut = tmp_path / "r.arrows", tmp_path / "cut.arrows"
    batches, ends = _write_batches(path, n_batches=5)
    whole = path.read_bytes()
    end_of_header, end_of_footer = _end_of_header(whole), len(whole) - 8  # Arrow's own end mark follows
    edges = {n + d for n in (end_of_header, *ends, end_of_footer) for d in (-1, 0, 1)}
    for size in sorted({*range(0, len(whole), 13), *edges}):
        cut.write_bytes(whole[:size])
        if size < end_of_header:
            with pytest.raises(CorruptFile):
                read_recording(cut)
            continue
        recording = read_recording(cut)
        n_batches = sum(size >= end for end in ends)
        assert list(recording.events()) == [event for batch in batches[:n_batches] for event in batch]
        assert recording.names == tuple(f"name {i}" for i in range(n_batches))
        assert recording.is_complete == (size >= end_of_footer)


def test_a_writer_that_never_closed_leaves_what_it_flushed(tmp_path):
    writer = RecordingWriter(tmp_path / "r.arrows", {"rank": 0})
    writer.rows.append(row_of(Alloc(1, 512)))
    writer.flush()
    writer.rows.append(row_of(Free(1)))
    recording = read_recording(tmp_path / "r.arrows")
    assert list(recording.events()) == [Alloc(1, 512)]
    assert not recording.is_complete


def test_rows_are_flushed_when_there_are_many(tmp_path, monkeypatch):
    monkeypatch.setattr(recording_file, "FLUSH_EVERY", 10)
    writer = RecordingWriter(tmp_path / "r.arrows", {})
    for i in range(25):
        writer.rows.append(row_of(Step(i)))
        writer.flush_if_due()
    assert len(writer.rows) == 5
    assert len(read_recording(tmp_path / "r.arrows")) == 20


def _arrow_file(path: Path, metadata):
    schema = pa.schema([("a", pa.int64())]).with_metadata(metadata)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
        stream.write_batch(pa.record_batch([[1]], schema=schema))


FOREIGN = {
    "nothing there": lambda path: None,
    "a directory": lambda path: path.mkdir(),
    "an empty file": lambda path: path.write_bytes(b""),
    "text": lambda path: path.write_text("hello, this is not a recording\n" * 9),
    "noise": lambda path: path.write_bytes(bytes(range(256)) * 40),
    "another Arrow stream": lambda path: _arrow_file(path, None),
    "metadata of another program": lambda path: _arrow_file(path, {"windtunnel": "not json"}),
    "a later format": lambda path: _arrow_file(
        path, {"windtunnel": json.dumps({"version": 99, "header": {}})}
    ),
}


@pytest.mark.parametrize("case", FOREIGN)
def test_what_is_not_a_recording_is_refused_by_name(tmp_path, case):
    path = tmp_path / "file.arrows"
    FOREIGN[case](path)
    with pytest.raises(CorruptFile, match="recording") as refusal:
        read_recording(path)
    assert str(path) in refusal.value.message


def _interned(writer: RecordingWriter, text: str) -> str:
    index = writer.name(text)
    return list(writer.names)[index]


def _one_of_each():
    return [
        Op(0, 0, (1, 2), (3,), 0, Phase.BACKWARD, 7, 1, 4),
        Alloc(3, 512, 0, Role.WORKSPACE, 1, Phase.OPTIMIZER, 2, 1, 5),
        Free(3, 1, Phase.BUILD, 2, 1),
        Mark(3, Role.GRADIENT, 2),
        RecordStream(3, 9, 1),
        Sync(-1, 1),
        EmptyCache(1),
        ModuleEnter(2, Phase.FORWARD),
        ModuleExit(2, Phase.FORWARD),
        Step(1),
        Build(2, 1500),
        Group(1, (0, 8, 16), 3, 4),
        Collective(5, 0, 1, (3,), (3,), True, 2, Phase.BACKWARD, 1, 0, 6),
        Wait(5, 1),
        Save(7, 3, True, 2, Phase.FORWARD),
        Load(7, 4, True, 2, Phase.BACKWARD),
        Unsave(7, 2, Phase.BACKWARD),
        Call(8, 0, (3, -1), CallFlag.GRAD | CallFlag.COVERS, 2, Phase.FORWARD),
        Return(8, (3,), (9,)),
        BackwardEnd(),
        Resize(12, 3),
        Part(0),
        EventRecord(4, 1),
        EventWait(4, -1),
    ]


def _write_batches(path: Path, n_batches: int):
    """Batches of known events; returns them, and the size of the file after each."""
    batches = [[Alloc(10 * b + i, 512 * (i + 1), module=b) for i in range(b + 1)] for b in range(n_batches)]
    writer = RecordingWriter(path, {})
    ends = []
    for b, batch in enumerate(batches):
        writer.name(f"name {b}")
        writer.rows.extend(row_of(event) for event in batch)
        writer.flush()
        ends.append(path.stat().st_size)
    writer.close()
    return batches, ends


def _end_of_header(whole: bytes) -> int:
    source = pa.BufferReader(whole)
    pa.ipc.read_schema(source)
    return source.tell()
