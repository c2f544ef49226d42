"""The door to the allocators: names, specs, options, and how they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.errors import UsageError
from windtunnel.memory import Allocator, PredictedOutOfMemory
from windtunnel.memory.allocators.cuda.alloc_conf import cuda_rules
from windtunnel.memory.allocators.interface import UnknownBlock
from windtunnel.memory.allocators.models.initial_state import restore_segments
from windtunnel.memory.allocators.models.npu import npu_rules
from windtunnel.memory.allocators.models.replay import (
    ALLOC,
    EMPTY_CACHE,
    FREE,
    RECORD_STREAM,
    STREAM_DONE,
    replay_columns,
)
from windtunnel.units import GIB, MIB

NAMES = ("cuda", "cuda-expandable", "npu", "mindspore", "megengine", "cpu")


def test_the_names():
    assert set(Allocator.names()) == set(NAMES)


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UsageError, match=r"no allocator 'cuda-expand' \(try cuda-expandable"):
        Allocator.named("cuda-expand")


@pytest.mark.parametrize("name", NAMES)
def test_zero_bytes_take_nothing_and_may_be_freed(name):
    allocator = Allocator.named(name)
    assert allocator.alloc("x", 0) == 0
    allocator.record_stream("x", 1)
    allocator.free("x")
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (0, 0)


@pytest.mark.parametrize("name", NAMES)
def test_wrong_ids_are_refused(name):
    allocator = Allocator.named(name)
    allocator.alloc("x", 100)
    with pytest.raises(UsageError, match="'x' is already allocated"):
        allocator.alloc("x", 100)
    with pytest.raises(UsageError, match="-1 bytes"):
        allocator.alloc("y", -1)
    allocator.free("x")
    with pytest.raises(UnknownBlock, match="cannot free 'x': it is not allocated"):
        allocator.free("x")
    with pytest.raises(UnknownBlock, match="record_stream"):
        allocator.record_stream("x", 1)


@pytest.mark.parametrize("name", NAMES)
def test_out_of_memory_says_what_and_leaves_the_allocator_usable(name):
    allocator = Allocator.named(name, device_bytes="1GiB")
    allocator.alloc("a", 600 * MIB)
    with pytest.raises(PredictedOutOfMemory, match=r"600\.0 MiB requested, .* of 1\.00 GiB") as caught:
        allocator.alloc("b", 600 * MIB)
    assert caught.value.requested_bytes == 600 * MIB
    assert allocator.stats().num_ooms == 1
    allocator.alloc("b", 300 * MIB)
    allocator.free("a")
    allocator.alloc("c", 600 * MIB)
    assert allocator.peak_reserved_bytes <= GIB


@pytest.mark.parametrize("name", NAMES)
def test_sizes_may_be_numpy_integers(name):
    plain, numpys = Allocator.named(name), Allocator.named(name)
    for id, n_bytes in enumerate([3 * MIB, 500, 40 * MIB, 700]):
        assert plain.alloc(id, n_bytes) == numpys.alloc(id, np.int64(n_bytes))
    assert plain.segments() == numpys.segments()


def test_rounding_and_segments_by_hand():
    allocator = Allocator.named("cuda")
    first = allocator.alloc("small", 1)
    allocator.alloc("large", 3 * MIB)
    allocator.alloc("huge", 11 * MIB)
    assert allocator.allocated_bytes == 512 + 14 * MIB
    assert allocator.reserved_bytes == (2 + 20) * MIB, "the 17 MiB left of the 20 held the 11"
    small = allocator.segments()[0]
    assert (small.address, small.n_bytes, small.pool, small.used_bytes) == (first, 2 * MIB, "small", 512)
    assert [(b.n_bytes, b.state, b.id) for b in small.blocks] == [
        (512, "active", "small"),
        (2 * MIB - 512, "inactive", None),
    ]


def test_expandable_segments_need_less():
    reserved = {}
    for name in ("cuda", "cuda-expandable"):
        allocator = Allocator.named(name)
        for size_mib in (12, 14, 16, 18):  # each too large for what the one before left
            allocator.alloc("x", size_mib * MIB)
            allocator.free("x")
        reserved[name] = allocator.reserved_bytes
    assert reserved == {"cuda": 60 * MIB, "cuda-expandable": 20 * MIB}


def test_a_recorded_stream_holds_memory_until_the_next_alloc_after_it_is_done():
    allocator = Allocator.named("cuda")
    first = allocator.alloc("x", 2 * MIB)
    allocator.record_stream("x", 7)
    allocator.free("x")
    assert (allocator.allocated_bytes, allocator.stats().active_bytes) == (0, 2 * MIB)
    assert allocator.alloc("y", 2 * MIB) != first
    allocator.stream_done(7)
    assert allocator.stats().active_bytes == 4 * MIB, "events are looked at by the next alloc only"
    assert allocator.alloc("z", 2 * MIB) == first


def test_npu_pads_every_request():
    allocator = Allocator.named("npu")
    allocator.alloc("x", MIB)
    assert allocator.allocated_bytes == MIB + 512
    assert allocator.segments()[0].pool == "large"
    allocator.alloc("y", 20 * MIB)
    assert allocator.reserved_bytes == (20 + 22) * MIB


def test_npu_aligns_large_blocks_of_expandable_segments():
    allocator = Allocator.named("npu", conf="expandable_segments:True")
    addresses = [allocator.alloc(id, 3 * MIB) for id in range(4)]
    assert all(address % (16 << 10) == 0 for address in addresses)


def test_cpu_counts_the_bytes_asked_for():
    allocator = Allocator.named("cpu")
    allocator.alloc("x", 1000)
    allocator.alloc("y", 1)
    allocator.free("x")
    assert (allocator.allocated_bytes, allocator.reserved_bytes, allocator.peak_reserved_bytes) == (
        1,
        1,
        1001,
    )


def test_megengine_takes_as_much_as_it_needs_from_the_card():
    allocator = Allocator.named("megengine")
    allocator.alloc(0, MIB)
    allocator.alloc(1, 32 * MIB + 1)
    assert allocator.reserved_bytes == 33 * MIB + 512


def test_megengine_knows_what_is_free_beside_an_allocation():
    allocator = Allocator.named("megengine")
    allocator.alloc("chunk", 8 * MIB)
    allocator.free("chunk")
    for id, n in (("a", 1), ("b", 2), ("c", 3)):
        allocator.alloc(id, n * MIB)
    assert [allocator.free_beside(id) for id in "abc"] == [0, 0, 2 * MIB]
    allocator.free("a")
    assert [allocator.free_beside(id) for id in "bc"] == [MIB, 2 * MIB]


def test_megengine_chunks_grow_with_the_total_if_allowed():
    allocator = Allocator.named("megengine", conf="max_overhead:256MB")
    allocator.alloc(0, MIB)
    assert allocator.reserved_bytes == 32 * MIB
    allocator.alloc(1, 32 * MIB)
    assert allocator.reserved_bytes == (32 + 64) * MIB
    allocator.alloc(2, 64 * MIB)
    assert allocator.reserved_bytes == (32 + 64 + 192) * MIB


# -- specs and options


def test_a_spec_carries_options():
    spec = "cuda:torch=2.12,max_split_size_mb=64,roundup_power2_divisions=[256:1,>:8],mem=2GiB"
    allocator = Allocator.from_spec(spec, conf="garbage_collection_threshold:0.5,max_split_size_mb:32")
    rules = allocator.rules
    assert (rules.tie, rules.max_split_bytes, rules.gc_threshold) == ("block", 64 * MIB, 0.5)
    assert rules.divisions == (1,) * 9 + (8,) * 7
    assert allocator.device_bytes == 2 * GIB


@pytest.mark.parametrize("spec", ["cuda:max_split_size_mb", "cuda:=3", "cuda:a="])
def test_a_broken_spec_is_refused(spec):
    with pytest.raises(UsageError, match="key=value"):
        Allocator.from_spec(spec)


TIES = {
    "2.9.1": "address",
    "2.11": "address",
    "2.12.0": "block",
    "2.13.0+cu130": "segment",
    "2.15": "segment",
}


@pytest.mark.parametrize(("version", "tie"), TIES.items())
def test_the_tie_rule_follows_the_torch_version(version, tie):
    assert cuda_rules("", version).tie == tie


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        (
            "max_split_size:64",
            "unknown allocator option 'max_split_size' .*nearest known one is 'max_split_size_mb'",
        ),
        ("max_split_size_mb:10", "'max_split_size_mb' cannot be '10' .*20 or more"),
        ("max_split_size_mb:x", "'max_split_size_mb' cannot be 'x'"),
        ("max_split_size_mb:32,large_segment_size_mb:64", "cannot be '32' .*64 or more"),
        ("max_split_size_mb", "'max_split_size_mb' has no value"),
        ("expandable_segments:true", "'expandable_segments' cannot be 'true' .*True or False"),
        ("garbage_collection_threshold:1.5", "cannot be '1.5' .*between 0 and 1"),
        ("garbage_collection_threshold:0", "cannot be '0'"),
        ("per_process_memory_fraction:2", "cannot be '2'"),
        ("roundup_power2_divisions:3", "cannot be '3' .*power of two"),
        ("roundup_power2_divisions:[65:8]", "cannot be '65:8'"),
        ("roundup_power2_divisions:[64:3]", "cannot be '64:3'"),
        ("roundup_power2_divisions:[64:8,>:1", "list closed by"),
        ("large_segment_size_mb:10", "cannot be '10' .*above 10"),
        ("backend:cudaMallocAsync", "'backend' cannot be 'cudaMallocAsync'"),
    ],
)
def test_wrong_options_are_refused_by_name(conf, message):
    with pytest.raises(UsageError, match=message):
        Allocator.named("cuda", conf=conf)


def test_large_segment_size_needs_torch_2_11():
    with pytest.raises(UsageError, match=r"torch 2\.11 or newer, not 2\.10"):
        Allocator.named("cuda", torch="2.10", conf="large_segment_size_mb:64")


@pytest.mark.parametrize(
    "conf",
    [
        "",
        " max_split_size_mb : 32 ,",
        "backend:native,pinned_num_register_threads:8",
        "expandable_segments_reserve_by_class:[a:0.5,b:40G],expandable_segments:True",
        "max_split_size_mb:-1",
        "roundup_power2_divisions:[]",
    ],
)
def test_options_torch_takes_are_taken(conf):
    allocator = Allocator.named("cuda", torch="2.15", conf=conf)
    allocator.alloc(1, 4 * MIB)
    assert allocator.allocated_bytes == 4 * MIB


def test_npu_refuses_what_torch_npu_refuses():
    with pytest.raises(UsageError, match="torch_npu refuses max_split_size_mb"):
        npu_rules("expandable_segments:True,max_split_size_mb:64")
    with pytest.raises(UsageError, match=r"'page_size' cannot be '2g' .*1g"):
        npu_rules("page_size:2g")
    with pytest.raises(UsageError, match="from 0 to 16"):
        npu_rules("base_addr_aligned_kb:32")


# -- whole sequences, and starting in the middle


def test_columns_are_the_same_as_calls():
    allocator = Allocator.named("cuda")
    kinds = [ALLOC, ALLOC, RECORD_STREAM, FREE, STREAM_DONE, ALLOC, FREE, EMPTY_CACHE]
    ids = ["a", "b", "a", "a", None, "c", "b", None]
    replay_columns(
        allocator, kinds, ids, [3 * MIB, 40 * MIB, 0, 0, 0, 3 * MIB, 0, 0], [0, 0, 9, 0, 9, 0, 0, 0]
    )
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (3 * MIB, 20 * MIB)
    assert allocator.peak_reserved_bytes == 60 * MIB


@pytest.mark.parametrize("name", ["cuda", "cuda-expandable"])
def test_a_restored_allocator_goes_on_as_the_first_one(name):
    first = Allocator.named(name)
    for id, n_bytes in enumerate([700, MIB, 3 * MIB, 30 * MIB, 5 * MIB, 2 * MIB]):
        first.alloc(id, n_bytes)
    for id in (1, 3):
        first.free(id)
    second = Allocator.named(name)
    restore_segments(second, first.segments())
    assert second.segments() == first.segments()
    assert (second.allocated_bytes, second.reserved_bytes) == (first.allocated_bytes, first.reserved_bytes)
    for id in (7, 8, 9, 40):
        assert second.alloc(id, id * MIB) == first.alloc(id, id * MIB)
    for allocator in (first, second):
        for id in (0, 2, 4, 5, 7, 8, 9, 40):
            allocator.free(id)
        allocator.empty_cache()
        assert allocator.reserved_bytes == 0
