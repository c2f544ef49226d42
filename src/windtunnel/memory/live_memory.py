"""Memory counters for a running program, computed by the allocator model from the program's own events.

    rows so far ──> Allocator ──> allocated, reserved, peaks

It costs nothing until the first query, which reads the events so far; later queries only read new ones.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from windtunnel.events.file import RecordingWriter, read_recording
from windtunnel.events.model import COLUMNS, Kind

__all__ = ["LiveMemory"]

_NAMES = list(COLUMNS)
_KIND, _SUBJECT, _VALUE = (_NAMES.index(n) for n in ("kind", "subject", "value"))
_STREAM, _DEVICE = _NAMES.index("stream"), _NAMES.index("device")


class LiveMemory:
    """Follows a recording while it is being written; one allocator per device."""

    def __init__(self, writer: RecordingWriter, path: Path, make_allocator: Callable[[], Any]) -> None:
        self._writer = writer
        self._path = path
        self._make_allocator = make_allocator
        self._allocators: dict[int, Any] = {}
        self._peaks: dict[int, list[int]] = {}
        self._position: int | None = None  # rows of the writer already seen; None: not queried yet

    def read(self, device: int) -> dict[str, int]:
        """Bytes now and at most, since the start or the last reset."""
        self._catch_up()
        allocator = self._allocator(device)
        peak = self._peaks[device]
        return {
            "allocated": allocator.allocated_bytes,
            "reserved": allocator.reserved_bytes,
            "peak_allocated": peak[0],
            "peak_reserved": peak[1],
        }

    def reset_peak(self, device: int) -> None:
        self._catch_up()
        allocator = self._allocator(device)
        self._peaks[device] = [allocator.allocated_bytes, allocator.reserved_bytes]

    def before_flush(self) -> None:
        """The writer is about to empty its rows."""
        if self._position is not None:
            self._catch_up()
            self._position = 0

    def _catch_up(self) -> None:
        if self._position is None:
            self._writer.flush()
            self._writer.before_flush = self.before_flush
            self._position = 0
            if self._path.stat().st_size:  # empty until the first batch
                recording = read_recording(self._path)
                lists = [recording.columns[name].tolist() for name in _NAMES]
                self._follow(zip(*lists, strict=True))
        rows = self._writer.rows
        self._follow(rows[self._position :])
        self._position = len(rows)

    def _follow(self, rows: Any) -> None:
        for row in rows:
            kind = row[_KIND]
            if kind == Kind.ALLOC:
                allocator = self._allocator(row[_DEVICE])
                allocator.alloc(row[_SUBJECT], row[_VALUE], row[_STREAM])
                peak = self._peaks[row[_DEVICE]]
                peak[0] = max(peak[0], allocator.allocated_bytes)
                peak[1] = max(peak[1], allocator.reserved_bytes)
            elif kind == Kind.FREE:
                self._allocator(row[_DEVICE]).free(row[_SUBJECT])
            elif kind == Kind.RECORD_STREAM:
                self._allocator(row[_DEVICE]).record_stream(row[_SUBJECT], row[_STREAM])
            elif kind == Kind.EMPTY_CACHE:
                self._allocator(row[_DEVICE]).empty_cache()

    def _allocator(self, device: int) -> Any:
        if device not in self._allocators:
            self._allocators[device] = self._make_allocator()
            self._peaks[device] = [0, 0]
        return self._allocators[device]
