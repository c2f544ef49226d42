"""Two real processes that communicate through gloo, each with a threshold of its own: the same bits on both."""

from __future__ import annotations

import json

from tests.commands.warm import run_warm_ranks
from tests.remat.pytorch.two_ranks import KINDS


def test_two_ranks_give_the_same_bits(tmp_path):
    ranks = run_warm_ranks(
        [["-m", "tests.remat.pytorch.two_ranks", rank, tmp_path / "store"] for rank in range(2)]
    )
    assert [rank.returncode for rank in ranks] == [0, 0], "\n".join(rank.stderr for rank in ranks)
    for rank, done in enumerate(ranks):
        found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
        assert [each["kind"] for each in found] == list(KINDS)
        for each in found:
            assert each["is_same"], (rank, each)
            assert each["evictions"] > 0, (rank, each)
            assert each["rematerialisations"] > 0, (rank, each)
