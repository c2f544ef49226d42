"""The folder a run writes to: made, or refused in a sentence; only what windtunnel wrote is ever removed.

--out DIR, --force ──> an empty place for report.json and rankR/
"""

from __future__ import annotations

import re
from pathlib import Path

from windtunnel.errors import UsageError

__all__ = ["prepare_folder"]

_FILES_OF_RUN = (
    "report.json", "report.html", "remat.json", "remat.png", "remat.svg", "advice.json", "advice.png",
    "advice.svg", "trace_view.json", "trace.html",
)  # fmt: skip
_FILES_OF_RANK = (
    "run.log", "recording.arrows", "memory.png", "memory.svg", "memory_block.csv", "snapshot.pickle",
    "trace_view.json", "task.json", "crash.txt",
)  # fmt: skip
_RANK = re.compile(r"rank\d+")
_HALF = re.compile(r"\.(?P<name>.+)\.[a-z0-9_]{8}")  # of a run that was killed while it wrote


def prepare_folder(folder: Path, force: bool) -> None:
    """Make the output folder, or say why it cannot be used. Removes only what windtunnel wrote."""
    if Path.cwd().is_relative_to(folder.resolve()):
        raise UsageError(  # the one folder that is not protected from what the script writes
            f"--out {folder} holds the working folder, whose files the dry run protects",
            hint="name a folder of its own",
        )
    try:
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"--out {folder} is a file", hint="name a folder")
        if folder.is_dir() and any(folder.iterdir()):
            if not force:
                raise UsageError(
                    f"--out {folder} is not empty",
                    hint="add --force to replace an earlier run in it, or name another",
                )
            _remove_earlier_run(folder)
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".windtunnel-write-test"
        probe.write_text("", encoding="utf-8")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write to --out {folder}: {error.strerror or error}",
            hint="name another folder with --out",
        ) from error


def _remove_earlier_run(folder: Path) -> None:
    """Refuse a folder with anything else in it: it is the one place where what a script does is real."""
    found = [path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()]
    foreign = sorted(path.relative_to(folder) for path in found if not _is_of_run(path.relative_to(folder)))
    if foreign:
        raise UsageError(
            f"--out {folder} holds {foreign[0]}, which is not of an earlier run: in this folder a script's writes are real",
            hint="name a folder of its own with --out",
        )
    for path in found:
        path.unlink(missing_ok=True)
    for rank in folder.iterdir():
        if _RANK.fullmatch(rank.name) and rank.is_dir() and not any(rank.iterdir()):
            rank.rmdir()


def _is_of_run(path: Path) -> bool:
    """Whether windtunnel wrote this file, named from the folder of a run."""
    half = _HALF.fullmatch(path.name)
    name = half["name"] if half else path.name
    if len(path.parts) == 1:
        return name in _FILES_OF_RUN
    return len(path.parts) == 2 and bool(_RANK.fullmatch(path.parts[0])) and name in _FILES_OF_RANK
