"""The memory facts of MindSpore's logs: a row for each rank, the worst one, and whether it fits.

LogFacts (reading, device) ──> render_logs ──> table, notes, the sentence
                           └─> log_document ──> JSON
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windtunnel.memory.files.dryrun_log import LogReading, RankFacts
from windtunnel.units import MIB

__all__ = ["LogFacts", "log_document", "render_logs"]

_NO_WHAT_IF = (
    "these are totals and cannot be replayed with another allocator; record the allocations with "
    "MS_ALLOC_CONF=memory_tracker:True and replay memory_block.csv"
)


@dataclass(frozen=True)
class LogFacts:
    """The contents of the logs, and the device in question."""

    reading: LogReading
    device: str | None
    usable_bytes: int | None

    @property
    def fits(self) -> bool | None:
        """Whether every rank fits; None: no --device, or nothing is known."""
        if self.usable_bytes is None:
            return None
        answers = [facts.fits(self.usable_bytes) for facts in self.reading.facts]
        if False in answers:
            return False
        return True if answers and None not in answers and not self.reading.silent else None


def render_logs(logs: LogFacts) -> RenderableType:
    """Return everything about some logs, for a terminal."""
    reading = logs.reading
    title = f"MindSpore logs: {len(reading.facts)} {'rank' if len(reading.facts) == 1 else 'ranks'}"
    if logs.device is not None:
        title += f", on {logs.device} ({_size(logs.usable_bytes or 0)} usable)"
    parts: list[RenderableType] = [Text(title, style="bold", overflow="fold")]
    if reading.facts:
        parts.append(_table(logs))
    parts += (Text(f"note: {note}") for note in _notes(logs))
    return Group(*parts, Text(), Text(_answer(logs), style="bold red" if logs.fits is False else "bold"))


def log_document(logs: LogFacts) -> dict[str, Any]:
    """Return the same as plain values for JSON."""
    return {
        "kind": "log",
        "ranks": [_row_document(logs, facts) for facts in logs.reading.facts],
        "logs_without_facts": [str(path) for path in logs.reading.silent],
        "fits": logs.fits,
        "notes": list(_notes(logs)),
        "answer": _answer(logs),
    }


def _table(logs: LogFacts) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for heading in ("rank", "device", "may use", "used peak", "with fragments"):
        table.add_column(heading, justify="right", no_wrap=True)
    if logs.usable_bytes is not None:
        table.add_column("fits?", no_wrap=True)
        table.add_column("room", justify="right", no_wrap=True)
    for facts in logs.reading.facts:
        cells = [
            "?" if facts.rank is None else str(facts.rank),
            _size(facts.device_bytes),
            _size(facts.usable_bytes),
            _size(facts.used_bytes if facts.used_bytes is not None else facts.need_bytes),
            _size(facts.actual_bytes),
        ]
        answer = None
        if logs.usable_bytes is not None:
            answer = facts.fits(logs.usable_bytes)
            room = None if facts.need_bytes is None else logs.usable_bytes - facts.need_bytes
            cells += [{True: "yes", False: "no", None: "?"}[answer], _size(room)]
        table.add_row(*cells, style="red" if answer is False else "")
    return table


def _notes(logs: LogFacts) -> Iterator[str]:
    for path in logs.reading.silent:
        yield (
            f"{path} has no memory facts: MindSpore prints them when a process ends, so this one was killed, "
            "failed early, or is still running"
        )
    for facts in logs.reading.facts:
        if facts.failed_request_bytes is not None:
            asked = _size(facts.failed_request_bytes)
            yield f"{_who(facts)} ran out of memory when it requested {asked}; that request is included in its need"
        if facts.static_bytes is not None or facts.dynamic_bytes is not None:
            parts = f"{_size(facts.static_bytes)} static, {_size(facts.dynamic_bytes)} dynamic"
            yield f"{_who(facts)} ran at jit level O2, whose memory is planned by the graph engine: {parts}"
        if _exceeds_its_own(facts):
            yield (
                f"{_who(facts)} needs more than the {_size(facts.usable_bytes)} that MindSpore may use there; "
                "a dry run does not fail because of that, but a real run would"
            )
    if logs.reading.facts:
        yield _NO_WHAT_IF


def _answer(logs: LogFacts) -> str:
    reading = logs.reading
    if not reading.facts:
        return (
            "Its memory is unknown: run it to the end, or record it with MS_ALLOC_CONF=memory_tracker:True."
        )
    worst = reading.worst
    if worst.need_bytes is None:
        return "The logs have the device, but no peak: run it to the end."
    need = f"{_who(worst)} needs {'most, ' if len(reading.facts) > 1 else ''}{_size(worst.need_bytes)}"
    if logs.usable_bytes is None:
        return f"{_capital(need)}."
    usable = _size(logs.usable_bytes)
    if logs.fits is False:
        return f"No, it does not fit: {need}, and {usable} is usable on {logs.device}."
    if logs.fits is None:
        return f"The known ranks fit, but not every rank is known: {need} of the {usable} usable."
    room = _size(logs.usable_bytes - worst.need_bytes)
    return f"Yes, it fits: {need} of the {usable} usable, which leaves {room}."


def _row_document(logs: LogFacts, facts: RankFacts) -> dict[str, Any]:
    return {
        "file": str(facts.path),
        "line": facts.line,
        "rank": facts.rank,
        "device_bytes": facts.device_bytes,
        "usable_bytes": facts.usable_bytes,
        "used_peak_bytes": facts.used_bytes,
        "peak_with_fragments_bytes": facts.actual_bytes,
        "static_bytes": facts.static_bytes,
        "dynamic_bytes": facts.dynamic_bytes,
        "failed_request_bytes": facts.failed_request_bytes,
        "need_bytes": facts.need_bytes,
        "fits": None if logs.usable_bytes is None else facts.fits(logs.usable_bytes),
    }


def _exceeds_its_own(facts: RankFacts) -> bool:
    if facts.need_bytes is None or not facts.usable_bytes or facts.failed_request_bytes is not None:
        return False
    return facts.need_bytes > facts.usable_bytes


def _who(facts: RankFacts) -> str:
    return f"rank {facts.rank}" if facts.rank is not None else f"{facts.path} line {facts.line}"


def _capital(sentence: str) -> str:
    return sentence[:1].upper() + sentence[1:] if sentence.startswith("rank ") else sentence


def _size(n_bytes: int | None) -> str:
    """Return the size in MiB, as MindSpore prints it."""
    return "" if n_bytes is None else f"{n_bytes // MIB:,} MiB"
