"""windtunnel replay of what MindSpore users already have: folders of ranks, logs, saved graphs."""

from __future__ import annotations

import gzip
import json
import shutil

import pytest

from tests.commands.snapshots import MIB, write_blocks
from tests.memory.mindspore_graph.graph_files import DATA, unpack, write_graph
from windtunnel.commands.main import main

ASCEND = "ascend-910b-64gb"
FACTS = """\
[WARNING] DEVICE({pid},7f33719bbc40,python):2026-01-01-00:00:00.000.001 [a.cc:1] f] This is simulation mode with \
level 1. Process's RANK_ID: {rank}, RANK_SIZE: 4
Device MOC memory size: 65536M
MindSpore Used memory size: 61430M
Used peak memory usage (without fragments): {used}M
Actual peak memory usage (with fragments): {actual}M
"""


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.delenv("NO_COLOR", raising=False)


def _document(capsys, *argv):
    code = main(["replay", *map(str, argv), "--json"])
    return code, json.loads(capsys.readouterr().out)


def _logs(folder, peaks):
    for rank, actual in enumerate(peaks):
        text = FACTS.format(pid=100 + rank, rank=rank, used=actual - 5, actual=actual)
        (folder / f"worker_{rank}.log").write_text(text)
    return sorted(folder.glob("worker_*.log"))


def test_a_ranks_folder_is_replayed_by_its_memory_block(tmp_path, capsys):
    folder = tmp_path / "rank_3"
    folder.mkdir()
    name = "pynative_two_streams.memory_block.csv.gz"
    (folder / "memory_block.csv").write_bytes(gzip.decompress((DATA / name).read_bytes()))
    (folder / "task.csv").write_text(
        "time_stamp,task_name,node_name,graph_name,file_name,line_num,python_stack,\n"
    )
    (folder / "tracker_graph.ir").write_text("(%2) = Dense(), task_info: 0, attrs {stream_id=0}\n")
    code, document = _document(capsys, folder)
    (file,) = document["files"]
    assert (code, file["kind"], file["rank"]) == (0, "memory_block", 3)
    assert file["profiles"][0]["peak_bytes"] == file["recorded_peak_bytes"] == 41_952_768
    for other in ("task.csv", "tracker_graph.ir"):
        assert main(["replay", str(folder / other)]) == 2
        assert "give the memory_block.csv beside it" in capsys.readouterr().err


def test_the_folder_above_has_a_row_for_each_rank_and_the_table_of_the_worst(tmp_path, capsys):
    for rank in (0, 2, 10):
        (tmp_path / f"rank_{rank}").mkdir()
        write_blocks(tmp_path / f"rank_{rank}" / "memory_block.csv")
    small, large = "dense", "pipeline"
    for rank, name in ((0, small), (10, large)):
        text = gzip.decompress((DATA / f"{name}.memory_block.csv.gz").read_bytes())
        (tmp_path / f"rank_{rank}" / "memory_block.csv").write_bytes(text)
    code, document = _document(capsys, tmp_path)
    assert code == 0
    assert [file["rank"] for file in document["files"]] == [0, 2, 10]
    shutil.rmtree(tmp_path / "rank_2")
    assert main(["replay", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "2 ranks, with mindspore" in out
    assert "Rank 10 needs most: 22.48 MiB. It is replayed below." in out
    assert f"{tmp_path}/rank_10/memory_block.csv: MindSpore memory_block.csv" in out
    assert out.splitlines()[-1] == f"next: windtunnel replay {tmp_path} --device {ASCEND}   (would it fit?)"


def test_a_folder_with_several_kinds_says_what_else_it_has(tmp_path, capsys):
    write_blocks(tmp_path / "memory_block.csv")
    _logs(tmp_path, [10, 20])
    file = _document(capsys, tmp_path)[1]["files"][0]
    assert file["notes"][0] == "the folder also has 2 logs: give one by name"


@pytest.mark.parametrize("how", ["files", "folder"])
def test_logs_give_a_row_for_each_rank_and_the_worst(tmp_path, capsys, how):
    files = _logs(tmp_path, [100, 37_778, 200])
    code, document = _document(capsys, *(files if how == "files" else [tmp_path]))
    (log,) = document["files"]
    assert (code, log["kind"], log["fits"]) == (0, "log", None)
    assert [(row["rank"], row["need_bytes"] // MIB) for row in log["ranks"]] == [
        (0, 100),
        (1, 37_778),
        (2, 200),
    ]
    assert log["answer"] == "Rank 1 needs most, 37,778 MiB."
    assert "cannot be replayed with another allocator" in log["notes"][-1]


@pytest.mark.parametrize(("actual", "code", "answer"), [
    (61_429, 0, "Yes, it fits: rank 1 needs most, 61,429 MiB of the 61,430 MiB usable, which leaves 1 MiB."),
    (61_430, 4, "No, it does not fit: rank 1 needs most, 61,430 MiB, and 61,430 MiB is usable on ascend-910b-64gb."),
])  # fmt: skip
def test_logs_are_judged_against_a_device_to_the_last_mib(tmp_path, capsys, actual, code, answer):
    files = _logs(tmp_path, [100, actual])
    found, document = _document(capsys, *files, "--device", ASCEND)
    assert (found, document["files"][0]["answer"]) == (code, answer)
    assert main(["replay", *map(str, files), "--device", ASCEND]) == code
    out = capsys.readouterr().out
    assert "61,330 MiB" in out  # the room of rank 0
    assert "MS_ALLOC_CONF=memory_tracker:True" in out.splitlines()[-1]


def test_a_dry_run_that_needs_more_than_it_had_is_told_so(tmp_path, capsys):
    file = _document(capsys, *_logs(tmp_path, [70_000]))[1]["files"][0]
    assert "rank 0 needs more than the 61,430 MiB that MindSpore may use there" in file["notes"][0]


def test_a_killed_rank_leaves_the_answer_open(tmp_path, capsys):
    _logs(tmp_path, [100, 100])
    (tmp_path / "worker_2.log").write_text(
        FACTS.format(pid=1, rank=2, used=1, actual=1).splitlines()[0] + "\n"
    )
    code, document = _document(capsys, tmp_path, "--device", ASCEND)
    log = document["files"][0]
    assert (code, log["fits"], log["logs_without_facts"]) == (0, None, [str(tmp_path / "worker_2.log")])
    assert "was killed" in log["notes"][0]
    assert log["answer"].startswith("The known ranks fit, but not every rank is known")
    assert main(["replay", str(tmp_path / "worker_2.log")]) == 0
    assert "Its memory is unknown: run it to the end" in capsys.readouterr().out


def test_no_allocator_can_be_tried_on_totals(tmp_path, capsys):
    assert main(["replay", str(_logs(tmp_path, [5])[0]), "--allocator", "mindspore"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "totals of a run, not its allocations" in captured.err
    assert "memory_tracker:True" in captured.err


def test_a_saved_graph_is_replayed_as_an_estimate(tmp_path, capsys):
    unpack("pipeline", tmp_path / "ir" / "rank_3")
    for path in (tmp_path / "ir", tmp_path / "ir" / "rank_3"):
        code, document = _document(capsys, path)
        (file,) = document["files"]
        assert (code, file["kind"], file["rank"]) == (0, "graph_ir", 3)
        assert file["notes"][0].startswith("this is an estimate from the graph")
        assert file["profiles"][0]["peak_bytes"] == pytest.approx(22_939_136, rel=0.001)


def test_out_of_memory_names_the_operator_of_the_graph(tmp_path, capsys):
    path = write_graph(tmp_path)
    text = path.read_text().replace(
        "(<Tensor[Float64], (16, 64)>)\n", "(<Tensor[Float64], (65536, 64000)>)\n", 1
    )
    path.write_text(text)
    code, document = _document(capsys, path, "--device", f"{ASCEND}:mem=16GiB")
    assert code == 4
    at = document["files"][0]["profiles"][0]["out_of_memory"]["at"]
    assert at == "line 13 of the file (MatMul in Default/MatMul-op0)"
