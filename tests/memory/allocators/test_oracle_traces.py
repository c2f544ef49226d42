"""Replays of runs of the released CUDA allocator: every placement, every counter, the final block map.

The whole set lies beside the repository (see its README); three small random streams are kept here.
"""

from __future__ import annotations

import gzip
import json
from hashlib import sha1
from pathlib import Path

import pytest

from windtunnel.memory import Allocator, PredictedOutOfMemory
from windtunnel.memory.allocators.cuda.state import FIRST_ADDRESS

KEPT = sorted(Path(__file__).parents[1].glob("data/fuzz_*.json.gz"))
SHARED = Path(__file__).parents[4] / "shared" / "data" / "allocator" / "oracle"
SHARED_FILES = sorted(SHARED.glob("*.json.gz"))


def test_the_shared_oracle_runs_are_there():
    if not SHARED_FILES:
        pytest.skip(f"no oracle runs in {SHARED}: only the kept ones are checked")
    assert len(SHARED_FILES) > len(KEPT)


@pytest.mark.parametrize("path", KEPT + SHARED_FILES, ids=lambda path: f"{path.parent.name}-{path.name[:-8]}")
def test_replay_matches_the_released_allocator(path: Path):
    data = json.loads(gzip.decompress(path.read_bytes()))
    ops = [line.split() for line in data["ops"]]
    for run in data["runs"]:
        allocator = Allocator.named("cuda", torch=run["torch"], conf=run["conf"], device_bytes=run["total"])
        places, events = replay(allocator, ops)
        where = f"{path.name} torch {run['torch']} conf {run['conf']!r} total {run['total']}"
        # Placements come before counters: the first difference is what one wants to see.
        assert places[: len(run["placements"])] == run["placements"], where
        assert sha1(str(places).encode()).hexdigest() == run["placements_sha1"], where
        assert events == run["segment_events"], where
        assert block_map(allocator) == run["final_segments"], where
        assert stats(allocator) == run["stats"], where


def replay(allocator: Allocator, ops: list[list[str]]) -> tuple[list[list[int]], list[list]]:
    """Run the ops; return [segment ordinal, offset] of each allocation, and the segment events."""
    places, events, failed = [], [], set()
    ordinals: dict[int, int] = {}  # address of a segment that exists -> how many were made before it
    n_made = 0
    for verb, *numbers in ops:
        id, *rest = map(int, numbers) if numbers else (None,)
        address = None
        if verb == "a":
            try:
                address = allocator.alloc(id, *rest)
            except PredictedOutOfMemory:
                failed.add(id)
        elif verb == "f" and id not in failed:
            allocator.free(id)
        elif verb == "r" and id not in failed:
            allocator.record_stream(id, *rest)
        elif verb == "d":
            allocator.stream_done(id)
        elif verb == "e":
            allocator.empty_cache()
        for event in allocator.segment_events[len(events) :]:
            if event.action == "segment_alloc":
                ordinals[event.address] = n_made
                n_made += 1
            name = ordinals.get(event.address, event.address)
            events.append([event.action, event.after_allocs, name, event.n_bytes, event.stream])
            if event.action == "segment_free":
                del ordinals[event.address]
        if address is not None:
            start = max((start for start in ordinals if start <= address), default=None)
            places.append([-1, address] if start is None else [ordinals[start], address - start])
    return places, events


def block_map(allocator: Allocator) -> list[list]:
    return [
        [
            segment.address - (0 if segment.is_expandable else FIRST_ADDRESS), segment.n_bytes,
            segment.stream, int(segment.pool == "large"), int(segment.is_expandable),
            [[b.n_bytes, b.requested_bytes, STATES[b.state]] for b in segment.blocks],
        ]
        for segment in allocator.segments()
    ]  # fmt: skip


STATES = {"inactive": 0, "pending_free": 1, "active": 2}


def stats(allocator: Allocator) -> dict[str, str]:
    """The counters in the words of the oracle files."""
    s = allocator.stats()
    return {
        "allocated": f"{s.allocated_bytes}/{s.peak_allocated_bytes}",
        "active": f"{s.active_bytes}/{s.peak_active_bytes}",
        "reserved": f"{s.reserved_bytes}/{s.peak_reserved_bytes}",
        "requested": f"{s.requested_bytes}/{s.peak_requested_bytes}",
        "inactive_split": f"{s.inactive_split_bytes}/{s.peak_inactive_split_bytes}",
        "nseg": f"{s.num_segments}/{s.peak_num_segments}",
        "nalloc": f"{s.num_allocated}/{s.peak_num_allocated}",
        "nactive": f"{s.num_active}/{s.peak_num_active}",
        "ninactive": f"{s.num_inactive_split}/{s.peak_num_inactive_split}",
        "retries": str(s.num_alloc_retries),
        "ooms": str(s.num_ooms),
        "dev_alloc": str(s.num_device_alloc),
        "dev_free": str(s.num_device_free),
        "sync_all": str(s.num_sync_all_streams),
        "oversize_alloc": str(s.num_oversize_allocated),
        "oversize_seg": str(s.num_oversize_segments),
        "device_used": str(s.reserved_bytes),
    }
