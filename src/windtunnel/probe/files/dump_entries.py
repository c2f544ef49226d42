"""The entries of one step of one rank, whatever its process left: complete files, or a journal beside them.

    dump.json, debug.json ──> entries up to where the file is truncated ──┐
    journal.jsonl of a killed process ──> what it recorded since ─────────┴──> (name, body), one after another

Reading never modifies the folder. `windtunnel recover` completes its files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from windtunnel.errors import CorruptFile
from windtunnel.probe.files.journal import JOURNAL_NAME, is_being_written, journal_entries, journal_header
from windtunnel.probe.files.json_stream import EntryStream, read_object

__all__ = ["DATA_FILES", "DumpEntries", "read_beside"]

DATA_FILES = ("dump.json", "debug.json")


class DumpEntries:
    """Iterate once over (name, body); a repeated name replaces the first. The attributes are known afterwards."""

    def __init__(
        self,
        folder: Path,
        files: tuple[str, ...] | None = None,
        on_bytes: Callable[[int], None] = lambda n_bytes: None,
    ) -> None:
        self.folder = folder
        self.header: dict[str, Any] = {}
        self.was_killed = False  # or is still running
        self.is_running = False
        self.n_recovered = 0  # entries that only the journal has
        self.n_in_files = 0
        self._files = (
            tuple(name for name in DATA_FILES if (folder / name).is_file()) if files is None else files
        )
        self._on_bytes = on_bytes

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        has_journal = (self.folder / JOURNAL_NAME).is_file()
        known: set[str] = set()
        for file in self._files:
            stream = EntryStream(self.folder / file, self._on_bytes)
            try:
                for name, body in stream:
                    self.n_in_files += 1
                    if has_journal:
                        known.add(name)
                    yield name, body
            except CorruptFile:
                if not has_journal or journal_header(self.folder) is None:
                    raise
            self.header = {**stream.header, **self.header}
        # A process that was killed just before removing its journal leaves it beside complete files.
        has_journal = has_journal and self.header.get("complete") is not True
        self.was_killed = has_journal or self.header.get("complete") is False
        if not has_journal:
            return
        self.is_running = is_being_written(self.folder)
        self.header = {**((journal_header(self.folder) or ("", {}))[1]), **self.header}
        for kind, name, text in journal_entries(self.folder):
            if kind == "entry":
                self.n_recovered += name not in known
                known.add(name)
                yield name, json.loads(text)


def read_beside(folder: Path, name: str) -> dict[str, Any]:
    """stack.json or construct.json; {} if it is missing, or truncated while a journal has the same."""
    try:
        return read_object(folder / name)
    except CorruptFile:
        if journal_header(folder) is None:
            raise
        return {}
