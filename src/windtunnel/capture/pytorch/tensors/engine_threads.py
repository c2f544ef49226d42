"""Start autograd's device threads for a simulated device that was installed after the first backward.

    first backward of the process ──> one thread per device, counted only once

A process that ran a backward before the simulated device existed (for example a notebook that trained something and
then calls `dry_run`) counted no device. The devices are counted again with the engine's own function, which torch
exports but does not bind in Python.
"""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

import torch

__all__ = ["is_missing_threads", "start_threads"]

_ENGINE = "_ZN5torch8autograd6Engine18get_default_engineEv"
_START = "_ZN5torch8autograd6Engine20start_device_threadsEv"
_lock = threading.Lock()
_started_in = 0  # the id of the process that started them


def is_missing_threads(error: BaseException) -> bool:
    """True if the engine refused because it has no queue for the device."""
    return "device_ready_queues_" in str(error)


def start_threads() -> None:
    """Count the devices again and start their threads, once per process: a second count would wait forever.

    Call it after `is_missing_threads`. Several threads may run their first backward at the same time.
    """
    global _started_in
    with _lock:
        if _started_in == os.getpid():
            return
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        engine = library[_ENGINE]
        engine.restype = ctypes.c_void_p
        start = library[_START]
        start.argtypes = [ctypes.c_void_p]
        start.restype = None
        start(engine())  # ctypes releases the interpreter lock, which the new threads need
        _started_in = os.getpid()
