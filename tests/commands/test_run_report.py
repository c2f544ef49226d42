"""What a run leaves behind: report.json field by field, run.log, the optional files, the exit codes."""

from __future__ import annotations

import csv
import json
import pickle
import re

import pytest

from tests.commands.cli import SCRIPTS, read_json, windtunnel
from windtunnel.events.file import read_recording

WHOLE, TEXT, NUMBER = int, str, (int, float)
RANK_FIELDS = {
    "rank": WHOLE, "status": TEXT, "same_as": None, "steps": WHOLE, "device_memory_bytes": WHOLE,
    "usable_memory_bytes": WHOLE, "base_address": TEXT, "peak_bytes": WHOLE,
    "peak_with_fragments_bytes": WHOLE,
    "peak_at": {"step": WHOLE, "op": TEXT, "module": TEXT, "phase": TEXT},
    "at_peak_bytes": dict.fromkeys(
        ("weights", "gradients", "optimizer", "activations", "inputs", "temporary", "workspace",
         "communication", "frozen", "copies"), WHOLE,
    ),
    "step_time_us": None, "build_time_us": dict, "unknown_values": list, "error": None,
}  # fmt: skip
REPORT_FIELDS = {
    "schema": WHOLE, "windtunnel": TEXT, "level": WHOLE, "world_size": WHOLE, "fits": bool,
    "device": {"name": TEXT, "memory_bytes": WHOLE}, "allocator": TEXT, "ranks": list,
}  # fmt: skip
FIVE_FACTS = (
    r"Device MOC memory size: \d+M\nUsable memory size: \d+M\nDevice memory base address: 0x[0-9a-f]+\n"
    r"Used peak memory usage \(without fragments\): \d+M\nActual peak memory usage \(with fragments\): \d+M\n"
)


def _check(document, fields):
    assert list(document)[: len(fields)] == list(fields)
    for name, kind in fields.items():
        value = document[name]
        if kind is None:
            assert value is None, name
        elif isinstance(kind, dict):
            assert list(value) == list(kind), name
            _check(value, kind)
        else:
            assert isinstance(value, kind), name
            assert kind is not WHOLE or not isinstance(value, bool), name


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    done = windtunnel(
        "run", "--json", "--memory-tracker", "--snapshot", "--out", "out", SCRIPTS / "train.py", cwd=folder
    )
    return done, folder / "out"


def test_json_is_all_there_is_on_stdout_and_equals_the_file(trained):
    done, out = trained
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == read_json(out)
    assert "step 2 loss 1.0" in done.stderr


def test_the_report_has_every_field_in_its_place(trained):
    report = read_json(trained[1])
    _check(report, REPORT_FIELDS)
    (rank,) = report["ranks"]
    _check(rank, RANK_FIELDS)
    assert (report["schema"], report["level"], report["world_size"], report["fits"]) == (1, 1, 1, True)
    assert report["device"] == {"name": "a100-80gb", "memory_bytes": 85095088128}
    assert (rank["status"], rank["steps"]) == ("ok", 3)
    assert re.fullmatch(r"0x[0-9a-f]+", rank["base_address"])
    assert sum(rank["at_peak_bytes"].values()) == rank["peak_bytes"]
    assert rank["peak_bytes"] <= rank["peak_with_fragments_bytes"] <= rank["usable_memory_bytes"]
    (unknown,) = rank["unknown_values"]
    assert list(unknown) == ["where", "what", "value", "count"]
    assert (unknown["where"], unknown["value"], unknown["count"]) == ("train.py:23", 1.0, 3)
    assert all(isinstance(name, str) and isinstance(us, int) for name, us in rank["build_time_us"].items())
    assert set(rank["build_time_us"]) >= {"0", "2"}


def test_the_log_has_the_output_and_the_five_facts(trained):
    log = (trained[1] / "rank0" / "run.log").read_text()
    assert log.startswith("step 0 loss 1.0\nstep 1 loss 1.0\nstep 2 loss 1.0\n")
    assert re.search(FIVE_FACTS + r"\Z", log)


def test_the_files_on_request_are_there(trained):
    folder = trained[1] / "rank0"
    with (folder / "memory_block.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[0] == [
        "start_time_stamp", "end_time_stamp", "device_addr", "stream_id", "pool_type", "size",
        "actual_used_memory", "actual_peak_memory", "file_name", "line_num", "type", "producer_task",
        "task_name", "node_name", "graph_name", "user_tasks", "last_user_task", "python_stack",
        "is_persistent", "is_small", "",
    ]  # fmt: skip
    assert len(rows) > 20
    assert any("train.py" in row[17] for row in rows[1:])
    snapshot = pickle.loads((folder / "snapshot.pickle").read_bytes())
    assert {"segments", "device_traces"} <= set(snapshot)
    assert (folder / "recording.arrows").stat().st_size > 1000


def test_the_page_is_beside_the_report_and_holds_its_figures(trained):
    page = (trained[1] / "report.html").read_text()
    data = json.loads(re.search(r'id="data">(.*?)</script>', page, re.DOTALL).group(1))
    report = read_json(trained[1])
    assert data["run"] | {"ranks": report["ranks"]} == report
    assert data["simulated"]["0"] == report["ranks"][0]
    assert list(data["details"]) == ["0"]


def test_a_run_that_does_not_fit_exits_4(tmp_path):
    done = windtunnel("run", "--device", "a100:mem=505MiB", SCRIPTS / "train.py", cwd=tmp_path)
    assert done.returncode == 4
    report = read_json(tmp_path / "windtunnel-out")
    assert report["fits"] is False
    assert report["ranks"][0]["status"] == "oom"
    assert not re.search(FIVE_FACTS, done.stdout)  # they are for MindSpore scripts, and in run.log
    assert done.stdout.splitlines()[3].startswith("Peak of rank 0: ")
    assert "Does not fit: needs " in done.stdout
    assert "next: windtunnel view windtunnel-out" in done.stdout
    assert max(map(len, done.stdout.split("\nnext:")[0].splitlines())) <= 80


def test_a_page_that_cannot_be_written_is_exit_2_with_a_note_and_a_report(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import os\nos.makedirs('windtunnel-out/report.html/mine')\n")  # the one real folder
    done = windtunnel("run", "--level", 0, script, cwd=tmp_path)
    assert done.returncode == 2
    assert "Note: report.html could not be written: Is a directory." in done.stdout
    assert read_json(tmp_path / "windtunnel-out")["ranks"][0]["status"] == "ok"


def test_a_failure_is_the_users_traceback_and_one_sentence(tmp_path):
    script = SCRIPTS / "train.py"
    done = windtunnel("run", "--level", 0, script, "--features", 200, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr == ""
    text = done.stdout
    assert text.startswith("Traceback (most recent call last):\n")
    assert f'File "{script}", line 27, in <module>\n    main()' in text
    assert f'File "{script}", line 19, in main\n    loss = model(batch).pow(2).mean()' in text
    assert "/windtunnel/capture/" not in text
    assert "/windtunnel/commands/rank" not in text
    assert "runpy" not in text
    failure, next_line = text.split("Failed: ")[1].split("\n\nnext: ")
    assert " ".join(failure.split()) == (
        "the data does not fit the model: a layer that takes 256 features was given 200; compare the "
        f"dataset's last dimension (200) with the layer's input size (256) (at {script}:19)."
    )
    assert next_line.startswith("less windtunnel-out/rank0/run.log")
    rank = read_json(tmp_path / "windtunnel-out")["ranks"][0]
    assert rank["status"] == "failed"
    assert "".join(rank["error"].split()) == "".join(failure.rstrip(".").split())
    assert set(rank["build_time_us"]) >= {"0", "2"}


def test_the_environment_of_the_tools_it_replaces_gives_the_defaults(tmp_path):
    env = {
        "MS_SIMULATION_LEVEL": "1", "RANK_SIZE": "16", "RANK_ID": "0", "RANK": "3",
        "MS_ALLOC_CONF": "memory_tracker: True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    }  # fmt: skip
    done = windtunnel("run", SCRIPTS / "surroundings.py", cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stdout
    out = tmp_path / "windtunnel-out"
    report = read_json(out)
    assert (report["level"], report["world_size"], report["ranks"][0]["rank"]) == (1, 16, 0)
    assert (out / "rank0" / "memory_block.csv").exists()
    assert _launcher(out, 0) == {
        "RANK": "0", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8", "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
    }  # fmt: skip
    header = read_recording(out / "rank0" / "recording.arrows").header
    assert header["allocator_conf"] == "expandable_segments:True"


def test_ranks_of_a_list_run_together_and_one_failure_does_not_lose_the_others(tmp_path):
    done = windtunnel(
        "run",
        "--world-size",
        16,
        "--ranks",
        "0,1,9",
        "--jobs",
        2,
        "-v",
        SCRIPTS / "surroundings.py",
        cwd=tmp_path,
    )
    assert done.returncode == 3
    out = tmp_path / "windtunnel-out"
    ranks = read_json(out)["ranks"]
    assert [(rank["rank"], rank["status"]) for rank in ranks] == [(0, "ok"), (1, "failed"), (9, "ok")]
    assert ranks[2]["peak_bytes"] - ranks[0]["peak_bytes"] == 72 << 20  # its own card, its own size
    assert ranks[1]["error"].startswith("the script raised ValueError: rank 1 has no data (at ")
    assert _launcher(out, 9)["LOCAL_RANK"] == "1"
    assert _launcher(out, 9)["GROUP_RANK"] == "1"
    for rank in (0, 1, 9):
        assert f"[rank {rank}] dry run 1" in done.stdout
        assert re.search(FIVE_FACTS, (out / f"rank{rank}" / "run.log").read_text())
    assert "3 of 16 ranks were simulated" in done.stdout


def _launcher(out, rank):
    log = (out / f"rank{rank}" / "run.log").read_text()
    return json.loads(re.search(r"launcher (.*)", log)[1])
