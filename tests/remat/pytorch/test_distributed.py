"""Two real processes that communication through gloo, each with a threshold of its own: the same bits on both."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.remat.pytorch.two_ranks import KINDS


def test_two_ranks_give_the_same_bits(tmp_path):
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.remat.pytorch.two_ranks", str(rank), str(tmp_path / "store")],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate(timeout=900) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(errors for _, errors in outputs)
    for rank, (out, _) in enumerate(outputs):
        found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
        assert [each["kind"] for each in found] == list(KINDS)
        for each in found:
            assert each["is_same"], (rank, each)
            assert each["evictions"] > 0, (rank, each)
            assert each["rematerialisations"] > 0, (rank, each)
