"""Does it fit, in one sentence, and what to try next.

    RunResult ──> the rank that needs most ──> fact, numbers, remedies that would be enough

A remedy is named only with the number that speaks for it, and says whether it is enough on its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from windtunnel.memory.checkpoint_units import checkpoint_units
from windtunnel.report.result import RankResult, RunResult
from windtunnel.units import format_bytes

__all__ = ["verdict"]

_HOLDERS = 3  # roles named in the sentence
_REMEDIES = 3
_MOST_SHARDS = 4096
_MUCH_ROOM = 10  # times the micro-batch: beyond it, what happens at the peak says little about the answer
_ENOUGH_ACTIVATIONS = 0.1  # of the peak: with fewer, the micro-batch is not what fills the device
_WORDS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "inputs": "inputs",
    "temporary": "temporary tensors",
    "workspace": "workspace",
    "communication": "communication buffers",
}


def verdict(result: RunResult) -> str:
    """One sentence about the tightest rank, or about the ranks that failed or would wait for ever."""
    failed = [rank for rank in result.ranks if rank.status == "failed"]
    if failed:
        return _failure(failed, result.world_size)
    if result.mismatches:
        return _mismatch(result)
    rank = result.tightest
    if rank is None:
        return "Nothing was simulated."
    if result.level == 0:
        steps = "1 optimizer step" if rank.steps == 1 else f"{rank.steps} optimizer steps"
        return f"Runs: it builds and takes {steps}; level 0 does not measure memory, --level 1 does."
    subject = f"rank {rank.rank} needs" if result.world_size > 1 else "needs"
    if rank.fits:
        return _fits(rank, result.device.name, subject)
    needed, usable = rank.peak_with_fragments_bytes, rank.usable_memory_bytes
    device = f"{_a(result.device.name)} has {format_bytes(usable)} usable"
    remedies = _remedies(rank, result.device.is_ascend)
    return f"Does not fit: {subject} {format_bytes(needed)}, {device}; {_holders(rank)}; {remedies}."


def _failure(failed: list[RankResult], world_size: int) -> str:
    first = failed[0]
    sentence = (first.error or "the script failed").rstrip(".")
    if world_size == 1:
        return f"Failed: {sentence}."
    others = f" ({_ranks(failed[1:])} failed as well)" if failed[1:] else ""
    return f"Failed: rank {first.rank}: {sentence}{others}."


def _mismatch(result: RunResult) -> str:
    first = result.mismatches[0].sentence.rstrip(".")
    others = f" (and {len(result.mismatches) - 1} more like it)" if len(result.mismatches) > 1 else ""
    return f"Would hang: {first}{others}."


def _fits(rank: RankResult, device: str, subject: str) -> str:
    needed, usable = rank.peak_with_fragments_bytes, rank.usable_memory_bytes
    if needed == 0 and device != "cpu":
        return f"Runs, but allocated nothing on the {device}: are all its tensors on the CPU? (--device cpu)"
    if usable == 0 or device == "cpu":
        return f"Runs: {subject} {format_bytes(needed)}; {_holders(rank)}."
    text = f"Fits: {subject} {format_bytes(needed)} of the {format_bytes(usable)} usable on {_a(device)}"
    if rank.n_retries:
        times = "once" if rank.n_retries == 1 else f"{rank.n_retries} times"
        text += f", but only by releasing its cache {times}, which stalls training"
        return f"{text}; {_remedies(rank, is_ascend=False)}."
    spare, held = usable - needed, rank.at_peak_bytes
    growing = held.activations + held.inputs + held.temporary + held.workspace
    share = f"{needed * 100 // usable}%" if needed * 100 >= usable else "under 1%"
    text += f" ({share}), {format_bytes(spare)} to spare; {_holders(rank)}"
    if held.activations > _ENOUGH_ACTIVATIONS * needed and spare > growing:
        factor = math.floor(1 + spare / growing)
        times = f"about {factor}" if factor <= _MUCH_ROOM else f"more than {_MUCH_ROOM}"
        text += f"; there is room for {times} times the micro-batch"
    return text + "."


def _holders(rank: RankResult) -> str:
    held = sorted(rank.at_peak_bytes.items(), key=lambda item: -item[1])[:_HOLDERS]
    named = [f"{_WORDS[role]} {format_bytes(n)}" for role, n in held if n]
    if not named:
        return "nothing was allocated"
    first, *rest = named
    role, size = first.rsplit(" ", 2)[0], " ".join(first.rsplit(" ", 2)[1:])
    return ", ".join([f"{role} hold{'s' if role in ('workspace', 'optimizer state') else ''} {size}", *rest])


def _remedies(rank: RankResult, is_ascend: bool) -> str:
    short_by = max(1, rank.peak_with_fragments_bytes - rank.usable_memory_bytes)
    found = [*_against_fragments(rank, is_ascend), *_by_size(rank, short_by)]
    *others, last = found[:_REMEDIES]
    return f"try {', '.join(others)} or {last}" if others else f"try {last}"


def _against_fragments(rank: RankResult, is_ascend: bool) -> Iterator[str]:
    lost = rank.peak_with_fragments_bytes - rank.peak_bytes
    if rank.peak_bytes <= rank.usable_memory_bytes and not is_ascend:
        yield (
            f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True ({format_bytes(lost)} is only fragments: "
            "see --allocator cuda-expandable)"
        )


def _by_size(rank: RankResult, short_by: int) -> Iterator[str]:
    """Remedies for what holds most, largest holder first."""
    held = rank.at_peak_bytes
    states = held.weights + held.gradients + held.optimizer
    ways = [
        (held.activations, _fewer_activations),
        (states, _sharded_states),
        (held.temporary + held.workspace, _smaller_temporaries),
    ]
    for n_bytes, way in sorted(ways, key=lambda w: -w[0]):
        if n_bytes:
            yield from way(rank, short_by)


def _fewer_activations(rank: RankResult, short_by: int) -> Iterator[str]:
    activations = rank.at_peak_bytes.activations
    mine = [unit for unit in checkpoint_units(rank.at_peak_by_module) if unit.is_whole]
    where = f" on {mine[0].module} ({format_bytes(mine[0].n_bytes)})" if mine else ""
    yield f"activation checkpointing{where}"
    if activations > short_by:
        yield f"a micro-batch or sequence at least {_up(activations / (activations - short_by)):.1f} times smaller"


def _sharded_states(rank: RankResult, short_by: int) -> Iterator[str]:
    held = rank.at_peak_bytes
    states = held.weights + held.gradients + held.optimizer
    shards = math.ceil(states / (states - short_by)) if states > short_by else _MOST_SHARDS + 1
    if shards <= _MOST_SHARDS:
        yield f"sharding weights, gradients and optimizer state over {max(2, shards)} ranks (FSDP or ZeRO)"
    else:
        yield f"sharding weights, gradients and optimizer state ({format_bytes(states)}) as well"
    if held.optimizer > held.weights:
        enough = ", enough on its own" if held.optimizer * 3 // 4 >= short_by else ""
        yield f"an 8-bit optimizer (saves about {format_bytes(held.optimizer * 3 // 4)}{enough})"


def _smaller_temporaries(rank: RankResult, short_by: int) -> Iterator[str]:
    passing = [t for t in rank.largest_at_peak if t.role in ("temporary", "workspace")]
    if passing:
        first = passing[0]
        where = f" at {first.where}" if first.where else ""
        holds = f"which holds {format_bytes(first.n_bytes)} for a moment"
        yield f"splitting {first.op or 'the operator'}{where}, {holds}"


def _up(factor: float) -> float:
    return math.ceil(factor * 10) / 10


def _a(noun: str) -> str:
    first, second = noun[:1].lower(), noun[1:2]
    is_spelt_out = first in "hlmnrsx" and second.isdigit()  # an h100, but a v100
    return f"an {noun}" if first in "aeio" or is_spelt_out else f"a {noun}"


def _ranks(ranks: list[RankResult]) -> str:
    numbers = ", ".join(str(rank.rank) for rank in ranks[:5])
    more = f" and {len(ranks) - 5} more" if len(ranks) > 5 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers}{more}"
