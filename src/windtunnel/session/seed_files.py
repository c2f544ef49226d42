"""Files where a user of MindSpore's own dry run looks for them.

    MS_ALLOC_CONF=memory_tracker:True ──> out/rank3/memory_block.csv ──> rank3/memory_block.csv in the running directory

MindSpore writes this file there because the variable asks for it. The script itself still changes nothing: it is the
command that copies the file, after the run, and only onto a file of the same kind.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

__all__ = ["asks_for_blocks", "copy_blocks"]

_NAME = "memory_block.csv"
_FIRST_COLUMN = b"start_time_stamp"


def asks_for_blocks(settings: str) -> bool:
    """Whether MS_ALLOC_CONF asks for memory_block.csv."""
    return "memory_tracker:true" in settings.replace(" ", "").lower()


def copy_blocks(folder: Path, settings: str, ranks: Iterable[int]) -> list[str]:
    """Copy the file of each rank to where MS_ALLOC_CONF puts it; return sentences about where they are."""
    words = dict(word.strip().partition(":")[::2] for word in settings.split(",") if ":" in word)
    home = Path(words.get("memory_tracker_path", "").strip() or ".")
    copied, refused = [], []
    for rank in ranks:
        source, target = folder / f"rank{rank}" / _NAME, home / f"rank{rank}" / _NAME
        if not source.is_file() or target.resolve() == source.resolve():
            continue
        if not _may_replace(target):
            refused.append(target)
            continue
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
        except OSError:
            refused.append(target)
            continue
        copied.append(target)
    told = []
    if copied:
        more = f" (and those of {len(copied) - 1} other ranks beside it)" if len(copied) > 1 else ""
        told.append(f"{copied[0]} was written, as MS_ALLOC_CONF asks{more}")
    if refused:
        told.append(f"{refused[0]} was not written: something else is there; see {folder}")
    return told


def _may_replace(target: Path) -> bool:
    if target.is_symlink() or (target.exists() and not target.is_file()):
        return False
    try:
        with target.open("rb") as file:
            return file.read(len(_FIRST_COLUMN)) == _FIRST_COLUMN
    except FileNotFoundError:
        return True
    except OSError:
        return False
