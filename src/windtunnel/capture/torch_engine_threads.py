"""Threads of autograd's engine for a device that came late.

    first backward of the process ──> one thread per device there is, counted once and for all

A process that has run a backward before the simulated device existed (a notebook, say, that trained something and then
calls `dry_run`) has counted no device. The count is made again by the engine's own function, which torch exports but
does not offer to Python.
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
_started_in = 0  # the process that has started them


def is_missing_threads(error: BaseException) -> bool:
    """True if the engine refused because it has no queue for the device."""
    return "device_ready_queues_" in str(error)


def start_threads() -> None:
    """Count the devices again and start their threads, once in a process: a second count would wait for ever.

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
        start(engine())  # ctypes lets go of the interpreter lock, which the new threads need
        _started_in = os.getpid()
