"""What each file function does in the shadow: the same for the script, nothing on the real disk.

    call of the script ──> Place in the Tree ──> checks a real disk would make ──> real function on upper/…

Every function here takes the tree, followed by the arguments of the `os` function that it replaces.
"""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Callable
from typing import Any

from windtunnel.isolation.real_files import REAL, error, find_info, move_entry, path_of_descriptor
from windtunnel.isolation.shadow_tree import AnyPath, Folder, Place, Tree, as_text

__all__ = [
    "change",
    "change_folder",
    "link",
    "make",
    "move",
    "naming",
    "open_descriptor",
    "path_to_open",
    "place_to_read",
    "remove_file",
    "remove_folder",
]

_CHANGES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_TEMPORARY = getattr(os, "O_TMPFILE", 0)
_BUSY = errno.EBUSY  # the kernel's error for a mount point, which an allowed folder resembles


def naming(path: Any, other: Any, call: Callable[[], Any]) -> Any:
    """Call a function; an error it raises names the path or the two paths that the script passed."""
    try:
        return call()
    except OSError as problem:
        problem.filename = _as_given(path)
        if other is not None:
            problem.filename2 = _as_given(other)
        raise


def place_to_read(tree: Tree, path: AnyPath, dir_fd: int | None, *, follow: bool) -> Place:
    """Where to read; raises FileNotFoundError if nothing is there."""
    place = tree.place(as_text(path), dir_fd, follow=follow)
    place.to_read()
    return place


def open_descriptor(
    tree: Tree, path: AnyPath, flags: int, mode: int = 0o777, *, dir_fd: int | None = None
) -> int:
    # Opened without the lock: opening a named pipe waits for its reader.
    return REAL.open(path_to_open(tree, path, flags, dir_fd=dir_fd), flags, mode)


def path_to_open(tree: Tree, path: AnyPath, flags: int, *, dir_fd: int | None = None) -> str:
    """The real path to open with these flags; a file that will be changed has been copied."""
    text = as_text(path)
    if _TEMPORARY and flags & _TEMPORARY == _TEMPORARY:  # a file without a name, in a folder
        with tree.lock():
            return tree.copy_up(place_to_read(tree, text, dir_fd, follow=True))
    must_be_new = flags & os.O_CREAT and flags & os.O_EXCL
    follow = not (flags & os.O_NOFOLLOW or must_be_new)
    if not flags & _CHANGES:
        if dir_fd is None and tree.is_certainly_real(text) and not stat.S_ISLNK(REAL.lstat(text).st_mode):
            return text
        return tree.place(text, dir_fd, follow=follow).to_read()
    with tree.lock():
        if flags & os.O_CREAT and text.endswith("/"):
            _bare_place(tree, text, dir_fd)
            raise error(errno.EISDIR)  # the slash means "folder", and open() creates files
        place = tree.place(text, dir_fd, follow=follow)
        if place.is_allowed:
            return place.path
        if place.info is None:
            return _path_for_new_file(tree, place, flags)
        if must_be_new:
            raise error(errno.EEXIST)
        if place.is_folder:
            raise error(errno.EISDIR)
        if place.is_link:
            raise error(errno.ELOOP)
        if not stat.S_ISREG(place.info.st_mode):
            return place.to_read()  # data sent to a pipe or a device changes no file
        _check_file_permissions(place, flags)
        return tree.copy_up(place, is_emptied=bool(flags & os.O_TRUNC))


def change_folder(tree: Tree, path: AnyPath | int) -> None:
    target: int | str
    if isinstance(path, int):
        target = path
    else:
        place = place_to_read(tree, path, None, follow=True)
        if not place.is_folder:
            raise error(errno.ENOTDIR)
        # The real one where there is one: programs that the script starts look there.
        folder = tree.folder(place.path)
        target = folder.path if folder.is_real else place.to_read()
    REAL.chdir(target)
    tree.forget_folders()


def make(
    tree: Tree, function: Callable, path: AnyPath, *arguments: Any, dir_fd: int | None = None, **more: Any
) -> None:
    """Create an entry with one of mkdir, mkfifo, mknod and symlink, whose new path is the first argument here."""
    with tree.lock():
        place = _bare_place(tree, path, dir_fd)
        if not place.is_allowed:
            if place.info is not None:
                raise error(errno.EEXIST)
            if _says_folder(path) and function is not REAL.mkdir:
                raise error(errno.ENOENT)
            _check_folder_permissions(tree, place.folder)
        function(tree.new_path(place), *arguments, **more)
        tree.folders_changed()


def remove_file(tree: Tree, path: AnyPath, *, dir_fd: int | None = None) -> None:
    with tree.lock():
        place = _bare_place(tree, path, dir_fd)
        place.to_read()
        if _says_folder(path) and not place.is_folder:
            raise error(errno.ENOTDIR)
        if place.is_allowed:
            REAL.unlink(place.path)
            return
        if place.is_folder:
            raise error(errno.EPERM if sys.platform == "darwin" else errno.EISDIR)
        _check_may_remove(tree, place)
        if tree.shows_real(place):
            tree.hide(place)
        if not place.is_real:
            REAL.unlink(place.actual)
        if place.is_link:
            tree.folders_changed()


def remove_folder(tree: Tree, path: AnyPath, *, dir_fd: int | None = None) -> None:
    with tree.lock():
        place = _bare_place(tree, path, dir_fd)
        place.to_read()
        if place.is_allowed and place.path not in tree.allowed:
            REAL.rmdir(place.path)
            return
        if not place.is_folder:
            raise error(errno.ENOTDIR)
        if place.path == "/" or place.is_allowed:
            raise error(_BUSY)
        _check_may_remove(tree, place)
        if tree.entries(tree.folder(place.path)):
            raise error(errno.ENOTEMPTY)
        if tree.shows_real(place):
            tree.hide(place)
        if not place.is_real:
            REAL.rmdir(place.actual)
        tree.folders_changed()


def move(
    tree: Tree,
    src: AnyPath,
    dst: AnyPath,
    *,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
) -> None:
    """Rename, replacing the target: a real file or folder is copied first, and then hidden."""
    with tree.lock():
        old, new = _bare_place(tree, src, src_dir_fd), _bare_place(tree, dst, dst_dir_fd)
        old.to_read()
        if _says_folder(src, dst) and not old.is_folder:
            raise error(errno.ENOTDIR)
        if old.is_allowed and new.is_allowed:
            REAL.rename(old.path, new.path)
            if old.is_folder or old.is_link:
                tree.folders_changed()
            return
        if old.path == new.path or _is_other_name(old, new):
            return
        _check_may_move(tree, old, new)
        shows_real = tree.shows_real(old)
        was_real = shows_real if old.is_folder else old.is_real
        held = tree.copy_up_all(old)
        target = tree.new_path(new)
        if shows_real:
            tree.hide(old)
        move_entry(held, target)
        if old.is_folder and tree.shows_real(
            new
        ):  # a file hides the real one, a folder would be merged with it
            tree.hide(new)
        if old.is_folder or old.is_link or new.is_link:
            tree.folders_changed()
        _note_move(tree, old, new, was_real)


def link(
    tree: Tree,
    src: AnyPath,
    dst: AnyPath,
    *,
    src_dir_fd: int | None = None,
    dst_dir_fd: int | None = None,
    follow_symlinks: bool = True,
) -> None:
    # Without a descriptor, Python calls link(), and Linux then follows no links, whatever `follow_symlinks` says.
    has_fd = src_dir_fd is not None or dst_dir_fd is not None
    follow = follow_symlinks and (has_fd or sys.platform == "darwin")
    with tree.lock():
        old = place_to_read(tree, src, src_dir_fd, follow=follow)
        new = tree.place(as_text(dst), dst_dir_fd, follow=False)
        if new.info is not None:
            raise error(errno.EEXIST)
        if old.is_folder:
            raise error(errno.EPERM)
        _check_folder_permissions(tree, new.folder)
        held = tree.copy_up(old)
        # With a descriptor, which absolute paths ignore, Python passes `follow` on: a file without a name
        # gets one by a link to /proc/self/fd/…
        REAL.link(held, tree.new_path(new), src_dir_fd=0, follow_symlinks=follow)


def change(
    tree: Tree,
    function: Callable,
    path: AnyPath | int,
    *arguments: Any,
    follow: bool = True,
    dir_fd: int | None = None,
    **more: Any,
) -> None:
    """Call truncate, chmod, utime and similar functions on a copy of the file."""
    if isinstance(path, int):
        real_path = path_of_descriptor(path)
        if not _is_on_real_disk(tree, real_path):
            function(path, *arguments, **more)
            return
        path = real_path
    with tree.lock():
        place = place_to_read(tree, path, dir_fd, follow=follow)
        if place.is_real:
            _check_may_change(place, function, arguments, more)
        target = tree.copy_up(place)
    function(target, *arguments, **more)


def _bare_place(tree: Tree, path: AnyPath, dir_fd: int | None) -> Place:
    """The directory entry to create, remove or rename: the link itself, even if a slash follows it."""
    text = as_text(path)
    return tree.place(text.rstrip("/") or text, dir_fd, follow=False)


def _says_folder(*paths: AnyPath) -> bool:
    return any(as_text(path).endswith("/") for path in paths)


def _is_on_real_disk(tree: Tree, real_path: str) -> bool:
    """Whether an open file must not be changed: it is not a pipe, not in upper/ and not in an allowed folder."""
    if not real_path.startswith("/") or find_info(real_path) is None or tree.visible(real_path) != real_path:
        return False
    return not tree.place(real_path, follow=False).is_allowed


def _as_given(path: Any) -> Any:
    return os.fspath(path) if isinstance(path, os.PathLike) else path


def _path_for_new_file(tree: Tree, place: Place, flags: int) -> str:
    if not flags & os.O_CREAT:
        raise error(errno.ENOENT)
    _check_folder_permissions(tree, place.folder)
    return tree.new_path(place)


def _check_file_permissions(place: Place, flags: int) -> None:
    wanted = os.W_OK if flags & (os.O_WRONLY | os.O_RDWR | os.O_TRUNC) else 0
    if not flags & os.O_WRONLY:
        wanted |= os.R_OK
    _check_access(place.to_read(), wanted)


def _check_folder_permissions(tree: Tree, folder: Folder) -> None:
    _check_access(tree.permissions_path(folder), os.W_OK | os.X_OK)


def _check_access(path: str, wanted: int) -> None:
    if not REAL.access(path, wanted, effective_ids=True):
        is_read_only = bool(REAL.statvfs(path).f_flag & os.ST_RDONLY)
        raise error(errno.EROFS if is_read_only else errno.EACCES)


def _check_may_remove(tree: Tree, place: Place) -> None:
    _check_folder_permissions(tree, place.folder)
    if place.is_real:
        assert place.info is not None
        owner = REAL.stat(place.folder.path)
        if owner.st_mode & stat.S_ISVTX and os.geteuid() not in (0, owner.st_uid, place.info.st_uid):
            raise error(errno.EPERM)  # in /tmp, users may remove only their own files


def _check_may_change(
    place: Place, function: Callable, arguments: tuple[Any, ...], more: dict[str, Any]
) -> None:
    """Users who may write may change contents, and set times to now; only the owner may change anything else."""
    assert place.info is not None  # it is a real entry
    if place.is_folder and function is REAL.truncate:
        raise error(errno.EISDIR)
    is_owner = os.geteuid() in (0, place.info.st_uid)
    is_touched = function is REAL.utime and arguments in ((), (None,)) and not more
    if function is REAL.truncate or (is_touched and not is_owner):
        _check_access(place.to_read(), os.W_OK)
    elif not is_owner:
        raise error(errno.EPERM)


def _check_may_move(tree: Tree, old: Place, new: Place) -> None:
    for place in (old, new):
        inside = f"{place.path.rstrip('/')}/"
        if place.path == "/" or any(path == place.path or path.startswith(inside) for path in tree.allowed):
            raise error(_BUSY)
    if new.path.startswith(f"{old.path}/"):
        raise error(errno.EINVAL)
    if old.path.startswith(f"{new.path}/"):
        raise error(errno.ENOTEMPTY)
    if new.info is None:
        pass
    elif old.is_folder:
        if not new.is_folder:
            raise error(errno.ENOTDIR)
        if tree.entries(tree.folder(new.path)):
            raise error(errno.ENOTEMPTY)
    elif new.is_folder:
        raise error(errno.EISDIR)
    _check_may_remove(tree, old)
    _check_folder_permissions(tree, new.folder)


def _is_other_name(old: Place, new: Place) -> bool:
    """Whether two hard links name one file: then POSIX requires that nothing happens."""
    if old.info is None or new.info is None or old.is_folder:
        return False
    return os.path.samestat(old.info, new.info)


def _note_move(tree: Tree, old: Place, new: Place, was_real: bool) -> None:
    """Log the move for the list of changes: the trees do not show where something came from."""
    line = json.dumps([old.path, new.path, was_real]).encode() + b"\n"
    fd = REAL.open(f"{tree.base}/moves", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, line)
    finally:
        os.close(fd)
