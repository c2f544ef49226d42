"""How many bytes are in use on the device right now.

    cpu   c10's own reporter of host allocations, switched on and read in place (a memory read, 0.1 us)
    cuda  the caching allocator's counter

The host reporter is part of every libc10; torch has no Python API for it, so its counter is found by its
effect: a probe allocation of an odd size must move exactly one word by exactly that size. Where that fails (another
platform, another build) the storages seen by the recorder are counted instead.
"""

from __future__ import annotations

import ctypes
import gc
import os
import weakref
from pathlib import Path
from typing import Protocol

import torch

__all__ = ["AcceleratorMeter", "CountingMeter", "HostMeter", "Meter", "meter_for"]

_REPORTER = "_ZN3c1025profiledCPUMemoryReporterEv"
_ADD = "_ZN3c1025ProfiledCPUMemoryReporter3NewEPvm"
_SWITCH = "FLAGS_caffe2_report_cpu_memory_usage"
_PROBE_BYTES = 12_345_600  # not a size anything else allocates at that moment
_WORDS = 24  # of the reporter: a mutex, a hash table, the total, a counter of log lines


class Meter(Protocol):
    quiet_below: int

    def live_bytes(self) -> int: ...

    def capacity(self) -> int: ...

    def saw(self, storage: torch.UntypedStorage) -> None:
        """A storage the recorder came across; only used by a meter without a better source."""

    def grew(self, n_bytes: int) -> None:
        """An operator made this much; only used by a meter that does not read its counter every time."""


class HostMeter:
    """Every byte torch has allocated on the host, exact to the allocation."""

    quiet_below = 0

    def __init__(self) -> None:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
        reporter = library[_REPORTER]
        reporter.restype = ctypes.c_void_p
        self._address = reporter()
        self._add = library[_ADD]
        self._add.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self._add.restype = None
        switch = ctypes.c_bool.in_dll(library, _SWITCH)
        was_on, switch.value = switch.value, True
        self._total = ctypes.c_int64.from_address(self._find_total())
        # torch warns at every thousandth free of a block that it did not see allocated; zero would mean every time
        ctypes.c_int64.from_address(ctypes.addressof(self._total) + 8).value = 1
        if not was_on:
            self._count_what_is_there()

    def live_bytes(self) -> int:
        return self._total.value

    def capacity(self) -> int:
        return self._total.value + _available_host_bytes()

    def saw(self, storage: torch.UntypedStorage) -> None: ...

    def grew(self, n_bytes: int) -> None: ...

    def _find_total(self) -> int:
        words = (ctypes.c_int64 * _WORDS).from_address(self._address)
        before = list(words)
        probe = torch.empty(_PROBE_BYTES, dtype=torch.uint8)
        moved = [i for i in range(_WORDS) if words[i] - before[i] == _PROBE_BYTES]
        del probe
        if len(moved) != 1 or words[moved[0]] != before[moved[0]]:
            raise OSError("this build of torch does not report host allocations as expected")
        return self._address + 8 * moved[0]

    def _count_what_is_there(self) -> None:
        """Report tensors that are older than the switch, so that they and their frees are counted."""
        seen: set[int] = set()
        for tensor in _tensors_alive():
            if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            pointer = storage.data_ptr()
            if pointer and pointer not in seen:
                seen.add(pointer)
                self._add(self._address, pointer, storage.nbytes())


class AcceleratorMeter:
    """The caching allocator's own counter of one device.

    Reading it takes about ten microseconds, too much for every operator. So far from the limit it is read only now and
    then, and the sizes of operator outputs since the last reading are added. Frees are missed, so the sum is too low
    by at most what unseen operators made.
    """

    _READS_BETWEEN = 16

    def __init__(self, device: torch.device) -> None:
        self.quiet_below = 0  # bytes: up to here a rough answer will do
        self._module = getattr(torch, device.type)
        self._device = device
        self._known = self._grown = self._n_rough = 0

    def live_bytes(self) -> int:
        rough = self._known + self._grown
        if rough < self.quiet_below and self._n_rough < self._READS_BETWEEN:
            self._n_rough += 1
            return rough
        self._n_rough = self._grown = 0
        self._known = self._module.memory_allocated(self._device)
        return self._known

    def capacity(self) -> int:
        free, _ = self._module.mem_get_info(self._device)
        return free + self._module.memory_reserved(self._device)

    def saw(self, storage: torch.UntypedStorage) -> None: ...

    def grew(self, n_bytes: int) -> None:
        self._grown += n_bytes


class CountingMeter:
    """What the recorder saw: misses what backward and the optimizer allocate. The last resort."""

    quiet_below = 0

    def __init__(self) -> None:
        self._live = 0
        self._seen: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in _tensors_alive():
            if tensor.layout is torch.strided:
                self.saw(tensor.untyped_storage())

    def live_bytes(self) -> int:
        return self._live

    def capacity(self) -> int:
        return self._live + _available_host_bytes()

    def saw(self, storage: torch.UntypedStorage) -> None:
        key, n_bytes = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._live += n_bytes

        def gone(_: object) -> None:
            self._live -= n_bytes
            self._seen.pop(key, None)

        self._seen[key] = weakref.ref(storage, gone)

    def grew(self, n_bytes: int) -> None: ...


_host_meter: list[HostMeter] = []  # one per process: the reporter is


def meter_for(device: torch.device) -> Meter:
    """The best meter this build has for the device."""
    if device.type != "cpu":
        return AcceleratorMeter(device)
    try:
        if not _host_meter:
            _host_meter.append(HostMeter())
        return _host_meter[0]
    except (OSError, AttributeError, ValueError):
        return CountingMeter()


def _tensors_alive() -> list[torch.Tensor]:
    return [each for each in gc.get_objects() if type(each) in (torch.Tensor, torch.nn.Parameter)]


def _available_host_bytes() -> int:
    """What the kernel could still give this process, its control group's limit included."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
        if limit != "max":
            available = min(available, max(int(limit) - used, 0))
    except (OSError, ValueError):
        pass
    return available
