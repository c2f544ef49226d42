"""The system calls behind the copy-on-write layer; each raises OSError that names the call.

    names and numbers ──> libc through ctypes ──> the kernel

This module is imported only on Linux.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct
from pathlib import Path

__all__ = [
    "NEW_MOUNTS",
    "NEW_NETWORK",
    "NEW_USER",
    "bind",
    "drop_capabilities",
    "join",
    "make_mounts_private",
    "map_own_ids",
    "mount_overlay",
    "pivot_into",
    "set_read_only",
    "start_loopback",
    "unshare",
]

NEW_MOUNTS, NEW_USER, NEW_NETWORK = 0x00020000, 0x10000000, 0x40000000
_READ_ONLY, _REMOUNT, _BIND, _RECURSIVE, _PRIVATE = 1, 32, 4096, 16384, 1 << 18
_DETACH = 2
# Flags of a mount that a user may not change in a namespace: statvfs's bit -> mount's
_LOCKED = {
    2: 2,
    4: 4,
    8: 8,
    1024: 1024,
    2048: 2048,
    4096: 1 << 21,
}  # nosuid nodev noexec noatime nodiratime relatime
_GET_FLAGS, _SET_FLAGS, _SET_ADDRESS, _UP = 0x8913, 0x8914, 0x8916, 1
_CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move this process to new namespaces of these kinds; a user namespace needs a single-threaded process."""
    _check(_libc.unshare(flags), "unshare")


def join(pid: int) -> bool:
    """Move this process to the namespaces of another one; returns whether that includes a user namespace."""
    joined = []
    for name in ("user", "mnt", "net"):  # the user namespace first: it gives the right to join the others
        path = f"/proc/{pid}/ns/{name}"
        if os.readlink(path) != os.readlink(f"/proc/self/ns/{name}"):
            joined.append((name, os.open(path, os.O_RDONLY)))
    for name, descriptor in joined:
        _check(_libc.setns(descriptor, 0), f"setns {name}")
        os.close(descriptor)
    return any(name == "user" for name, _ in joined)


def map_own_ids(uid: int, gid: int) -> None:
    """Keep the user and group ids in a new user namespace: scripts, git and ssh look at names and owners."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path(f"/proc/self/{name}").write_text(text)


def make_mounts_private() -> None:
    _mount("none", "/", None, _RECURSIVE | _PRIVATE)


def mount_overlay(lower: str, upper: str, work: str, target: str, options: str) -> None:
    """Show `lower` at `target`, with everything that is written going to `upper`."""
    folders = (
        f"{name}={_escaped(path)}"
        for name, path in (("lowerdir", lower), ("upperdir", upper), ("workdir", work))
    )
    data = ",".join([*folders, *([options] if options else [])])
    _mount("windtunnel", target, "overlay", 0, data)


def bind(source: str, target: str, is_recursive: bool) -> None:
    _mount(source, target, None, _BIND | (_RECURSIVE if is_recursive else 0))


def set_read_only(point: str, is_read_only: bool) -> None:
    """Change one mount of this namespace; its other flags must not change, or the kernel refuses."""
    have = os.statvfs(point).f_flag
    kept = sum(flag for bit, flag in _LOCKED.items() if have & bit)
    _mount("none", point, None, _REMOUNT | _BIND | kept | (_READ_ONLY if is_read_only else 0))


def pivot_into(root: str) -> None:
    """Make `root` this process's `/`, and unmount the old one."""
    os.chdir(root)
    _check(_libc.pivot_root(b".", b"."), "pivot_root")
    _check(_libc.umount2(b".", _DETACH), "umount of the old root")


def drop_capabilities() -> None:
    """A process that enters a user namespace has every capability in it; the script must have none, as before."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)()), "capset")


def start_loopback() -> None:
    """Start the loopback device of a new network namespace, which is down at first.

    This machine's own name must resolve too: programs listen on its address in /etc/hosts.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        _bring_up(s, b"lo")
        for number, address in enumerate(_own_addresses()):
            name = b"lo:%d" % (number + 1)
            request = struct.pack("16sHH4s8s", name, socket.AF_INET, 0, socket.inet_aton(address), b"")
            fcntl.ioctl(s, _SET_ADDRESS, request)
            _bring_up(s, name)


def _bring_up(s: socket.socket, device: bytes) -> None:
    answer = fcntl.ioctl(s, _GET_FLAGS, struct.pack("16sH14s", device, 0, b""))
    flags = struct.unpack("16sH14s", answer)[1]
    fcntl.ioctl(s, _SET_FLAGS, struct.pack("16sH14s", device, flags | _UP, b""))


def _own_addresses() -> list[str]:
    """Addresses of this machine's name in /etc/hosts, without asking a name server."""
    found = []
    try:
        lines = Path("/etc/hosts").read_text(errors="replace").splitlines()
    except OSError:
        return []
    for line in lines:
        address, *names = line.partition("#")[0].split() or [""]
        is_ipv4 = address.count(".") == 3 and not address.startswith("127.")
        if is_ipv4 and socket.gethostname() in names:
            found.append(address)
    return found


def _escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")


def _mount(source: str, target: str, kind: str | None, flags: int, data: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        os.fsencode(data) if data else None,
    )
    _check(result, f"mount {kind or 'bind'} on {target}")


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
