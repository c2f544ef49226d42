"""Write the traces of a timed run: one for each of a few ranks, and those ranks side by side.

WorldTimeline, recordings ──> rank{R}/trace_view.json, trace_view.json, trace.html
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from windtunnel.cluster.timeline import WorldTimeline
from windtunnel.commands.request import RunRequest
from windtunnel.events.model import Recording
from windtunnel.report.result import RankResult
from windtunnel.report.trace_file import write_merged_trace, write_trace
from windtunnel.report.trace_page import trace_page

__all__ = ["Traces", "WrittenTrace", "write_traces"]

_MOST_RANKS = 4  # that get a trace of their own unless they are named


@dataclass(frozen=True, slots=True)
class WrittenTrace:
    file: str = ""  # relative to the run's folder
    n_left_out: int = 0


@dataclass(frozen=True)
class Traces:
    ranks: Mapping[int, WrittenTrace]
    notes: tuple[str, ...] = ()

    def of(self, rank: int) -> WrittenTrace:
        return self.ranks.get(rank, WrittenTrace())


def write_traces(
    request: RunRequest,
    recordings: Mapping[int, Recording],
    flops: Mapping[int, Sequence[int]],  # of each rank's signatures
    world: WorldTimeline,
    results: Mapping[int, RankResult],
    tell: Callable[[str], None],
) -> Traces:
    """Write what was asked for; a full disk costs the traces, not the run."""
    chosen, notes = _chosen(request, recordings)
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
                notes.append(f"{file} leaves out {done.n_left_out:,} slices: {'; '.join(done.left_out)}")
        pairs = [(recordings[rank], world.ranks[rank]) for rank in chosen]
        memories = [results[rank].timeline for rank in chosen]
        if len(pairs) > 1:
            tell("writing the trace of all of them")
            write_merged_trace(request.folder / "trace_view.json", pairs, memories=memories)
        if pairs:
            trace_page(request.folder / "trace.html", pairs, memories=memories)
    except OSError as error:
        notes.append(f"not every trace could be written: {error.strerror or error}")
    return Traces(written, tuple(notes))


def _chosen(request: RunRequest, recordings: Mapping[int, Recording]) -> tuple[list[int], list[str]]:
    ranks = sorted(recordings)
    if request.trace_ranks is not None:
        missing = [rank for rank in request.trace_ranks if rank not in recordings]
        notes = [f"there is no trace of rank {missing[0]}: it was not simulated itself"] if missing else []
        return [rank for rank in request.trace_ranks if rank in recordings], notes
    if len(ranks) <= _MOST_RANKS:
        return ranks, []
    spread = [ranks[i * (len(ranks) - 1) // (_MOST_RANKS - 1)] for i in range(_MOST_RANKS)]  # of all stages
    return spread, [
        f"traces were written of {_MOST_RANKS} of {len(ranks)} simulated ranks: choose others with --trace-ranks"
    ]
