from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.capture.mindspore.tracker_output import (
    BLOCK_HEADER,
    BLOCK_ROW,
    OPERATOR,
    ORDER_HEADER,
    TASK_HEADER,
    WEIGHT_ROW,
    written,
)
from windtunnel.capture.mindspore.tracker import files as tracker_files
from windtunnel.capture.mindspore.tracker.files import read_blocks, read_communication, read_tasks
from windtunnel.capture.mindspore.tracker.graph import read_operators
from windtunnel.capture.mindspore.tracker.marks import Mark, MarkWriter, read_marks
from windtunnel.errors import CorruptFile
from windtunnel.events.model import TensorSpec

ORDER_ROW = (
    '"7","world","0 1 2","Send","","2","","(64, 512)","Float32","(64, 512)","Float32","131072","131072"\n'
)


def test_a_block_has_its_life_its_place_and_its_stack(tmp_path):
    (first, second) = read_blocks(written(tmp_path / "b.csv", BLOCK_HEADER + BLOCK_ROW + WEIGHT_ROW))
    assert (first.start, first.end, first.address, first.stream) == (8, 35, 0x7FF4A2F9E677, 0)
    assert (first.n_bytes, first.kind, first.task, first.node) == (4194816, "PyNativeOutput", 4, "Dense")
    assert not first.is_persistent
    assert first.stack == "File:train.py;Line:12;Function:<module>|"
    assert (second.end, second.stream, second.is_persistent, second.node) == (None, 2, True, "fc2.weight")


def test_a_file_of_an_older_mindspore_has_fewer_columns(tmp_path):
    header = BLOCK_HEADER.replace("actual_used_memory,", "").replace("is_persistent,is_small,", "")
    row = BLOCK_ROW.replace("13641728,", "").replace("|,0,0,", "|,")
    (found,) = read_blocks(written(tmp_path / "b.csv", header + row))
    assert (found.n_bytes, found.is_persistent) == (4194816, False)


def test_reading_ends_where_a_killed_program_stopped_writing(tmp_path):
    path = written(tmp_path / "b.csv", BLOCK_HEADER + BLOCK_ROW + WEIGHT_ROW[:40])
    assert [block.start for block in read_blocks(path)] == [8]


def test_a_line_too_long_to_read_is_not_taken_for_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(tracker_files, "LONGEST_LINE", len(BLOCK_HEADER))
    text = BLOCK_HEADER + BLOCK_ROW.replace("Dense", "Dense" * 100)
    path = written(tmp_path / "b.csv", text)
    with pytest.raises(CorruptFile, match=rf"line 2 has {len(BLOCK_HEADER)} characters or more"):
        list(read_blocks(path))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (BLOCK_HEADER.replace("size", "bytes") + BLOCK_ROW, "no column size"),
        (
            BLOCK_HEADER + BLOCK_ROW.replace(",4194816,", ",lots,"),
            "line 2: size is 'lots', not an integer",
        ),
        (BLOCK_HEADER + BLOCK_ROW.replace(",4194816,", ",9999999999999999999,"), "not an integer up to"),
        (BLOCK_HEADER + BLOCK_ROW.replace("0x7ff4a2f9e677", "here"), "device_addr is 'here', not an address"),
        (BLOCK_HEADER + BLOCK_ROW + "1,2,3\n", "line 3: 3 cells instead of 20"),
        ("", "no column start_time_stamp"),
    ],
)
def test_a_damaged_file_is_named_with_its_line(tmp_path, text, sentence):
    with pytest.raises(CorruptFile, match=sentence):
        list(read_blocks(written(tmp_path / "b.csv", text)))


def test_a_file_that_is_not_there_is_a_sentence(tmp_path):
    with pytest.raises(CorruptFile, match=r"cannot read .*gone\.csv: No such file"):
        list(read_tasks(tmp_path / "gone.csv"))


def test_tasks_and_communication(tmp_path):
    (task,) = read_tasks(written(tmp_path / "t.csv", TASK_HEADER + "4,PyNative,Dense,,a.cc,1,,\n"))
    assert (task.tick, task.name, task.node) == (4, "PyNative", "Dense")
    (call,) = read_communication(written(tmp_path / "c.csv", ORDER_HEADER + ORDER_ROW))
    assert (call.group, call.ranks, call.primitive) == ("world", (0, 1, 2), "Send")
    assert (call.source, call.target, call.root) == (None, 2, None)


def test_an_operator_has_blocks_tensors_and_attributes(tmp_path):
    (op,) = read_operators(written(tmp_path / "g.ir", OPERATOR))
    assert (op.tick, op.name, op.read, op.written, op.stream) == (4, "Dense", (2, 6, 7), (8,), 0)
    assert op.outputs == (TensorSpec((512, 4096), (4096, 1), "bfloat16"),)
    assert [spec.shape for spec in op.inputs] == [(512, 1024), (4096, 1024), (4096,)]
    assert op.stack == "File:train.py;Line:12;Function:<module>|"


def test_a_view_keeps_its_strides_and_a_collective_its_ranks(tmp_path):
    text = (
        "(%3) = Default/AllReduce-op0(%3), task_info: 9, attrs {group=tp;comm_rank=0 1 2 3;stream_id=2} \n"
        "    (Float32:[2, 3]{strdes=[1, 2],offset=0}) <- (Float32:[3, 2])\n    # \n"
    )
    (op,) = read_operators(written(tmp_path / "g.ir", text))
    assert op.outputs[0].strides == (1, 2)
    assert (op.attributes["comm_rank"], op.stream, op.number("event")) == ("0 1 2 3", 2, None)


@pytest.mark.parametrize("damage", ["Float32:[5-3]", "Float32:[" + "9" * 30 + "]"])
def test_a_shape_no_tensor_has_is_a_damaged_file(tmp_path, damage):
    text = OPERATOR.replace("BFloat16:[4096]", damage)
    with pytest.raises(CorruptFile, match="line 2: not tensors"):
        list(read_operators(written(tmp_path / "g.ir", text)))


def test_marks_come_back_up_to_where_the_program_was_killed(tmp_path):
    path = tmp_path / "marks.jsonl"
    marks = MarkWriter(path, iter((3, 5, 7)).__next__)
    marks.add("enter", "layers.0", 0)
    marks.add("exit")
    marks.close()
    marks.add("step")  # after the end: a thread the script left behind
    path.write_text(path.read_text() + '[9, "st')
    assert list(read_marks(path)) == [Mark(3, "enter", ("layers.0", 0)), Mark(5, "exit")]
    assert list(read_marks(tmp_path / "none")) == []


WHOLE = {
    "blocks": (BLOCK_HEADER + BLOCK_ROW + WEIGHT_ROW, read_blocks),
    "tasks": (TASK_HEADER + "4,PyNative,Dense,,a.cc,1,,\n", read_tasks),
    "operators": (OPERATOR * 2, read_operators),
    "communication": (ORDER_HEADER + ORDER_ROW * 2, read_communication),
    "marks": ('[1, "enter", "a", 0]\n[2, "exit"]\n', read_marks),
}


@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_damage_is_a_damaged_file_and_nothing_else(tmp_path: Path, name: str, data):
    text, read = WHOLE[name]
    raw = bytearray(text.encode())
    for _ in range(data.draw(st.integers(0, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "file"
    path.write_bytes(bytes(raw[: data.draw(st.integers(0, len(raw)))]))
    try:
        n_rows = len(list(read(path)))
    except CorruptFile as error:
        assert str(path) in str(error)
    else:
        assert n_rows <= text.count("\n") + 4  # a byte that became a line's end
