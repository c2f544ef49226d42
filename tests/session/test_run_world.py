"""`windtunnel run --world-size N`: classes of ranks, mail, failures and interrupts, with real processes."""

from __future__ import annotations

import json
import re
import signal
import subprocess

import pytest

from tests.commands.cli import COMMAND, PATIENCE_S, SCRIPTS, environment, read_json, windtunnel

STAGES = SCRIPTS / "stages.py"


def _run(*args, cwd, **more):
    done = windtunnel("run", *args, cwd=cwd, **more)
    return done, read_json(cwd / "windtunnel-out")


def test_one_rank_of_each_kind_stands_for_a_large_world(tmp_path):
    done, report = _run("--world-size", 256, STAGES, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    ranks = report["ranks"]
    assert [rank["rank"] for rank in ranks] == list(range(256))
    simulated = [rank["rank"] for rank in ranks if rank["status"] != "same_as"]
    assert 2 <= len(simulated) <= 16
    assert report["mismatches"] == []
    narrow, wide = ranks[0]["peak_bytes"], ranks[255]["peak_bytes"]
    assert wide - narrow == 2 * 1024 * 4 * (4096 - 1024)  # the weight and its gradient
    assert {rank["peak_bytes"] for rank in ranks[:128]} == {narrow}
    assert {rank["peak_bytes"] for rank in ranks[128:]} == {wide}
    assert "All 256 ranks" in done.stdout
    assert "[rank 0] rank 0 is 1024 wide" in done.stdout
    logs = sorted(path.parent.name for path in (tmp_path / "windtunnel-out").glob("rank*/run.log"))
    assert logs == sorted(f"rank{rank}" for rank in simulated)


MEETS = """
import os
import torch, torch.distributed as dist
dist.init_process_group("nccl", init_method="tcp://10.0.0.1:29500", rank=int(os.environ["RANK"]), world_size=2)
x = torch.ones(4, device="cuda")
dist.all_reduce(x)
print("met", dist.get_rank(), dist.get_world_size())
"""


def test_any_address_meets(tmp_path):
    (tmp_path / "train.py").write_text(MEETS)
    done, report = _run("--world-size", 2, "--ranks", "all", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert [rank["status"] for rank in report["ranks"]] == ["ok", "ok"]
    assert "met 0 2" in (tmp_path / "windtunnel-out" / "rank0" / "run.log").read_text()


@pytest.mark.thorough  # as tests/test_auto_ranks.py does with other programs
def test_simulating_every_rank_proves_what_the_classes_say(tmp_path):
    peaks = {}
    for which in ("auto", "all"):
        done, report = _run("--world-size", 16, "--ranks", which, "--force", STAGES, cwd=tmp_path)
        assert done.returncode == 0, done.stdout
        peaks[which] = [(rank["rank"], rank["peak_bytes"], rank["steps"]) for rank in report["ranks"]]
        kinds = {rank["status"] for rank in report["ranks"]}
        assert kinds == ({"ok", "same_as"} if which == "auto" else {"ok"})
    assert peaks["auto"] == peaks["all"]
    assert len(peaks["all"]) == 16


def test_when_rank_0_fails_no_other_rank_is_run(tmp_path):
    done, report = _run("--world-size", 64, STAGES, "--fails", 0, cwd=tmp_path)
    assert done.returncode == 3
    assert [(rank["rank"], rank["status"]) for rank in report["ranks"]] == [(0, "failed")]
    assert "Failed: rank 0: the script raised ValueError: rank 0 has no data" in done.stdout
    assert sorted(p.name for p in (tmp_path / "windtunnel-out").glob("rank*")) == ["rank0"]


def test_when_another_rank_fails_the_others_are_reported(tmp_path):
    done, report = _run("--world-size", 8, STAGES, "--fails", 7, cwd=tmp_path)
    assert done.returncode == 3
    failed = [rank for rank in report["ranks"] if rank["status"] == "failed"]
    assert [rank["rank"] for rank in failed] == [7]
    assert {rank["rank"] for rank in report["ranks"]} == set(range(8))
    assert "Failed: rank 7: the script raised ValueError: rank 7 has no data" in done.stdout
    assert "[rank 7] ValueError: rank 7 has no data" in done.stdout


def test_calls_that_do_not_meet_are_an_error_with_both_ranks(tmp_path):
    done, report = _run("--world-size", 4, "--ranks", "all", STAGES, "--skips", 1, cwd=tmp_path)
    assert done.returncode == 3
    assert [rank["status"] for rank in report["ranks"]] == ["ok"] * 4
    assert report["fits"] is True
    assert any(set(found["ranks"]) >= {0, 1} for found in report["mismatches"])
    assert "Would hang: " in done.stdout
    assert "all_reduce" in report["mismatches"][0]["sentence"]


def test_ranks_of_a_list_are_compared_only_with_each_other(tmp_path):
    done, report = _run("--world-size", 8, "--ranks", "0,1", STAGES, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert report["mismatches"] == []


def test_a_rank_that_is_told_something_brings_the_rank_that_tells_it(tmp_path):
    done, report = _run("--world-size", 8, "--rank", 6, "--jobs", 1, STAGES, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert [rank["rank"] for rank in report["ranks"]] == [6]
    assert "rank 6 is 4096 wide" in done.stdout
    assert "Note: rank 2 was simulated too: rank 6 receives objects from it." in " ".join(done.stdout.split())
    assert (tmp_path / "windtunnel-out" / "rank2" / "run.log").exists()


def test_a_sender_that_stops_after_its_steps_does_not_leave_the_others_waiting(tmp_path):
    script = tmp_path / "late.py"
    script.write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('nccl')\n"
        "w = torch.zeros(8, device='cuda', requires_grad=True)\n"
        "o = torch.optim.SGD([w], lr=0.1)\n"
        "for _ in range(5):\n"
        "    w.sum().backward(); o.step()\n"
        "if dist.get_rank() == 0:\n"
        "    dist.send_object_list([1], dst=1)\n"
        "if dist.get_rank() == 2:\n"
        "    dist.recv_object_list([None], src=0)\n"
    )
    done, report = _run("--world-size", 4, "--ranks", "0,2", "--steps", 2, script, cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert [rank["steps"] for rank in report["ranks"]] == [2, 2]


SHARES = """
import os, time
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
dist.init_process_group("nccl")
rank = dist.get_rank()
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Linear(64, 7)).cuda()
if rank == 0:
    time.sleep(0.5)  # on a cluster, too, it may be late
    torch.save(model.state_dict(), "whole.pt")
dist.barrier()
model.load_state_dict(torch.load("whole.pt", map_location="cuda"))
fully_shard(model)
state = {"model": model.state_dict()}
dcp.save(state, checkpoint_id="parts")
dist.barrier()
dcp.load(state, checkpoint_id="parts")
model.load_state_dict(state["model"])
print("files", sorted(os.listdir("parts")))
"""


def test_a_rank_loads_what_another_has_saved_in_the_same_run(tmp_path):
    (tmp_path / "train.py").write_text(SHARES)
    done, report = _run("--world-size", 2, "--ranks", "all", "-v", "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    assert [rank["status"] for rank in report["ranks"]] == ["ok", "ok"]
    assert done.stdout.count("files ['.metadata', '__0_0.distcp', '__1_0.distcp']") == 2
    assert sorted(tmp_path.iterdir()) == [tmp_path / "train.py", tmp_path / "windtunnel-out"]


def test_what_ranks_tell_each_other_arrives_whole(tmp_path):
    done, report = _run("--world-size", 2, "--level", 0, "-v", SCRIPTS / "messages.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    said = re.findall(r"\[rank (\d)\] (\w+(?: \d)?) (right|wrong)", done.stdout)
    names = ["integers", "floats", "object", "part", "exchange", "batch", "later", "group 0", "group 1"]
    assert [word for _, _, word in said] == ["right"] * 18
    assert sorted((int(rank), name) for rank, name, _ in said) == sorted(
        (r, n) for r in (0, 1) for n in names
    )
    assert report["ranks"][1]["unknown_values"] == []


def test_ranks_from_one_fork_server_are_as_separate_as_interpreters(tmp_path):
    done, _ = _run("--world-size", 4, "--ranks", "all", "-v", SCRIPTS / "identity.py", "a b", cwd=tmp_path)
    assert done.returncode == 0, done.stdout
    found = [json.loads(text) for text in re.findall(r"identity (.*)", done.stdout)]
    assert len(found) == 4
    assert len({each["random"] for each in found}) == len({each["numpy"] for each in found}) == 4
    expected = {
        "leads": True, "main": True, "file": "identity.py", "argv": ["a b"], "unbuffered": True, "stdin": "",
        "path": True,
    }  # fmt: skip
    for each in found:
        assert {name: each[name] for name in expected} == expected


def test_ranks_run_in_their_own_interpreters_after_the_fork_server_died(tmp_path):
    mark = (
        tmp_path / "windtunnel-out" / "mark"
    )  # elsewhere the second try would find the disk as it was before the first
    done, report = _run(
        "--world-size", 4, "--ranks", "all", STAGES, "--kills-parent", 2, "--mark", mark, cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert mark.exists()
    assert [(rank["rank"], rank["status"], rank["steps"]) for rank in report["ranks"]] == [
        (rank, "ok", 3) for rank in range(4)
    ]
    assert any("the fork server died" in n for n in report["ranks"][2]["notes"])


def test_an_interrupt_reaches_ranks_that_wait(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "run", "--world-size", "3", "--ranks", "all", "--jobs", "1", "-v", str(SCRIPTS / "waits.py")],
        cwd=tmp_path, env=environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert any("a step" in line for line in process.stdout)  # of rank 0, whose output is shown
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, out + err
    report = read_json(tmp_path / "windtunnel-out")
    assert [rank["status"] for rank in report["ranks"]] == ["failed"] * 3
    assert report["ranks"][0]["steps"] > 0
    errors = {rank["error"] for rank in report["ranks"][1:]}
    assert errors <= {"interrupted; the report covers what ran before", "interrupted before it was started"}
    assert "Traceback" not in out + err


def test_pictures_of_many_ranks_are_of_the_tightest(tmp_path):
    _run("--world-size", 6, "--nproc-per-node", 6, "--ranks", "all", STAGES, cwd=tmp_path)
    drawn = [path.parent.name for path in (tmp_path / "windtunnel-out").glob("rank*/memory.png")]
    assert drawn == ["rank3"]


def test_a_run_without_a_terminal_says_how_far_it_is(tmp_path):
    code = (
        "from windtunnel.commands import screen; screen._SECONDS_BETWEEN_LINES = 0.5;"
        "import sys; from windtunnel.commands.main import main; sys.exit(main())"
    )
    done = subprocess.run(
        [COMMAND[0], "-c", code, "run", "--world-size", "8", str(STAGES)],
        cwd=tmp_path, env=environment(), text=True, capture_output=True, check=False, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0
    pattern = r"windtunnel: simulating 8 ranks: \d+ of \d+ ranks done, \d+ kinds? of work found so far, \d+ steps, \d+ s"
    assert re.search(pattern, done.stderr)
