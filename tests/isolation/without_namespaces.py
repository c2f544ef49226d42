"""Run a command where namespaces are forbidden, as they are in a container under Docker's default profile.

python without_namespaces.py seccomp command…       unshare, mount and their kin say EPERM, clone3 ENOSYS
python without_namespaces.py capability command…    root without CAP_SYS_ADMIN, and nothing else forbidden
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 38, 22, 24
_SECCOMP_MODE_FILTER = 2
_CAP_SYS_ADMIN = 21
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_NEW_NAMESPACE = 0x7E020000  # every CLONE_NEW* flag that clone takes
_LOAD, _EQUAL, _HAS_BITS, _RETURN = 0x20, 0x15, 0x45, 0x06  # of classic BPF: ld [k], jeq, jset, ret
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16  # where they are in struct seccomp_data

# architecture, then the numbers of its system calls
_SYSTEMS = {
    "x86_64": (
        0xC000003E,
        {"unshare": 272, "setns": 308, "mount": 165, "umount2": 166, "pivot_root": 155},
        56,
    ),
    "aarch64": (0xC00000B7, {"unshare": 97, "setns": 268, "mount": 40, "umount2": 39, "pivot_root": 41}, 220),
}
_CLONE3 = 435
_NEW_MOUNT_CALLS = (428, 429, 430, 431, 432, 433, 442)  # open_tree, move_mount, fsopen … mount_setattr


def forbid_namespaces() -> None:
    """Install the filter for this process and all it will start."""
    architecture, calls, clone = _SYSTEMS[platform.machine()]
    no, no_such_call = _ERRNO | errno.EPERM, _ERRNO | errno.ENOSYS
    code = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _ALLOW),
        (_LOAD, 0, 0, _NUMBER),
    ]
    for number in (*calls.values(), *_NEW_MOUNT_CALLS):
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, no)]
    # flags of clone3 are behind a pointer that a filter cannot follow; C libraries then fall back to clone
    code += [(_EQUAL, 0, 1, _CLONE3), (_RETURN, 0, 0, no_such_call)]
    code += [
        (_EQUAL, 0, 3, clone),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_HAS_BITS, 0, 1, _NEW_NAMESPACE),
        (_RETURN, 0, 0, no),
    ]
    code.append((_RETURN, 0, 0, _ALLOW))
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))
    header = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(program)))
    _control(_PR_SET_NO_NEW_PRIVS, 1)
    _control(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header))


def _control(option: int, value: int, address: int = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    words = [ctypes.c_ulong(each) for each in (value, address, 0, 0)]
    if libc.prctl(option, *words):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def main() -> None:
    if sys.argv[1] == "seccomp":
        forbid_namespaces()
    else:
        _control(_PR_CAPBSET_DROP, _CAP_SYS_ADMIN)  # a program that root starts has what this set still has
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
