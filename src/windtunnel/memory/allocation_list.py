"""Every allocation of a rank with its lifetime, for zooming in, and the allocator's map at the peaks.

    RecordedMemory ──> tape, replay ──┬──> lifetimes with bytes, labels ──┐
                                      └──> maps at both peaks ────────────┴──> RankDetail (columns)

At the row of the peak, the live allocations and the rest add up to the peak of the report, role by role. If there are
too many allocations, the smallest ones are only counted, in the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Kind, Phase, Recording, Role
from windtunnel.memory.allocation_labels import FrameColumns, Labels, Texts, frame_columns, label_allocations
from windtunnel.memory.allocator_map import MapColumns, take_maps
from windtunnel.memory.attribution import ROLES, short_op
from windtunnel.memory.lifetime import steps_of
from windtunnel.memory.peak import Replay
from windtunnel.memory.phases import phases_of
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.memory.tape import AllocationTape, TapeKind
from windtunnel.memory.thin_curve import outline

__all__ = ["MOST_ALLOCATIONS", "AllocatorMap", "Operators", "RankDetail", "Rest", "rank_detail"]

MOST_ALLOCATIONS = 500_000  # on one page; the page says how many more are only counted

_MOST_POINTS = 4000  # of an outline: more than a screen has columns
_MOST_CHANGES = 40_000  # of reserved bytes; an allocator that caches has hundreds


@dataclass(frozen=True)
class Rest:
    """Bytes that belong to no listed allocation: those left out, and bytes that the allocator holds besides."""

    row: np.ndarray  # from this row on
    n_bytes: np.ndarray  # one row per point, one column per role


@dataclass(frozen=True)
class Operators:
    """Rows that compute or communicate. `name` and `module` are numbers of texts."""

    row: np.ndarray
    n_rows: np.ndarray  # since the operator before: this one's memory is taken in them
    name: np.ndarray
    module: np.ndarray
    frame: np.ndarray
    phase: np.ndarray


@dataclass(frozen=True)
class AllocatorMap:
    """The allocator's segments at one moment."""

    title: str
    row: int
    columns: MapColumns
    allocation: np.ndarray  # of each block: an index into the allocations, -1: none or left out


@dataclass(frozen=True)
class RankDetail:
    """Parallel columns. A row is one of the recording; bytes are after the allocator's rounding."""

    n_rows: int
    texts: tuple[str, ...]
    born: np.ndarray  # row; the allocations are in this order
    freed: np.ndarray  # the row at which the allocator got the bytes back; n_rows: never
    n_bytes: np.ndarray
    label: np.ndarray  # index into labels
    labels: Labels
    frames: FrameColumns
    reserved_row: np.ndarray
    reserved_bytes: np.ndarray  # from that row on
    rest: Rest | None
    ops: Operators | None
    phase_row: np.ndarray
    phase: np.ndarray  # from that row on
    step_row: np.ndarray
    step: np.ndarray  # from that row on
    peak_row: int  # -1: nothing was allocated
    maps: tuple[AllocatorMap, ...]
    left_out: tuple[str, ...]  # sentences


def rank_detail(
    recorded: RecordedMemory, device: int = 0, most_allocations: int = MOST_ALLOCATIONS
) -> RankDetail:
    """Return the details of one device of a recording, with at most `most_allocations` allocations and operators listed."""
    recording, lives, tape = recorded.recording, recorded.lives, recorded.tape(device)
    played = recorded.played(device).replay
    peaks = _peaks(played)
    at = np.flatnonzero(tape.kind == TapeKind.ALLOC)
    ends = np.append(tape.event, len(recording))
    freed = ends[played.released[at]]
    peak_rows = tape.event[[position for _, position in peaks]]
    kept, role = (
        _chosen(tape.event[at], freed, played.held[at], peak_rows, most_allocations),
        _role_numbers(lives.role[np.searchsorted(lives.birth, tape.id[at])]),
    )
    born = tape.event[at[kept]]
    left_out = []
    if len(kept) < len(at):
        n_left = len(at) - len(kept)
        left_out.append(
            f"{n_left:,} of {len(at):,} allocations are counted but not listed: the smallest that are not alive at a peak"
        )
    op_rows, op_lengths = _operators(recording, device, peak_rows[:1], most_allocations, left_out)
    texts = Texts()
    chosen = np.searchsorted(lives.birth, tape.id[at[kept]])
    frame = recording.columns["frame"]
    new_frames, frames = frame_columns(recording, (lives.frame[chosen], frame[op_rows]), texts)
    label, labels = label_allocations(recording, lives, chosen, new_frames, texts)
    reserved_row, reserved_bytes = _reserved(tape, played, peak_rows)
    phase_row, phase = _phases(recording)
    step_row, step = _steps(recording)
    return RankDetail(
        n_rows=len(recording),
        born=born,
        freed=freed[kept],
        n_bytes=np.maximum(played.held[at[kept]], 0),
        label=label,
        labels=labels,
        frames=frames,
        reserved_row=reserved_row,
        reserved_bytes=reserved_bytes,
        rest=_rest(tape, played, at, kept, role, peak_rows),
        ops=_operator_columns(recording, op_rows, op_lengths, new_frames, texts),
        phase_row=phase_row,
        phase=phase,
        step_row=step_row,
        step=step,
        peak_row=int(peak_rows[0]) if len(peak_rows) else -1,
        maps=_maps(recorded, device, peaks, born),
        left_out=tuple(left_out),
        texts=texts.all(),
    )


def _peaks(played: Replay) -> list[tuple[str, int]]:
    """The moments to take a map of, with their positions: the peak of live bytes first."""
    if played.peak < 0:
        return []
    peaks = [("peak of live bytes", played.peak)]
    highest = int(played.reserved.argmax())
    if played.reserved[highest] > played.reserved[played.peak]:
        peaks.append(("peak of reserved bytes", highest))
    return peaks


def _role_numbers(roles: np.ndarray) -> np.ndarray:
    numbers = np.zeros(max(Role) + 1, np.int64)
    numbers[list(ROLES)] = np.arange(len(ROLES))
    return numbers[roles]


def _chosen(
    born: np.ndarray, freed: np.ndarray, held: np.ndarray, peak_rows: np.ndarray, most: int
) -> np.ndarray:
    """Those alive at a peak and the largest; of equal ones the later, so that the last step is complete."""
    if len(born) <= most:
        return np.arange(len(born))
    is_at_peak = np.zeros(len(born), bool)
    for row in peak_rows.tolist():
        is_at_peak |= (born <= row) & (freed > row)
    order = np.lexsort((np.arange(len(born)), held, is_at_peak))
    return np.sort(order[len(born) - most :])


def _rest(
    tape: AllocationTape,
    played: Replay,
    at: np.ndarray,
    kept: np.ndarray,
    role: np.ndarray,
    peak_rows: np.ndarray,
) -> Rest | None:
    """The bytes outside the kept allocations, role by role; bytes that no storage explains are temporary."""
    n = len(tape)
    if n == 0:
        return None
    held = played.held[at]
    unlisted = held.copy()
    unlisted[kept] = np.minimum(held[kept], 0)  # listed as max(held, 0)
    explained = np.zeros(n + 1, np.int64)
    explained[at] += held
    np.subtract.at(explained, played.released[at], held)
    unexplained = played.allocated - np.cumsum(explained[:n])
    # Within one request an allocator may hold more than after it; the peak of the report includes that.
    above = played.peak_bytes - int(played.allocated[played.peak])
    if not (unlisted.any() or unexplained.any() or above):
        return None
    levels = np.zeros((n, len(ROLES)), np.int64)
    for number in np.unique(role[unlisted != 0]).tolist():
        mine = np.flatnonzero((role == number) & (unlisted != 0))
        change = np.zeros(n + 1, np.int64)
        change[at[mine]] = unlisted[mine]
        np.subtract.at(change, played.released[at[mine]], unlisted[mine])
        levels[:, number] = np.cumsum(change[:n])
    levels[:, ROLES.index(Role.TEMPORARY)] += unexplained
    is_last = np.append(tape.event[1:] != tape.event[:-1], True)
    rows, levels = tape.event[is_last], levels[is_last]
    if above:
        here = int(np.searchsorted(rows, tape.event[played.peak]))
        rows, levels = np.insert(rows, here + 1, rows[here] + 1), np.insert(levels, here + 1, levels[here], 0)
        levels[here, ROLES.index(Role.TEMPORARY)] += above
        if here + 2 < len(rows) and rows[here + 2] == rows[here + 1]:
            rows, levels = np.delete(rows, here + 1), np.delete(levels, here + 1, 0)
    is_new = np.append(levels[:1].any(), (levels[1:] != levels[:-1]).any(axis=1))
    is_new |= np.isin(rows, peak_rows)
    rows, levels = rows[is_new], levels[is_new]
    if not levels.any():
        return None
    points = outline(levels.sum(axis=1), _MOST_POINTS, np.flatnonzero(np.isin(rows, peak_rows)))
    return Rest(rows[points], levels[points])


def _reserved(tape: AllocationTape, played: Replay, peak_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    is_last = np.append(tape.event[1:] != tape.event[:-1], True)[: len(tape)]
    rows, n_bytes = tape.event[is_last], played.reserved[is_last]
    is_new = np.diff(n_bytes, prepend=0) != 0
    is_new |= np.isin(rows, peak_rows)
    rows, n_bytes = rows[is_new], n_bytes[is_new]
    points = outline(n_bytes, _MOST_CHANGES, np.flatnonzero(np.isin(rows, peak_rows)))
    return rows[points], n_bytes[points]


def _operators(
    recording: Recording, device: int, peak_row: np.ndarray, most: int, left_out: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Rows of operators, and how many rows lead up to each; if too many, the peak's step and the last ones."""
    kind = recording.columns["kind"]
    is_op = ((kind == Kind.OP) | (kind == Kind.COLLECTIVE)) & (recording.columns["device"] == device)
    rows = np.flatnonzero(is_op)
    lengths = np.diff(rows, prepend=-1)
    if len(rows) <= most:
        return rows, lengths
    step = steps_of(recording, np.concatenate([rows, peak_row]))
    is_peak_step = step[: len(rows)] == step[-1] if len(peak_row) else np.zeros(len(rows), bool)
    order = np.lexsort((rows, is_peak_step))
    left_out.append(
        f"{len(rows) - most:,} of {len(rows):,} operators are not listed: only those of the last steps and"
        " of the step with the peak are"
    )
    kept = np.sort(order[len(rows) - most :])
    return rows[kept], lengths[kept]


def _operator_columns(
    recording: Recording, rows: np.ndarray, lengths: np.ndarray, new_frames: np.ndarray, texts: Texts
) -> Operators | None:
    if len(rows) == 0:
        return None
    columns = recording.columns
    signatures, signature = np.unique(columns["value"][rows], return_inverse=True)
    modules, module = np.unique(columns["module"][rows], return_inverse=True)
    names = [texts(short_op(recording.signatures[s].name) if s >= 0 else "") for s in signatures.tolist()]
    paths = [texts(recording.name(m)) for m in modules.tolist()]
    return Operators(
        rows,
        lengths,
        np.array(names)[signature],
        np.array(paths)[module],
        new_frames[columns["frame"][rows]],
        columns["phase"][rows].astype(np.int64),
    )


def _phases(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Where the phase changes. Only rows of work have a phase: a mark has none."""
    kind = recording.columns["kind"]
    works = np.isin(kind, (Kind.OP, Kind.ALLOC, Kind.MODULE_ENTER, Kind.COLLECTIVE))
    rows = np.flatnonzero(works)
    phase = phases_of(recording, rows)
    is_new = np.diff(phase, prepend=-1) != 0
    rows, found = rows[is_new], phase[is_new]
    if len(rows):
        rows[0] = 0
    return (rows, found) if len(rows) else (np.zeros(1, np.int64), np.array([int(Phase.BUILD)]))


def _steps(recording: Recording) -> tuple[np.ndarray, np.ndarray]:
    """Where each step begins: after the row that closed the one before."""
    ends = np.flatnonzero(recording.columns["kind"] == Kind.STEP)
    rows = np.append([0], ends + 1)
    rows = rows[rows < max(1, len(recording))]
    numbers = steps_of(recording, rows)
    is_new = np.diff(numbers, prepend=numbers[0] - 1) != 0
    return rows[is_new], numbers[is_new]


def _maps(
    recorded: RecordedMemory, device: int, peaks: list[tuple[str, int]], born: np.ndarray
) -> tuple[AllocatorMap, ...]:
    tape, found = recorded.tape(device), dict(recorded.played(device).maps)
    missing = [position for _, position in peaks if position not in found]
    if missing:  # no maps were taken while the tape was played, or there were too many candidates
        found |= take_maps(tape, recorded.make_allocator(None), missing)
    maps = []
    for title, position in peaks:
        columns = found.get(position)
        if columns is not None:
            owner = columns.block_owner
            index = np.minimum(np.searchsorted(born, owner), max(0, len(born) - 1))
            is_listed = (owner >= 0) & (born[index] == owner)
            maps.append(
                AllocatorMap(title, int(tape.event[position]), columns, np.where(is_listed, index, -1))
            )
    return tuple(maps)
