"""torch_npu's NPUCachingAllocator: the CUDA allocator with Ascend's own numbers.

    PYTORCH_NPU_ALLOC_CONF ──> CudaRules ──> CudaAllocator

Every request grows by 32 bytes before it is rounded, ties go to the lower address, and a page can be
1 GiB. Read in torch_npu's source; no recorded NPU trace was at hand to check it against.
"""

from __future__ import annotations

from dataclasses import replace

from windtunnel.errors import UsageError
from windtunnel.memory.allocators.cuda.alloc_conf import PLACEMENT_KEYS, placement_options
from windtunnel.memory.allocators.cuda.allocator import CudaAllocator
from windtunnel.memory.allocators.cuda.rules import NEVER, CudaRules
from windtunnel.memory.allocators.option_text import parse_conf, read_flag, read_whole, refuse_value
from windtunnel.units import GIB, KIB, MIB

__all__ = ["build_npu", "npu_rules"]

NEUTRAL_KEYS = frozenset(
    {
        "pin_memory_expandable_segments",
        "pinned_mem_register",
        "pinned_reserve_segment_size_mb",
        "release_lock_on_npumalloc",
        "pinned_use_background_threads",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
    }
)
OWN_KEYS = ("base_addr_aligned_kb", "multi_stream_lazy_reclaim", "page_size", "segment_size_mb")
PADDING_BYTES = 32


def build_npu(torch: str, conf: str, device_bytes: int | None) -> CudaAllocator:
    return CudaAllocator("npu", npu_rules(conf), device_bytes)


def npu_rules(conf: str) -> CudaRules:
    """Return the rules of torch_npu under `conf`; they do not depend on the torch version."""
    options = parse_conf(conf, {*PLACEMENT_KEYS, *NEUTRAL_KEYS, *OWN_KEYS} - {"backend"})
    align_kb = read_whole(
        options, "base_addr_aligned_kb", 16, lambda kb: 0 <= kb <= 16, "a number of KiB from 0 to 16"
    )
    rules = CudaRules(
        tie="address",
        padding_bytes=PADDING_BYTES,
        is_reclaim_lazy=read_flag(options, "multi_stream_lazy_reclaim"),
        **placement_options(options),
    )
    # large_segment_size_mb sets what expandable segments grow by; plain segments stay at 20 MiB.
    rules = replace(rules, large_segment_bytes=20 * MIB)
    if rules.is_expandable:
        if rules.max_split_bytes != NEVER or rules.gc_threshold:
            raise UsageError(
                "torch_npu refuses max_split_size_mb and garbage_collection_threshold if segments expand",
                hint="drop them, or set expandable_segments:False",
            )
        rules = replace(rules, align_bytes=align_kb * KIB)
    if "segment_size_mb" in options:
        page_mb = read_whole(
            options, "segment_size_mb", 20, lambda mb: 20 <= mb <= 512, "a number of MiB from 20 to 512"
        )
        rules = replace(rules, large_page_bytes=page_mb * MIB)
    if "page_size" in options:
        if options["page_size"] != "1g":
            refuse_value("page_size", options["page_size"], "1g")
        rules = replace(rules, large_step_bytes=GIB, large_page_bytes=GIB)
    return rules
