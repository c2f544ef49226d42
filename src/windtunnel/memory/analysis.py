"""The memory of one rank: whether it fits, when the peak is, and what holds it.

    RecordedMemory ──> tape ──> replay ──> peak ──┐
        └───────────> lifetimes ──────────────────┴──> RankMemory (all that a report needs)

What the program needs and whether it fits are two questions; the first is answered by a replay without a limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording
from windtunnel.memory.attribution import (
    ROLES,
    LiveTensors,
    ModuleShare,
    RoleBytes,
    largest_tensors,
    module_shares,
    role_bytes,
    short_op,
)
from windtunnel.memory.lifetime import Lifetimes, steps_of
from windtunnel.memory.peak import LimitedReplay, Replay, replay_limited
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.memory.step_parts import PartMemory, memory_of_parts
from windtunnel.memory.tape import AllocationTape, TapeKind
from windtunnel.memory.thin_curve import outline

__all__ = ["Moment", "OutOfMemory", "RankMemory", "Timeline", "analyse_memory", "thin_timeline"]

_TIMELINE_POINTS = 2000


@dataclass(frozen=True, slots=True)
class Moment:
    """Where in the program something happened."""

    step: int
    op: str
    module: str
    phase: str


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The first allocation that does not fit the device."""

    at: Moment
    event: int
    requested_bytes: int
    message: str


@dataclass(frozen=True)
class Timeline:
    """Memory over time, at the peak and at enough other events to draw it. Parallel arrays."""

    event: np.ndarray  # row of the recording
    step: np.ndarray
    allocated_bytes: np.ndarray
    reserved_bytes: np.ndarray
    role_bytes: np.ndarray  # one row per point, one column per field of RoleBytes

    def __len__(self) -> int:
        return len(self.event)


@dataclass(frozen=True)
class RankMemory:
    """Everything a report needs about the memory of one rank."""

    n_steps: int
    usable_bytes: int | None
    base_address: int
    peak_bytes: int  # live bytes after the allocator's rounding
    peak_with_fragments_bytes: int
    peak_event: int  # row of the recording, -1 if nothing was allocated
    peak_at: Moment | None
    at_peak: RoleBytes  # sums to peak_bytes
    by_module: tuple[ModuleShare, ...]
    largest: tuple[LiveTensors, ...]
    timeline: Timeline
    fits: bool
    n_retries: int  # times the cache had to be released to fit
    out_of_memory: OutOfMemory | None
    parts: tuple[PartMemory, ...]  # of a step, if it has parts that are not the update
    is_complete: bool  # False: the program was killed and this is what it did until then


def analyse_memory(recorded: RecordedMemory, usable_bytes: int | None = None, device: int = 0) -> RankMemory:
    """Explain the peak of one device of a recording.

    The replay has no limit, so the peak is what the program needs. Only if that exceeds `usable_bytes` is the tape
    replayed within the limit, which shows whether the allocator gets by with releasing its cache.
    """
    recording, lives, tape = recorded.recording, recorded.lives, recorded.tape(device)
    played = recorded.played(device).replay
    owner = np.searchsorted(lives.birth, tape.id)  # ids of the tape are rows of allocations
    owner[tape.kind != TapeKind.ALLOC] = 0
    alive_at = _alive(tape, played)
    alive, held = owner[alive_at], played.held[alive_at]
    limited = LimitedReplay(None, 0)
    if usable_bytes is not None and played.peak_reserved_bytes > usable_bytes:
        limited = replay_limited(tape, recorded.make_allocator(usable_bytes))
    failure = None
    if limited.failure is not None:
        event = int(tape.event[limited.failure.position])
        at = _moment(recording, lives, event)
        failure = OutOfMemory(at, event, limited.failure.requested_bytes, limited.failure.message)
    peak_event = int(tape.event[played.peak]) if played.peak >= 0 else -1
    return RankMemory(
        n_steps=_n_steps(recording),
        usable_bytes=usable_bytes,
        base_address=played.base_address,
        peak_bytes=played.peak_bytes,
        peak_with_fragments_bytes=played.peak_reserved_bytes,
        peak_event=peak_event,
        peak_at=_moment(recording, lives, peak_event) if peak_event >= 0 else None,
        at_peak=_exactly(role_bytes(lives.role[alive], held), played.peak_bytes),
        by_module=module_shares(recording, lives, alive, held),
        largest=largest_tensors(recording, lives, alive, held),
        # Without any allocation a tape may still have requests: to empty the cache.
        timeline=_timeline(recording, tape, played, lives.role[owner] if len(lives) else owner),
        fits=failure is None,
        n_retries=limited.n_retries,
        out_of_memory=failure,
        parts=memory_of_parts(recording, tape, played),
        is_complete=recording.is_complete,
    )


def thin_timeline(timeline: Timeline, n_points: int) -> Timeline:
    """Return fewer points of the same curve: the highest and lowest of each stretch, and both peaks."""
    keep = _points(timeline.allocated_bytes, timeline.reserved_bytes, n_points)
    return Timeline(
        timeline.event[keep],
        timeline.step[keep],
        timeline.allocated_bytes[keep],
        timeline.reserved_bytes[keep],
        timeline.role_bytes[keep],
    )


def _alive(tape: AllocationTape, played: Replay) -> np.ndarray:
    """Positions of the allocations that are alive right after the peak was reached."""
    upto = np.arange(len(tape)) <= played.peak
    return np.flatnonzero(upto & (tape.kind == TapeKind.ALLOC) & (played.released > played.peak))


def _moment(recording: Recording, lives: Lifetimes, event: int) -> Moment:
    life = int(np.searchsorted(lives.birth, event))
    is_birth = life < len(lives) and lives.birth[life] == event
    signature = int(lives.signature[life]) if is_birth else -1
    return Moment(
        step=int(steps_of(recording, np.array([event]))[0]),
        op=short_op(recording.signatures[signature].name) if signature >= 0 else "",
        module=recording.name(int(recording.columns["module"][event])),
        phase=Phase(int(recording.columns["phase"][event])).name.lower(),
    )


def _n_steps(recording: Recording) -> int:
    ends = recording.columns["subject"][recording.columns["kind"] == Kind.STEP]
    return int(ends.max()) if len(ends) else 0


def _exactly(found: RoleBytes, peak_bytes: int) -> RoleBytes:
    """Count bytes that no storage explains (a free that the allocator has deferred) as temporary."""
    rest = peak_bytes - found.total()
    if rest == 0:
        return found
    values = dict(found.items())
    values["temporary"] += rest
    return RoleBytes(**values)


def _timeline(recording: Recording, tape: AllocationTape, played: Replay, roles: np.ndarray) -> Timeline:
    keep = _points(played.allocated, played.reserved, _TIMELINE_POINTS)
    by_role = np.zeros((len(keep), len(ROLES)), np.int64)
    is_alloc = tape.kind == TapeKind.ALLOC
    for column, role in enumerate(ROLES):
        mine = np.flatnonzero(is_alloc & (roles == role))
        change = np.zeros(len(tape) + 1, np.int64)
        np.add.at(change, mine, played.held[mine])
        np.subtract.at(change, played.released[mine], played.held[mine])
        by_role[:, column] = np.cumsum(change)[keep]
    events = tape.event[keep]
    return Timeline(
        events, steps_of(recording, events), played.allocated[keep], played.reserved[keep], by_role
    )


def _points(allocated: np.ndarray, reserved: np.ndarray, n_points: int) -> np.ndarray:
    """Indices of at most `n_points` points that keep the outline and both peaks."""
    if len(allocated) <= n_points:
        return np.arange(len(allocated))
    peaks = np.array([allocated.argmax(), reserved.argmax()])
    return outline(allocated, n_points - 4, peaks)  # four: both peaks and both ends
