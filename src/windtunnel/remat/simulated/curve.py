"""Time and peak for many thresholds, and which threshold to take.

    Program, thresholds, policies ──> simulate each ──> Curve(without, points) ──> best

The best one is the fastest that leaves a margin of the device free; among equally fast ones, and if none leaves that
much, the one with the lowest peak. The margin is for what is not simulated: kernel workspaces, other users of the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

from windtunnel.memory import Allocator
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.simulated.outcome import Outcome, OutOfMemory, StepOutcome
from windtunnel.remat.simulated.program import Program, Save
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.remat.simulated.simulate import floor_bytes, simulate
from windtunnel.remat.simulated.thresholds import default_thresholds

__all__ = ["MARGIN", "Curve", "MakeAllocator", "Point", "Question", "has_backward", "trace_curve"]

MARGIN = 0.05  # of the usable memory
_AS_FAST = 0.005  # of a step: a smaller difference is called none
_NO_LIMIT = 1 << 62

MakeAllocator = Callable[[int | None], Allocator]  # of a device with so many bytes


@dataclass(frozen=True)
class Question:
    """A program on a device, with the settings that are the same along the curve."""

    program: Program
    costs: ProgramCosts
    make_allocator: MakeAllocator
    usable_bytes: int
    is_cuda: bool = True
    minimum_size: int = Settings.minimum_size
    is_sampling: bool = False

    def ask(self, threshold: int, policy: str) -> Point:
        settings = Settings(threshold, self.minimum_size, self.is_sampling, policy)
        return self._point(settings, self.usable_bytes, policy)

    def ask_without(self) -> Point:
        """How it goes when nothing is ever evicted; if that does not fit, with all the memory it would take."""
        settings = Settings(_NO_LIMIT, minimum_size=_NO_LIMIT)
        point = self._point(settings, self.usable_bytes, None)
        if point.fits:
            return point
        return Point(None, self._point(settings, None, None).outcome, point.outcome.out_of_memory)

    def _point(self, settings: Settings, device_bytes: int | None, policy: str | None) -> Point:
        allocator = self.make_allocator(device_bytes)
        outcome = simulate(self.program, self.costs, settings, allocator, is_cuda=self.is_cuda)
        return Point(policy, outcome, outcome.out_of_memory)


@dataclass(frozen=True)
class Point:
    """One threshold under one policy. Times are of the last step, peaks of the whole run."""

    policy: str | None  # None: nothing is evicted
    outcome: Outcome
    out_of_memory: OutOfMemory | None

    @property
    def threshold(self) -> int | None:
        return None if self.policy is None else self.outcome.threshold

    @property
    def fits(self) -> bool:
        return self.out_of_memory is None

    @property
    def step(self) -> StepOutcome:
        """The step that represents all later ones."""
        return self.outcome.steps[-1]

    @property
    def step_seconds(self) -> float:
        return self.step.base_seconds + self.step.extra_seconds

    @property
    def peak_live_bytes(self) -> int:
        return max(step.peak_live_bytes for step in self.outcome.steps)

    @property
    def peak_reserved_bytes(self) -> int:
        return max(step.peak_reserved_bytes for step in self.outcome.steps)

    @property
    def n_stalls(self) -> int:
        """Times in the whole run that an allocation succeeded only after evicting or releasing the cache."""
        return sum(step.allocation_retries + step.cache_flushes for step in self.outcome.steps)


@dataclass(frozen=True)
class Curve:
    without: Point  # rematerialisation off
    points: tuple[Point, ...]  # by policy, then by threshold
    floor_bytes: int  # in use at once where the runtime acts, and not to be evicted
    usable_bytes: int

    @property
    def policies(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(point.policy or "" for point in self.points))

    @property
    def fits(self) -> bool:
        return any(point.fits for point in self.points)

    @property
    def best(self) -> Point | None:
        """The threshold to take; None if none fits."""
        fitting = [point for point in self.points if point.fits]
        safe = [point for point in fitting if self.has_margin(point)]
        if not safe:  # then free memory matters more than time
            return min(
                fitting, key=lambda point: (point.peak_reserved_bytes, point.step_seconds), default=None
            )
        fastest = min(point.step_seconds for point in safe)
        equal = [point for point in safe if point.step_seconds <= fastest * (1 + _AS_FAST)]
        return min(equal, key=lambda point: (point.peak_reserved_bytes, point.step_seconds))

    def has_margin(self, point: Point) -> bool:
        """Whether a point leaves enough of the device free and needed no allocation retries."""
        return point.peak_reserved_bytes <= self.usable_bytes * (1 - MARGIN) and not point.n_stalls


def trace_curve(
    question: Question,
    policies: Sequence[str],
    thresholds: Sequence[int] | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Curve:
    """Simulate every threshold under every policy; without thresholds, those between too low and needless."""
    settings = Settings(minimum_size=question.minimum_size)
    least_bytes, _ = floor_bytes(question.program, question.costs, settings, is_cuda=question.is_cuda)
    without = question.ask_without()
    if thresholds is None:
        most_bytes = min(question.usable_bytes, without.peak_live_bytes)
        thresholds = default_thresholds(least_bytes, most_bytes).sizes
    total = len(thresholds) * len(policies)
    points: list[Point] = []
    for policy, threshold in product(policies, thresholds):
        on_progress(len(points), total)
        points.append(question.ask(threshold, policy))
    return Curve(without, tuple(points), least_bytes, question.usable_bytes)


def has_backward(program: Program) -> bool:
    """Whether autograd ever kept anything."""
    return any(isinstance(action, Save) for action in program.actions)
