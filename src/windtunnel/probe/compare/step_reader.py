"""Read one step of one rank from disk into columns; its call stacks and structure on demand.

    dump.json, debug.json, or the journal of a killed process ──> read_part ──> DumpData
    stack.json ──> stack_of        construct.json ──> parents

Reads what msProbe writes and what we write. A name of a tensor file in a dump is a name, never a path.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from windtunnel.errors import CorruptFile
from windtunnel.probe.compare.steps_and_ranks import DumpPart
from windtunnel.probe.compare.value_columns import ColumnBuilder, Columns, Vocabulary
from windtunnel.probe.files.dump_entries import DumpEntries, read_beside
from windtunnel.probe.files.journal import journal_entries

__all__ = ["DumpData", "read_part"]

_TENSOR_FOLDER = "dump_tensor_data"
_PASS = re.compile(r"\.pass\d+(?=\.backward(?:\.\d+)?$)")


@dataclass(frozen=True)
class DumpData:
    """What one rank collected in one step."""

    part: DumpPart
    header: dict[str, Any]
    columns: Columns
    was_killed: bool  # or is still running
    is_running: bool = False
    n_recovered: int = 0  # entries that only its journal has

    @property
    def is_ours(self) -> bool:
        return "windtunnel" in self.header

    @cached_property
    def parents(self) -> dict[str, str | None]:
        """Entry -> the module it ran in."""
        found = read_beside(self.part.folder, "construct.json")
        for kind, name, text in journal_entries(self.part.folder):
            if kind == "parent":
                found[name] = json.loads(text)
        # Megatron: [parent, number of the micro step]
        plain = {
            name: parent[0] if isinstance(parent, list) and parent else parent
            for name, parent in found.items()
        }
        return {name: parent if isinstance(parent, str) else None for name, parent in plain.items()}

    @cached_property
    def _stacks(self) -> dict[str, tuple[str, ...]]:
        found: dict[str, tuple[str, ...]] = {}
        for group in read_beside(self.part.folder, "stack.json").values():
            if isinstance(group, list) and len(group) == 2 and all(isinstance(part, list) for part in group):
                frames = tuple(frame for frame in group[1] if isinstance(frame, str))
                found |= {name: frames for name in group[0] if isinstance(name, str)}
        for kind, name, text in journal_entries(self.part.folder):
            if kind == "stack" and isinstance(frames_read := json.loads(text), list):
                found[name] = tuple(map(str, frames_read))
        return found

    def stack_of(self, entry: str) -> tuple[str, ...]:
        """The call stack of an entry, innermost first; a backward has that of its forward."""
        forward = (
            _PASS.sub("", entry).replace(".backward.", ".forward.").replace(".parameters_grad.", ".forward.")
        )
        if forward.endswith(".backward"):
            forward = forward.removesuffix(".backward") + ".forward"
        return self._stacks.get(entry) or self._stacks.get(forward) or ()

    def tensor_path(self, row: int) -> Path | None:
        """The tensor file of a row, if it has one inside the folder for them."""
        name = self.columns.files.get(row)
        if not name or "/" in name or "\\" in name or "\0" in name or name in (".", ".."):
            return None
        path = self.part.folder / _TENSOR_FOLDER / name
        return path if path.is_file() and not path.is_symlink() else None


def read_part(
    part: DumpPart, words: Vocabulary, on_bytes: Callable[[int], None] = lambda n_bytes: None
) -> DumpData:
    """Read one rank; `on_bytes` is called with the number of bytes read since its last call."""
    builder = ColumnBuilder(words)
    entries = DumpEntries(part.folder, part.files, on_bytes)
    n_entries = 0
    for entry, body in entries:
        builder.add_entry(entry, body)
        n_entries += 1
    data = DumpData(
        part, entries.header, builder.finish(), entries.was_killed, entries.is_running, entries.n_recovered
    )
    if not n_entries and entries.header.get("task") == "structure":
        for entry in data.parents:  # nothing but the names was collected
            builder.add_entry(entry, {})
        data = replace(data, columns=builder.finish())
    if n_entries and not data.columns.entries:
        raise CorruptFile(f"{part.folder} contains no readable entry", hint="collect it again")
    return data
