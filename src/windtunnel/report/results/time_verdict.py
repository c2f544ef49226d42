"""What limits the speed of a step, in one sentence, and why the slowest rank is slow.

RankTime, StepProfile ──> shares of the step, largest first ──> sentence
"""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.cluster.step_time import RankTime
from windtunnel.timing.operators.operator_classes import OpClass
from windtunnel.timing.step_profile import StepProfile
from windtunnel.units import format_us

__all__ = ["bound_by", "slowest_why"]

_ARITHMETIC = frozenset(  # classes that compute; the rest moves bytes
    each.value
    for each in (
        OpClass.MATMUL,
        OpClass.CONVOLUTION,
        OpClass.ATTENTION,
        OpClass.ATTENTION_BACKWARD,
        OpClass.RECURRENT,
    )
)
_WORTH_NAMING = 0.05  # of the step
_WORTH_MENDING = 0.1  # of the step, besides arithmetic
_MUCH = 0.02  # more than the fastest rank
_ADVICE = {
    "bytes": "fusing small operators (torch.compile, fused optimizers and norms) would make it shorter",
    "transfer": "keeping more data on the device, or copying on a separate stream, would make it shorter",
    "network": "overlapping it, a faster network or a smaller group would make it shorter",
    "bubble": "more micro-batches, or an interleaved or zero-bubble schedule, would make it shorter",
    "peers": "balancing the ranks would make it shorter",
    "host": "larger batches, torch.compile or CUDA graphs would make it shorter",
    "streams": "moving that work off the critical path would make it shorter",
}
_ADVICE_OF = {  # for frameworks with other means
    "mindspore": {
        "bytes": "fusing small operators (jit_level O1, fused optimizers, norms and losses) would make it shorter",
        "host": "larger batches, or compiling the step (mindspore.jit, GRAPH_MODE), would make it shorter",
    }
}


def bound_by(time: RankTime, profile: StepProfile, *, is_cpu: bool = False, framework: str = "torch") -> str:
    """Name the largest part of the step of one rank, the other large parts, and what would help."""
    shares = _shares(time, profile)
    ordered = sorted(shares.items(), key=lambda item: -item[1][0])
    whole = time.step_seconds
    if not whole or not ordered or not ordered[0][1][0]:
        return "Nothing in the step takes time."
    kind, (seconds, words) = ordered[0]
    text = f"{_percent(seconds, whole)} of the step is {words}"
    others = [f"{_percent(s, whole)} {w}" for _, (s, w) in ordered[1:4] if s >= _WORTH_NAMING * whole]
    if others:
        text += f"; {', '.join(others)}"
    if kind == "host" and is_cpu:
        return f"{text}."
    advice = _ADVICE | _ADVICE_OF.get(framework, {})
    if kind != "arithmetic":
        return f"{text}; {advice[kind]}."
    ways = "lower precision, less recomputation, more devices"
    if profile.hardware_flops <= profile.model_flops:
        ways = "lower precision, more devices"  # nothing is recomputed
    second, (seconds, _) = ordered[1]
    if seconds < _WORTH_MENDING * whole:
        return f"{text}; only faster arithmetic ({ways}) makes it shorter."
    return f"{text}; faster arithmetic ({ways}) makes it shorter; {advice[second]}."


def slowest_why(ranks: Mapping[int, RankTime], slowest: RankTime) -> str:
    """Explain what the slowest rank spends more time on than the fastest."""
    if len(ranks) < 2:
        return ""
    fastest = min(ranks.values(), key=lambda rank: (_at_work(rank), rank.rank))
    more = _at_work(slowest) - _at_work(fastest)
    if more <= _MUCH * _at_work(fastest):
        return "all ranks are busy for about the same time"
    parts = {
        "computes": slowest.compute_seconds - fastest.compute_seconds,
        "waits for its own host": slowest.host_seconds - fastest.host_seconds,
        "waits for the network": sum(slowest.exposed_seconds.values())
        - sum(fastest.exposed_seconds.values()),
        "waits for its other streams": slowest.streams_seconds - fastest.streams_seconds,
    }
    what = max(parts, key=lambda name: parts[name])
    share = f", {_percent(more, _at_work(fastest))} longer busy" if _at_work(fastest) else ""
    return f"it {what} {format_us(parts[what] * 1e6)} longer than rank {fastest.rank}, the fastest{share}"


def _at_work(time: RankTime) -> float:
    return time.step_seconds - time.waiting_for_others


def _shares(time: RankTime, profile: StepProfile) -> dict[str, tuple[float, str]]:
    arithmetic = sum(s for name, s in profile.by_class.items() if name in _ARITHMETIC)
    total = sum(profile.by_class.values()) or 1.0
    computed = time.compute_seconds * arithmetic / total
    copied = time.compute_seconds * profile.by_class.get(OpClass.TRANSFER.value, 0.0) / total
    axes = sorted(time.exposed_seconds, key=lambda axis: -time.exposed_seconds[axis])
    worst = [axis for axis in axes if time.exposed_seconds[axis] > 0][:2]
    return {
        "arithmetic": (computed, "matrix products, convolutions and attention"),
        "bytes": (
            time.compute_seconds - computed - copied,
            "operators that move bytes rather than compute",
        ),
        "transfer": (copied, "copies between host and device"),
        "network": (
            sum(time.exposed_seconds.values()), f"waiting for the network ({', '.join(worst) or 'none'})",
        ),
        "bubble": (time.bubble_seconds, "waiting for other pipeline stages"),
        "peers": (sum(time.peers_seconds.values()), "waiting for slower ranks"),
        "host": (time.host_seconds, "the host program, which does not launch kernels fast enough"),
        "streams": (time.streams_seconds, "waiting for other streams"),
    }  # fmt: skip


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "0 %"
