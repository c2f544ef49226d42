"""Replays of memory_block.csv files written by MindSpore's own dry run: used and actual after every row."""

from __future__ import annotations

import csv
import gzip
import io
from pathlib import Path

import pytest

from windtunnel.memory import Allocator

FOLDER = Path(__file__).parents[4] / "shared" / "data" / "mindspore"
FILES = sorted(FOLDER.glob("*memory_block.csv.gz"))


def test_the_mindspore_traces_are_there():
    if not FILES:
        pytest.skip(f"no MindSpore traces in {FOLDER}")
    assert len(FILES) == 2


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.split("_memory")[0])
def test_replay_matches_mindspore(path: Path):
    rows = list(csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode())))
    moments = [(int(row["start_time_stamp"]), 1, index) for index, row in enumerate(rows)]
    moments += [(int(row["end_time_stamp"]), 0, index) for index, row in enumerate(rows)]
    allocator = Allocator.named("mindspore")
    offset = None  # of our addresses from theirs: one number for all rows
    for _, is_start, index in sorted(moment for moment in moments if moment[0] < 2**63 - 1):
        row = rows[index]
        if not is_start:
            allocator.free(index)
            continue
        # The file has sizes after the + 512 rule; this is the largest request that gives the size.
        n_bytes = int(row["size"]) - 32
        address = allocator.alloc(
            index, n_bytes, int(row["stream_id"]), persistent=row["is_persistent"] == "1"
        )
        offset = offset or int(row["device_addr"], 16) - address
        assert address + offset == int(row["device_addr"], 16), f"row {index}"
        assert allocator.allocated_bytes == int(row["actual_used_memory"]), f"row {index}"
        assert allocator.peak_reserved_bytes == int(row["actual_peak_memory"]), f"row {index}"
