"""Facts that the unit tests of PyTorch and MindSpore state about their allocators, one test each."""

from __future__ import annotations

from dataclasses import replace

import pytest

from windtunnel.memory import Allocator, PredictedOutOfMemory
from windtunnel.memory.allocators.cuda.alloc_conf import cuda_rules
from windtunnel.memory.allocators.cuda.rules import round_request
from windtunnel.units import GIB, MIB

# -- PyTorch test/test_cuda.py


@pytest.mark.parametrize(
    ("conf", "n_bytes", "rounded"),
    [
        ("", 88080384, 88080384),
        ("roundup_power2_divisions:4", 88080384, 100663296),
        ("roundup_power2_divisions:4", 1200, 1536),  # up to 512 * 4 the steps do not apply
        ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 88080384, 92274688),
        ("roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]", 419430400, 536870912),
    ],
)
def test_allocator_settings_round_sizes(conf, n_bytes, rounded):
    assert round_request(cuda_rules(conf, "2.13"), n_bytes) == rounded
    allocator = Allocator.named("cuda", conf=conf)
    allocator.alloc("x", n_bytes)
    assert allocator.allocated_bytes == rounded


def limited_to_120_mib(conf: str):
    """An allocator whose expandable segments can be switched during the run."""
    conf += ",per_process_memory_fraction:0.5"
    allocator = Allocator.named("cuda", conf=conf, device_bytes=240 * MIB)
    plain = allocator.rules
    return allocator, plain, replace(plain, is_expandable=True)


def test_max_split_expandable():
    allocator, plain, expandable = limited_to_120_mib("max_split_size_mb:40")
    for id, rules in enumerate((plain, expandable, plain)):
        allocator.configure(rules)
        allocator.alloc(id, 40 * MIB)
    with pytest.raises(PredictedOutOfMemory):
        allocator.alloc(3, 40 * MIB)
    for id in range(3):
        allocator.free(id)
    allocator.alloc(3, 120 * MIB)  # the release must unmap the expandable block too
    assert allocator.reserved_bytes == 120 * MIB


def test_garbage_collect_expandable():
    allocator, _, expandable = limited_to_120_mib("garbage_collection_threshold:0.5")
    allocator.alloc(0, 40 * MIB)
    allocator.configure(expandable)
    allocator.alloc(1, 40 * MIB)
    allocator.free(0)
    allocator.free(1)
    allocator.alloc(2, 80 * MIB)
    assert allocator.allocated_bytes == 80 * MIB


def test_mempool_no_split():
    allocator = Allocator.named("cuda")
    allocator.add_pool("whole", can_split=False)
    for id in range(2):
        allocator.alloc(id, 4 * MIB, pool="whole")
    assert [(s.n_bytes, len(s.blocks)) for s in allocator.segments()] == [(20 * MIB, 1)] * 2
    default = Allocator.named("cuda")
    for id in range(2):
        default.alloc(id, 4 * MIB)
    assert [(s.n_bytes, len(s.blocks)) for s in default.segments()] == [(20 * MIB, 3)]


def test_mempool_with_its_own_allocator_is_never_expandable():
    allocator = Allocator.named("cuda-expandable")
    allocator.add_pool("own", can_expand=False)
    allocator.alloc(0, MIB, pool="own")
    allocator.alloc(1, MIB)
    assert sorted(segment.is_expandable for segment in allocator.segments()) == [False, True]


# -- MindSpore abstract_dynamic_mem_pool_test.cc: sizes there are pool sizes, after the + 512 rule


def mindspore(conf: str = "", device_bytes: int | None = 100 * GIB):
    conf = ",".join(filter(None, ("request_padding:False,task_sink:True", conf)))
    return Allocator.named("mindspore", conf=conf, device_bytes=device_bytes)


def test_actual_peak_size():
    pool = mindspore()
    for id, n_bytes in enumerate((1024, 512, 1024)):
        pool.alloc(id, n_bytes)
    pool.free(1)
    assert pool.peak_reserved_bytes == 2560


def test_allocate_free():
    pool = mindspore("block_size:3072")
    for id, n_bytes in enumerate((512, 1024, 1536)):
        pool.alloc(id, n_bytes)
    pool.free(0)
    pool.free(1)
    (block,) = pool.segments()
    assert [(b.n_bytes, b.state) for b in block.blocks] == [(1536, "inactive"), (1536, "active")]
    pool.free(2)
    (block,) = pool.segments()
    assert [(b.n_bytes, b.state) for b in block.blocks] == [(3072, "inactive")]


def test_search_available_mem_buf():
    pool = mindspore("enable_vmm:True")
    first, *_ = [pool.alloc(id, 1024) for id in range(3)]
    pool.free(1)
    pool.empty_cache()  # unmaps it
    pool.free(0)
    assert pool.alloc(3, 2048) == first, "idle and unmapped neighbours are joined"


def test_basic_allocation_with_virtual_memory():
    pool = mindspore("enable_vmm:True", device_bytes=None)
    half = 512 * MIB
    base = pool.alloc(0, half)
    places = [pool.alloc(id, n_bytes) - base for id, n_bytes in ((1, half), (2, GIB), (3, GIB), (4, half))]
    assert places == [half, GIB, 2 * GIB, 3 * GIB]
    pool.free(0)
    assert pool.alloc(5, half) - base == 0
    pool.free(3)
    assert pool.alloc(6, half) - base == 2 * GIB
    pool.free(1)
    idle = [block for segment in pool.segments() for block in segment.blocks if block.state == "inactive"]
    assert len(idle) == 2


def test_persistent_block_limit():
    pool = mindspore()
    for id in range(10):
        pool.alloc(id, GIB, persistent=True)
    kinds = [segment.pool for segment in pool.segments()]
    assert (kinds.count("persistent"), kinds.count("common")) == (1, 9)


def test_common_malloc_from_persistent():
    pool = mindspore()
    pool.alloc("p", 50 * GIB, persistent=True)
    pool.alloc("c", 50 * GIB)
    with pytest.raises(PredictedOutOfMemory):
        pool.alloc("x", 1)
    pool.free("p")
    pool.alloc("x", 1)
    assert pool.allocated_bytes == 50 * GIB + 512


def test_release_free_blocks():
    pool = mindspore()
    for id in range(10):
        pool.alloc(id, GIB)
    pool.free(0)
    pool.free(9)
    pool.empty_cache()
    assert sum(segment.n_bytes for segment in pool.segments()) == 8 * GIB
    assert pool.allocated_bytes == 8 * GIB


def test_streams_never_share_buffers():
    pool = mindspore()
    pool.alloc(0, GIB, stream=0)
    pool.free(0)
    pool.alloc(1, GIB, stream=1)
    assert {segment.stream for segment in pool.segments()} == {0, 1}
