"""The logs of workers under the names that msrun gives them.

--log_dir msrun_log ──> OUT/msrun_log/worker_0.log and msrun_log/worker_0.log, links to OUT/rank0/run.log
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["is_worker_log", "link_worker_logs", "show_worker_logs", "worker_log"]

_TARGET = re.compile(r"\.\./rank\d+/run\.log")


def worker_log(rank: int) -> str:
    """The name of a worker's log in msrun's --log_dir."""
    return f"worker_{rank}.log"


def link_worker_logs(folder: Path, log_dir: str, ranks: Iterable[int]) -> None:
    """Show each simulated rank's log in the output folder under msrun's name for it."""
    place = folder / (Path(log_dir).name or "logs")
    with suppress(OSError):  # a file system without links
        place.mkdir(exist_ok=True)
        for rank in ranks:
            link = place / worker_log(rank)
            if not link.is_symlink():
                link.symlink_to(Path("..") / f"rank{rank}" / "run.log")


def show_worker_logs(folder: Path, place: Path, ranks: Iterable[int]) -> list[str]:
    """Show the logs in msrun's own --log_dir too, where nothing is; return sentences about where they are."""
    shown, refused = [], []
    for rank in ranks:
        log, link = folder / f"rank{rank}" / "run.log", place / worker_log(rank)
        if not log.is_file():
            continue
        try:
            place.mkdir(parents=True, exist_ok=True)
            if link.resolve() != log.resolve():  # an earlier run with the same output folder has left it
                link.symlink_to(log.resolve())
        except OSError:
            refused.append(link)
            continue
        shown.append(link)
    told = []
    if shown:
        more = f" (and those of {len(shown) - 1} other ranks beside it)" if len(shown) > 1 else ""
        told.append(f"{shown[0]} is the log of the worker, where msrun puts it{more}")
    if refused:
        told.append(
            f"{refused[0]} could not be written, or was there before and is unchanged: the new log is in {folder}"
        )
    return told


def is_worker_log(path: Path) -> bool:
    """Whether a file of an output folder is such a link."""
    return path.is_symlink() and _TARGET.fullmatch(os.readlink(path)) is not None
