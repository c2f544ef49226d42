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
    for name in _FILES_OF_RUN:
        (folder / name).unlink(missing_ok=True)
        for half in folder.glob(f".{name}.????????"):  # of a run that was killed while it wrote
            half.unlink(missing_ok=True)
    for rank in folder.iterdir():
        if re.fullmatch(r"rank\d+", rank.name) and rank.is_dir() and not rank.is_symlink():
            for name in _FILES_OF_RANK:
                (rank / name).unlink(missing_ok=True)
            if not any(rank.iterdir()):
                rank.rmdir()
