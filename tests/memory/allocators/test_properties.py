"""What must hold for every allocator model after any sequence of requests."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from windtunnel.memory import Allocator, PredictedOutOfMemory
from windtunnel.units import GIB, MIB

SPECS = (
    "cuda", "cuda:torch=2.11", "cuda:torch=2.12", "cuda-expandable", "cuda-expandable:torch=2.12",
    "cuda:max_split_size_mb=32", "cuda:max_split_size_mb=20,expandable_segments=True",
    "cuda:roundup_power2_divisions=[1:4,256:2,>:8]",
    "cuda:garbage_collection_threshold=0.5,per_process_memory_fraction=0.8",
    "npu", "npu:expandable_segments=True", "npu:multi_stream_lazy_reclaim=True,page_size=1g",
    "mindspore", "mindspore:enable_vmm=True", "mindspore:block_size=32MB,task_sink=True", "megengine", "cpu",
)  # fmt: skip

sizes = st.one_of(
    st.integers(0, 4096),
    st.integers(1, 3 * MIB),
    st.sampled_from([512, MIB, MIB + 1, 10 * MIB, 20 * MIB, 70 * MIB]),
)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("alloc"), sizes, st.integers(0, 2)),
        st.tuples(st.just("alloc"), sizes, st.just(0)),
        st.tuples(st.just("free"), st.integers(0, 1000), st.just(0)),
        st.tuples(st.just("record"), st.integers(0, 1000), st.integers(0, 2)),
        st.tuples(st.just("done"), st.just(0), st.integers(0, 2)),
        st.tuples(st.just("empty_cache"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(
    spec=st.sampled_from(SPECS), device_bytes=st.sampled_from([None, 200 * MIB, GIB]), operations=operations
)
def test_every_model_keeps_its_books(spec, device_bytes, operations):
    allocator = Allocator.from_spec(spec, device_bytes=device_bytes)
    asked = run(allocator, operations)
    check_blocks(allocator, asked)
    check_totals(allocator, asked, device_bytes)


@settings(max_examples=150, deadline=None)
@given(spec=st.sampled_from(SPECS), operations=operations, data=st.data())
def test_everything_freed_in_any_order_leaves_nothing(spec, operations, data):
    allocator = Allocator.from_spec(spec)
    live = list(run(allocator, operations))
    for id in data.draw(st.permutations(live)):
        allocator.free(id)
    for stream in range(3):
        allocator.stream_done(stream)
    allocator.empty_cache()
    allocator.empty_cache()
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 0)
    assert allocator.segments() == ()
    stats = allocator.stats()
    assert (stats.requested_bytes, stats.active_bytes, stats.inactive_split_bytes, stats.num_active) == (
        0,
        0,
        0,
        0,
    )


@settings(max_examples=100, deadline=None)
@given(spec=st.sampled_from(SPECS), operations=operations)
def test_a_run_repeats_itself(spec, operations):
    first, second = Allocator.from_spec(spec), Allocator.from_spec(spec)
    run(first, operations)
    run(second, operations)
    assert first.segments() == second.segments()
    assert first.stats() == second.stats()


@settings(max_examples=100, deadline=None)
@given(version=st.sampled_from(["2.11", "2.12", "2.13"]), operations=operations)
def test_the_written_out_search_is_the_general_one(version, operations):
    fast, general = (Allocator.named("cuda", torch=version, device_bytes=200 * MIB) for _ in range(2))
    general.is_plain = False
    run(fast, operations)
    run(general, operations)
    assert fast.segments() == general.segments()
    assert fast.stats() == general.stats()


def run(allocator: Allocator, operations) -> dict[int, int]:
    """Do what can be done; return what is live: id -> bytes asked for."""
    asked: dict[int, int] = {}
    for id, (verb, number, stream) in enumerate(operations):
        if verb == "alloc":
            with suppress(PredictedOutOfMemory):
                allocator.alloc(id, number, stream)
                asked[id] = number
        elif verb == "free" and asked:
            id = list(asked)[number % len(asked)]
            del asked[id]
            allocator.free(id)
        elif verb == "record" and asked:
            allocator.record_stream(list(asked)[number % len(asked)], stream)
        elif verb == "done":
            allocator.stream_done(stream)
        elif verb == "empty_cache":
            allocator.empty_cache()
    return asked


def check_blocks(allocator: Allocator, asked: dict[int, int]) -> None:
    end, found = 0, {}
    for segment in allocator.segments():
        assert segment.address >= end, "two segments overlap"
        end = segment.address
        for block in segment.blocks:
            assert block.address == end, "blocks lie back to back"
            assert block.n_bytes > 0
            end += block.n_bytes
            if block.state == "active":
                found[block.id] = block.requested_bytes
                assert block.n_bytes >= block.requested_bytes
        assert end == segment.address + segment.n_bytes, "a segment is exactly its blocks"
        check_merged(allocator, segment)
    assert found == {id: n_bytes for id, n_bytes in asked.items() if n_bytes}


def check_merged(allocator: Allocator, segment) -> None:
    if allocator.name == "megengine":
        return  # neighbours in the lists of two streams do not merge
    states = [block.state for block in segment.blocks]
    assert ("inactive", "inactive") not in pairwise(states), "free neighbours must be merged"


def check_totals(allocator: Allocator, asked: dict[int, int], device_bytes: int | None) -> None:
    stats = allocator.stats()
    segments = allocator.segments()
    active = sum(block.n_bytes for s in segments for block in s.blocks if block.state != "inactive")
    assert stats.active_bytes == active
    assert stats.allocated_bytes == allocator.allocated_bytes
    assert stats.requested_bytes >= sum(asked.values())
    held = sum(segment.n_bytes for segment in segments)
    if allocator.name == "mindspore":
        assert allocator.allocated_bytes <= allocator.peak_reserved_bytes or not asked
    else:
        assert allocator.reserved_bytes == held
        assert allocator.allocated_bytes <= allocator.reserved_bytes
    if device_bytes is not None:
        assert allocator.peak_reserved_bytes <= device_bytes
    assert allocator.allocated_bytes <= allocator.peak_allocated_bytes
    assert allocator.reserved_bytes <= allocator.peak_reserved_bytes
