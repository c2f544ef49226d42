"""Damaged recordings: one sentence, or everything before the damage; no other error, no wrong rows."""

from __future__ import annotations

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.errors import CorruptFile, UsageError
from windtunnel.events.file import RecordingWriter, read_recording, row_of
from windtunnel.events.model import Alloc, Free, Signature, Step, TensorSpec


def _recording(path, n_batches=4):
    writer = RecordingWriter(path, {"rank": 0, "script": "train.py"})
    for batch in range(n_batches):
        name = writer.name(f"layers.{batch}")
        frame = writer.frame("train.py", batch, "main")
        writer.signature(Signature("aten.mm", (TensorSpec((2, 3), (3, 1), "float32"),), (), ""))
        for i in range(20):
            writer.rows.append(row_of(Alloc(batch * 20 + i, 512, module=name, frame=frame)))
        writer.rows.append(row_of(Free(batch * 20)))
        writer.rows.append(row_of(Step(batch + 1)))
        writer.flush()
    writer.close({"status": "ok", "steps": n_batches})
    return path.read_bytes()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "recording.arrows"
    content = _recording(path)
    return path, content, read_recording(path)


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_any_damage_is_one_sentence_or_a_true_beginning(whole, data):
    path, content, expected = whole
    damaged = bytearray(content)
    for _ in range(data.draw(st.integers(1, 3))):
        damaged[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        del damaged[data.draw(st.integers(0, len(content))) :]
    path = path.with_name("damaged.arrows")
    path.write_bytes(damaged)
    try:
        recording = read_recording(path)
    except CorruptFile:
        return
    n_rows = len(recording)
    assert n_rows % 22 == 0  # whole batches only
    for name, column in recording.columns.items():
        assert (column == expected.columns[name][:n_rows]).all()
    assert recording.names == expected.names[: len(recording.names)]
    assert list(recording.events()) == list(expected.events())[:n_rows]


def test_damage_is_told_from_a_cut(whole):
    path, content, expected = whole
    path = path.with_name("damaged.arrows")
    middle = len(content) // 2
    path.write_bytes(content[:middle] + bytes(byte ^ 0x55 for byte in content[middle:-8]) + content[-8:])
    recording = read_recording(path)
    assert (recording.is_damaged, recording.is_complete) == (True, False)
    assert 0 < len(recording) < len(expected)
    path.write_bytes(content[:middle])
    recording = read_recording(path)
    assert (recording.is_damaged, recording.is_complete) == (False, False)


def test_a_recording_of_which_nothing_can_be_read_is_called_damaged(tmp_path):
    path = tmp_path / "recording.arrows"
    content = bytearray(_recording(path, n_batches=1))
    begin = content.index(b"checksum")  # beside the first batch
    content[begin : begin + 8] = b"checkers"
    path.write_bytes(content)
    with pytest.raises(
        CorruptFile, match=rf"is damaged: not one of the events in its {len(content):,} bytes"
    ):
        read_recording(path)


def test_a_cut_leaves_every_batch_before_it(whole):
    path, content, _ = whole
    path = path.with_name("cut.arrows")
    lengths = []
    for end in range(0, len(content), 97):
        path.write_bytes(content[:end])
        try:
            lengths.append(len(read_recording(path)))
        except CorruptFile:
            lengths.append(0)
    assert lengths == sorted(lengths)
    assert set(lengths) == {0, 22, 44, 66, 88}


def test_a_file_that_cannot_grow_ends_at_its_last_whole_batch(tmp_path):
    path = tmp_path / "recording.arrows"
    writer = RecordingWriter(path, {})
    writer.rows.append(row_of(Alloc(1, 512)))
    writer.flush()

    class FullDisk:
        def write_batch(self, batch, custom_metadata):
            writer._sink.write(b"half a batch")
            raise OSError(28, "No space left on device")

    stream, writer._stream = writer._stream, FullDisk()
    writer.rows.append(row_of(Alloc(2, 512)))
    with pytest.raises(UsageError, match="No space left on device"):
        writer.flush()
    writer.rows.append(row_of(Alloc(3, 512)))
    writer.flush()  # the program may go on: nothing more is kept or written
    assert writer.rows == []
    writer.close({"status": "ok"})
    assert writer.failure == f"cannot write {path}: No space left on device"
    recording = read_recording(path)
    assert [event.storage for event in recording.events()] == [1]
    assert not recording.is_complete
    del stream


def test_a_forked_worker_does_not_write_into_the_recording(tmp_path):
    writer = RecordingWriter(tmp_path / "recording.arrows", {})
    writer.rows.append(row_of(Alloc(1, 512)))
    child = os.fork()
    if child == 0:
        writer.rows.append(row_of(Alloc(2, 512)))
        writer.flush()
        os._exit(0)
    os.waitpid(child, 0)
    writer.close()
    recording = read_recording(tmp_path / "recording.arrows")
    assert [event.storage for event in recording.events()] == [1]
