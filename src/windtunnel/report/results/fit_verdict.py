"""Whether it fits, in one sentence, and what to try next.

    RunResult ──> the rank that needs most ──> fact, numbers, remedies

A remedy is called sufficient only if it was simulated, with the number from that simulation.
"""

from __future__ import annotations

from collections.abc import Iterator

from windtunnel.memory.checkpoint_units import checkpoint_units
from windtunnel.report.results.run import RankResult, RunResult
from windtunnel.units import format_bytes

__all__ = ["verdict"]

_HOLDERS = 3  # roles named in the sentence
_REMEDIES = 3
_WORDS = {
    "weights": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer state",
    "activations": "activations",
    "inputs": "inputs",
    "temporary": "temporary tensors",
    "workspace": "workspace",
    "communication": "communication buffers",
    "frozen": "frozen weights",
    "copies": "copies of weights",
}


def verdict(result: RunResult) -> str:
    """Return one sentence about the tightest rank, or about the ranks that failed or would hang."""
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
        return f"Runs: it builds and takes {steps}; level 0 does not measure memory, use --level 1."
    subject = f"rank {rank.rank} needs" if result.world_size > 1 else "needs"
    if rank.fits:
        return _fits(rank, result, subject)
    needed, usable = rank.peak_with_fragments_bytes, rank.usable_memory_bytes
    device = f"{_a(result.device.name)} has {format_bytes(usable)} usable"
    fact = f"Does not fit: {subject} {format_bytes(needed)}, {device}"
    return f"{fact}; {_holders(rank)}; {_advised(result, rank)}."


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


def _fits(rank: RankResult, result: RunResult, subject: str) -> str:
    needed, usable, device = rank.peak_with_fragments_bytes, rank.usable_memory_bytes, result.device.name
    if needed == 0 and device != "cpu":
        return f"Runs, but allocated nothing on the {device}: are all tensors on the CPU? (--device cpu)"
    if usable == 0 or device == "cpu":
        return f"Runs: {subject} {format_bytes(needed)}; {_holders(rank)}."
    text = f"Fits: {subject} {format_bytes(needed)} of the {format_bytes(usable)} usable on {_a(device)}"
    if rank.n_retries:
        times = "once" if rank.n_retries == 1 else f"{rank.n_retries} times"
        text += f", but only by releasing its cache {times}, which stalls training"
        return f"{text}; {_advised(result, rank)}."
    share = f"{needed * 100 // usable}%" if needed * 100 >= usable else "under 1%"
    text += f" ({share}), {format_bytes(usable - needed)} to spare; {_holders(rank)}"
    larger = next((remedy for remedy in result.advice if remedy.grows and remedy.fits), None)
    if larger is not None:
        text += f"; {larger.what} would fit too ({larger.need})"
    return text + "."


def _holders(rank: RankResult) -> str:
    held = sorted(rank.at_peak_bytes.items(), key=lambda item: -item[1])[:_HOLDERS]
    named = [f"{_WORDS[role]} {format_bytes(n)}" for role, n in held if n]
    if not named:
        return "nothing was allocated"
    first, *rest = named
    role, size = first.rsplit(" ", 2)[0], " ".join(first.rsplit(" ", 2)[1:])
    return ", ".join([f"{role} hold{'s' if role in ('workspace', 'optimizer state') else ''} {size}", *rest])


def _advised(result: RunResult, rank: RankResult) -> str:
    """Name the simulated remedies that fit, with their numbers; otherwise suggest some, without a claim."""
    fitting = [remedy for remedy in result.advice if remedy.fits]
    if fitting:
        named = [f"{remedy.what} ({remedy.need})" for remedy in fitting[:_REMEDIES]]
        return f"it fits with {_listed(named, 'or')}"
    found = [*_unproven(rank, result.device.is_ascend)]
    if not result.advice:
        return f"try {_listed(found[:_REMEDIES], 'or')}"
    least = min(result.advice, key=lambda remedy: remedy.needs_bytes)
    still = f"{least.what} is not enough ({least.need})"
    left = [text for text in found if not text.startswith(("activation", "a smaller"))]
    return f"{still}: {_listed(left[:_REMEDIES], 'or')}" if left else still


def _unproven(rank: RankResult, is_ascend: bool) -> Iterator[str]:
    """Yield remedies that might help, for the largest consumer first. None of them was simulated."""
    held = rank.at_peak_bytes
    if rank.peak_bytes <= rank.usable_memory_bytes and not is_ascend:
        lost = rank.peak_with_fragments_bytes - rank.peak_bytes
        yield f"expandable segments (fragments take {format_bytes(lost)})"
    states = held.states
    ways = [
        (held.activations, _fewer_activations),
        (states, _sharded_states),
        (held.temporary + held.workspace, _smaller_temporaries),
    ]
    for n_bytes, way in sorted(ways, key=lambda w: -w[0]):
        if n_bytes:
            yield from way(rank)


def _fewer_activations(rank: RankResult) -> Iterator[str]:
    units = [u for u in checkpoint_units(rank.at_peak_by_module) if u.is_whole and u.is_repeated]
    if units:
        held = format_bytes(units[0].n_bytes)
        yield f"activation checkpointing on {units[0].module} (its activations hold {held})"
    yield "a smaller micro-batch or sequence"


def _sharded_states(rank: RankResult) -> Iterator[str]:
    held = rank.at_peak_bytes
    states = format_bytes(held.states)
    yield f"sharding weights, gradients and optimizer state ({states}) over more devices (FSDP or ZeRO)"
    if held.optimizer > held.weights:
        yield f"an 8-bit optimizer (its state holds {format_bytes(held.optimizer)})"


def _smaller_temporaries(rank: RankResult) -> Iterator[str]:
    passing = [t for t in rank.largest_at_peak if t.role in ("temporary", "workspace")]
    if passing:
        first = passing[0]
        where = f" at {first.where}" if first.where else ""
        holds = f"which temporarily holds {format_bytes(first.n_bytes)}"
        yield f"splitting {first.op or 'the operator'}{where}, {holds}"


def _listed(texts: list[str], word: str) -> str:
    *others, last = texts or ["a larger device"]
    return f"{', '.join(others)} {word} {last}" if others else last


def _a(noun: str) -> str:
    first, second = noun[:1].lower(), noun[1:2]
    is_spelt_out = first in "hlmnrsx" and second.isdigit()  # an h100, but a v100
    return f"an {noun}" if first in "aeio" or is_spelt_out else f"a {noun}"


def _ranks(ranks: list[RankResult]) -> str:
    numbers = ", ".join(str(rank.rank) for rank in ranks[:5])
    more = f" and {len(ranks) - 5} more" if len(ranks) > 5 else ""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {numbers}{more}"
