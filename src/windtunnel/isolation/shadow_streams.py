"""Redirect what opens files without calling a function of `os`.

open, io.FileIO, sqlite3.connect, subprocess's working folder ──> path in the Tree ──> the original function
"""

from __future__ import annotations

import _posixsubprocess
import functools
import io
import os
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, unquote

from windtunnel.isolation.real_files import REAL
from windtunnel.isolation.shadow_calls import naming, open_descriptor, path_to_open
from windtunnel.isolation.shadow_tree import AnyPath, Tree, as_text

try:
    import sqlite3
except ImportError:  # a Python that was built without it
    sqlite3 = None  # type: ignore[assignment]

__all__ = ["stream_wrappers"]

_FORK_EXEC_FOLDER = 4  # which argument of fork_exec is the working folder
_Opener = Callable[[AnyPath, int], int]


def stream_wrappers(tree: Tree) -> list[tuple[Any, Any]]:
    """Each function or class that is replaced, with its replacement."""

    def opener(path: AnyPath, flags: int) -> int:
        return naming(path, None, lambda: open_descriptor(tree, path, flags, 0o666))

    pairs = [
        (REAL.open_stream, _open_stream(opener)),
        (REAL.open_code, _open_code(opener)),
        (REAL.FileIO, _file_io(opener)),
        (_posixsubprocess.fork_exec, _fork_exec(tree, _posixsubprocess.fork_exec)),
    ]
    if sqlite3 is not None:
        pairs.append((sqlite3.connect, _connect(tree, sqlite3.connect)))
    return pairs


def _open_stream(by_path: _Opener) -> Callable:
    @functools.wraps(REAL.open_stream)
    def open(
        file: AnyPath | int,
        mode: str = "r",
        buffering: int = -1,
        encoding: str | None = None,
        errors: str | None = None,
        newline: str | None = None,
        closefd: bool = True,
        opener: Callable[[AnyPath, int], int] | None = None,
    ) -> Any:
        # A script's own opener calls os.open in the end, which is redirected too.
        if opener is None and not isinstance(file, int):
            opener = by_path
        return REAL.open_stream(file, mode, buffering, encoding, errors, newline, closefd, opener)

    return open


def _open_code(by_path: _Opener) -> Callable:
    @functools.wraps(REAL.open_code)
    def open_code(path: str) -> io.BufferedReader:
        return REAL.open_stream(path, "rb", opener=by_path)

    return open_code


def _file_io(by_path: _Opener) -> type:
    class AnyFileIO(type):
        """Files that `open` made are instances too."""

        def __instancecheck__(cls, instance: object) -> bool:
            return isinstance(instance, REAL.FileIO)

        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, REAL.FileIO)

    real_file_io: Any = REAL.FileIO

    class FileIO(real_file_io, metaclass=AnyFileIO):
        def __init__(self, file: AnyPath | int, mode: str = "r", closefd: bool = True, opener: Any = None):
            if opener is None and not isinstance(file, int):
                opener = by_path
            super().__init__(file, mode, closefd, opener)

    return FileIO


def _fork_exec(tree: Tree, original: Callable) -> Callable:
    """Start a program in a folder that the script created; its arguments do not change."""

    @functools.wraps(original)
    def fork_exec(*arguments: Any) -> int:
        folder = arguments[_FORK_EXEC_FOLDER]
        if folder is not None:
            place = tree.place(as_text(folder))
            if place.is_folder and not tree.folder(place.path).is_real:
                arguments = (
                    *arguments[:_FORK_EXEC_FOLDER],
                    place.actual,
                    *arguments[_FORK_EXEC_FOLDER + 1 :],
                )
        return original(*arguments)

    return fork_exec


def _connect(tree: Tree, original: Callable) -> Callable:
    @functools.wraps(original)
    def connect(database: AnyPath, *arguments: Any, **more: Any) -> Any:
        text = as_text(database)
        if not more.get("uri") or not text.startswith("file:"):
            return original(_database_path(tree, text), *arguments, **more)
        name, question_mark, options = text.removeprefix("file:").partition("?")
        if "mode=memory" not in options:
            may_write = "mode=ro" not in options and "immutable=1" not in options
            name = quote(_database_path(tree, unquote(name).removeprefix("//"), may_write))
        return original(f"file:{name}{question_mark}{options}", *arguments, **more)

    return connect


def _database_path(tree: Tree, path: str, may_write: bool = True) -> str:
    """Where SQLite, which opens files itself, finds a database: in a copy, unless it only reads."""
    if path in ("", ":memory:"):
        return path
    place = tree.place(path)
    if not may_write or (place.actual and not REAL.access(place.actual, os.W_OK, effective_ids=True)):
        return place.to_read()
    for ending in ("-journal", "-wal"):  # changes that are not in the database yet
        if tree.place(path + ending).info is not None:
            path_to_open(tree, path + ending, os.O_RDWR)
    return path_to_open(tree, path, os.O_RDWR | os.O_CREAT)
