"""The result of `windtunnel remat`, and its sentences.

Curve, what it is about ──> RematResult ──> answer, assumptions ──> terminal, JSON, picture
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from windtunnel.devices import DeviceProfile
from windtunnel.remat.policy import DEFAULT_POLICY
from windtunnel.remat.simulated.curve import MARGIN, Curve, Point
from windtunnel.remat.simulated.thresholds import write_size
from windtunnel.units import format_bytes

__all__ = ["Cheaper", "CostSource", "RematResult", "answer", "assumptions", "describe_failure", "use_lines"]

_ALLOCATORS = {
    "cuda": "torch's caching allocator",
    "cuda-expandable": "torch's caching allocator with expandable segments",
    "npu": "torch_npu's caching allocator",
}


@dataclass(frozen=True)
class CostSource:
    """Where the times of operators come from."""

    path: str | None = None  # of a table of measured times
    n_measured: int = 0  # kinds of operators of the program that are in it
    n_kinds: int = 0


@dataclass(frozen=True)
class Cheaper:
    """A way to fit without rematerialisation at run time that takes less time."""

    what: str
    extra: float  # of a step, as a share
    reserved_bytes: int

    @property
    def sentence(self) -> str:
        time = f"{self.extra:+.1%} time" if self.extra else "no extra time"
        return f"Cheaper: {self.what} ({time}, {format_bytes(self.reserved_bytes)} reserved at the peak)."


@dataclass(frozen=True)
class RematResult:
    windtunnel: str
    subject: str  # the script or the recording
    rank: int
    world_size: int
    device: DeviceProfile
    allocator: str
    n_steps: int
    minimum_size: int
    is_sampling: bool
    costs: CostSource
    curve: Curve
    notes: tuple[str, ...] = ()
    cheaper: Cheaper | None = None


def answer(result: RematResult) -> str:
    """Return which threshold to use, in one sentence with numbers."""
    curve = result.curve
    best = curve.best
    if best is None:
        return _no_answer(result)
    many = f" with policy {best.policy}" if len(curve.policies) > 1 else ""
    gain = f"{best.step.slowdown - 1:.1%} slower than without a limit"
    usable = format_bytes(curve.usable_bytes)
    peak = f"{format_bytes(best.peak_reserved_bytes)} of {usable} reserved at the peak"
    sentence = f"{write_size(best.threshold or 0)}{many} ({gain}, {peak})."
    if curve.without.fits and curve.has_margin(curve.without):
        needed = format_bytes(curve.without.peak_reserved_bytes)
        return f"It fits without a limit, with {needed} of {usable} reserved. To use less, set {sentence}"
    if not curve.has_margin(best):
        sentence += f" It fits, but like all others leaves less than {MARGIN:.0%} of the device free: it may still fail."
    return f"Best threshold: {sentence}"


def assumptions(result: RematResult) -> Iterator[str]:
    """Yield the assumptions behind the numbers."""
    device, costs = result.device, result.costs
    roofline = (
        f"a roofline of {device.id} ({device.bandwidth_gbs:g} GB/s, {device.fp32_tflops or device.bf16_tflops / 16:g}"
        " fp32 and "
        f"{device.fp16_tflops or device.bf16_tflops:g} half precision TFLOPS)"
    )
    if costs.path is None:
        yield f"operator times come from {roofline}; use --costs FILE for measured ones"
    else:
        yield (
            f"operator times are measured ({costs.path}) for {costs.n_measured} of {costs.n_kinds} kinds of operators,"
            f" and come from {roofline} for the others"
        )
    allocator = _ALLOCATORS.get(result.allocator, f"the allocator {result.allocator}")
    yield f"memory is simulated with {allocator} and {format_bytes(result.curve.usable_bytes)}; stalls take no time"
    yield f"the best threshold leaves {MARGIN:.0%} of that free for kernel workspaces, which are not simulated"


def use_lines(result: RematResult) -> tuple[str, ...]:
    """Return the lines to add to the script to use the best threshold; none if there is none."""
    best = result.curve.best
    if best is None:
        return ()
    is_plain = len(result.curve.policies) == 1 and best.policy == DEFAULT_POLICY
    policy = () if is_plain else (f'dtr.policy = "{best.policy}"',)
    size = write_size(best.threshold or 0)
    return "import windtunnel.dtr as dtr", f'dtr.eviction_threshold = "{size}"', *policy, "dtr.enable()"


def describe_failure(point: Point) -> str:
    found = point.out_of_memory
    if found is None:
        return ""
    where = f" at {found.operator}" if found.operator else ""
    place = f" ({found.place})" if found.place else ""
    return f"step {found.step}{where}{place}, asking for {format_bytes(found.requested_bytes)}"


def _no_answer(result: RematResult) -> str:
    curve = result.curve
    if curve.floor_bytes > curve.usable_bytes:
        return (
            f"No threshold fits: {format_bytes(curve.floor_bytes)} can never be evicted, and"
            f" {result.device.id} has {format_bytes(curve.usable_bytes)}."
        )
    return (
        f"None of these thresholds fits in the {format_bytes(curve.usable_bytes)} of {result.device.id};"
        f" {format_bytes(curve.floor_bytes)} can never be evicted."
    )
