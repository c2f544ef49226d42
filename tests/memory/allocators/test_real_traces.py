"""Replays of traces recorded on real GPUs: every address, every segment, every release, the final map.

Given: the requests, the addresses the driver returned, when a release and when a deferred free
happened. Predicted: everything else. The traces belong to public repositories and are not copied
here: they are read from beside this repository.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from windtunnel.memory import Allocator
from windtunnel.memory.allocators.cuda.addresses import RecordedAddresses
from windtunnel.memory.allocators.cuda.alloc_conf import cuda_rules
from windtunnel.memory.allocators.cuda.allocator import CudaAllocator
from windtunnel.memory.allocators.models.initial_state import restore_segments, restored_stream
from windtunnel.memory.allocators.records import Segment, SegmentBlock

TRACES = Path(__file__).parents[4] / "shared" / "data" / "allocator" / "real"
FILES = sorted(TRACES.glob("*.json.gz"))
STATES = {"active_allocated": "active", "active_pending_free": "pending_free", "inactive": "inactive"}


def test_the_real_traces_are_there():
    if not FILES:
        pytest.skip(f"no real GPU traces in {TRACES}")
    assert len(FILES) >= 28


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name[:3])
def test_replay_matches_the_gpu(path: Path):
    trace = json.loads(gzip.decompress(path.read_bytes()))
    allocator = start_of(trace)
    replay(allocator, trace["events"])
    recorded = trace["recorded"]
    assert allocator.peak_reserved_bytes == recorded["peak_reserved"]
    assert allocator.reserved_bytes == recorded["end_reserved"]
    assert allocator.n_allocs == recorded["allocs"]
    assert final_map(allocator, trace) == recorded_map(trace)
    assert allocator.peak_allocated_bytes == trace["derived_by_ref_sim"]["peak_allocated"]


def test_a_whole_run_needs_no_recorded_address():
    traces = {path.name: json.loads(gzip.decompress(path.read_bytes())) for path in FILES}
    from_empty = {name: trace for name, trace in traces.items() if not trace["initial_segments"]}
    if not from_empty:
        pytest.skip(f"no real GPU traces in {TRACES}")
    assert len(FILES) >= 28
    for name, trace in from_empty.items():
        allocator = Allocator.named("cuda", torch="2.11")
        feed_requests(allocator, trace["events"])
        recorded = trace["recorded"]
        assert allocator.peak_reserved_bytes == recorded["peak_reserved"], name
        assert allocator.reserved_bytes == recorded["end_reserved"], name


def feed_requests(allocator: Allocator, events: list[list]) -> None:
    """Feed what the program did and nothing the driver answered; only the moments of a release are given."""
    owner: dict[int, int] = {}  # recorded address -> our id
    before = None
    for index, (action, address, n_bytes, stream) in enumerate(events):
        if action == "alloc":
            allocator.alloc(index, n_bytes, stream)
            owner[address] = index
        elif action == "free_requested":
            allocator.free(owner.pop(address))
        elif action == "segment_free" != before:
            allocator.empty_cache()
        before = action


def start_of(trace: dict) -> CudaAllocator:
    settings = trace["settings"] or {}
    conf = settings.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    allocator = CudaAllocator("cuda", cuda_rules(conf, torch="2.11"))
    restore_segments(allocator, map(initial_segment, trace["initial_segments"]))
    made = [event[1] for event in trace["events"] if event[0] == "segment_alloc"]
    allocator.addresses = RecordedAddresses(made)
    return allocator


def initial_segment(segment: dict) -> Segment:
    pool = segment["expandable_pool"] or ("small" if segment["size"] <= 2 << 20 else "large")
    blocks = tuple(
        SegmentBlock(address, n_bytes, requested, "pending_free" if is_pending else "active")
        for address, n_bytes, requested, is_pending in segment["blocks"]
    )
    is_expandable = segment["expandable_pool"] is not None
    return Segment(segment["addr"], segment["size"], segment["stream"], pool, is_expandable, blocks)


def replay(allocator: CudaAllocator, events: list[list]) -> None:
    """Feed the trace; ids are addresses, so a wrong placement is found at once."""
    expected = []  # what the GPU run asked of its driver since the last check
    n_checked = 0
    completed = {(i, event[1]) for i, event in enumerate(events) if event[0] == "free_completed"}
    for index, (action, address, n_bytes, stream) in enumerate(events):
        if action.startswith("segment_"):
            # A run of releases is one call; what it releases, and in which order, is predicted.
            if action == "segment_free" and not any(event[0] == "segment_free" for event in expected):
                allocator.empty_cache()
            expected.append((action, address, n_bytes, stream))
            continue
        if action == "alloc":
            found = allocator.alloc(address, n_bytes, stream)
            assert found == address, (
                f"event {index}: {n_bytes} bytes placed at {found:#x}, on the GPU at {address:#x}"
            )
        elif action == "free_requested" and (index + 1, address) in completed:
            allocator.free(address)
        elif action == "free_requested":
            allocator.record_stream(address, restored_stream(address))
            allocator.free(address)
        elif action == "free_completed" and events[index - 1][:2] != ["free_requested", address]:
            allocator.stream_done(restored_stream(address))
        assert made_since(allocator, n_checked) == expected, f"event {index}"
        n_checked, expected = len(allocator.segment_events), []
    assert made_since(allocator, n_checked) == expected, "end of the trace"
    allocator.streams.finish_frees(allocator)


def made_since(allocator: CudaAllocator, n_checked: int) -> list[tuple]:
    made = allocator.segment_events[n_checked:]
    return [(event.action, event.address, event.n_bytes, event.stream) for event in made]


def final_map(allocator: CudaAllocator, trace: dict) -> list[tuple]:
    return [
        (s.address, s.n_bytes, s.stream, s.pool, int(s.is_expandable), blocks_of(s.blocks, trace))
        for s in allocator.segments()
    ]


def recorded_map(trace: dict) -> list[tuple]:
    rows = []
    for address, n_bytes, stream, pool, is_expandable, blocks in trace["final_segments"]:
        records = [SegmentBlock(0, size, requested, STATES[state]) for size, requested, state in blocks]
        rows.append((address, n_bytes, stream, pool, int(is_expandable), blocks_of(records, trace)))
    return sorted(rows)


def blocks_of(blocks, trace: dict) -> list[tuple]:
    # A free block remembers what its last owner asked for; owners from before the trace are unknown.
    knows_all = not trace["initial_segments"]
    return [
        (b.n_bytes, b.state, b.requested_bytes if knows_all or b.state != "inactive" else 0) for b in blocks
    ]
