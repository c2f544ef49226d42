"""A page that shows a trace: one HTML file that makes no network requests.

    Trace ──> columns as JSON ──┬──> templates/trace.html ──> a file any browser opens
                                └──> packed, for the page of the whole run

The script that draws it, templates/time/trace.js, is the same in both. Text from the program is data: it is in the JSON,
and the script writes it as text only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from windtunnel.cluster.program import RankTimeline
from windtunnel.events.model import Recording
from windtunnel.memory.analysis import Timeline
from windtunnel.report.page.columns import pack
from windtunnel.report.trace.chrome_file import merged_trace
from windtunnel.report.trace.lanes import COMMUNICATION_ORDER, HOST_ORDER, STREAM_ORDER
from windtunnel.report.trace.model import Label, Trace, Track
from windtunnel.report.trace.rank import last_whole_step

__all__ = ["PAGE_EVENTS", "TracePage", "trace_document", "trace_page"]

PAGE_EVENTS = 120_000  # a page of some megabytes that is drawn without delay
_TEMPLATES = Path(__file__).parents[1] / "templates"
_STYLES = ("shell/page.css", "time/view_trace.css", "time/trace.css")
_SCRIPTS = (
    "shell/words.js",
    "shell/columns.js",
    "time/trace_tracks.js",
    "time/trace.js",
    "time/trace_begin.js",
)
_PART_EVENTS = 45_000  # of the page of a whole run: about 30,000 slices, and arrows
_PART_BYTES = 3_000_000
_COLUMNS = ("start", "length", "label")  # of a track


@dataclass(frozen=True, slots=True)
class TracePage:
    """What was written."""

    n_slices: int
    n_left_out: int
    n_bytes: int
    left_out: tuple[str, ...] = ()  # sentences; they are on the page too


def trace_page(
    path: Path,
    ranks: Sequence[tuple[Recording, RankTimeline]],
    *,
    memories: Sequence[Timeline | None] = (),
    step: int | None = None,
    max_events: int = PAGE_EVENTS,
) -> TracePage:
    """Write a page of some ranks, thinned if they are too large for it."""
    trace = merged_trace(ranks, memories=memories, step=step, max_events=max_events)
    style = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _STYLES)
    script = "".join((_TEMPLATES / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    page = (_TEMPLATES / "time" / "trace.html").read_text(encoding="utf-8")
    page = page.replace("{{style}}", style).replace("{{script}}", script)
    before, after = page.split("{{data}}")
    # In a script element only "<" could end it or open a comment.
    data = orjson.dumps(_document(trace)).replace(b"<", b"\\u003c")
    text = before.encode() + data + after.encode()
    path.write_bytes(text)
    return TracePage(len(trace.slices), trace.n_left_out, len(text), trace.left_out)


def trace_document(
    ranks: Sequence[tuple[Recording, RankTimeline]], memories: Sequence[Timeline | None] = ()
) -> dict[str, Any] | None:
    """Return the last complete step of some ranks, thinned to a part of a page; None if there is nothing to show."""
    if not ranks:
        return None
    step, n_events = last_whole_step(*ranks[0]), _PART_EVENTS
    while True:
        trace = merged_trace(ranks, memories=memories, step=step, max_events=n_events)
        if not len(trace.slices):
            return None
        document = _packed(_document(trace)) | {"step": step}
        # Labels may be long: then keep fewer slices.
        if len(orjson.dumps(document)) <= _PART_BYTES or n_events < 1000:
            return document
        n_events //= 2


def _packed(document: dict[str, Any]) -> dict[str, object]:
    tracks = [track | {name: pack(track[name]) for name in _COLUMNS} for track in document["tracks"]]
    counters = [
        each | {name: pack(each[name]) for name in ("time", "value")} for each in document["counters"]
    ]
    arrows = {name: pack(numbers) for name, numbers in document["arrows"].items()}
    return document | {"tracks": tracks, "counters": counters, "arrows": arrows}


def _document(trace: Trace) -> dict[str, Any]:
    trace = _with_used_labels(trace)
    order = sorted(range(len(trace.tracks)), key=lambda i: (trace.tracks[i].rank, trace.tracks[i].order))
    return {
        "ranks": list(trace.ranks),
        "leftOut": list(trace.left_out),
        "labels": [[label.name, label.category, label.args] for label in trace.labels],
        "tracks": [_track(trace, number) for number in order],
        "counters": [
            {
                "rank": each.rank,
                "name": f"{each.name} {each.unit}",
                "time": _steps(each.time_ns),
                "value": each.value.tolist(),
            }
            for each in trace.counters
        ],
        "arrows": {
            "from": [number for each in trace.arrows for number in each.from_slice.tolist()],
            "to": [number for each in trace.arrows for number in each.to_slice.tolist()],
        },
    }


def _with_used_labels(trace: Trace) -> Trace:
    """Return the labels in use, each once: ranks that do the same work have the same labels."""
    used, label = np.unique(trace.slices.label, return_inverse=True)
    numbers: dict[bytes, int] = {}
    labels: list[Label] = []
    table = np.zeros(len(used), np.int32)
    for place, old in enumerate(used.tolist()):
        mine = trace.labels[old]
        table[place] = numbers.setdefault(orjson.dumps((mine.name, mine.category, mine.args)), len(labels))
        if table[place] == len(labels):
            labels.append(mine)
    slices = replace(trace.slices, label=table[label])
    return replace(trace, labels=tuple(labels), slices=slices)


def _track(trace: Trace, number: int) -> dict[str, object]:
    slices, track = trace.slices, trace.tracks[number]
    # Slices of a track are consecutive.
    first, end = np.searchsorted(slices.track, (number, number + 1)).tolist()
    here = slice(first, end)
    merged = np.flatnonzero(slices.n_merged[here] > 1)
    return {
        "rank": track.rank,
        "name": track.name.encode("utf-8", "replace").decode(),
        "kind": _kind(track),
        "first": first,
        "start": _steps(slices.start_ns[here]),
        "length": (slices.end_ns[here] - slices.start_ns[here]).tolist(),
        "label": slices.label[here].tolist(),
        "merged": dict(zip(map(str, merged.tolist()), slices.n_merged[here][merged].tolist(), strict=True)),
    }


def _kind(track: Track) -> str:
    """Return the kind of a track."""
    if track.is_nested:
        return "phases" if track.order < HOST_ORDER else "modules"
    if track.order < STREAM_ORDER:
        return "host"
    return "stream" if track.order < COMMUNICATION_ORDER else "communication"


def _steps(times: np.ndarray) -> list[int]:
    """Return the first number, then differences, which are short."""
    return np.diff(times, prepend=0).tolist()
