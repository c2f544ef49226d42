"""Resolve paths in a tree that is merged with the real one: writes are stored separately, nothing real changes.

    path from the script ──> Folder it is in, links resolved ──> Place: in upper/, on the real disk, or nowhere

Two trees below `base` mirror absolute paths, so that all ranks see one state, whichever process changed it:

    upper/a/b      the file or folder /a/b as the run left it; it hides the real file, and is merged with a real folder
    removed/a/b    an empty file: the real /a/b and its contents are hidden, even if upper/a/b exists again;
                   a folder: /a/b is visible, but some of its contents were removed
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from windtunnel.isolation.real_files import (
    REAL,
    copy_contents,
    error,
    find_info,
    path_of_descriptor,
    remove_entry,
)

__all__ = ["COPYING", "AnyPath", "Folder", "Place", "Tree", "as_text"]

AnyPath = str | bytes | os.PathLike

COPYING = ".windtunnel-copying-"  # prefix of an entry that is still being copied or removed
_MOST_LINKS = 40  # the limit of Linux
_MOST_KNOWN = 50_000
# Not /dev itself: a device can be written to, but must not be removed.
_ALWAYS_ALLOWED = ("/dev/mqueue", "/dev/pts", "/dev/shm", "/proc")
_OPEN_TO_SCRIPTS = "tmp"  # the one folder of `base` that a script may see


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that the script can see, and where its entries come from."""

    path: str  # absolute, without links
    in_upper: bool  # it exists in upper/
    is_real: bool  # its real entries are visible
    has_removed: bool  # but not all of them
    is_allowed: bool  # it is not shadowed at all
    is_plain: bool  # it has only real entries


@dataclass(frozen=True, slots=True)
class Place:
    """What a path resolves to."""

    path: str  # absolute; only its last name may be a link
    folder: Folder  # it is in
    actual: str | None  # the real path of what is there; None if nothing is
    info: os.stat_result | None
    ends_in_slash: bool
    is_allowed: bool

    @property
    def is_folder(self) -> bool:
        return self.info is not None and stat.S_ISDIR(self.info.st_mode)

    @property
    def is_link(self) -> bool:
        return self.info is not None and stat.S_ISLNK(self.info.st_mode)

    @property
    def is_real(self) -> bool:
        """Whether it is a real entry that must not be changed."""
        return self.actual == self.path and not self.is_allowed

    def to_read(self) -> str:
        """The real path to read from."""
        if self.actual is None:
            raise error(errno.ENOENT, self.path)
        return self.actual


def as_text(path: AnyPath) -> str:
    return path if type(path) is str else os.fsdecode(path)


class Tree:
    """The merged tree: resolves paths in it, and prepares changes to them."""

    def __init__(self, base: str, allowed: Sequence[str]) -> None:
        self.base = os.path.realpath(base)
        self.upper = f"{self.base}/upper"
        self.removed = f"{self.base}/removed"
        for folder in (self.upper, self.removed):
            os.makedirs(folder, exist_ok=True)
        own = f"{self.base}/{_OPEN_TO_SCRIPTS}"
        self.allowed = frozenset(map(os.path.realpath, (*_ALWAYS_ALLOWED, own, *allowed)))
        # Processes share a version number that tells them when folders changed. Each change writes a new one.
        self._version = memoryview(_shared_bytes(f"{self.base}/version")).cast("Q")
        self._seen = 0
        self._known: dict[str, Folder] = {}
        self._in_process = threading.RLock()
        self._depth = 0  # of locks that the thread holds
        os.register_at_fork(after_in_child=self._forget_threads)

    # ---- finding

    def is_untouched(self) -> bool:
        """Whether nothing was changed yet."""
        return self._version[0] == 0

    def folder(self, path: str, n_links: int = 0) -> Folder:
        """The folder at a path; cached until some folder changes, as many paths share one folder."""
        known = self._still_known()
        found = known.get(path)
        if found is None:
            found = self._find_folder(path, n_links)
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[path] = found
        return found

    def is_certainly_real(self, path: str) -> bool:
        """Whether a path's folder is known to have only real entries: the fast check for most paths.

        The entry itself may still be a link to something in upper/.
        """
        head, slash, name = path.rpartition("/")
        found = self._still_known().get(head or slash)
        return found is not None and found.is_plain and name not in ("", ".", "..")

    def place(self, path: str, dir_fd: int | None = None, *, follow: bool = True) -> Place:
        """Resolve a path. Raises what the operating system would raise if its folder does not exist."""
        if path.startswith("/"):
            path = self.visible(path)
        elif dir_fd is not None and path:
            path = f"{self.visible(path_of_descriptor(dir_fd))}/{path}"
        for n_links in range(_MOST_LINKS):
            bare = path.rstrip("/")
            if not bare:
                return self._place_of_root(path)
            head, slash, name = bare.rpartition("/")
            if name in (".", ".."):
                path = self.folder(bare).path
                continue
            folder = self.folder(head or slash, n_links)
            found = self._look(folder, name)
            ends_in_slash = len(bare) != len(path)
            full = _join(folder.path, name)
            if found and stat.S_ISLNK(found[1].st_mode) and (follow or ends_in_slash):
                target = self._link_target(folder, found[0])
                if target is not None:
                    path = target + "/" if ends_in_slash else target
                    continue
                found = found[0], REAL.stat(found[0])
            if found and ends_in_slash and not stat.S_ISDIR(found[1].st_mode):
                raise error(errno.ENOTDIR, path)
            actual, info = found or (None, None)
            return Place(full, folder, actual, info, ends_in_slash, folder.is_allowed or full in self.allowed)
        raise error(errno.ELOOP, path)

    def entries(self, folder: Folder) -> list[os.DirEntry]:
        """The visible entries of a folder, from both trees."""
        found: dict[str, os.DirEntry] = {}
        if folder.in_upper:
            with REAL.scandir(self.upper + folder.path) as entries:
                found = {entry.name: entry for entry in entries if not entry.name.startswith(COPYING)}
        if folder.is_real:
            gone = self._removed_names(folder)
            with REAL.scandir(folder.path) as entries:
                for entry in entries:
                    if entry.name not in gone and not self._is_ours(folder, entry.name):
                        found.setdefault(entry.name, entry)
        return list(found.values())

    def visible(self, real_path: str) -> str:
        """The script's path for something in upper/."""
        return real_path[len(self.upper) :] if real_path.startswith(f"{self.upper}/") else real_path

    def working_folder(self) -> str:
        return self.visible(REAL.getcwd())

    def shows_real(self, place: Place) -> bool:
        """Whether a real entry would be visible at a place if upper/ had none."""
        folder = place.folder
        if not folder.is_real or place.is_allowed:
            return False
        return not (folder.has_removed and self._is_removed(place.path)) and find_info(place.path) is not None

    def permissions_path(self, folder: Folder) -> str:
        """The real path whose permissions apply to a folder: our copy of another user's folder belongs to us."""
        if not folder.in_upper:
            return folder.path
        copy = self.upper + folder.path
        is_as_copied = folder.is_real and _permissions(REAL.lstat(copy)) == _copied_permissions(
            REAL.lstat(folder.path)
        )
        return folder.path if is_as_copied else copy

    # ---- changing

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Let one thread of one process at a time change the trees; the lock is reentrant.

        A signal handler, for example one that saves a checkpoint, may run in the middle of a change.
        """
        with self._in_process:
            self._depth += 1
            try:
                if self._depth > 1:
                    yield
                    return
                fd = REAL.open(f"{self.base}/lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    fcntl.flock(fd, fcntl.LOCK_EX)
                    yield
                finally:
                    fcntl.flock(fd, fcntl.LOCK_UN)  # closing is not enough if another thread forked meanwhile
                    os.close(fd)
            finally:
                self._depth -= 1

    def folders_changed(self) -> None:
        """Make every process discard its cached folders."""
        self._version[0] = (time.monotonic_ns() << 16 | os.getpid() & 0xFFFF) & (1 << 64) - 1 or 1

    def forget_folders(self) -> None:
        """Discard the cached folders of this process: relative paths mean something else now."""
        self._known = {}

    def new_path(self, place: Place) -> str:
        """The real path at which to create an entry for a place."""
        if place.is_allowed:
            return place.path
        self.copy_up_folder(place.folder.path)
        if self.is_untouched():  # the first entry is created in the root folder, which needs no copy
            self.folders_changed()
        return self.upper + place.path

    def copy_up(self, place: Place, *, is_emptied: bool = False) -> str:
        """Copy one entry to upper/ if it is a real one; return the path that may be changed."""
        if not place.is_real:
            return place.to_read()
        if place.is_folder:
            return self.copy_up_folder(place.path)
        assert place.info is not None  # a real entry has one
        target = self.new_path(place)
        folder = os.path.dirname(target)
        info_of_folder = REAL.lstat(folder)
        partial = f"{folder}/{COPYING}{os.getpid()}"
        mode = place.info.st_mode
        with suppress(FileNotFoundError):
            REAL.unlink(partial)
        if stat.S_ISLNK(mode):
            REAL.symlink(REAL.readlink(place.path), partial)
        elif not stat.S_ISREG(mode):
            REAL.mknod(partial, mode)
        elif is_emptied:
            os.close(REAL.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
            REAL.chmod(partial, stat.S_IMODE(mode))
        else:
            copy_contents(place.path, partial)
        REAL.rename(partial, target)
        _set_times(folder, info_of_folder)  # to the script, no entry was made
        return target

    def copy_up_all(self, place: Place) -> str:
        """Copy an entry to upper/; a folder is copied with all its visible contents."""
        if place.is_allowed or not place.is_folder:
            return self.copy_up(place)
        folder = self.folder(place.path)
        if folder.is_real:
            self.copy_up_folder(folder.path)
            for entry in self.entries(folder):
                self.copy_up_all(self.place(_join(folder.path, entry.name), follow=False))
        return self.upper + place.path

    def copy_up_folder(self, path: str) -> str:
        """Create a visible folder in upper/, without its entries."""
        target = self.upper + path
        if path == "/" or find_info(target) is not None:
            return target
        parent = self.copy_up_folder(os.path.dirname(path))
        info, info_of_parent = REAL.lstat(path), REAL.lstat(parent)
        REAL.mkdir(target)
        with suppress(PermissionError):
            REAL.chown(target, info.st_uid, info.st_gid)
        REAL.chmod(target, _copied_permissions(info))
        _set_times(target, info)
        _set_times(parent, info_of_parent)
        self.folders_changed()
        return target

    def hide(self, place: Place) -> None:
        """Hide what is real at a place, and below it."""
        marker = self.removed + place.path
        is_new = _make_folders(os.path.dirname(marker))
        if (info := find_info(marker)) and stat.S_ISDIR(info.st_mode):
            aside = f"{os.path.dirname(marker)}/{COPYING}{os.getpid()}"
            REAL.rename(marker, aside)
            os.close(REAL.open(marker, os.O_WRONLY | os.O_CREAT, 0o600))
            remove_entry(aside)
        else:
            os.close(REAL.open(marker, os.O_WRONLY | os.O_CREAT, 0o600))
        if is_new or place.is_folder or place.is_link:
            self.folders_changed()

    # ---- inside

    def _still_known(self) -> dict[str, Folder]:
        version = self._version[0]
        if version != self._seen:
            # A new dictionary: a thread that is still looking fills the old one.
            self._known = {}
            self._seen = version
        return self._known

    def _find_folder(self, path: str, n_links: int) -> Folder:
        if not path.startswith("/"):
            here = self.working_folder()
            return self.folder(f"{here}/{path}" if path else here, n_links)
        head, _, name = path.rstrip("/").rpartition("/")
        if not name:
            has_removed = not self.is_untouched()
            return Folder("/", has_removed, True, has_removed, False, not has_removed)
        parent = self.folder(head or "/", n_links)
        if name == ".":
            return parent
        if name == "..":
            return self.folder(os.path.dirname(parent.path), n_links)
        return self._step_into(parent, name, n_links)

    def _step_into(self, parent: Folder, name: str, n_links: int) -> Folder:
        path = _join(parent.path, name)
        found = self._look(parent, name)
        if found is None:
            raise error(errno.ENOENT, path)
        actual, info = found
        if stat.S_ISLNK(info.st_mode):
            target = self._link_target(parent, actual)
            if n_links >= _MOST_LINKS or target is None:
                raise error(errno.ELOOP if target else errno.ENOENT, path)
            return self.folder(target, n_links + 1)
        if not stat.S_ISDIR(info.st_mode):
            raise error(errno.ENOTDIR, path)
        if parent.is_allowed or path in self.allowed:
            return Folder(path, False, True, False, True, True)
        in_upper = actual != path
        is_real = True
        if in_upper:
            is_gone = not parent.is_real or (parent.has_removed and self._is_removed(path))
            is_real = not is_gone and (real := find_info(path)) is not None and stat.S_ISDIR(real.st_mode)
        has_removed = is_real and parent.has_removed and find_info(self.removed + path) is not None
        is_plain = is_real and not in_upper and not has_removed and path != self.base
        return Folder(path, in_upper, is_real, has_removed, False, is_plain)

    def _look(self, folder: Folder, name: str) -> tuple[str, os.stat_result] | None:
        if self._is_ours(folder, name):
            return None
        path = _join(folder.path, name)
        if folder.in_upper and (info := find_info(self.upper + path)) is not None:
            return self.upper + path, info
        if not folder.is_real or (folder.has_removed and self._is_removed(path)):
            return None
        info = find_info(path)
        return None if info is None else (path, info)

    def _is_ours(self, folder: Folder, name: str) -> bool:
        """Whether an entry belongs to the shadow itself: a script that removes our folder must not delete upper/."""
        return folder.path == self.base and name != _OPEN_TO_SCRIPTS

    def _link_target(self, folder: Folder, actual: str) -> str | None:
        """The target of a link; None for links of /proc that have no path, for example to a pipe."""
        target = REAL.readlink(actual)
        if folder.path.startswith("/proc/") and find_info(target) is None:
            return None
        return self.visible(target) if target.startswith("/") else f"{folder.path}/{target}"

    def _place_of_root(self, path: str) -> Place:
        if not path:
            raise error(errno.ENOENT, path)
        return Place("/", self.folder("/"), "/", REAL.lstat("/"), True, False)

    def _is_removed(self, path: str) -> bool:
        info = find_info(self.removed + path)
        return info is not None and stat.S_ISREG(info.st_mode)

    def _removed_names(self, folder: Folder) -> set[str]:
        if not folder.has_removed:
            return set()
        with suppress(FileNotFoundError), REAL.scandir(self.removed + folder.path) as entries:
            return {entry.name for entry in entries if not entry.is_dir(follow_symlinks=False)}
        return set()

    def _forget_threads(self) -> None:
        """In a forked process: a lock that another thread held would never be released."""
        self._in_process = threading.RLock()
        self._depth = 0


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder != "/" else f"/{name}"


def _copied_permissions(real: os.stat_result) -> int:
    """Permissions of our copy of a real folder: we must be able to write into it."""
    return _permissions(real) | stat.S_IRWXU


def _permissions(info: os.stat_result) -> int:
    return stat.S_IMODE(info.st_mode)


def _set_times(path: str, info: os.stat_result) -> None:
    REAL.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def _make_folders(path: str) -> bool:
    """Create a folder and its parents; return whether any was missing."""
    if find_info(path) is not None:
        return False
    _make_folders(os.path.dirname(path))
    REAL.mkdir(path)
    return True


def _shared_bytes(path: str) -> mmap.mmap:
    fd = REAL.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if os.fstat(fd).st_size < mmap.PAGESIZE:
            os.ftruncate(fd, mmap.PAGESIZE)
        return mmap.mmap(fd, mmap.PAGESIZE)
    finally:
        os.close(fd)
