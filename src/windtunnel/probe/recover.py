"""Complete the JSON files of a process that was killed, from its journal, so that any reader of dumps sees it all.

journal.jsonl + dump.json as last flushed ──> dump.json, stack.json, construct.json up to the last record
"""

from __future__ import annotations

import json
from contextlib import suppress
from json.encoder import encode_basestring_ascii as quote
from pathlib import Path

from windtunnel.foreign_files import open_file, parse_json
from windtunnel.probe.atomic_file import replace_file
from windtunnel.probe.journal import JOURNAL_NAME, is_being_written, journal_entries, journal_header
from windtunnel.probe.json_layout import construct_parts, dump_parts, stack_parts

__all__ = ["recover_folder"]


def recover_folder(folder: Path | str) -> int:
    """Bring the files of a killed process up to its last record and remove its journal; returns how many entries.

    A folder without a journal, or of a process that still runs, is left alone: 0. Raises OSError.
    """
    folder = Path(folder)
    found = journal_header(folder)
    if found is None or is_being_written(folder):
        return 0
    file_name, header = found
    if file_name not in ("dump.json", "debug.json"):
        return 0
    # What was flushed while a full disk kept the journal from growing is in the files only; so they come first.
    flushed = _load(folder / file_name).get("data", {})
    bodies = {name: json.dumps(body) for name, body in flushed.items()}
    parents = {name: json.dumps(parent) for name, parent in _load(folder / "construct.json").items()}
    stacks: dict[tuple[str, ...], int] = {}
    stack_of: dict[str, int] = {}
    for names, frames in _load(folder / "stack.json").values():
        number = stacks.setdefault(tuple(frames), len(stacks))
        stack_of.update((quote(name), number) for name in names)
    for kind, name, text in journal_entries(folder):
        if kind == "entry":
            bodies[name] = text
        elif kind == "parent":
            parents[name] = text
        else:
            stack_of[quote(name)] = stacks.setdefault(tuple(json.loads(text)), len(stacks))
    lines = (f"{quote(name)}: {body}".encode() for name, body in bodies.items())
    replace_file(folder, file_name, dump_parts(header | {"complete": False}, lines))
    if (folder / "stack.json").exists():
        replace_file(folder, "stack.json", stack_parts(stacks, stack_of))
    if (folder / "construct.json").exists():
        lines = (f"{quote(name)}: {parent}".encode() for name, parent in parents.items())
        replace_file(folder, "construct.json", construct_parts(lines))
    (folder / JOURNAL_NAME).unlink()
    return len(bodies)


def _load(path: Path) -> dict:
    """A JSON file of ours; empty if it is missing or damaged."""
    with suppress(OSError, ValueError), open_file(path) as file:
        value = parse_json(file.read())
        if isinstance(value, dict):
            return value
    return {}
