"""The logs of workers under the names that msrun gives them.

--log_dir msrun_log ──> OUT/msrun_log/worker_0.log, a link to OUT/rank0/run.log
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

__all__ = ["is_worker_log", "link_worker_logs", "worker_log"]

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


def is_worker_log(path: Path) -> bool:
    """Whether a file of an output folder is such a link."""
    return path.is_symlink() and _TARGET.fullmatch(os.readlink(path)) is not None
