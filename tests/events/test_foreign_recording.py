"""Recordings whose checksums are right and whose values cannot be: one sentence with the first of them."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest

from tests.commands.snapshots import write_labelled_recording
from windtunnel.commands.main import main
from windtunnel.errors import CorruptFile
from windtunnel.events import file as recording_file
from windtunnel.events.file import RecordingWriter, read_recording, row_of
from windtunnel.events.foreign_recording import read_foreign_recording
from windtunnel.events.model import COLUMNS, Alloc, Frame, Op, Signature, TensorSpec


def _refused(path, reason):
    with pytest.raises(CorruptFile, match=reason) as caught:
        read_foreign_recording(path)
    assert "\n" not in str(caught.value)


def _write(path, *events, header=(), footer=(), names=("a",), signatures=(), frames=()):
    writer = RecordingWriter(path, dict(header))
    for name in names:
        writer.name(name)
    for signature in signatures:
        writer.signature(signature)
    for frame in frames:
        writer.frames[frame] = len(writer.frames)
    writer.rows += [row_of(event) for event in events]
    writer.close(dict(footer))
    return path


def test_a_recording_of_ours_is_read_as_it_is(tmp_path):
    path = write_labelled_recording(tmp_path / "r.arrows")
    assert list(read_foreign_recording(path).events()) == list(read_recording(path).events())


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("torch", 2.13, "torch in its header is a float"),
        ("allocator", None, "allocator in its header is a NoneType"),
        ("rank", "0", "rank in its header is a str"),
        ("rank", True, "rank in its header is a bool"),
        ("world_size", -1, "world_size in its header is out of range"),
        ("compiled", {"functions": [3]}, "compiled functions in its header are not names"),
        ("compiled", {"modules": "abc"}, "compiled modules in its header are not names"),
    ],
)
def test_a_field_of_another_type_is_named(tmp_path, field, value, reason):
    path = _write(tmp_path / "r.arrows", Alloc(1, 512), header={field: value})
    _refused(path, reason)
    assert main(["replay", str(path)]) == 2


MM = Signature("aten.mm.default", (), (), "")


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (Alloc(1, 512, module=1), "module 1 is not between -1 and 0"),
        (Alloc(1, 512, frame=0), "frame 0 is not between -1 and -1"),
        (Alloc(1, 1 << 51), "size 2251799813685248 is not between 0 and"),
        (Alloc(1, -1), "size -1 is not between 0 and"),
        (Alloc(-2, 512), "subject -2 is not between -1 and"),
        (Op(0, 1), "operator 1 is not between 0 and 0"),
        (Op(0, 0, inputs=(-7,)), "storage -7 is not between -1 and"),
    ],
)
def test_a_number_out_of_range_is_named(tmp_path, event, reason):
    _refused(_write(tmp_path / "r.arrows", event, signatures=[MM]), reason)


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (TensorSpec(("2",), (1,), "float32"), "an impossible shape"),
        (TensorSpec((-1,), (1,), "float32"), "an impossible shape"),
        (TensorSpec((1 << 40, 1 << 40), (1, 1), "float32"), "an impossible shape"),
        (TensorSpec((2,), (), "float32"), "1 lengths and 0 strides"),
        (TensorSpec((1,) * 65, (1,) * 65, "float32"), "65 lengths and 65 strides, of 64 at most"),
        (TensorSpec((2,), (1,), 7), "no strides and type"),
    ],
)
def test_a_tensor_that_cannot_be_is_reported(tmp_path, spec, reason):
    signature = Signature("aten.mm.default", (spec,), (), "")
    _refused(_write(tmp_path / "r.arrows", Op(0, 0), signatures=[signature]), reason)


def test_frames_that_call_each_other_in_a_circle_are_reported(tmp_path):
    frames = [Frame("a.py", 1, "f", 1), Frame("b.py", 1, "g", 0)]
    _refused(_write(tmp_path / "r.arrows", Alloc(1, 512, frame=0), frames=frames), "called by a later one")


def test_a_stack_without_end_is_reported(tmp_path):
    frames = [Frame("a.py", i, "f", i - 1) for i in range(5001)]
    _refused(_write(tmp_path / "r.arrows", Alloc(1, 512), frames=frames), "more than 5,000 frames")


def test_a_batch_that_unpacks_to_a_hundred_times_its_length_is_refused_before_it_is(tmp_path):
    schema, n = recording_file._SCHEMA, 1_000_000
    columns = [
        pa.ListArray.from_arrays(pa.array(np.zeros(n + 1, np.int32)), pa.array([], pa.int64()))
        if pa.types.is_list(field.type)
        else pa.array(np.zeros(n, COLUMNS[field.name]))
        for field in schema
    ]
    path = tmp_path / "r.arrows"
    described = schema.with_metadata({"windtunnel": json.dumps({"version": 1, "header": {}})})
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, described, options=options) as stream:
        stream.write_batch(pa.record_batch(columns, schema=schema))
    with pytest.raises(CorruptFile, match="that unpacks to 49,000,008; the limit"):
        read_recording(path)
