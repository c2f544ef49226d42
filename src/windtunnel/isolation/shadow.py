"""Redirect the file functions of this Python process: writes go to a separate folder, and reads see them.

    os.stat, os.rename, open, … ──> wrapper by kind of access (the table below) ──> shadow_calls on the Tree

For machines without mount namespaces. Native code (C, C++, Rust) that opens files itself is not redirected;
`shadow_path` returns where it should read or write.
"""

from __future__ import annotations

import functools
import glob
import os
import pathlib
import stat
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from windtunnel.isolation import shadow_calls
from windtunnel.isolation.real_files import REAL
from windtunnel.isolation.shadow_calls import naming
from windtunnel.isolation.shadow_listing import list_names, scan
from windtunnel.isolation.shadow_streams import stream_wrappers
from windtunnel.isolation.shadow_tree import AnyPath, Tree, as_text

__all__ = ["install_shadow", "shadow_path"]

# Modules of the standard library (3.10 to 3.13) whose classes hold functions of `os`, as attributes or as default
# arguments. They are imported here, before the functions are replaced: in a class, a wrapper would become a method.
_HOLDERS = (glob, pathlib, tempfile)

_installed: list[Tree] = []  # none or one


def install_shadow(base: Path, allowed: Sequence[str | os.PathLike]) -> None:
    """Redirect what this process and its forks write outside `allowed` to `base`; cannot be undone.

    Several processes may share one `base`, and see the same files.
    """
    if _installed:
        if _installed[0].base != os.path.realpath(base):
            raise RuntimeError(f"files are already redirected to {_installed[0].base}")
        return
    tree = Tree(os.fspath(base), [os.fspath(path) for path in allowed])
    table = {id(original): wrapper for original, wrapper in (*_wrappers(tree), *stream_wrappers(tree))}
    _replace_everywhere(table)
    _installed.append(tree)


def shadow_path(path: AnyPath, for_writing: bool, *, is_emptied: bool = False) -> str:
    """Where code that is not redirected should read or write what the script calls `path`.

    For writing, its folder is created, and the file's contents are copied unless `is_emptied` says that they will be
    overwritten. Without a shadow, this is the path itself.
    """
    text = as_text(path)
    if not _installed:
        return text
    tree = _installed[0]
    if not for_writing:
        place = tree.place(text)
        return place.actual or tree.upper + place.path  # where nothing exists, and no real file is visible
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if is_emptied else 0)
    return naming(path, None, lambda: shadow_calls.path_to_open(tree, text, flags))


# ---- which function is redirected how

# name -> whether a link at the end of the path is followed; None: as its `follow_symlinks` says
_READ = {
    "getxattr": None,
    "listxattr": None,
    "lstat": False,
    "pathconf": True,
    "readlink": False,
    "stat": None,
    "statvfs": True,
}
_CHANGE = {
    "chflags": None,
    "chmod": None,
    "chown": None,
    "lchflags": False,
    "lchmod": False,
    "lchown": False,
    "removexattr": None,
    "setxattr": None,
    "truncate": True,
    "utime": None,
}
_CHANGE_BY_DESCRIPTOR = {"fchmod": "chmod", "fchown": "chown"}
_MAKE = ("mkdir", "mkfifo", "mknod")
_OTHER: dict[str, Callable[..., Any]] = {
    "chdir": shadow_calls.change_folder,
    "fchdir": shadow_calls.change_folder,
    "link": shadow_calls.link,
    "listdir": list_names,
    "open": shadow_calls.open_descriptor,
    "remove": shadow_calls.remove_file,
    "rename": shadow_calls.move,
    "replace": shadow_calls.move,
    "rmdir": shadow_calls.remove_folder,
    "scandir": scan,
    "unlink": shadow_calls.remove_file,
}


def _wrappers(tree: Tree) -> list[tuple[Any, Any]]:
    """Each function or class that is replaced, with its replacement."""
    made: dict[str, Callable] = {name: _reading(tree, name, follow) for name, follow in _READ.items()}
    made |= {name: _changing(tree, name, follow) for name, follow in _CHANGE.items()}
    made |= {name: _changing(tree, other, True) for name, other in _CHANGE_BY_DESCRIPTOR.items()}
    made |= {name: _making(tree, name) for name in _MAKE}
    made |= {name: _calling(tree, function) for name, function in _OTHER.items()}
    made |= {
        "access": _access(tree),
        "getcwd": tree.working_folder,
        "getcwdb": lambda: os.fsencode(tree.working_folder()),
        "stat": _stat(tree, made["stat"]),
        "lstat": _lstat(tree, made["lstat"]),
        "symlink": _symlink(tree),
    }
    pairs = []
    for name, wrapper in made.items():
        if (original := getattr(REAL, name, None)) is not None:
            pairs.append((original, functools.wraps(original)(_plain_function(wrapper))))
            _keep_abilities(*pairs[-1])
    return pairs


def _reading(tree: Tree, name: str, follows: bool | None) -> Callable:
    original: Any = getattr(REAL, name, None)

    def call(path: AnyPath | int, *arguments: Any, dir_fd: int | None = None, **more: Any) -> Any:
        if isinstance(path, int):
            return original(path, *arguments, **more)
        if tree.is_untouched():
            return original(path, *arguments, **(more if dir_fd is None else more | {"dir_fd": dir_fd}))
        follow = more.get("follow_symlinks", True) if follows is None else follows

        def read() -> Any:
            return original(tree.place(as_text(path), dir_fd, follow=follow).to_read(), *arguments, **more)

        result = naming(path, None, read)
        return os.fsencode(result) if name == "readlink" and isinstance(path, bytes) else result

    return call


def _stat(tree: Tree, in_general: Callable) -> Callable:
    original, of_entry = REAL.stat, REAL.lstat

    def stat_(
        path: AnyPath | int, *, dir_fd: int | None = None, follow_symlinks: bool = True
    ) -> os.stat_result:
        # Called for every import and every os.path.exists: the common case comes first.
        if dir_fd is None and follow_symlinks and not isinstance(path, int):
            if tree.is_untouched():
                return original(path)
            text = as_text(path)
            if tree.is_certainly_real(text):
                info = of_entry(text)
                if not stat.S_ISLNK(info.st_mode):
                    return info
        return in_general(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    return stat_


def _lstat(tree: Tree, in_general: Callable) -> Callable:
    original = REAL.lstat

    def lstat(path: AnyPath, *, dir_fd: int | None = None) -> os.stat_result:
        if dir_fd is None and (tree.is_untouched() or tree.is_certainly_real(as_text(path))):
            return original(path)
        return in_general(path, dir_fd=dir_fd)

    return lstat


def _access(tree: Tree) -> Callable:
    def access(path: AnyPath | int, mode: int, *, dir_fd: int | None = None, **more: Any) -> bool:
        if isinstance(path, int) or tree.is_untouched():
            return REAL.access(path, mode, dir_fd=dir_fd, **more)
        text = as_text(path)
        try:
            if dir_fd is None and tree.is_certainly_real(text) and not stat.S_ISLNK(REAL.lstat(text).st_mode):
                return REAL.access(text, mode, **more)
            place = tree.place(text, dir_fd, follow=more.get("follow_symlinks", True))
            has_copy = place.is_folder and place.actual != place.path
            actual = tree.permissions_path(tree.folder(place.path)) if has_copy else place.to_read()
        except OSError:
            return False
        return REAL.access(actual, mode, **more)

    return access


def _changing(tree: Tree, name: str, follows: bool | None) -> Callable:
    original: Any = getattr(REAL, name, None)

    def call(path: AnyPath | int, *arguments: Any, **more: Any) -> None:
        follow = more.get("follow_symlinks", True) if follows is None else follows
        naming(
            path, None, lambda: shadow_calls.change(tree, original, path, *arguments, follow=follow, **more)
        )

    return call


def _making(tree: Tree, name: str) -> Callable:
    original: Any = getattr(REAL, name, None)

    def call(path: AnyPath, *arguments: Any, **more: Any) -> None:
        naming(path, None, lambda: shadow_calls.make(tree, original, path, *arguments, **more))

    return call


def _symlink(tree: Tree) -> Callable:
    def create(at: str, leads_to: AnyPath) -> None:
        REAL.symlink(leads_to, at)

    def symlink(
        src: AnyPath, dst: AnyPath, target_is_directory: bool = False, *, dir_fd: int | None = None
    ) -> None:
        naming(src, dst, lambda: shadow_calls.make(tree, create, dst, os.fspath(src), dir_fd=dir_fd))

    return symlink


def _calling(tree: Tree, function: Callable) -> Callable:
    def call(*arguments: Any, **more: Any) -> Any:
        first = arguments[0] if arguments else more.get("path", more.get("src"))
        second = more.get("dst", arguments[1] if len(arguments) > 1 else None)
        has_two = function in (shadow_calls.move, shadow_calls.link)
        return naming(first, second if has_two else None, lambda: function(tree, *arguments, **more))

    return call


# ---- putting the wrappers in place


def _replace_everywhere(table: dict[int, Any]) -> None:
    """Replace functions wherever a module holds them, also under other names: `from os import stat`."""
    for module in list(sys.modules.values()):
        if not isinstance(module, ModuleType):
            continue
        for name, value in list(vars(module).items()):
            if id(value) in table:
                vars(module)[name] = table[id(value)]
    for module in _HOLDERS:
        for value in list(vars(module).values()):
            if isinstance(value, type) and value.__module__ == module.__name__:
                _replace_in_class(value, table)


def _replace_in_class(holder: type, table: dict[int, Any]) -> None:
    for name, value in list(vars(holder).items()):
        inner = value.__func__ if isinstance(value, staticmethod) else value
        if id(inner) in table:
            setattr(holder, name, staticmethod(table[id(inner)]))
        elif isinstance(value, FunctionType) and value.__defaults__:
            value.__defaults__ = tuple(table.get(id(default), default) for default in value.__defaults__)


def _keep_abilities(original: Callable, wrapper: Callable) -> None:
    """`shutil` and other modules check whether a function is in one of these sets."""
    for able in (os.supports_dir_fd, os.supports_fd, os.supports_follow_symlinks, os.supports_effective_ids):
        if original in able:
            able.add(wrapper)


def _plain_function(wrapper: Callable) -> Callable:
    """`functools.wraps` cannot set attributes of a bound method."""
    if isinstance(wrapper, FunctionType):
        return wrapper
    return lambda *arguments, **more: wrapper(*arguments, **more)
