"""Ask the Linux kernel to deny every write outside some folders, permanently.

    allowed folders ──> Landlock ruleset ──> this process and all it starts

Landlock needs no privileges and works inside containers whose seccomp profile forbids namespaces. It denies writes, it
does not redirect them. It does not cover chmod, chown, utime, or descriptors that are already open.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
import sys
from collections.abc import Sequence

__all__ = ["deny_writes"]

# The same numbers on every architecture but Alpha.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULE_PATH_BENEATH = 1
_GET_VERSION = 1
_PR_SET_NO_NEW_PRIVS = 38

_WRITE_FILE = 1 << 1
_REMOVE_AND_MAKE = sum(1 << bit for bit in range(4, 13))  # remove a folder, a file; make each kind of entry
_REFER = 1 << 13  # link or move from one folder to another
_TRUNCATE = 1 << 14
_ON_FILES = _WRITE_FILE | _TRUNCATE
# Devices and process settings are not files that a run could damage: they may be written, but not removed.
_WRITTEN_ALWAYS = ("/dev", "/proc")
_ALLOWED_ALWAYS = ("/dev/mqueue", "/dev/pts", "/dev/shm")  # multiprocessing needs them


def deny_writes(allowed: Sequence[str | os.PathLike]) -> int:
    """Deny this thread, and everything it starts, every change outside `allowed`; return Landlock's version.

    Cannot be undone. Threads that are already running are not restricted, so call it before there are any.
    Raises OSError where the kernel does not have Landlock, or has it disabled.
    """
    if not sys.platform.startswith("linux"):
        raise OSError(errno.ENOSYS, "Landlock exists only on Linux")
    libc = ctypes.CDLL(None, use_errno=True)
    abi = _call(libc, _CREATE_RULESET, None, 0, _GET_VERSION)
    _restrict(libc, _rights(abi), allowed)
    return abi


def _rights(abi: int) -> int:
    """What to deny: every way to change a file that this version of Landlock knows."""
    rights = _WRITE_FILE | _REMOVE_AND_MAKE
    if abi >= 2:  # before, moving from one folder to another is denied everywhere, with EXDEV
        rights |= _REFER
    if abi >= 3:
        rights |= _TRUNCATE
    return rights


def _restrict(libc: ctypes.CDLL, rights: int, allowed: Sequence[str | os.PathLike]) -> None:
    handled = ctypes.c_uint64(
        rights
    )  # the first field of the kernel's structure; the rest came with later versions
    ruleset = _call(libc, _CREATE_RULESET, ctypes.byref(handled), ctypes.sizeof(handled), 0)
    try:
        for folder in _WRITTEN_ALWAYS:
            _allow(libc, ruleset, folder, rights & _ON_FILES)
        for path in (*_ALLOWED_ALWAYS, *allowed):
            _allow(libc, ruleset, path, rights)
        if libc.prctl(_PR_SET_NO_NEW_PRIVS, *map(ctypes.c_ulong, (1, 0, 0, 0))):
            raise _last_error("prctl(PR_SET_NO_NEW_PRIVS)")
        _call(libc, _RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _allow(libc: ctypes.CDLL, ruleset: int, path: str | os.PathLike, rights: int) -> None:
    try:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return  # there is nothing to allow
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _ON_FILES
        rule = struct.pack("=Qi", rights, fd)
        _call(libc, _ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(fd)


def _call(libc: ctypes.CDLL, number: int, *arguments: object) -> int:
    """Make a system call that the C library has no function for."""
    # Variadic: a Python int would be passed as 32 bits, and the upper half of its register would be undefined.
    wide = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    result = libc.syscall(ctypes.c_long(number), *wide)
    if result < 0:
        raise _last_error("Landlock")
    return result


def _last_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")
