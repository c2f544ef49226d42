"""A page that shows a trace: one HTML file that asks nothing of the network.

    Trace ──> columns as JSON, inside the page ──> templates/trace.{html,css,js} ──> a file any browser opens

Text from the program is data: it stands in the JSON, and the script of the page writes it as text only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import orjson

from windtunnel.cluster.program import RankTimeline
from windtunnel.events.model import Recording
from windtunnel.memory.analysis import Timeline
from windtunnel.report.trace_file import merged_trace
from windtunnel.report.trace_model import Trace

__all__ = ["PAGE_EVENTS", "TracePage", "trace_page"]

PAGE_EVENTS = 120_000  # a page of some megabytes that is drawn without delay
_TEMPLATES = Path(__file__).parent / "templates"


@dataclass(frozen=True, slots=True)
class TracePage:
    """What was written."""

    n_slices: int
    n_left_out: int
    n_bytes: int
    left_out: tuple[str, ...] = ()  # sentences; they stand on the page too


def trace_page(
    path: Path,
    ranks: Sequence[tuple[Recording, RankTimeline]],
    *,
    memories: Sequence[Timeline | None] = (),
    step: int | None = None,
    max_events: int = PAGE_EVENTS,
) -> TracePage:
    """Write a page of some ranks, thinned where they are too much for it."""
    trace = merged_trace(ranks, memories=memories, step=step, max_events=max_events)
    parts = {
        name: (_TEMPLATES / f"trace.{name}").read_text(encoding="utf-8") for name in ("html", "css", "js")
    }
    page = parts["html"].replace("{{style}}", parts["css"]).replace("{{script}}", parts["js"])
    before, after = page.split("{{data}}")
    # In a script element only "<" could end it or open a comment.
    data = orjson.dumps(_document(trace)).replace(b"<", b"\\u003c")
    text = before.encode() + data + after.encode()
    path.write_bytes(text)
    return TracePage(len(trace.slices), trace.n_left_out, len(text), trace.left_out)


def _document(trace: Trace) -> dict[str, object]:
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
    used, label = np.unique(trace.slices.label, return_inverse=True)
    slices = replace(trace.slices, label=label.astype(np.int32))
    return replace(trace, labels=tuple(trace.labels[i] for i in used.tolist()), slices=slices)


def _track(trace: Trace, number: int) -> dict[str, object]:
    slices, track = trace.slices, trace.tracks[number]
    # Slices of a track stand together.
    first, end = np.searchsorted(slices.track, (number, number + 1)).tolist()
    here = slice(first, end)
    merged = np.flatnonzero(slices.n_merged[here] > 1)
    return {
        "rank": track.rank,
        "name": track.name.encode("utf-8", "replace").decode(),
        "first": first,
        "start": _steps(slices.start_ns[here]),
        "length": (slices.end_ns[here] - slices.start_ns[here]).tolist(),
        "label": slices.label[here].tolist(),
        "merged": dict(zip(map(str, merged.tolist()), slices.n_merged[here][merged].tolist(), strict=True)),
    }


def _steps(times: np.ndarray) -> list[int]:
    """The first, then how much later each is: short numbers."""
    return np.diff(times, prepend=0).tolist()
