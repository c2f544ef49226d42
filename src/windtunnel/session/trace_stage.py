"""Write the traces of a timed run: one for each of a few ranks, and one with all of them.

WorldTimeline, recordings ──> rank{R}/trace_view.json, trace_view.json, trace.html, and the part of report.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from windtunnel.cluster.stages import stages_around
from windtunnel.cluster.timeline import WorldTimeline
from windtunnel.events.model import Recording
from windtunnel.report.results.run import RankResult
from windtunnel.report.trace.chrome_file import write_merged_trace, write_trace
from windtunnel.report.trace.page import trace_document, trace_page
from windtunnel.session.request import RunRequest

__all__ = ["Traces", "WrittenTrace", "write_traces"]

_MOST_RANKS = 4  # that get their own trace, unless the user lists ranks
_MOST_STAGES = 8  # pipeline stages shown in report.html


@dataclass(frozen=True, slots=True)
class WrittenTrace:
    file: str = ""  # relative to the run's folder
    n_left_out: int = 0


@dataclass(frozen=True)
class Traces:
    ranks: Mapping[int, WrittenTrace]
    notes: tuple[str, ...] = ()
    page: dict[str, Any] | None = None  # the part shown in report.html

    def of(self, rank: int) -> WrittenTrace:
        return self.ranks.get(rank, WrittenTrace())


def write_traces(
    request: RunRequest,
    recordings: Mapping[int, Recording],
    flops: Mapping[int, Sequence[int]],  # per signature, for each rank
    world: WorldTimeline,
    results: Mapping[int, RankResult],
    slowest: int | None,
    tell: Callable[[str], None],
) -> Traces:
    """Write the requested traces; a full disk affects the traces, not the run."""
    chosen, notes = _chosen(request, [rank for rank in recordings if rank in world.ranks])
    written: dict[int, WrittenTrace] = {}
    try:
        for rank in chosen:
            tell(f"writing the trace of rank {rank}")
            file = f"rank{rank}/trace_view.json"
            done = write_trace(
                request.folder / file,
                recordings[rank],
                world.ranks[rank],
                memory=results[rank].timeline,
                flops=flops[rank],
            )
            written[rank] = WrittenTrace(file, done.n_left_out)
            if done.left_out:
                notes.append(f"{file} omits {done.n_left_out:,} slices: {'; '.join(done.left_out)}")
        pairs = [(recordings[rank], world.ranks[rank]) for rank in chosen]
        memories = [results[rank].timeline for rank in chosen]
        if len(pairs) > 1:
            tell("writing the merged trace")
            write_merged_trace(request.folder / "trace_view.json", pairs, memories=memories)
        if pairs:
            trace_page(request.folder / "trace.html", pairs, memories=memories)
    except OSError as error:
        notes.append(f"some traces could not be written: {error.strerror or error}")
    return Traces(written, tuple(notes), _for_page(request, recordings, world, results, slowest, chosen))


def _for_page(
    request: RunRequest,
    recordings: Mapping[int, Recording],
    world: WorldTimeline,
    results: Mapping[int, RankResult],
    slowest: int | None,
    chosen: Sequence[int],
) -> dict[str, Any] | None:
    """Select the stages of the slowest pipeline, to show its bubbles; otherwise the ranks that have traces."""
    if not request.writes_page:
        return None
    ranks, left_out = list(chosen), []
    if request.trace_ranks is None and slowest is not None:
        stages = stages_around(slowest, world.ranks, request.world_size)
        ranks = _spread(stages, _MOST_STAGES) if len(stages) > 1 else ranks
        if len(stages) > _MOST_STAGES:
            left_out = [f"{_MOST_STAGES} of the {len(stages)} stages of this pipeline are shown"]
    timelines = [world.ranks[rank] for rank in ranks]
    shown = [results[timeline.program.rank].timeline for timeline in timelines]
    document = trace_document([(recordings[each.program.rank], each) for each in timelines], memories=shown)
    if document is None:
        return None
    return document | {"leftOut": [*left_out, *document["leftOut"]]}


def _spread(ranks: Sequence[int], most: int) -> list[int]:
    """Select `most` evenly spaced ranks, including the first and the last."""
    if len(ranks) <= most:
        return list(ranks)
    return [ranks[i * (len(ranks) - 1) // (most - 1)] for i in range(most)]


def _chosen(request: RunRequest, recordings: Sequence[int]) -> tuple[list[int], list[str]]:
    ranks = sorted(recordings)
    if request.trace_ranks is not None:
        missing = [rank for rank in request.trace_ranks if rank not in recordings]
        notes = (
            [f"there is no trace of rank {missing[0]}: it is represented by another rank"] if missing else []
        )
        return [rank for rank in request.trace_ranks if rank in recordings], notes
    if len(ranks) <= _MOST_RANKS:
        return ranks, []
    return _spread(ranks, _MOST_RANKS), [
        f"traces were written for {_MOST_RANKS} of {len(ranks)} simulated ranks; choose others with --trace-ranks"
    ]
