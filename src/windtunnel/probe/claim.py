"""Make a folder ours without destroying what an earlier run left in it.

    step0/rank0 of an earlier run ──> step0/rank0/earlier1     then earlier2, ...
    step0/rank0 in use just now   ──> we write to step0/rank0/beside1

Below the rank folder and not next to it, because readers of dumps refuse or misread a stranger beside `rank0`.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from itertools import count
from pathlib import Path

from windtunnel.foreign_files import open_file
from windtunnel.probe.atomic_file import replace_file
from windtunnel.probe.journal import JOURNAL_NAME, is_being_written
from windtunnel.probe.notice import tell
from windtunnel.probe.recover import recover_folder

__all__ = ["claim_folder"]

_LONGEST_HEADER = 16384  # bytes in which the path of the tensors stands
_told: set[Path] = set()  # once per dump, not once per step


def claim_folder(path: Path | str) -> Path:
    """Return an empty folder to write in: `path`, once what an earlier run left there is out of the way.

    Raises OSError where it cannot be made.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    if is_being_written(path):
        beside = _new_folder(path, "beside")
        tell(f"another process that is still running writes to {path}, so this one writes to {beside}; "
             f"give each run a dump_path of its own")  # fmt: skip
        return beside
    items = [item for item in os.listdir(path) if not item.startswith(("earlier", "beside"))]
    if items:
        earlier = _new_folder(path, "earlier")
        for item in items:
            os.rename(path / item, earlier / item)
        _rebase(earlier, path)
        with suppress(
            Exception
        ):  # damaged files of another run are no reason to stop this one; the journal stays
            recover_folder(earlier)
        root = path.parent.parent
        if root not in _told:
            _told.add(root)
            tell(f"{path} holds {len(items)} files of an earlier run; they are now in {earlier}")
    return path


def _rebase(folder: Path, old: Path) -> None:
    """Make the moved files say where their tensors are now; else they would name those of the new run."""
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
