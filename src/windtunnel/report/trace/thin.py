"""Keep a trace loadable: fewer slices and arrows, and sentences about what was removed.

    Trace, most events ──> short neighbours merged, short modules dropped, arrows of short slices dropped ──> Trace

Two neighbours on a track are merged if both, and the gap between them, are shorter than a limit; the limit is the
lowest that leaves few enough slices. Long slices stay as they are.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from windtunnel.report.trace.model import Arrows, Label, Slices, Trace
from windtunnel.units import format_us

__all__ = ["count_events", "only_step", "thin"]

_NESTED_SHARE, _ARROW_SHARE = 0.15, 0.35  # of the events; the rest is for lanes
_NEVER = np.iinfo(np.int64).max
_FEW = 100  # events for labels and tracks, which are not thinned


def count_events(trace: Trace) -> int:
    """Return the number of events in its file: slices, both ends of arrows, points of counters, names of tracks."""
    n_arrows = sum(map(len, trace.arrows))
    n_points = sum(len(counter.time_ns) for counter in trace.counters)
    n_names = 2 * len(trace.ranks) + 2 * len(trace.tracks) + (len(trace.ranks) + 1 if trace.left_out else 0)
    return len(trace.slices) + 2 * n_arrows + n_points + n_names


def only_step(whole: Trace, part: Trace, step: int) -> Trace:
    """Return the trace of one step, with notes about what it leaves out."""
    n_gone = len(whole.slices) - len(part.slices)
    said = (f"only step {step}, the last complete one, is shown",) if n_gone else ()
    return replace(part, left_out=(*part.left_out, *said), n_left_out=part.n_left_out + n_gone)


def thin(trace: Trace, max_events: int) -> Trace:
    """Return a trace of at most about `max_events`; the same trace if it is small enough."""
    n_events = count_events(trace)
    if n_events <= max_events:
        return trace
    n_fixed = n_events - len(trace.slices) - 2 * sum(map(len, trace.arrows))
    room = max(_FEW, max_events - n_fixed)
    is_nested = np.array([track.is_nested for track in trace.tracks], bool)[trace.slices.track]
    arrows = _fewer_arrows(trace, int(room * _ARROW_SHARE) // 2)
    n_nested = int(is_nested.sum())
    n_lanes = len(trace.slices) - n_nested
    free = room - 2 * sum(map(len, arrows))
    keep_nested = min(n_nested, max(int(room * _NESTED_SHARE), free - n_lanes))
    thinned, sentences = _fewer_slices(
        replace(trace, arrows=arrows), is_nested, keep_nested, free - keep_nested
    )
    n_arrows = sum(map(len, trace.arrows)) - sum(map(len, arrows))
    if n_arrows:
        sentences.append(f"{n_arrows:,} arrows of the shortest slices are omitted")
    n_gone = len(trace.slices) - len(thinned.slices)
    return replace(thinned, left_out=(*trace.left_out, *sentences), n_left_out=trace.n_left_out + n_gone)


def _fewer_arrows(trace: Trace, most: int) -> tuple[Arrows, ...]:
    """Keep the arrows that end at the longest slices."""
    if sum(map(len, trace.arrows)) <= most:
        return trace.arrows
    length = trace.slices.end_ns - trace.slices.start_ns
    weights = [length[each.to_slice] for each in trace.arrows]
    every = np.concatenate(weights)
    keep = np.zeros(len(every), bool)
    keep[np.argsort(-every, kind="stable")[:most]] = True
    kept, begin = [], 0
    for each in trace.arrows:
        mine = np.flatnonzero(keep[begin : begin + len(each)])
        kept.append(_chosen(each, mine))
        begin += len(each)
    return tuple(kept)


def _fewer_slices(
    trace: Trace, is_nested: np.ndarray, n_nested: int, n_lanes: int
) -> tuple[Trace, list[str]]:
    slices, sentences = trace.slices, []
    begins = np.ones(len(slices), bool)  # False: merged with the slice before
    lane_at = np.flatnonzero(~is_nested)
    n_over = len(lane_at) - max(1, n_lanes)
    if n_over > 0 and len(lane_at) > 1:
        weight = _link_weights(slices, lane_at)
        links = _weakest(weight, min(n_over, int((weight < _NEVER).sum())))
        begins[lane_at[1:][links]] = False
        if len(links):
            sentences.append(
                f"{len(links):,} slices are merged with their neighbours: they and the gaps between them are at most"
                f" {format_us(int(weight[links].max()) / 1e3)} long"
            )
    dropped = np.zeros(len(slices), bool)
    nested_at = np.flatnonzero(is_nested)
    if len(nested_at) > n_nested:
        length = (slices.end_ns - slices.start_ns)[nested_at]
        dropped[nested_at[np.argsort(-length, kind="stable")[n_nested:]]] = True
        sentences.append(f"the {int(dropped.sum()):,} shortest module slices are omitted")
    return _merged(trace, begins, dropped), sentences


def _weakest(weight: np.ndarray, n: int) -> np.ndarray:
    """Return the indices of the `n` smallest; equal ones are taken evenly from everywhere."""
    if n <= 0:
        return np.zeros(0, np.int64)
    limit = np.partition(weight, n - 1)[n - 1]
    below, equal = np.flatnonzero(weight < limit), np.flatnonzero(weight == limit)
    spread = np.linspace(0, len(equal) - 1, n - len(below)).astype(np.int64)
    return np.sort(np.append(below, equal[spread]))


def _link_weights(slices: Slices, at: np.ndarray) -> np.ndarray:
    """Return the limit from which each slice is merged with the one before; never across tracks."""
    start, end, track = slices.start_ns[at], slices.end_ns[at], slices.track[at]
    length = end - start
    weight = np.maximum(np.maximum(length[1:], length[:-1]), start[1:] - end[:-1])
    return np.where(track[1:] == track[:-1], weight, _NEVER)


def _merged(trace: Trace, begins: np.ndarray, dropped: np.ndarray) -> Trace:
    slices = trace.slices
    first = np.flatnonzero(begins)
    piece = np.cumsum(begins) - 1
    n_merged = np.add.reduceat(slices.n_merged, first)
    busy = np.add.reduceat(slices.busy_ns, first)
    end = np.maximum.reduceat(slices.end_ns, first)
    label, labels = _merged_labels(trace, first, piece)
    keep = ~dropped[first]
    position = np.where(keep, np.cumsum(keep) - 1, -1)[piece]
    kept = first[keep]
    table = Slices(
        slices.track[kept],
        slices.start_ns[kept],
        end[keep],
        label[keep],
        n_merged[keep].astype(np.int32),
        busy[keep],
    )
    arrows = []
    for each in trace.arrows:
        moved = replace(each, from_slice=position[each.from_slice], to_slice=position[each.to_slice])
        arrows.append(_chosen(moved, np.flatnonzero((moved.from_slice >= 0) & (moved.to_slice >= 0))))
    return replace(trace, labels=labels, slices=table, arrows=tuple(arrows))


def _merged_labels(
    trace: Trace, first: np.ndarray, piece: np.ndarray
) -> tuple[np.ndarray, tuple[Label, ...]]:
    """Name a merged slice after its longest part."""
    slices = trace.slices
    length = slices.end_ns - slices.start_ns
    longest = np.lexsort((-length, piece))[first]
    label = slices.label[longest]
    is_several = np.bincount(piece, minlength=len(first)) > 1
    labels, several = list(trace.labels), {}
    for old in np.unique(label[is_several]).tolist():
        several[old] = len(labels)
        name = trace.labels[old].name.removesuffix(" and others")
        labels.append(Label(f"{name} and others", trace.labels[old].category, {}))
    table = np.arange(len(labels))
    table[list(several)] = list(several.values())
    return np.where(is_several, table[label], label).astype(np.int32), tuple(labels)


def _chosen(arrows: Arrows, which: np.ndarray) -> Arrows:
    return Arrows(
        arrows.category,
        *(getattr(arrows, name)[which] for name in ("from_slice", "to_slice", "from_ns", "to_ns")),
    )
