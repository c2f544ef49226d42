"""Complete the JSON files of a killed process from its journal, so that any reader of dumps sees all of it.

journal.jsonl + dump.json as last flushed ──> dump.json, stack.json, construct.json up to the last record
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path
from typing import Any

from windtunnel.errors import CorruptFile
from windtunnel.probe.files.dump_entries import DATA_FILES, DumpEntries
from windtunnel.probe.files.journal import JOURNAL_NAME, is_being_written, journal_entries, journal_header
from windtunnel.probe.files.json_layout import construct_parts, dump_parts, stack_parts
from windtunnel.probe.files.json_stream import read_object
from windtunnel.whole_file import replace_file

__all__ = ["Recovery", "complete_files", "recover_folder"]


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the files of one step of one rank contain now."""

    folder: Path
    file_name: str
    n_entries: int
    n_added: int  # of these, entries that were only in the journal
    last: str  # entry; "" without any


def recover_folder(folder: Path | str) -> int:
    """Bring the files of a killed process up to its last record and remove its journal; return the number of entries.

    A folder without a journal, or of a process that is still running, is left alone: 0. Raises OSError.
    """
    done = complete_files(Path(folder))
    return 0 if done is None else done.n_entries


def complete_files(folder: Path) -> Recovery | None:
    """The same, returning what was done; None if there was nothing to do.

    A complete file is never rewritten. Being killed in the middle of this loses nothing: files are replaced atomically,
    and the journal is removed last.
    """
    found = journal_header(folder)
    if found is None or found[0] not in DATA_FILES or is_being_written(folder):
        return None
    file_name, header = found
    # Entries that were flushed while a full disk kept the journal from growing are only in the files, so read these first.
    files = (file_name,) if (folder / file_name).is_file() else ()
    entries = DumpEntries(folder, files)
    bodies = {name: json.dumps(body) for name, body in entries}
    if entries.header.get("complete") is True:
        (folder / JOURNAL_NAME).unlink()
        return None
    lines = (f"{quote(name)}: {body}".encode() for name, body in bodies.items())
    _write_others(folder, is_debug=file_name == "debug.json")
    replace_file(folder, file_name, dump_parts(header | {"complete": False, "recovered": True}, lines))
    (folder / JOURNAL_NAME).unlink()
    last = next(reversed(bodies), "")
    return Recovery(folder, file_name, len(bodies), entries.n_recovered, last)


def _write_others(folder: Path, *, is_debug: bool) -> None:
    """Write stack.json and construct.json, unless the config turned them off."""
    parents = {name: json.dumps(parent) for name, parent in _load(folder / "construct.json").items()}
    stacks: dict[tuple[str, ...], int] = {}
    stack_of: dict[str, int] = {}
    for names, frames in _load(folder / "stack.json").values():
        number = stacks.setdefault(tuple(frames), len(stacks))
        stack_of.update((quote(name), number) for name in names)
    for kind, name, text in journal_entries(folder):
        if kind == "parent":
            parents[name] = text
        elif kind == "stack":
            stack_of[quote(name)] = stacks.setdefault(tuple(json.loads(text)), len(stacks))
    is_there = (folder / "stack.json").exists() or (folder / "construct.json").exists()
    if is_debug or not (is_there or stack_of or parents):
        return
    replace_file(folder, "stack.json", stack_parts(stacks, stack_of))
    lines = (f"{quote(name)}: {parent}".encode() for name, parent in parents.items())
    replace_file(folder, "construct.json", construct_parts(lines))


def _load(path: Path) -> dict[str, Any]:
    """A JSON file of ours; empty if it is missing or damaged."""
    try:
        return read_object(path)
    except CorruptFile:
        return {}
