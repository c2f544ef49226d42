"""trace_view.json: a trace in the Chrome format, for Perfetto and chrome://tracing.

    recording, RankTimeline ──> Trace ──> events as text, some thousands at a time ──> rank{R}/trace_view.json
    several ranks ──> their traces, and arrows between peers ──> one file, a process for each rank

The file is a JSON list of events, as MindSpore's own is; times are microseconds with three decimals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
import orjson

from windtunnel.cluster.program import RankTimeline
from windtunnel.events.model import Recording
from windtunnel.memory.analysis import Timeline
from windtunnel.report.trace.arrows import PEERS, arrows_between, peer_pairs
from windtunnel.report.trace.model import Label, Trace, merge_traces
from windtunnel.report.trace.rank import MAX_EVENTS, full_trace, last_whole_step, rank_trace
from windtunnel.report.trace.thin import count_events, only_step, thin

__all__ = ["TraceFile", "merged_trace", "write_merged_trace", "write_trace"]

_FIRST_PID = (
    100_000  # some viewers treat process 0 as the idle process; the rank stays readable in the number
)
_AT_A_TIME = 1 << 14


@dataclass(frozen=True, slots=True)
class TraceFile:
    """What was written."""

    n_events: int
    n_left_out: int  # slices of the program that are not in the file, or merged
    n_bytes: int
    left_out: tuple[str, ...] = ()  # sentences


def write_trace(
    path: Path,
    recording: Recording,
    timeline: RankTimeline,
    *,
    memory: Timeline | None = None,
    step: int | None = None,
    flops: Sequence[float | None] = (),  # by number of the signature
    max_events: int = MAX_EVENTS,
) -> TraceFile:
    """Write the trace of one rank: every step, or one."""
    trace = rank_trace(recording, timeline, memory=memory, step=step, flops=flops, max_events=max_events)
    return _write(path, trace)


def write_merged_trace(
    path: Path,
    ranks: Sequence[tuple[Recording, RankTimeline]],
    *,
    memories: Sequence[Timeline | None] = (),
    step: int | None = None,
    max_events: int = MAX_EVENTS,
) -> TraceFile:
    """Write some ranks side by side, with arrows from sends to receives and from the last to join a collective."""
    return _write(path, merged_trace(ranks, memories=memories, step=step, max_events=max_events))


def merged_trace(
    ranks: Sequence[tuple[Recording, RankTimeline]],
    *,
    memories: Sequence[Timeline | None] = (),
    step: int | None = None,
    max_events: int = MAX_EVENTS,
) -> Trace:
    """Return the trace of several ranks: every step, or one; beyond `max_events` the last complete step, thinned."""
    memories = memories or [None] * len(ranks)
    trace = _side_by_side(ranks, memories, step)
    if count_events(trace) > max_events and step is None and ranks:
        last = last_whole_step(*ranks[0])
        if last is not None:
            trace = only_step(trace, _side_by_side(ranks, memories, last), last)
    return thin(trace, max_events)


def _side_by_side(
    ranks: Sequence[tuple[Recording, RankTimeline]], memories: Sequence[Timeline | None], step: int | None
) -> Trace:
    found = [
        full_trace(recording, timeline, memory, step)
        for (recording, timeline), memory in zip(ranks, memories, strict=True)
    ]
    trace = merge_traces([each.trace for each in found])
    offsets = np.cumsum([0, *(len(each.trace.slices) for each in found)])
    pairs = np.array(list(peer_pairs([timeline for _, timeline in ranks])), np.int64).reshape(-1, 4)
    ends = []
    for rank, element in ((pairs[:, 0], pairs[:, 1]), (pairs[:, 2], pairs[:, 3])):
        slices = np.full(len(pairs), -1, np.int64)
        for position, each in enumerate(found):
            there = each.device_slice[element[rank == position]]
            slices[rank == position] = np.where(there >= 0, there + offsets[position], -1)
        ends.append(slices)
    peers = arrows_between(PEERS, trace.slices, *ends)
    return replace(trace, arrows=(*trace.arrows, peers)) if len(peers) else trace


def _write(path: Path, trace: Trace) -> TraceFile:
    n_events = n_bytes = 0
    with open(path, "wb") as file:
        events = _events(trace)
        separator = "[\n"
        while batch := list(islice(events, _AT_A_TIME)):
            n_bytes += file.write((separator + ",\n".join(batch)).encode())
            n_events += len(batch)
            separator = ",\n"
        n_bytes += file.write(b"\n]\n" if n_events else b"[]\n")
    return TraceFile(n_events, trace.n_left_out, n_bytes, trace.left_out)


def _events(trace: Trace) -> Iterator[str]:
    yield from _metadata(trace)
    yield from _slices(trace)
    yield from _arrivals(trace)
    yield from _points(trace)


def _metadata(trace: Trace) -> Iterator[str]:
    for position, rank in enumerate(trace.ranks):
        named = {"process_name": {"name": f"rank {rank}"}, "process_sort_index": {"sort_index": position}}
        if trace.left_out:
            named["process_labels"] = {"labels": "; ".join(trace.left_out)}
        for name, args in named.items():
            yield _json({"ph": "M", "name": name, "pid": _pid(rank), "tid": 0, "ts": 0, "args": args})
    if trace.left_out:
        args = {"slices": trace.n_left_out, "what": list(trace.left_out)}
        first = _pid(trace.ranks[0]) if trace.ranks else 0
        yield _json({"ph": "M", "name": "left_out", "pid": first, "tid": 0, "ts": 0, "args": args})
    for track, tid in zip(trace.tracks, _tids(trace), strict=True):
        where = {"pid": _pid(track.rank), "tid": tid, "ts": 0}
        name = track.name.encode("utf-8", "replace").decode()
        yield _json({"ph": "M", "name": "thread_name", **where, "args": {"name": name}})
        yield _json({"ph": "M", "name": "thread_sort_index", **where, "args": {"sort_index": track.order}})


def _slices(trace: Trace) -> Iterator[str]:
    """Yield slices, each followed by the arrows that leave it, so that viewers attach them to the right slice."""
    places = _places(trace)
    texts = [_label_text(label) for label in trace.labels]
    slices, leaving = trace.slices, _departures(trace)
    for first in range(0, len(slices), _AT_A_TIME):
        part = slice(first, first + _AT_A_TIME)
        columns = (
            slices.track,
            slices.start_ns,
            slices.end_ns - slices.start_ns,
            slices.label,
            slices.n_merged,
        )
        rows = zip(*(column[part].tolist() for column in columns), strict=True)
        arrows = leaving(part)
        for i, (track, start, length, label, n_merged) in enumerate(rows, first):
            text = texts[label]
            if n_merged > 1:
                args = {"slices": n_merged, "busy_us": int(slices.busy_ns[i]) / 1e3}
                text = _label_text(replace(trace.labels[label], args=args))
            yield (
                f'{{"ph":"X",{places[track]},"ts":{start // 1000}.{start % 1000:03d}'
                f',"dur":{length // 1000}.{length % 1000:03d},{text}'
            )
            for arrow in arrows.get(i, ()):
                yield _arrow_end("s", arrow, places[track])


def _departures(trace: Trace) -> Callable[[slice], dict[int, list[tuple[int, int, str]]]]:
    """Return a function from a range of slices to the arrows that leave each: number, time and meaning."""
    numbers = np.cumsum([0, *map(len, trace.arrows)])
    by_slice = [np.argsort(each.from_slice, kind="stable") for each in trace.arrows]

    def leaving(part: slice) -> dict[int, list[tuple[int, int, str]]]:
        found: dict[int, list[tuple[int, int, str]]] = {}
        for each, order, first in zip(trace.arrows, by_slice, numbers.tolist(), strict=False):
            begin, end = np.searchsorted(each.from_slice, (part.start, part.stop), sorter=order)
            mine = order[begin:end]
            rows = zip(
                each.from_slice[mine].tolist(), mine.tolist(), each.from_ns[mine].tolist(), strict=True
            )
            for slice_, number, ns in rows:
                found.setdefault(slice_, []).append((first + number + 1, ns, each.category))
        return found

    return leaving


def _arrivals(trace: Trace) -> Iterator[str]:
    """Yield the ends of arrows after everything they can start from, so that a reader in time order knows both ends."""
    places, first = _places(trace), 1
    for each in trace.arrows:
        rows = zip(trace.slices.track[each.to_slice].tolist(), each.to_ns.tolist(), strict=True)
        for number, (track, ns) in enumerate(rows, first):
            yield _arrow_end("f", (number, ns, each.category), places[track])
        first += len(each)


def _arrow_end(phase: str, arrow: tuple[int, int, str], place: str) -> str:
    number, ns, category = arrow
    binding = ',"bp":"e"' if phase == "f" else ""  # to the slice around it, not to the next one
    return (
        f'{{"ph":"{phase}","id":{number},{place},"ts":{ns // 1000}.{ns % 1000:03d}'
        f',"name":"{category}","cat":"{category}"{binding}}}'
    )


def _points(trace: Trace) -> Iterator[str]:
    for counter in trace.counters:
        name = _json(counter.name)
        for ns, value in zip(counter.time_ns.tolist(), counter.value.tolist(), strict=True):
            yield (
                f'{{"ph":"C","pid":{_pid(counter.rank)},"tid":0,"ts":{ns // 1000}.{ns % 1000:03d},"name":{name}'
                f',"args":{{"{counter.unit}":{value}}}}}'
            )


def _places(trace: Trace) -> list[str]:
    tids = _tids(trace)
    return [f'"pid":{_pid(track.rank)},"tid":{tid}' for track, tid in zip(trace.tracks, tids, strict=True)]


def _tids(trace: Trace) -> list[int]:
    """Return numbers from top to bottom, for viewers that sort by them; from 1, because 0 is the idle thread to some."""
    tids = [0] * len(trace.tracks)
    n_before: dict[int, int] = {}
    for number in sorted(range(len(tids)), key=lambda i: trace.tracks[i].order):
        rank = trace.tracks[number].rank
        tids[number] = n_before[rank] = n_before.get(rank, 0) + 1
    return tids


def _label_text(label: Label) -> str:
    return f'"name":{_json(label.name)},"cat":{_json(label.category)},"args":{_json(label.args)}}}'


def _json(value: object) -> str:
    return orjson.dumps(value).decode()


def _pid(rank: int) -> int:
    return _FIRST_PID + rank
