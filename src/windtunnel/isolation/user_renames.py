"""Rename folders in the layer of a user namespace: copy and remove, as `mv` does between file systems.

os.rename(real folder, new name) ──> EXDEV, because the kernel has no redirects there ──> copytree, rmtree
"""

from __future__ import annotations

import errno
import os
import pathlib
import shutil
from collections.abc import Callable
from typing import Any

__all__ = ["install"]


def install() -> None:
    """Let os.rename and os.replace of this process move folders that existed before the run."""
    for name in ("rename", "replace"):
        moving = _copying_instead(getattr(os, name))
        setattr(os, name, moving)
        accessor = getattr(
            pathlib, "_NormalAccessor", None
        )  # Python 3.10 keeps the functions it found when it was imported
        if accessor is not None:
            setattr(accessor, name, staticmethod(moving))


def _copying_instead(original: Callable[..., None]) -> Callable[..., None]:
    def move(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        try:
            return original(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        except OSError as error:
            if error.errno != errno.EXDEV or src_dir_fd is not None or dst_dir_fd is not None:
                raise
            if (
                not os.path.isdir(src)
                or os.path.islink(src)
                or os.stat(src).st_dev != os.stat(_parent(dst)).st_dev
            ):
                raise  # a move between two file systems would fail on the real disk, too
        if os.path.lexists(dst):
            os.rmdir(
                dst
            )  # an empty folder may be replaced; anything else raises here, as it would on the real disk
        shutil.copytree(src, dst, symlinks=True)
        shutil.rmtree(src)

    return move


def _parent(path: Any) -> str:
    return os.path.dirname(os.path.abspath(os.fsdecode(path)))
