"""SIGKILL at a random moment of a process that dumps as fast as it can: what it had done is there, and it is valid."""

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from windtunnel.probe.files.journal import journal_entries
from windtunnel.probe.files.recover import recover_folder
from windtunnel.probe.files.step_writer import StepWriter
from windtunnel.probe.files.tensor_file import read_tensor
from windtunnel.whole_file import TEMPORARY_PREFIX

PROGRAM = Path(__file__).parents[1] / "programs" / "dump_until_killed.py"


@pytest.mark.parametrize("seed", range(8))
def test_a_killed_process_leaves_all_it_had_done(tmp_path, seed):
    _kill_and_check(tmp_path / "step0" / "rank0", seed)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(100, 150))
def test_fifty_killed_processes_leave_all_they_had_done(tmp_path, seed):
    _kill_and_check(tmp_path / "step0" / "rank0", seed)


def _kill_and_check(path: Path, seed: int) -> None:
    n_added, n_flushed = _dump_until_killed(path, seed)
    if not path.exists():  # killed before it began
        assert n_added == 0
        return
    _check_json(path, n_added, n_flushed)
    _check_tensors(path, n_added)

    # The next run of the same dump leaves it as it was, and completes it.
    n_recorded = _count_recorded(path)
    folder = StepWriter(path, header={"task": "tensor"})
    folder.add_entry("second run", "1")
    folder.close()
    assert json.loads((path / "dump.json").read_text())["data"] == {"second run": 1}
    if n_recorded:
        dump = json.loads((path / "earlier1" / "dump.json").read_text())
        assert dump["complete"] is False
        assert [body["i"] for body in dump["data"].values()] == list(range(n_recorded))
        assert dump["dump_data_dir"] == str(path / "earlier1" / "dump_tensor_data")
        assert len(json.loads((path / "earlier1" / "construct.json").read_text())) in (
            n_recorded,
            n_recorded - 1,
        )
        _check_tensors(path / "earlier1", n_added)


def _dump_until_killed(path: Path, seed: int) -> tuple[int, int]:
    """Run the program, kill it, and return how many entries it had added and flushed by its own account."""
    process = subprocess.Popen([sys.executable, PROGRAM, path, str(seed)], stdout=subprocess.PIPE)
    try:
        assert process.stdout.read(5) == struct.pack("<cI", b"r", 0)
        time.sleep(random.Random(seed).choice((0.005, 0.05, 0.1, 0.2)) * random.random())
    finally:
        process.kill()
    told = process.stdout.read()
    assert process.wait() == -9
    process.stdout.close()
    records = list(struct.iter_unpack("<cI", told[: len(told) // 5 * 5]))
    added = max((count for kind, count in records if kind == b"a"), default=0)
    return added, max((count for kind, count in records if kind == b"f"), default=0)


def _check_json(path: Path, n_added: int, n_flushed: int) -> None:
    files = {file.name: json.loads(file.read_text()) for file in path.glob("*.json")}
    # "a" is written after the call returned, so one more entry may be on its way.
    flushed = files.get("dump.json", {}).get("data", {})
    assert n_flushed <= len(flushed) <= n_added + 1
    entries = flushed | {
        name: json.loads(text) for kind, name, text in journal_entries(path) if kind == "entry"
    }
    assert n_added <= len(entries) <= n_added + 1
    assert [(name, body["i"]) for name, body in entries.items()] == [
        (f"Tensor.{i}", i) for i in range(len(entries))
    ]
    stacks = [name for kind, name, _ in journal_entries(path) if kind == "stack"]
    assert n_added <= len(stacks) <= n_added + 1


def _check_tensors(path: Path, n_added: int) -> None:
    folder = path / "dump_tensor_data"
    names = os.listdir(folder) if folder.exists() else []
    for i in range(n_added):
        assert f"Tensor.{i}.pt" in names
        assert i % 3 or f"Tensor.{i}.again.pt" in names
    for name in names:
        if name.startswith(TEMPORARY_PREFIX):
            assert not name.endswith((".pt", ".npy", ".bin", ".json"))
            continue
        array, dtype_name = read_tensor(folder / name)
        assert dtype_name == "float32"
        assert set(array.tolist()) == {float(name.split(".")[1])}
    for name in names[:20]:
        if name.endswith(".pt"):
            assert torch.load(folder / name, weights_only=True).shape == read_tensor(folder / name)[0].shape


def _count_recorded(path: Path) -> int:
    dump = path / "dump.json"
    names = set(json.loads(dump.read_text())["data"]) if dump.exists() else set()
    return len(names | {name for kind, name, _ in journal_entries(path) if kind == "entry"})


def test_a_second_kill_during_recovery_loses_nothing(tmp_path):
    """Recovery replaces whole files and removes the journal last, so it can be done again."""
    path = tmp_path / "rank0"
    n_added = 0
    for seed in range(20):
        n_added, _ = _dump_until_killed(path / str(seed), seed)
        if n_added:
            path = path / str(seed)
            break
    journal = (path / "journal.jsonl").read_bytes()
    n_entries = recover_folder(path)
    assert n_entries >= n_added > 0
    once = {file.name: file.read_text() for file in path.glob("*.json")}
    (path / "journal.jsonl").write_bytes(journal)
    assert recover_folder(path) == n_entries
    assert {file.name: file.read_text() for file in path.glob("*.json")} == once


def test_a_disk_that_is_really_full_stops_nothing(tmp_path):
    """On a file system of 512 KB in memory, mounted in a name space of its own."""
    mount = f"mount -t tmpfs -o size=512k none {tmp_path}"
    program = f"{sys.executable} {PROGRAM.parent / 'dump_to_a_full_disk.py'} {tmp_path}/rank0"
    inside = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*inside, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount")
    result = subprocess.run([*inside, f"{mount} && {program}"], check=True, capture_output=True, text=True)
    found = json.loads(result.stdout)
    assert found["saved"] + found["lost"] == 60
    assert found["lost"] > 0
    assert found["files"] == found["saved"] > 0
    assert len(found["sizes"]) == 1  # whole files only
    assert found["in dump.json"] < 300
    assert (found["at last"], found["complete"]) == (301, True)
    assert found["items"] == ["construct.json", "dump.json", "stack.json"]
    assert result.stderr.count("No space left on device") == 2  # once by the folder, once by the store
