"""Write torch's memory snapshot (`snapshot.pickle`, as pytorch.org/memory_viz shows it).

recording + Allocator ──> write_snapshot ──> snapshot.pickle
"""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, cast

from windtunnel.events.model import Frame, Role
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.allocators.records import Segment, SegmentEvent
from windtunnel.memory.attribution import ROLE_NAMES, short_op
from windtunnel.memory.lifetime import Lifetimes
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.memory.tape import AllocationTape, TapeKind, play

__all__ = ["write_snapshot"]

_STATES = {"active": "active_allocated", "pending_free": "active_pending_free", "inactive": "inactive"}
_PROTOCOL = 4  # what torch itself writes


def write_snapshot(path: Path, recorded: RecordedMemory, allocator: Allocator, device: int = 0) -> None:
    """Replay one device of a recording through a fresh, unlimited allocator; write the trace as torch would.

    A recording has no clock: `time_us` counts its events. The innermost frame of each entry is ours and names
    the operator and its module path. Models of allocators other than torch's do not record when they call the
    device, so their traces have no segment entries.
    """
    tape = recorded.tape(device)
    writer = _TraceWriter(recorded, allocator, tape)
    play(tape, allocator, writer)
    traces: list[list[Any]] = [[] for _ in range(device + 1)]
    traces[device] = writer.entries
    snapshot = {
        "segments": [writer.segment_entry(segment, device) for segment in allocator.segments()],
        "device_traces": traces,
        "allocator_settings": {},
        "external_annotations": [],
    }
    with open(path, "wb") as file:
        pickle.dump(snapshot, file, protocol=_PROTOCOL)


class _TraceWriter:
    """Writes down the trace torch's allocator would have kept."""

    def __init__(self, recorded: RecordedMemory, allocator: Allocator, tape: AllocationTape) -> None:
        self.recording = recorded.recording
        self.allocator = allocator
        self.entries: list[dict[str, Any]] = []
        lives = recorded.lives
        self.lives: Lifetimes = lives
        self.life_at = dict(zip(lives.birth.tolist(), range(len(lives)), strict=True))
        self.placed: dict[int, dict[str, Any]] = {}
        self.deferred: list[dict[str, Any]] = []
        self.used_on_side_streams: set[int] = set()
        self.stacks: dict[int, list[dict[str, Any]]] = {}
        self.n_segment_events = 0
        self.requests = zip(tape.n_bytes.tolist(), tape.stream.tolist(), tape.event.tolist(), strict=True)

    def __call__(self, kind: int, id: int, address: int) -> None:
        """Note one request, right after the allocator served it."""
        n_bytes, stream, event = next(self.requests)
        if kind == TapeKind.ALLOC:
            self._complete_deferred(
                event
            )  # torch looks for finished streams at the start of every allocation
            frames = self._frames(id)
            self._segment_entries(event, frames)
            self.placed[id] = self._entry("alloc", address, n_bytes, stream, event, frames, self._label(id))
            self.entries.append(self.placed[id])
        elif kind == TapeKind.FREE:
            self._free(id, event)
        elif kind == TapeKind.RECORD_STREAM:
            self.used_on_side_streams.add(id)
        elif kind == TapeKind.EMPTY_CACHE:
            self._complete_deferred(event)
            self._segment_entries(event, [])

    def segment_entry(self, segment: Segment, device: int) -> dict[str, Any]:
        blocks = [
            {
                "address": block.address,
                "size": block.n_bytes,
                "requested_size": block.requested_bytes,
                "state": _STATES[block.state],
                "frames": self._frames(cast(int, block.id)) if block.state != "inactive" else [],
            }
            for block in segment.blocks
        ]
        return {
            "device": device,
            "address": segment.address,
            "total_size": segment.n_bytes,
            "allocated_size": sum(b.n_bytes for b in segment.blocks if b.state == "active"),
            "active_size": segment.used_bytes,
            "requested_size": sum(b.requested_bytes for b in segment.blocks if b.state != "inactive"),
            "stream": segment.stream,
            "segment_type": "small" if segment.pool.endswith("small") else "large",
            "segment_pool_id": (0, 0),
            "is_expandable": segment.is_expandable,
            "frames": [],
            "blocks": blocks,
        }

    def _free(self, id: int, event: int) -> None:
        requested = {**self.placed.pop(id), "action": "free_requested", "time_us": event, "frames": []}
        self.entries.append(requested)
        completed = {**requested, "action": "free_completed"}
        if id in self.used_on_side_streams:
            self.deferred.append(completed)
        else:
            self.entries.append(completed)

    def _complete_deferred(self, event: int) -> None:
        self.entries += ({**entry, "time_us": event} for entry in self.deferred)
        self.deferred = []

    def _segment_entries(self, event: int, frames: list[dict[str, Any]]) -> None:
        """Write the allocator's calls to the device since the last time."""
        # Only models of torch's allocators keep a list of their calls to the device.
        happened: list[SegmentEvent] = getattr(self.allocator, "segment_events", [])
        for each in happened[self.n_segment_events :]:
            entry = self._entry(each.action, each.address, each.n_bytes, each.stream, event, frames)
            self.entries.append(entry)
        self.n_segment_events = len(happened)

    @staticmethod
    def _entry(
        action: str,
        address: int,
        n_bytes: int,
        stream: int,
        event: int,
        frames: list[dict[str, Any]],
        label: str = "",
    ) -> dict[str, Any]:
        return {
            "action": action,
            "addr": address,
            "size": n_bytes,
            "stream": stream,
            "time_us": event,
            "frames": frames,
            "user_metadata": label,
        }

    def _label(self, id: int) -> str:
        life = self.life_at[id]
        role = ROLE_NAMES[Role(int(self.lives.role[life]))]
        return f"{role} {self.recording.name(int(self.lives.name[life]))}".rstrip()

    def _frames(self, id: int) -> list[dict[str, Any]]:
        """The operator in its module, then the Python stack, innermost first as torch has it."""
        life = self.life_at[id]
        signature, frame = int(self.lives.signature[life]), int(self.lives.frame[life])
        if frame not in self.stacks:
            self.stacks[frame] = [_frame_entry(f) for f in reversed(self.recording.stack(frame))]
        stack = self.stacks[frame]
        if signature < 0:
            return stack
        module = self.recording.name(int(self.lives.module[life]))
        name = short_op(self.recording.signatures[signature].name)
        return [{"filename": module, "line": 0, "name": name}, *stack]


def _frame_entry(frame: Frame) -> dict[str, Any]:
    return {"filename": frame.file, "line": frame.line, "name": frame.function}
