"""A script that starts its own ranks with torch.multiprocessing.spawn."""

from __future__ import annotations

import json

import pytest

from tests.commands.cli import windtunnel

SCRIPT = """
import torch, torch.distributed as dist, torch.multiprocessing as mp

def train(rank, n_ranks):
    dist.init_process_group("nccl", rank=rank, world_size=n_ranks)
    torch.cuda.set_device(rank)
    model = torch.nn.Linear(8, 1000 * (1 + rank)).to(rank)
    model(torch.randn(4, 8).to(rank)).sum().backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()

if __name__ == "__main__":
    n = torch.cuda.device_count()
    context = mp.spawn(train, args=(n,), nprocs=n, join=JOIN)
    if context is not None:
        assert context.join()
"""


@pytest.mark.parametrize("join", [pytest.param(True, marks=pytest.mark.thorough), False])
def test_every_rank_runs_its_own_function(tmp_path, join):
    """Each has its own number of rows, so each rank's weights say which rank its function was given."""
    ranks = _run(tmp_path, SCRIPT.replace("JOIN", str(join)), "--world-size", "2")["ranks"]
    assert [rank["steps"] for rank in ranks] == [1, 1]
    rows = 4 * (8 + 1) * 1000  # bytes of weight and bias
    weights = [rank["at_peak_bytes"]["weights"] for rank in ranks]
    assert rows <= weights[0] < rows + 1024
    assert 2 * rows <= weights[1] < 2 * rows + 1024
    assert any("spawn" in note for note in ranks[0]["notes"])


def test_fewer_processes_than_ranks_of_a_machine_is_reported(tmp_path):
    script = SCRIPT.replace("n = torch.cuda.device_count()", "n = 1").replace("JOIN", "True")
    report = _run(tmp_path, script, "--world-size", "2", "--rank", "1", code=3)
    assert (
        "the script starts 1 processes per machine, but local rank 1 is simulated"
        in report["ranks"][0]["error"]
    )


def _run(folder, script, *options, code=0):
    path = folder / "job.py"
    path.write_text(script, encoding="utf-8")
    done = windtunnel("run", *options, "--out", folder / "out", path, cwd=folder)
    assert done.returncode == code, done.stdout
    return json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))
