"""Protect the files of this machine where namespaces are not available.

    base folder, folders the run may write ──> temporary folder, Landlock, redirected functions ──> a sentence about it

Two independent protections: Python's file functions are redirected, so that scripts keep running and can read what
they wrote, and the kernel denies the writes that were not redirected.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from windtunnel.isolation.landlock import deny_writes
from windtunnel.isolation.shadow import install_shadow

__all__ = ["enter_guard"]


def enter_guard(base: Path, allowed: Sequence[Path]) -> str:
    """Keep this process and all it starts from changing anything outside `allowed` and `base`.

    Returns a sentence that says how far this protection goes. Call it before there are threads. A process that was not
    forked from this one has only the kernel's protection, until it calls this with the same `base`.
    """
    base = Path(os.path.realpath(base))
    for name in ("upper", "removed", "tmp"):
        (base / name).mkdir(parents=True, exist_ok=True)
    # Programs and libraries that write files themselves need a folder, above all multiprocessing.
    for variable in ("TMPDIR", "TEMP", "TMP"):
        os.environ[variable] = str(base / "tmp")
    tempfile.tempdir = str(base / "tmp")
    sys.dont_write_bytecode = True  # otherwise each import would count as a change
    is_denied = _ask_kernel([base, *allowed])
    install_shadow(base, allowed)
    if is_denied:
        return (
            "the kernel denies every write outside the run's own folders and /dev/shm (Landlock), "
            "and Python's file functions are redirected; writes by native libraries and other programs fail"
        )
    return (
        "Python's file functions are redirected; writes by native libraries and other programs are not "
        "prevented, as this system has no Landlock"
    )


def _ask_kernel(allowed: Sequence[Path]) -> bool:
    try:
        deny_writes(allowed)
    except OSError:
        return False
    return True
