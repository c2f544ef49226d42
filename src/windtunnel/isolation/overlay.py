"""Enter a copy-on-write view of every writable file system: writes go to our own folders.

    mount table ──> one overlay per file system ──> this process and all it starts; the disk below does not change

A single-threaded process enters it once, before it imports anything that starts threads. Nothing has to be unmounted:
the namespace ends with its last process, even after kill -9. Root builds the new tree in a folder and makes it `/`. In a
user namespace, inherited mounts are locked: overlays are mounted in place, each on a folder with nothing mounted below,
and whatever remains becomes read-only. So no write reaches the disk.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.isolation import linux
from windtunnel.isolation.foreign_folders import copy_foreign_folders

__all__ = ["SHARED_MEMORY", "Covered", "can_hold_layer", "enter_as_root", "enter_as_user", "try_overlay"]

_PSEUDO = frozenset(
    "proc sysfs devtmpfs devpts cgroup cgroup2 mqueue debugfs tracefs securityfs bpf hugetlbfs pstore fusectl configfs"
    " binfmt_misc autofs efivarfs nsfs rpc_pipefs selinuxfs ramfs squashfs iso9660 erofs".split()
)
_AS_IT_IS = ("/proc", "/sys", "/dev", "/run")  # devices, and the sockets of services
SHARED_MEMORY = "/dev/shm"  # memory, but users also keep files in it
# File systems that cannot hold an upper layer: the kernel needs whiteouts, extended attributes and special renames.
_NO_UPPER = frozenset(
    "overlay nfs nfs4 lustre fuse fuseblk 9p virtiofs cifs smb3 ecryptfs gpfs beegfs ceph vfat exfat".split()
)
# The best first: with these options a folder is renamed, and a file's mode changed, without copying it.
_ROOT_OPTIONS = ("redirect_dir=on,metacopy=on", "redirect_dir=on", "")
_USER_OPTIONS = ("userxattr",)


@dataclass(frozen=True)
class Covered:
    """What an entered layer covers."""

    folders: dict[str, str] = field(
        default_factory=dict
    )  # folder with the parts of an overlay -> what it covers
    read_only: tuple[str, ...] = ()  # could not be covered: writes there are refused


@dataclass(frozen=True, slots=True)
class _Mount:
    kind: str
    is_read_only: bool


def can_hold_layer(folder: str) -> bool:
    """Whether this folder can hold the upper layer."""
    if not sys.platform.startswith("linux") or not os.access(folder, os.W_OK | os.X_OK):
        return False
    path, table = os.path.realpath(folder), _mounts()
    while path not in table:
        path = os.path.dirname(path)
    return table[path].kind not in _NO_UPPER


def try_overlay(base: Path, flags: int) -> None:
    """Try everything that entering needs on a folder of our own; raises OSError. For a child: cannot be undone."""
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(flags)
    if flags & linux.NEW_USER:
        linux.map_own_ids(uid, gid)
    linux.make_mounts_private()
    if flags & linux.NEW_NETWORK:
        linux.start_loopback()
    for name in ("lower", "upper", "work"):
        (base / name).mkdir()
    options = _USER_OPTIONS if flags & linux.NEW_USER else _ROOT_OPTIONS
    _cover(str(base / "lower"), base, str(base / "lower"), options)
    (base / "lower" / "file").write_text("written")


# -- root --------------------------------------------------------------------------------------------------


def enter_as_root(base: Path, real: Sequence[Path], flags: int) -> Covered:
    """Mount one overlay per file system below a folder, which then becomes `/`."""
    here = os.getcwd()
    linux.unshare(flags)
    linux.make_mounts_private()
    kept = _open_folders(real)
    if flags & linux.NEW_NETWORK:
        linux.start_loopback()
    root = base / "root"
    root.mkdir()
    folders: dict[str, str] = {}
    read_only: list[str] = []
    whole: list[str] = []  # shown with everything below
    for number, (point, mount) in enumerate(sorted(_mounts().items())):
        target = str(root) + point.rstrip("/")
        if (
            _is_below(point, str(base))
            or any(_is_below(point, p) for p in whole)
            or not os.path.lexists(target)
        ):
            continue
        if mount.kind in _PSEUDO or any(_is_below(point, p) for p in _AS_IT_IS):
            linux.bind(point, target, is_recursive=True)
            whole.append(point)
        elif mount.is_read_only:
            linux.bind(point, target, is_recursive=False)
        elif not os.path.isdir(point):
            linux.bind(point, target, is_recursive=False)  # a single file, as containers have for /etc/hosts
            linux.set_read_only(target, True)
            read_only.append(point)
        else:
            parts = _parts(base, number, point)
            if _covers(point, parts, target, _ROOT_OPTIONS):
                folders[str(parts)] = point
            elif point == "/":
                raise OSError("no overlay of / can be mounted")
            else:
                linux.bind(point, target, is_recursive=False)
                linux.set_read_only(target, True)
                read_only.append(point)
    _cover_shared_memory(str(root) + SHARED_MEMORY, _shared_name(base), folders, _ROOT_OPTIONS)
    for path, descriptor in kept.items():
        linux.bind(f"/proc/self/fd/{descriptor}", str(root) + path, is_recursive=True)
        os.close(descriptor)
    linux.pivot_into(str(root))
    os.chdir(here)  # the folder we were in is still the real one
    return Covered(folders, tuple(read_only))


# -- an ordinary user --------------------------------------------------------------------------------------


def enter_as_user(base: Path, real: Sequence[Path], flags: int) -> Covered:
    """Mount an overlay in place on every folder that has nothing mounted below it."""
    here, uid, gid = os.getcwd(), os.geteuid(), os.getegid()
    linux.unshare(flags)
    linux.map_own_ids(uid, gid)
    linux.make_mounts_private()
    kept = _open_folders(real)
    if flags & linux.NEW_NETWORK:
        linux.start_loopback()
    descriptor = os.open(base, os.O_PATH | os.O_DIRECTORY)
    inside = Path(f"/proc/self/fd/{descriptor}")  # its own path is about to be covered
    folders: dict[str, str] = {}
    to_cover, left_over = _plan(_mounts())
    for number, folder in enumerate(to_cover):
        parts = _parts(inside, number, None)
        copy_foreign_folders(folder, parts / "upper", (uid, gid), here)
        if _covers(folder, parts, folder, _USER_OPTIONS):
            folders[str(base / parts.name)] = folder
        else:
            left_over.append(folder)
    _cover_shared_memory(SHARED_MEMORY, _shared_name(base), folders, _USER_OPTIONS)
    read_only = tuple(folder for folder in left_over if os.access(folder, os.W_OK))
    for folder in left_over:
        if folder not in _mounts():
            linux.bind(folder, folder, is_recursive=True)
        linux.set_read_only(folder, True)
    for path, folder_fd in kept.items():
        linux.bind(f"/proc/self/fd/{folder_fd}", path, is_recursive=True)
        linux.set_read_only(
            path, False
        )  # it inherits the flags of its mount, which may have just become read-only
        os.close(folder_fd)
    os.close(descriptor)
    os.chdir(here)
    linux.drop_capabilities()
    return Covered(folders, read_only)


def _plan(table: dict[str, _Mount]) -> tuple[list[str], list[str]]:
    """Folders to cover with an overlay each, and the mounts that are not fully covered by them.

    A folder with a mount below cannot be a lower layer here (the kernel does not clone locked mounts), and an overlay
    never shows what is mounted below: so descend until nothing is.
    """
    cover: list[str] = []
    left_over: list[str] = []

    def split(folder: str) -> None:
        if not any(point != folder and _is_below(point, folder) for point in table):
            if os.access(folder, os.R_OK | os.X_OK):
                cover.append(folder)
            return
        if folder in table:
            left_over.append(folder)
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        except OSError:
            return
        for entry in entries:
            if (
                entry.is_dir(follow_symlinks=False)
                and entry.path not in table
                and not _is_left_alone(entry.path)
            ):
                split(entry.path)

    for point, mount in sorted(table.items()):
        if mount.kind in _PSEUDO or mount.is_read_only or _is_left_alone(point):
            continue
        split(point) if os.path.isdir(point) else left_over.append(point)
    return cover, left_over


# -- both --------------------------------------------------------------------------------------------------


def _parts(base: Path, number: int, like: str | None) -> Path:
    """Folders for one overlay; the upper one is the top of the view and gets the permissions of what it covers."""
    parts = base / str(number)
    for name in ("upper", "work"):
        (parts / name).mkdir(parents=True)
    if like is not None:
        info = os.stat(like)
        os.chown(parts / "upper", info.st_uid, info.st_gid)
        os.chmod(parts / "upper", stat.S_IMODE(info.st_mode))
    return parts


def _covers(lower: str, parts: Path, target: str, options: Sequence[str]) -> bool:
    try:
        _cover(lower, parts, target, options)
    except OSError:
        return False
    return True


def _cover(lower: str, parts: Path, target: str, options: Sequence[str]) -> None:
    for number, chosen in enumerate(options):
        try:
            return linux.mount_overlay(lower, str(parts / "upper"), str(parts / "work"), target, chosen)
        except OSError:
            if number == len(options) - 1:
                raise


def _shared_name(base: Path) -> str:
    """The name of the part of a layer that is in shared memory."""
    return f"{base.parent.name}-{base.name}"


def _cover_shared_memory(target: str, name: str, folders: dict[str, str], options: Sequence[str]) -> None:
    """Cover shared memory with a layer that is itself in shared memory. Where that fails, it stays uncovered."""
    place = Path(SHARED_MEMORY) / name
    if not os.path.isdir(target) or not can_hold_layer(SHARED_MEMORY):
        return
    try:
        place.mkdir(mode=0o700)
    except OSError:
        return
    parts = _parts(place, 0, None)
    os.chmod(parts / "upper", stat.S_IMODE(os.stat(SHARED_MEMORY).st_mode))
    if _covers(SHARED_MEMORY, parts, target, options):
        folders[str(parts)] = SHARED_MEMORY


def _open_folders(real: Sequence[Path]) -> dict[str, int]:
    return {os.path.realpath(path): os.open(path, os.O_PATH | os.O_DIRECTORY) for path in real}


def _mounts() -> dict[str, _Mount]:
    """Mounts by mount point; the topmost where several are stacked."""
    found = {}
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            left, _, right = line.partition(" - ")
            fields, (kind, _, *options) = left.split(), right.split()
            point = _unescaped(fields[4])
            read_only = "ro" in fields[5].split(",") or "ro" in (options or [""])[-1].split(",")
            found[point] = _Mount(kind, read_only)
    return found


def _unescaped(path: str) -> str:
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        path = path.replace(code, character)
    return path


def _is_left_alone(path: str) -> bool:
    return any(_is_below(path, p) for p in _AS_IT_IS)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")
