"""Claim an output folder without destroying what an earlier run left in it.

    step0/rank0 of an earlier run ──> step0/rank0/earlier1     then earlier2, ...
    step0/rank0 in use right now  ──> we write to step0/rank0/beside1

Inside the rank folder and not next to it, because readers of dumps reject or misread an unknown folder beside `rank0`.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

from windtunnel.foreign_files import open_file
from windtunnel.probe.files.journal import JOURNAL_NAME, is_being_written
from windtunnel.probe.files.notices import tell
from windtunnel.probe.files.recover import recover_folder
from windtunnel.whole_file import replace_file

__all__ = ["claim_folder"]

_LONGEST_HEADER = 16384  # bytes: the path of the tensors is within these
_told: set[Path] = set()  # once per dump, not once per step


def claim_folder(path: Path | str) -> Path:
    """Return an empty folder to write to: `path`, after moving away what an earlier run left there.

    Raises OSError if it cannot be created.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    if is_being_written(path):
        beside = _new_folder(path, "beside")
        tell(
            f"another running process writes to {path}, so this one writes to {beside}; "
            "give each run its own dump_path"
        )
        return beside
    items = [item for item in os.listdir(path) if not item.startswith(("earlier", "beside"))]
    if items:
        earlier = _new_folder(path, "earlier")
        for item in items:
            os.rename(path / item, earlier / item)
        _rebase(earlier, path)
        with suppress(Exception):  # damaged files of another run must not stop this one; the journal stays
            recover_folder(earlier)
        root = path.parent.parent
        if root not in _told:
            _told.add(root)
            tell(f"{path} contained {len(items)} files of an earlier run; they are now in {earlier}")
    return path


def _rebase(folder: Path, old: Path) -> None:
    """Update the tensor path in the moved files; otherwise they would refer to the tensors of the new run."""
    for name in ("dump.json", "debug.json", JOURNAL_NAME):
        with suppress(OSError):
            with open_file(folder / name) as file:
                text = file.read()
            head = text[:_LONGEST_HEADER].replace(_quoted_start(old), _quoted_start(folder), 1)
            if head != text[:_LONGEST_HEADER]:
                replace_file(folder, name, (head, memoryview(text)[_LONGEST_HEADER:]))


def _quoted_start(folder: Path) -> bytes:
    return b'"dump_data_dir": ' + json.dumps(f"{folder}/")[:-1].encode()


def _new_folder(path: Path, word: str) -> Path:
    for number in count(1):
        folder = path / f"{word}{number}"
        try:
            folder.mkdir()
            return folder
        except FileExistsError:
            continue
    raise AssertionError("count() does not end")
