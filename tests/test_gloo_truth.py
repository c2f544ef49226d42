"""Simulated ranks against real processes that communicate through gloo: the peak of every rank."""

from __future__ import annotations

import socket

import pytest

from benchmarks import gloo_truth
from benchmarks.gloo_truth import Case, compare_case
from tests.commands.warm import WARM_SUBPROCESS, run_warm_ranks

# `make bench` has the others.
CASES = (
    Case("fsdp2", 2, ("--bf16",)),
    Case("tensor_parallel"),
    pytest.param(Case("pipeline"), marks=pytest.mark.thorough, id="pipeline"),
)


def _run(command: list[str]) -> None:
    """The benchmark's own, without the imports: a dry run, or the ranks that torchrun would start."""
    if "torch.distributed.run" not in command:
        WARM_SUBPROCESS.run(command, capture_output=True, check=True)
        return
    at = next(i for i, word in enumerate(command) if word.startswith("--nproc-per-node="))
    n_ranks = int(command[at].partition("=")[2])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    job = {
        "WORLD_SIZE": n_ranks,
        "LOCAL_WORLD_SIZE": n_ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    ranks = [job | {"RANK": rank, "LOCAL_RANK": rank} for rank in range(n_ranks)]
    for done in run_warm_ranks([command[at + 1 :]] * n_ranks, variables=ranks):
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program)
def test_predicts_the_peak_of_every_rank_of_a_real_job(case, monkeypatch):
    monkeypatch.setattr(gloo_truth, "_run", _run)
    found = compare_case(case)
    assert [each.rank for each in found] == list(range(case.world_size))
    assert max(abs(each.error) for each in found) < 0.01, found
