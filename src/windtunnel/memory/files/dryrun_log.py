"""The memory facts that MindSpore prints when a process ends, from its logs.

    worker_0.log, worker_1.log, … ──> read_logs ──> RankFacts of every rank, and which logs have none

It reads the five facts of a dry run or a real run, their older wording ("HBM"), the totals of jit level O2, and the
out-of-memory report. Logs may hold several ranks and gigabytes of text, so they are read line by line.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from windtunnel.errors import CorruptFile
from windtunnel.foreign_files import open_file
from windtunnel.units import MIB

__all__ = ["LogReading", "RankFacts", "is_mindspore_log", "read_logs"]

_LONGEST = 1 << 16  # characters of a line that are examined; the facts are on short lines of their own
_SNIFFED_LINES = 20_000
# MODULE(pid,thread,program): how every line of MindSpore's own log begins.
_GLOG = re.compile(r"\b[A-Z][A-Z0-9_]*\((\d{1,10}),[0-9a-f]+,")
_RANK = re.compile(r"RANK_ID: (\d{1,7}), RANK_SIZE: (\d{1,7})")
_FACT = re.compile(
    r"(Device (?:MOC|HBM) memory size|MindSpore Used memory size|Used peak memory usage \(without fragments\)"
    r"|Actual peak memory usage(?: \(with fragments\))?|Total Static Memory size|Total Dynamic memory size)"
    r": (\d{1,10})M"
)
_OOM = re.compile(r"Out of Memory!!! Request memory size: (\d{1,19})B")
_NUMBER_IN_NAME = re.compile(r"(?:worker|rank|log)[_-]?(\d{1,7})(?!\d)")
_FIELDS = {"Device": "device", "MindSpore": "usable", "Used": "used", "Actual": "actual"}


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What one process printed, in bytes; MindSpore prints whole MiB, rounded down. None: not printed."""

    path: Path
    line: int  # of the first fact
    rank: int | None
    device_bytes: int | None
    usable_bytes: int | None  # what MindSpore may use of it
    used_bytes: int | None  # the most in use at once, "without fragments"
    actual_bytes: int | None  # the same "with fragments"
    static_bytes: int | None  # of jit level O2
    dynamic_bytes: int | None
    failed_request_bytes: int | None  # the allocation that failed

    @property
    def need_bytes(self) -> int | None:
        """What a device must have: the largest total it printed."""
        totals = [n for n in (self.used_bytes, self.actual_bytes) if n is not None]
        if self.static_bytes is not None or self.dynamic_bytes is not None:
            totals.append((self.static_bytes or 0) + (self.dynamic_bytes or 0))
        if not totals:
            return None
        return max(totals) + (self.failed_request_bytes or 0)

    def fits(self, usable_bytes: int) -> bool | None:
        """Whether the need fits; a printed MiB may hide almost one more. None: not known."""
        return None if self.need_bytes is None else self.need_bytes + MIB <= usable_bytes


@dataclass(frozen=True)
class LogReading:
    """All ranks of some logs, by rank, and the MindSpore logs without any facts."""

    facts: tuple[RankFacts, ...]
    silent: tuple[Path, ...]

    @property
    def worst(self) -> RankFacts:
        return max(self.facts, key=lambda facts: facts.need_bytes or 0)


@dataclass(slots=True)
class _Process:
    """What is known so far of one process of a log."""

    line: int = 0
    rank: int | None = None
    values: dict[str, int] = field(default_factory=dict)


def read_logs(paths: Iterable[Path]) -> LogReading:
    """Read every log; a text that is not a MindSpore log is refused."""
    found: list[RankFacts] = []
    silent: list[Path] = []
    for path in paths:
        processes, is_mindspore = _read(path)
        if not is_mindspore and not processes:
            raise CorruptFile(
                f"{path} is not a MindSpore log: it has none of the lines that MindSpore prints"
            )
        if not processes:
            silent.append(path)
        only_one = len(processes) == 1
        found += (_facts(path, process, only_one) for process in processes)
    found.sort(key=lambda facts: (facts.rank is None, facts.rank or 0))
    return LogReading(tuple(found), tuple(silent))


def is_mindspore_log(path: Path) -> bool:
    """Whether a text has a line of MindSpore's log or one of its memory facts."""
    for number, text in _lines(path):
        if _FACT.search(text) or _OOM.search(text) or _GLOG.search(text):
            return True
        if "\0" in text or number > _SNIFFED_LINES:
            return False
    return False


def _read(path: Path) -> tuple[list[_Process], bool]:
    """The processes that printed facts, in order, and whether anything at all is MindSpore's."""
    known: dict[str, _Process] = {}  # by process id; "" before any is known
    printed: list[_Process] = []
    pid, is_mindspore = "", False
    for line, text in _lines(path):
        if glog := _GLOG.search(text):
            pid, is_mindspore = glog.group(1), True
        process = known.setdefault(pid, _Process())
        if rank := _RANK.search(text):
            process.rank = int(rank.group(1))
        if oom := _OOM.search(text):
            process.values["failed"] = max(int(oom.group(1)), process.values.get("failed", 0))
        if fact := _FACT.search(text):
            name, n_bytes = _field(fact.group(1)), int(fact.group(2)) * MIB
            if not pid and name in process.values:
                # Facts collected from many logs carry no process: a fact seen again belongs to the next.
                process = known[pid] = _Process()
            if not process.line:
                process.line = line
                printed.append(process)
            process.values[name] = max(n_bytes, process.values.get(name, 0))
    return printed, is_mindspore


def _field(label: str) -> str:
    first, second = label.split()[:2]
    return second.lower() if first == "Total" else _FIELDS[first]


def _facts(path: Path, process: _Process, is_only_one: bool) -> RankFacts:
    rank = process.rank
    if rank is None and is_only_one:
        named = _NUMBER_IN_NAME.search(path.name) or _NUMBER_IN_NAME.search(path.absolute().parent.name)
        rank = int(named.group(1)) if named else None
    names = ("device", "usable", "used", "actual", "static", "dynamic", "failed")
    return RankFacts(path, process.line, rank, *(process.values.get(name) for name in names))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Number and beginning of every line."""
    try:
        with open_file(path, "r", encoding="utf-8", errors="replace", newline="\n") as file:
            number, is_rest = 0, False
            for text in iter(lambda: file.readline(_LONGEST), ""):
                if not is_rest:
                    number += 1
                    yield number, text
                is_rest = not text.endswith("\n")
    except OSError as error:
        raise CorruptFile(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from error
