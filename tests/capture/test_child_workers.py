"""Which processes of a script are workers of a job: those are counted, all others run."""

from __future__ import annotations

import os
import sys

import pytest

from windtunnel.capture.child_workers import ChildWorkers, _is_rank_of_job

PYTHON = sys.executable


@pytest.fixture
def workers(monkeypatch):
    for name in ("RANK", "LOCAL_RANK", "RANK_ID", "NODE_RANK"):
        monkeypatch.delenv(name, raising=False)
    return ChildWorkers()


def test_a_python_program_with_a_rank_of_its_own_is_a_worker(workers):
    for rank in range(4):
        assert workers._is_worker([PYTHON, "-u", "train.py", "--lr", "1"], {**os.environ, "RANK": str(rank)})
    assert workers.sentence() == (
        "the script starts 4 workers itself (`python train.py --lr 1`), which were not simulated:"
        " windtunnel run --world-size 4 train.py --lr 1"
    )


@pytest.mark.parametrize(
    "words",
    [
        ["ls", "-l"],
        [PYTHON, "-c", "print(1)"],
        [PYTHON, "prepare.py"],
        [PYTHON, "-m", "pip", "list"],
        ["accelerate", "config"],
        ["torchrun"],
        ["ninja", "-j", "4"],
    ],
)
def test_other_programs_are_not_workers(workers, words):
    assert not workers._is_worker(words, None)
    assert not workers._is_worker(words, dict(os.environ))
    assert workers.sentence() is None


def test_a_helper_that_inherits_the_rank_the_script_gave_itself_is_not_a_worker(workers, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert not workers._is_worker([PYTHON, "helper.py"], None)
    assert not workers._is_worker([PYTHON, "helper.py"], dict(os.environ))
    assert workers.sentence() is None


def test_a_script_that_changes_its_own_rank_between_two_processes_starts_workers(workers, monkeypatch):
    found = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        found.append(workers._is_worker([PYTHON, "train.py"], None))
    assert found == [False, True, True]  # the first may have been a helper
    assert "starts 3 workers itself (`python train.py`)" in workers.sentence()


@pytest.mark.parametrize("options", [["--local_rank=1"], ["--rank", "1"], ["--local-rank", "1"]])
def test_a_rank_among_the_options_makes_a_worker(workers, options):
    assert workers._is_worker([PYTHON, "train.py", *options, "--lr", "1"], None)
    assert "`python train.py --lr 1`" in workers.sentence()


@pytest.mark.parametrize(
    "words",
    [
        ["torchrun", "--nproc-per-node", "2", "train.py"],
        [PYTHON, "-m", "torch.distributed.run", "train.py"],
        ["cd", "x", "&&", "torchrun", "train.py"],
        ["accelerate", "launch", "train.py"],
    ],
)
def test_a_launcher_starts_workers(workers, words):
    assert workers._is_worker(words, None)
    assert "the script starts its workers itself, with `" in workers.sentence()


def _train(rank, device):
    """As a module of its own has it: no word of it names a device."""


@pytest.mark.parametrize(
    ("device", "is_rank"), [("cuda", True), ("npu:1", True), ("cpu", False), ("out", False)]
)
def test_a_function_that_is_given_a_rank_and_an_accelerator_is_a_rank(monkeypatch, device, is_rank):
    monkeypatch.setattr("linecache.getlines", lambda name: ["def train(rank, device): ...\n"])
    assert _is_rank_of_job(_train, (0, device)) is is_rank
