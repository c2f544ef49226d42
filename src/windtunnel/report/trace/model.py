"""A trace as columns: tracks, slices on them, arrows between slices, counters.

    lanes, modules, phases, arrows, memory ──> Trace ──> trace_view.json, trace page

Times are whole nanoseconds, so that adjacent slices in a file are adjacent in every viewer too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

__all__ = ["Arrows", "Counter", "Label", "Slices", "Trace", "Track", "join_slices", "merge_traces", "to_ns"]


@dataclass(frozen=True, slots=True)
class Track:
    """A row of the chart. Slices of one track are next to or inside each other; they never overlap partially."""

    rank: int
    name: str
    order: int  # from top to bottom within its rank
    is_nested: bool = False  # slices may be inside each other; otherwise they are one after the other


@dataclass(frozen=True, slots=True)
class Label:
    """The text and arguments of a slice; many slices share one label."""

    name: str
    category: str
    args: dict[str, object]


@dataclass(frozen=True)
class Slices:
    """Parallel arrays, sorted by track and start, the longer first: an outer slice comes before those inside it."""

    track: np.ndarray  # int32: index into `Trace.tracks`
    start_ns: np.ndarray  # int64
    end_ns: np.ndarray  # int64
    label: np.ndarray  # int32: index into `Trace.labels`
    n_merged: np.ndarray  # int32: how many slices were merged into this one
    busy_ns: np.ndarray  # int64: of its length, what those slices fill

    def __len__(self) -> int:
        return len(self.track)


@dataclass(frozen=True)
class Arrows:
    """Arrows of one meaning, from a moment in a slice to a moment in another. Parallel arrays."""

    category: str
    from_slice: np.ndarray
    to_slice: np.ndarray
    from_ns: np.ndarray
    to_ns: np.ndarray

    def __len__(self) -> int:
        return len(self.from_slice)


@dataclass(frozen=True)
class Counter:
    """A number over time; it keeps its value until the next point."""

    rank: int
    name: str  # "allocated"
    unit: str  # "bytes"
    time_ns: np.ndarray  # int64, increasing
    value: np.ndarray


@dataclass(frozen=True)
class Trace:
    """Everything shown in a trace file or page."""

    tracks: tuple[Track, ...]
    labels: tuple[Label, ...]
    slices: Slices
    arrows: tuple[Arrows, ...] = ()
    counters: tuple[Counter, ...] = ()
    left_out: tuple[str, ...] = ()  # sentences
    n_left_out: int = 0  # slices that the program had and the trace does not

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({track.rank for track in self.tracks}))


def to_ns(seconds: np.ndarray) -> np.ndarray:
    """Return whole nanoseconds from the start of the timeline."""
    return np.maximum(np.rint(np.asarray(seconds, np.float64) * 1e9), 0).astype(np.int64)


def join_slices(parts: Sequence[Slices]) -> Slices:
    """Concatenate them into one table, in the order given."""
    types = {
        "track": "i4",
        "start_ns": "i8",
        "end_ns": "i8",
        "label": "i4",
        "n_merged": "i4",
        "busy_ns": "i8",
    }
    columns = ([np.zeros(0, kind), *(getattr(part, name) for part in parts)] for name, kind in types.items())
    return Slices(*map(np.concatenate, columns))


def merge_traces(traces: Sequence[Trace]) -> Trace:
    """Merge the traces of several ranks."""
    slices, arrows, n_tracks, n_labels, n_slices = [], [], 0, 0, 0
    for trace in traces:
        part = trace.slices
        slices.append(replace(part, track=part.track + n_tracks, label=part.label + n_labels))
        for each in trace.arrows:
            moved = replace(each, from_slice=each.from_slice + n_slices, to_slice=each.to_slice + n_slices)
            arrows.append(moved)
        n_tracks, n_labels = n_tracks + len(trace.tracks), n_labels + len(trace.labels)
        n_slices += len(part)
    return Trace(
        tracks=tuple(track for trace in traces for track in trace.tracks),
        labels=tuple(label for trace in traces for label in trace.labels),
        slices=join_slices(slices),
        arrows=tuple(arrows),
        counters=tuple(counter for trace in traces for counter in trace.counters),
        left_out=tuple(
            f"rank {rank}: {sentence}"
            for trace in traces
            for rank in trace.ranks[:1]
            for sentence in trace.left_out
        ),
        n_left_out=sum(trace.n_left_out for trace in traces),
    )
