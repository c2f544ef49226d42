"""memory_block.csv: the columns of MindSpore 2.10, exact rows, and a reader that trusts nothing."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.allocators.rounding_allocator import RoundingAllocator
from tests.memory.mindspore_graph.graph_files import DATA
from tests.memory.recorded import unplayed
from tests.memory.training_run import record_training
from windtunnel.errors import CorruptFile
from windtunnel.events.file import RecordingWriter, read_recording, record_events, row_of
from windtunnel.events.model import Alloc, Free, Op, Signature
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.files.memory_block import COLUMNS, read_memory_block, write_memory_block
from windtunnel.memory.tape import TapeKind, play, tape_of

REAL = Path(__file__).parents[4] / "shared" / "data" / "mindspore"
HEADER_2_10 = (
    "start_time_stamp,end_time_stamp,device_addr,stream_id,pool_type,size,actual_used_memory,"
    "actual_peak_memory,file_name,line_num,type,producer_task,task_name,node_name,graph_name,user_tasks,"
    "last_user_task,python_stack,is_persistent,is_small,"
)
HEADER_2_7 = (
    "start_time_stamp,end_time_stamp,device_addr,stream_id,pool_type,size,actual_peak_memory,file_name,"
    "line_num,type,producer_task,task_name,node_name,graph_name,user_tasks,last_user_task,python_stack,"
)
POOL = "DefaultEnhancedAscendMemoryPool"
ROW_2_10 = f"8,35,0x7f,0,{POOL},4194816,9,19,a.cc,7,PyNativeOutput,4,PyNative,Dense,,{{9}},31,,1,0,"
ROW_2_7 = f"8,35,0x7f,0,{POOL},4194816,19,a.cc,7,PyNativeOutput,4,PyNative,Dense,,{{9}},31,,"


def _written(tmp_path, recording):
    path = tmp_path / "memory_block.csv"
    write_memory_block(path, unplayed(recording), RoundingAllocator())
    header, *lines = path.read_text().splitlines()
    assert header == HEADER_2_10
    return [dict(zip(COLUMNS, line.split(","), strict=False)) for line in lines]


def _read(tmp_path, text):
    path = tmp_path / "memory_block.csv"
    path.write_text(text)
    return read_memory_block(path)


def test_each_allocation_has_a_row_with_its_operator_its_readers_and_its_line(tmp_path):
    rows = _written(tmp_path, record_training(tmp_path / "r.arrows"))
    assert len(rows) == 14
    weight, first = rows[0], rows[3]
    assert (weight["type"], weight["is_persistent"]) == ("Weight", "0")  # a weight only later
    assert weight["end_time_stamp"] == str(2**63 - 1)
    assert (first["node_name"], first["task_name"]) == ("aten.linear", "layers.0")
    assert first["python_stack"] == (
        "File:/home/me/train.py;Line:41;Function:main|File:/site-packages/lib/nn.py;Line:7;Function:forward|"
    )
    assert first["size"] == "16384"
    assert first["actual_used_memory"] == str(16384 * 3)


def test_ticks_count_operators_allocations_and_frees(tmp_path):
    writer = RecordingWriter(tmp_path / "r.arrows", {})
    mm = writer.signature(Signature("aten.mm.default", (), (), ""))
    events = [
        Alloc(1, 100, op=0),  # operator 0 is tick 0, its output tick 1
        Op(0, mm, (), (1,)),
        Alloc(2, 100, op=1),  # ticks 2 and 3
        Op(1, mm, (1,), (2,)),
        Op(2, mm, (1, 2), ()),  # tick 4
        Free(1),  # tick 5
    ]
    writer.rows += [row_of(e) for e in events]
    writer.close()
    one, two = _written(tmp_path, read_recording(tmp_path / "r.arrows"))
    assert [one[c] for c in COLUMNS[:2]] == ["1", "5"]
    assert (one["producer_task"], one["user_tasks"], one["last_user_task"]) == ("0", "{2-4}", "4")
    assert (two["start_time_stamp"], two["user_tasks"]) == ("3", "{4}")


@pytest.mark.parametrize("name", ["cuda", "npu", "mindspore"])
def test_a_file_of_ours_replays_to_the_peaks_it_was_written_with(tmp_path, name):
    recording, path = record_training(tmp_path / "r.arrows"), tmp_path / "memory_block.csv"
    write_memory_block(path, unplayed(recording), Allocator.named(name))
    tape, allocator = read_memory_block(path), Allocator.named(name)
    play(tape, allocator)
    assert allocator.peak_allocated_bytes == tape.recorded_peak_bytes
    assert allocator.peak_reserved_bytes == tape.recorded_peak_reserved_bytes


def test_commas_in_names_do_not_shift_cells(tmp_path):
    writer = RecordingWriter(tmp_path / "r.arrows", {})
    frame = writer.frame("/home/me,you/a|b.py", 3, "f\n")
    writer.rows.append(row_of(Alloc(1, 100, frame=frame)))
    writer.close()
    (row,) = _written(tmp_path, read_recording(tmp_path / "r.arrows"))
    assert row["python_stack"] == "File:/home/me you/a b.py;Line:3;Function:f |"


@pytest.mark.parametrize(("header", "row"), [(HEADER_2_10, ROW_2_10), (HEADER_2_7, ROW_2_7)])
def test_both_known_headers_are_read(tmp_path, header, row):
    tape = _read(tmp_path, f"{header}\n{row}\n")
    assert tape.kind.tolist() == [TapeKind.ALLOC, TapeKind.FREE]
    assert tape.n_bytes[0] == 4194304
    assert tape.recorded_peak_reserved_bytes == 19
    assert tape.persistent[0] == (header == HEADER_2_10)


def test_an_older_file_has_its_weights_and_constants_taken_as_persistent(tmp_path):
    kinds = ("Weight", "ConstantValue", "Kernel", "PyNativeOutput")
    rows = [ROW_2_7.replace("PyNativeOutput", kind) for kind in kinds]
    tape = _read(tmp_path, "\n".join([HEADER_2_7, *rows]) + "\n")
    assert tape.persistent[tape.kind == TapeKind.ALLOC].tolist() == [True, True, False, False]
    assert len(tape.notes) == 1
    assert "older than MindSpore 2.10" in tape.notes[0]
    assert _read(tmp_path, f"{HEADER_2_10}\n{ROW_2_10}\n").notes == ()


@pytest.mark.parametrize(
    "path", sorted(DATA.glob("*.memory_block.csv.gz")), ids=lambda path: path.name.split(".")[0]
)
def test_dry_runs_of_graphs_and_of_two_streams_replay_to_their_own_peaks(path):
    tape, allocator = read_memory_block(path), Allocator.named("mindspore")
    play(tape, allocator)
    assert allocator.peak_allocated_bytes == tape.recorded_peak_bytes
    assert allocator.peak_reserved_bytes == tape.recorded_peak_reserved_bytes


@given(st.integers(1, 1 << 40))
def test_mindspores_rounding_gives_the_recorded_size_back(n_bytes):
    from windtunnel.memory.files.memory_block import _requested

    def rule(n):
        return (n + 512 + 31) // 512 * 512

    assert rule(_requested(rule(n_bytes))) == rule(n_bytes)
    if n_bytes % 512 == 0:
        assert _requested(rule(n_bytes)) == n_bytes


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "no column"),
        ("a,b,c\n", "no column"),
        (f"{HEADER_2_10}\n{ROW_2_10}\n1,2,3\n", "line 3: 3 cells instead of 20"),
        (f"{HEADER_2_10}\n{ROW_2_10.replace('4194816', '-5')}\n", "line 2: size is '-5'"),
        (f"{HEADER_2_10}\n{ROW_2_10.replace('4194816', '9' * 19)}\n", "cannot be an allocation"),
        (f"{HEADER_2_10}\n{ROW_2_10.replace('8,35', '35,8')}\n", "ends at tick 8, before its start 35"),
        (f"{HEADER_2_10}\n{ROW_2_10.replace('8,35', 'NaN,35')}\n", "start_time_stamp is 'NaN'"),
    ],
)
def test_nonsense_is_refused_with_its_line(tmp_path, text, complaint):
    with pytest.raises(CorruptFile, match=complaint):
        _read(tmp_path, text)


def test_a_broken_gzip_is_refused(tmp_path):
    path = tmp_path / "memory_block.csv.gz"
    path.write_bytes(gzip.compress(f"{HEADER_2_10}\n{ROW_2_10}\n".encode())[:-9])
    with pytest.raises(CorruptFile, match="cannot read"):
        read_memory_block(path)
    with pytest.raises(CorruptFile, match="cannot read"):
        read_memory_block(tmp_path / "nothing.csv")


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9000), st.booleans()), max_size=30), st.sampled_from(["csv", "csv.gz"])
)
def test_what_is_written_is_read_back_as_the_same_requests(tmp_path_factory, sizes, suffix):
    directory = tmp_path_factory.mktemp("r")
    events = []
    for i, (n_bytes, is_freed) in enumerate(sizes):
        events += [Alloc(i, n_bytes * 512)] + [Free(i // 2)] * is_freed
    record_events(directory / "r.arrows", events)
    recording = read_recording(directory / "r.arrows")
    path = directory / f"memory_block.{suffix}"
    write_memory_block(path, unplayed(recording), RoundingAllocator())
    wanted, found = tape_of(recording), read_memory_block(path)
    assert found.kind.tolist() == wanted.kind.tolist()
    assert found.n_bytes.tolist() == wanted.n_bytes.tolist()
    dense = {id: i for i, id in enumerate(dict.fromkeys(wanted.id.tolist()))}
    again = {id: i for i, id in enumerate(dict.fromkeys(found.id.tolist()))}
    assert [again[i] for i in found.id.tolist()] == [dense[i] for i in wanted.id.tolist()]


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200))
def test_any_text_is_either_read_or_refused_in_one_sentence(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("r") / "memory_block.csv"
    path.write_text(f"{HEADER_2_10}\n{ROW_2_10}\n{text}", encoding="utf-8", errors="replace")
    try:
        tape = read_memory_block(path)
    except CorruptFile as refused:
        assert "\n" not in refused.message
    else:
        assert len(tape) >= 1  # the row before the text is always there


@pytest.mark.skipif(not REAL.exists(), reason="needs the shared MindSpore traces")
def test_a_file_of_mindspore_itself_is_read():
    tape = read_memory_block(REAL / "qwen25_7b_stage0_memory_block.csv.gz")
    assert (tape.kind == TapeKind.ALLOC).sum() == 6354
    live, total, peak = {}, 0, 0
    for kind, id, n_bytes in zip(tape.kind.tolist(), tape.id.tolist(), tape.n_bytes.tolist(), strict=True):
        if kind == TapeKind.ALLOC:
            live[id] = (n_bytes + 512 + 31) // 512 * 512
        total += live[id] if kind == TapeKind.ALLOC else -live.pop(id)
        peak = max(peak, total)
    assert peak == tape.recorded_peak_bytes == 58_084_981_248


@pytest.mark.skipif(not REAL.exists(), reason="needs the shared MindSpore traces")
@pytest.mark.parametrize("name", ["qwen25_7b_stage0", "graph_mode"])
def test_mindspores_own_file_replays_to_its_own_peaks(name):
    tape = read_memory_block(REAL / f"{name}_memory_block.csv.gz")
    allocator = Allocator.named("mindspore")
    play(tape, allocator)
    assert allocator.peak_allocated_bytes == tape.recorded_peak_bytes
    assert allocator.peak_reserved_bytes == tape.recorded_peak_reserved_bytes
