"""Level 3: from the recordings of the simulated ranks to the time of a step on the whole cluster.

    recordings ──> costs of operators, times of collectives ──> a program per rank ──> one timeline
                                                     ──> where the time goes ──> TimeResult, traces

All of it runs in one process: the main cost is one pass over each distinct rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from windtunnel.cluster.data_shards import n_data_shards, shared_groups
from windtunnel.cluster.equal_times import MOST_KINDS
from windtunnel.cluster.program import StepProgram, Work
from windtunnel.cluster.program_builder import Durations, program_of
from windtunnel.cluster.step_time import RankTime, WorldTime, time_of
from windtunnel.cluster.timeline import WorldTimeline, replay_world
from windtunnel.devices import DeviceProfile
from windtunnel.events.model import Recording
from windtunnel.events.recomputation import is_recomputed
from windtunnel.report.results.run import RankResult
from windtunnel.report.results.time import RankTimeResult, TimeResult
from windtunnel.report.results.time_verdict import bound_by, slowest_why
from windtunnel.session.operator_times import call_seconds, cost_source
from windtunnel.session.rank_recording import recording_of
from windtunnel.session.request import RunRequest, task_of
from windtunnel.session.trace_stage import write_traces
from windtunnel.timing.network.links import Network, network_of
from windtunnel.timing.row_costs import RowCosts, row_costs
from windtunnel.timing.step_profile import StepProfile, profile_of, tokens_of

__all__ = ["Timed", "time_run"]

_MOST_NAMED = 5
_TAKES_TIME = (Work.KERNEL, Work.COLLECTIVE, Work.SEND, Work.RECEIVE)


@dataclass(frozen=True)
class Timed:
    """The results that level 3 adds to a run."""

    time: TimeResult
    ranks: dict[int, RankTimeResult]
    step_us: dict[int, float]  # for every timed rank
    trace: dict[str, Any] | None = None  # one step of some ranks, for the page


@dataclass(frozen=True)
class _Rank:
    recording: Recording
    costs: RowCosts
    program: StepProgram
    is_again: np.ndarray


def time_run(
    request: RunRequest,
    results: Mapping[int, RankResult],
    representative: Mapping[int, int],
    tell: Callable[[str], None] = lambda text: None,
    at_hand: Mapping[int, Recording] | None = None,
) -> Timed | None:
    """Time the ranks that finished; None if there are none, or if they ran nothing on a device.

    Recordings that are not `at_hand` are read.
    """
    recordings = _recordings(request, results, at_hand or {})
    if not recordings:
        return None
    source = cost_source(request, recordings.values(), tell)
    network = (
        network_of(request.device, request.nproc_per_node, request.network)
        if request.world_size > 1
        else None
    )
    ranks: dict[int, _Rank] = {}
    for rank, recording in recordings.items():
        tell(f"timing rank {rank}, {len(ranks) + 1} of {len(recordings)}")
        ranks[rank] = _prepare(request, rank, recording, row_costs(recording, source), network)
    if not any(np.isin(each.program.work, _TAKES_TIME).any() for each in ranks.values()):
        return None
    tell(f"simulating the timeline of {len(ranks)} ranks")
    programs = {rank: each.program for rank, each in ranks.items()}
    world = replay_world(programs, representative, request.world_size)
    time = time_of(world)
    profiles = {rank: _profile(each) for rank, each in ranks.items()}
    result = _summary(request, world, time, ranks, profiles, representative)
    result = replace(result, source=source.description, network=_words(network) if network else "")
    flops = {rank: [cost.flops for cost in each.costs.costs] for rank, each in ranks.items()}
    traces = write_traces(request, recordings, flops, world, results, result.slowest_rank, tell)
    result = replace(result, notes=(*result.notes, *source.notes, *traces.notes))
    times = {rank: replace(time.ranks[player], rank=rank) for rank, player in world.image.items()}
    timed = {
        rank: RankTimeResult(times[rank], profile, traces.of(rank).file, traces.of(rank).n_left_out)
        for rank, profile in profiles.items()
        if rank in times
    }
    step_us = {rank: each.step_seconds * 1e6 for rank, each in times.items()}
    return Timed(result, timed, step_us, traces.page)


def _recordings(
    request: RunRequest, results: Mapping[int, RankResult], at_hand: Mapping[int, Recording]
) -> dict[int, Recording]:
    wanted = sorted(rank for rank, result in results.items() if result.status in ("ok", "oom"))
    return {
        rank: at_hand[rank]
        if rank in at_hand
        else recording_of(request, task_of(request, rank).recording_path)[0]
        for rank in wanted
    }


def _prepare(
    request: RunRequest, rank: int, recording: Recording, costs: RowCosts, network: Network | None
) -> _Rank:
    calls = call_seconds(recording, network) if network is not None else {}
    durations = Durations(costs.seconds, costs.host_seconds, calls)
    program = program_of(recording, rank, durations, is_synchronous=request.device.kind == "cpu")
    return _Rank(recording, costs, program, is_recomputed(recording))


def _profile(rank: _Rank) -> StepProfile:
    return profile_of(rank.recording, _step_rows(rank.program), rank.costs, rank.is_again)


def _step_rows(program: StepProgram) -> np.ndarray:
    """Return the rows of the recording that were issued in the last step."""
    steps = np.flatnonzero(program.work == Work.STEP)
    first = int(steps[-2]) + 1 if len(steps) > 1 else 0
    last = int(steps[-1]) + 1 if len(steps) else len(program)
    return program.row[first:last]


def _summary(
    request: RunRequest,
    world: WorldTimeline,
    time: WorldTime,
    ranks: Mapping[int, _Rank],
    profiles: Mapping[int, StepProfile],
    representative: Mapping[int, int],
) -> TimeResult:
    slowest = time.slowest
    shown = profiles.get(slowest.rank) if slowest is not None else None
    if slowest is not None and shown is None:  # a rank that is represented by another
        shown = profiles.get(representative.get(slowest.rank, -1))
    flops = {rank: (p.model_flops, p.hardware_flops) for rank, p in profiles.items()}
    known = [flops[shown_by] for shown_by in representative.values() if shown_by in flops]
    scale = (
        request.world_size / len(known) if known else 0.0
    )  # ranks that were not simulated count as the average of the others
    peak, peak_of = _peak(request.device)
    tokens, basis = _tokens(request, ranks)
    n = max(len(time.ranks), 1)
    return TimeResult(
        step_seconds=time.step_seconds,
        warm_up_seconds=time.warm_up_seconds,
        all_steps_seconds=time.all_steps,
        n_steps=time.n_steps,
        source="",
        tokens_per_step=tokens,
        tokens_basis=basis,
        tokens_per_second=tokens / time.step_seconds if tokens and time.step_seconds else None,
        model_flops=int(sum(model for model, _ in known) * scale),
        hardware_flops=int(sum(hardware for _, hardware in known) * scale),
        peak_flops=peak * request.world_size,
        peak_of=peak_of,
        bubble_share=time.bubble_share,
        exposed_seconds=_mean([rank.exposed_seconds for rank in time.ranks.values()], n),
        peers_seconds=_mean([rank.peers_seconds for rank in time.ranks.values()], n),
        slowest_rank=slowest.rank if slowest is not None else None,
        slowest_why=slowest_why(time.ranks, slowest) if slowest is not None else "",
        bound_by=_bound_by(request, slowest, shown) if slowest and shown else "",
        notes=tuple(_notes(request, world, time, shown)),
    )


def _bound_by(request: RunRequest, slowest: RankTime, shown: StepProfile) -> str:
    return bound_by(slowest, shown, is_cpu=request.device.kind == "cpu", framework=request.framework)


def _words(network: Network) -> str:
    link = f"{network.link or 'link'} {network.link_gbs:g} GB/s"
    return (
        f"{link} inside a node of {network.ranks_per_node}, {network.nics:g} NICs of {network.nic_gbs:g} GB/s"
    )


def _peak(device: DeviceProfile) -> tuple[float, str]:
    """Return the peak FLOP/s of one device, the denominator of model FLOPs utilisation."""
    if device.kind == "cpu":
        return 0.0, ""  # the peak of this CPU is unknown
    if device.bf16_tflops >= device.fp16_tflops:
        return device.bf16_tflops * 1e12, "bf16"
    return device.fp16_tflops * 1e12, "fp16"


def _tokens(request: RunRequest, ranks: Mapping[int, _Rank]) -> tuple[int | None, str]:
    if request.tokens_per_step is not None:
        return request.tokens_per_step, "given by --tokens-per-step"
    counted = (tokens_of(rank.recording, _step_rows(rank.program), rank.is_again) for rank in ranks.values())
    each = max(counted, default=0)
    if not each:
        return None, ""
    shared = {rank: shared_groups(r.recording, r.program) for rank, r in ranks.items()}
    n_shards = n_data_shards({rank: r.program for rank, r in ranks.items()}, shared, request.world_size)
    of = f" x {n_shards} data-parallel shards" if n_shards > 1 else ""
    return (
        each * n_shards,
        f"{each:,} looked up in the largest embedding{of}; override with --tokens-per-step",
    )


def _mean(parts: list[dict[str, float]], n: int) -> dict[str, float]:
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: sum(part.get(name, 0.0) for part in parts) / n for name in names}


def _notes(
    request: RunRequest, world: WorldTimeline, time: WorldTime, shown: StepProfile | None
) -> list[str]:
    notes = []
    if time.n_steps == 1:
        notes.append("only one step ran, and it includes one-time work: run 3 steps to see a steady one")
    if shown is not None and shown.bounded:
        named = ", ".join(f"{name} ({count})" for name, count in list(shown.bounded.items())[:_MOST_NAMED])
        more = f" and {len(shown.bounded) - _MOST_NAMED} more" if len(shown.bounded) > _MOST_NAMED else ""
        share = 100 * shown.bounded_seconds / (shown.seconds or 1.0)
        notes.append(
            f"there is no cost model for {named}{more}: their time is that of moving their bytes, {share:.1f} % of the"
            " kernel time"
        )
    if shown is not None and shown.unsettled:
        named = ", ".join(
            f"{name} ({100 * s:.0f} %)" for name, s in list(shown.unsettled.items())[:_MOST_NAMED]
        )
        n_more = len(shown.unsettled) - _MOST_NAMED
        more = f" and {n_more} more" if n_more > 0 else ""
        notes.append(f"these measurements did not converge (interquartile range): {named}{more}")
    if not world.is_exact:
        notes.append(
            f"there are more than {MOST_KINDS:,} kinds of ranks that differ only in their peers: ranks that do the same"
            " work share one time"
        )
    if world.n_alone:
        notes.append(
            f"{world.n_alone} sends and receives have a peer that was not simulated and is assumed to be ready;"
            " --ranks auto simulates all kinds of ranks"
        )
    if world.n_unmet:
        notes.append(f"{world.n_unmet} calls were completed although their peers never joined them")
    missing = request.world_size - len(world.image)
    if missing:
        notes.append(f"{missing} of {request.world_size} ranks were not simulated: no rank waits for them")
    return notes
