"""Files where a user of MindSpore's own dry run looks for them.

    MS_ALLOC_CONF=memory_tracker:True ──> out/rank3/memory_block.csv ──> rank3/memory_block.csv in the running directory
    mindspore.Profiler in the script ───> out/rank3/trace_view.json ───> its folder ..._ascend_ms/ASCEND_PROFILER_OUTPUT

MindSpore writes these files there because the user asks for them. The script itself still changes nothing: it is the
command that copies the files, after the run, and only to places where nothing is.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from windtunnel.errors import CorruptFile
from windtunnel.events.file import read_recording

__all__ = ["asks_for_blocks", "copy_blocks", "copy_traces"]

_NAME = "memory_block.csv"
_TRACE = "trace_view.json"


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
        if target.exists() or target.is_symlink():
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
        told.append(
            f"{refused[0]} could not be written, or was there before and is unchanged: the new one is in {folder}"
        )
    return told


def copy_traces(folder: Path, ranks: Iterable[int]) -> list[str]:
    """Copy the trace of each rank to the folders of the Profiler in its script; return a sentence about where."""
    copied = []
    for rank in ranks:
        source = folder / f"rank{rank}" / _TRACE
        for home in (
            _profiler_folders(folder / f"rank{rank}" / "recording.arrows") if source.is_file() else ()
        ):
            target = home / "ASCEND_PROFILER_OUTPUT" / _TRACE
            with suppress(OSError):  # another machine's folder
                target.parent.mkdir(parents=True)  # its name has a process and a time: it is always new
                shutil.copyfile(source, target)
                copied.append(target)
    if not copied:
        return []
    more = f" (and {len(copied) - 1} more like it)" if len(copied) > 1 else ""
    return [f"{copied[0]} was written for the script's Profiler, with times of the model{more}"]


def _profiler_folders(recording: Path) -> list[Path]:
    try:
        found = read_recording(recording).footer.get("profiler_folders", ())
    except CorruptFile:
        return []
    return [Path(path) for path in found if isinstance(path, str) and Path(path).is_absolute()]
