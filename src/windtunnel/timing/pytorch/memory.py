"""Does a step fit into this machine, so that it can be run for real?

Request ──> most bytes alive at once ──┐
the device, its limits ──> bytes free ─┴──> run it in its own order, or operator by operator
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

import torch

from windtunnel.timing.measured.steps import ActKind, Request

__all__ = ["available_bytes", "peak_bytes", "settle_allocator"]

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # numbers of mallopt(3)
_LARGEST_ON_HEAP = 32 << 20  # glibc always maps larger blocks from the system, and unmaps them at once
_CGROUP = Path("/sys/fs/cgroup")


def peak_bytes(request: Request) -> int:
    """Bytes of the storages alive at once, where they are most."""
    alive: set[int] = set()
    live = highest = 0
    for kind, *rest in request.acts:
        if kind == ActKind.DROP_ALL:
            alive.clear()
            live = 0
            continue
        if kind == ActKind.DROP:
            if rest[0] in alive:
                alive.remove(rest[0])
                live -= request.sizes.get(rest[0], 0)
            continue
        for storage in {*rest} if kind == ActKind.MAKE else {s for each in rest[1:] for s in each}:
            if storage not in alive:
                alive.add(storage)
                live += request.sizes.get(storage, 0)
        highest = max(highest, live)
    return highest


def available_bytes(device: torch.device) -> int:
    if device.type != "cpu":
        return getattr(torch, device.type).mem_get_info()[0]
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
        limit = (_CGROUP / "memory.max").read_text(encoding="ascii").strip()
        used = int((_CGROUP / "memory.current").read_text(encoding="ascii"))
        if limit != "max":
            free = min(free, max(int(limit) - used, 0))
    except (OSError, ValueError):
        pass  # no control group, or no Linux
    return free


def settle_allocator(request: Request) -> None:
    """Put glibc's malloc into the state it reaches after some steps.

    It learns from the blocks that are freed which sizes to keep, and a training's small lasting allocations keep the
    end of its heap from going back to the system. A step that is run a few times in a new process would take page
    faults that training does not take. For a process that does nothing else: the state stays.
    """
    largest = min(max(request.sizes.values(), default=0) + (1 << 16), _LARGEST_ON_HEAP)
    try:
        set_option = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return  # another C library
    set_option(_MMAP_THRESHOLD, max(largest, 1 << 17))
    set_option(_TRIM_THRESHOLD, (1 << 31) - 1)
