"""Complete the dump of a training run that was killed, so that other tools can read it up to the last call.

DIR is a dump folder of PrecisionDebugger, or a step or a rank inside one. Its dump.json, stack.json and construct.json
are written from the journal that the process left in the same folder; complete files are not changed. `windtunnel
compare` reads journals itself: this command is for other tools, such as msProbe.
"""

from __future__ import annotations

import json
import shlex
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from windtunnel import __version__
from windtunnel.errors import CorruptFile, UsageError
from windtunnel.probe.compare.steps_and_ranks import find_parts
from windtunnel.probe.files.dump_entries import DumpEntries
from windtunnel.probe.files.journal import is_being_written
from windtunnel.probe.files.recover import Recovery, complete_files

__all__ = ["add_arguments", "run"]

SCHEMA = 1
_SHOWN = 8  # folders listed by name; the others are counted


@dataclass(frozen=True, slots=True)
class _Done:
    """What was done with every step of every rank below a path."""

    recovered: tuple[Recovery, ...]
    complete: tuple[Path, ...]
    running: tuple[Path, ...]
    lost: tuple[Path, ...]  # cut off, and without a journal to complete them from


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = "example: windtunnel recover dump"
    parser.add_argument("directory", type=Path, metavar="DIR", help="a dump folder, a step or a rank")
    parser.add_argument("--json", action="store_true", help="print what was done to stdout as JSON")


def run(args: Namespace) -> int:
    """Recover every folder and print what was done."""
    done = _recover(args.directory)
    if args.json:
        print(json.dumps(_document(args.directory, done), indent=1, ensure_ascii=False))
        return 0
    for line in _lines(args.directory, done):
        print(line)
    path = shlex.quote(str(args.directory))
    print(f"\nnext: windtunnel compare {path} OTHER   (where do the two runs diverge?)")
    return 0


def _recover(path: Path) -> _Done:
    recovered: list[Recovery] = []
    complete: list[Path] = []
    running: list[Path] = []
    lost: list[Path] = []
    for part in find_parts(path):
        folder = part.folder
        if is_being_written(folder):
            running.append(folder)
        elif (found := _complete(folder)) is not None:
            recovered.append(found)
        else:
            (complete if _is_whole(folder) else lost).append(folder)
    if lost and not recovered:
        raise CorruptFile(
            f"cannot recover {lost[0]}: it is truncated, and there is no readable journal in the same folder",
            hint="dump it again",
        )
    return _Done(tuple(recovered), tuple(complete), tuple(running), tuple(lost))


def _complete(folder: Path) -> Recovery | None:
    try:
        return complete_files(folder)
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror or error}; its journal is unchanged",
            hint="make it writable, or recover a copy of the dump",
        ) from error


def _is_whole(folder: Path) -> bool:
    """Whether the files can be read to their end and are marked complete or recovered; msProbe's have no mark."""
    entries = DumpEntries(folder)
    try:
        for _ in entries:
            pass
    except CorruptFile:
        return False
    return entries.header.get("recovered") is True or not entries.was_killed


def _lines(path: Path, done: _Done) -> Iterator[str]:
    if done.recovered:
        n_added = sum(found.n_added for found in done.recovered)
        n_entries = sum(found.n_entries for found in done.recovered)
        yield f"Recovered: {n_added} entries from {len(done.recovered)} journals; the files now have {n_entries}."
        for found in done.recovered[:_SHOWN]:
            yield f"  {found.folder / found.file_name}: {found.n_entries} entries, up to {found.last or 'none'}"
        if len(done.recovered) > _SHOWN:
            yield f"  and {len(done.recovered) - _SHOWN} more"
    elif done.complete:
        yield f"Nothing to recover: the files in {path} are complete ({len(done.complete)} folders)."
    if done.running:
        yield f"Skipped: {len(done.running)} folders that a running process is writing to ({done.running[0]})."
    if done.lost:
        yield f"Not recovered: {len(done.lost)} truncated folders have no journal ({done.lost[0]})."


def _document(path: Path, done: _Done) -> dict[str, object]:
    return {
        "schema": SCHEMA,
        "windtunnel": __version__,
        "directory": str(path),
        "recovered": [
            {
                "folder": str(found.folder),
                "file": found.file_name,
                "entries": found.n_entries,
                "entries_from_journal": found.n_added,
                "last_entry": found.last or None,
            }
            for found in done.recovered
        ],
        "complete": [str(folder) for folder in done.complete],
        "being_written": [str(folder) for folder in done.running],
        "not_recovered": [str(folder) for folder in done.lost],
    }
