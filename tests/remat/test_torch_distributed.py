"""Two real processes that talk through gloo, each with a threshold of its own: the same bits on both."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


@pytest.mark.parametrize("kind", ["ddp", "fsdp2"])
def test_two_ranks_give_the_same_bits(kind, tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.remat.two_ranks", kind, str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=180) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors for _, errors in outputs)
    for rank, (out, _) in enumerate(outputs):
        found = json.loads(out.splitlines()[-1])
        assert found["rank"] == rank
        assert found["is_same"]
        assert found["evictions"] > 0
        assert found["rematerialisations"] > 0
