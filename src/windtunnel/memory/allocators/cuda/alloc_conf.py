"""Read the text of PYTORCH_CUDA_ALLOC_CONF.

    "max_split_size_mb:64,expandable_segments:True" + torch version ──> CudaRules

Options that do not move a single byte of device memory (pinned host memory, locks) are checked for
their name and skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from windtunnel.errors import UsageError
from windtunnel.memory.allocators.cuda.rules import NEVER, CudaRules
from windtunnel.memory.allocators.option_text import (
    parse_conf,
    read_flag,
    read_share,
    read_whole,
    refuse_value,
)
from windtunnel.units import MIB

__all__ = ["cuda_rules", "placement_options", "torch_version"]

NEUTRAL_KEYS = frozenset(
    {
        "pinned_use_cuda_host_register",
        "pinned_use_hip_host_register",
        "pinned_num_register_threads",
        "pinned_use_background_threads",
        "pinned_reserve_segment_size_mb",
        "pinned_free_catch_all",
        "pinned_max_cached_size_mb",
        "pinned_max_round_threshold_mb",
        "release_lock_on_cudamalloc",
        "release_lock_on_hipmalloc",
        "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom",
        "expandable_segments_reserve",
        "expandable_segments_reserve_by_class",
    }
)
PLACEMENT_KEYS = (
    "backend",
    "expandable_segments",
    "garbage_collection_threshold",
    "large_segment_size_mb",
    "max_non_split_rounding_mb",
    "max_split_size_mb",
    "per_process_memory_fraction",
    "roundup_power2_divisions",
)
LARGE_SEGMENT_SINCE = (2, 11)


def cuda_rules(conf: str, torch: str) -> CudaRules:
    """Return the rules of torch's CUDA allocator under `conf`."""
    version = torch_version(torch)
    options = parse_conf(conf, {*PLACEMENT_KEYS, *NEUTRAL_KEYS})
    if options.get("backend", "native") != "native":
        refuse_value(
            "backend", options["backend"], "native: the asynchronous allocator of the driver is not modelled"
        )
    if "large_segment_size_mb" in options and version < LARGE_SEGMENT_SINCE:
        refuse_value(
            "large_segment_size_mb", options["large_segment_size_mb"], f"torch 2.11 or newer, not {torch}"
        )
    tie = "address" if version <= (2, 11) else "block" if version == (2, 12) else "segment"
    return CudaRules(tie=tie, **placement_options(options))


def torch_version(torch: str) -> tuple[int, int]:
    match = re.match(r"(\d+)\.(\d+)", str(torch))
    if match is None:
        raise UsageError(f"cannot read {torch!r} as a torch version", hint='write it as "2.13"')
    return int(match.group(1)), int(match.group(2))


def placement_options(options: Mapping[str, str]) -> dict[str, Any]:
    """Turn the options that all torch allocators share into fields of CudaRules."""
    # torch reads large_segment_size_mb first, wherever it is: it bounds the next two.
    segment_mb = read_whole(
        options, "large_segment_size_mb", 20, lambda mb: mb > 10, "a number of MiB above 10"
    )
    at_least = f"a number of MiB, {segment_mb} or more"
    split_mb = read_whole(options, "max_split_size_mb", -1, lambda mb: mb < 0 or mb >= segment_mb, at_least)
    rounding_mb = read_whole(
        options, "max_non_split_rounding_mb", segment_mb, lambda mb: mb >= segment_mb, at_least
    )
    return {
        "is_expandable": read_flag(options, "expandable_segments"),
        "large_segment_bytes": segment_mb * MIB,
        "large_page_bytes": segment_mb * MIB,
        # A negative number wraps around in torch, to "no limit".
        "max_split_bytes": NEVER if split_mb < 0 else split_mb * MIB,
        "max_non_split_rounding_bytes": rounding_mb * MIB,
        "divisions": _divisions(options.get("roundup_power2_divisions", "[]")),
        "gc_threshold": read_share(
            options, "garbage_collection_threshold", 0.0, lambda x: 0 < x < 1, "between 0 and 1"
        ),
        "memory_fraction": read_share(
            options, "per_process_memory_fraction", 1.0, lambda x: 0 <= x <= 1, "from 0 to 1"
        ),
    }


def _divisions(text: str) -> tuple[int, ...]:
    """Read "4" or "[256:1,512:2,>:8]": bounds in MiB, each a power of two."""
    key, steps = "roundup_power2_divisions", [0] * 16
    if not text.startswith("["):
        if not _is_power_of_two(text):
            refuse_value(key, text, "a power of two, or a list such as [256:1,512:2,>:8]")
        return (int(text),) * 16
    if not re.fullmatch(r"\[([^\[\]]*)\]", text):
        refuse_value(key, text, "a list closed by ]")
    last, is_first = 0, True
    for entry in filter(None, text[1:-1].split(",")):
        bound, _, value = entry.partition(":")
        if value != "0" and not _is_power_of_two(value):
            refuse_value(key, entry, "a power of two (or 0) after the colon")
        if bound == ">":
            steps[last + 1 :] = [int(value)] * (15 - last)
            continue
        if not _is_power_of_two(bound):
            refuse_value(key, entry, "a power of two of MiB, or >, before the colon")
        index = min(int(bound).bit_length() - 1, 15)
        if is_first:
            steps[:index] = [int(value)] * index
        steps[index] = int(value)
        last, is_first = index, False
    return tuple(steps)


def _is_power_of_two(text: str) -> bool:
    return text.isdecimal() and int(text).bit_count() == 1
