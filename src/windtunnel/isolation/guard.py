"""Protect the files of this machine where no namespace can be had.

    base folder, folders the run may write ──> temporary folder, Landlock, redirected functions ──> a sentence about it

Two layers that know nothing of each other: the kernel denies what no redirect has caught, and Python's file functions
are redirected so that scripts go on and can read what they wrote.
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
    """Let this process and all it starts change nothing outside `allowed` and `base`; return how far that holds.

    Call it before there are threads. A process that was not forked from this one has only the kernel's protection,
    until it calls this with the same `base`.
    """
    base = Path(os.path.realpath(base))
    for name in ("upper", "removed", "tmp"):
        (base / name).mkdir(parents=True, exist_ok=True)
    # Programs and libraries that write by themselves need some place, above all multiprocessing.
    for variable in ("TMPDIR", "TEMP", "TMP"):
        os.environ[variable] = str(base / "tmp")
    tempfile.tempdir = str(base / "tmp")
    sys.dont_write_bytecode = True  # or each import would count as a change
    is_denied = _ask_kernel([base, *allowed])
    install_shadow(base, allowed)
    if is_denied:
        return (
            "the kernel denies every write outside the run's own folders and /dev/shm (Landlock), "
            "and Python's file functions are redirected; what a library or program writes by itself fails"
        )
    return (
        "Python's file functions are redirected; a library or program that writes by itself is not stopped, "
        "as this system has no Landlock"
    )


def _ask_kernel(allowed: Sequence[Path]) -> bool:
    try:
        deny_writes(allowed)
    except OSError:
        return False
    return True
