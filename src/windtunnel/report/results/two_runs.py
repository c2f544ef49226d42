"""What changed between two runs: the tightest rank of each, by role, by module, by time.

    RunResult of A, RunResult of B ──> RunDifference ──> sentences; page/two_runs, terminal/two_runs

The rows include unattributed bytes and fragmentation, so that the rows of a peak add up to what the rank needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from windtunnel.memory.attribution import fold_paths
from windtunnel.memory.peak_difference import (
    Change,
    TensorChange,
    module_changes,
    role_changes,
    tensor_changes,
)
from windtunnel.report.results.run import RankResult, RunResult, failed_rank
from windtunnel.units import format_bytes

__all__ = [
    "FRAGMENTS",
    "UNNAMED",
    "RunDifference",
    "Seconds",
    "Setting",
    "role_word",
    "run_difference",
    "sentences",
]

FRAGMENTS, UNNAMED = "fragments", "unnamed"  # roles besides those of tensors
_WORDS = {
    "optimizer": "optimizer state", "temporary": "temporary tensors", "communication": "communication buffers",
    "frozen": "frozen weights", "copies": "copies of weights",
    FRAGMENTS: "fragments", UNNAMED: "unattributed bytes",
}  # fmt: skip
_NAMED = 4  # roles in the sentence
_LITTLE = 0.005  # of the larger peak: a smaller change is not mentioned
_SAME_TIME = 0.005


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting of the two runs."""

    name: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Seconds:
    """Time of one class of operators, or of one module, in both runs."""

    name: str
    a: float
    b: float


@dataclass(frozen=True)
class RunDifference:
    a: RunResult
    b: RunResult
    a_rank: RankResult  # the tightest
    b_rank: RankResult
    settings: tuple[Setting, ...]
    roles: tuple[Change, ...]  # add up to the difference of what the ranks need
    modules: tuple[Change, ...]  # so do these
    tensors: tuple[TensorChange, ...]
    classes: tuple[Seconds, ...] = ()
    module_times: tuple[Seconds, ...] = ()

    @property
    def difference(self) -> int:
        """How much more B needs."""
        return self.b_rank.peak_with_fragments_bytes - self.a_rank.peak_with_fragments_bytes

    @property
    def has_memory(self) -> bool:
        return bool(self.a_rank.peak_bytes and self.b_rank.peak_bytes)

    @property
    def has_time(self) -> bool:
        return self.a.time is not None and self.b.time is not None


def run_difference(a: RunResult, b: RunResult) -> RunDifference:
    """Compare the tightest rank of A with that of B."""
    a_rank, b_rank = (run.tightest or failed_rank(0, "nothing was simulated") for run in (a, b))
    rest = tuple(_rest(a_rank, b_rank))
    a_profile = a_rank.time.profile if a_rank.time is not None else None
    b_profile = b_rank.time.profile if b_rank.time is not None else None
    classes: tuple[Seconds, ...] = ()
    modules: tuple[Seconds, ...] = ()
    if a_profile is not None and b_profile is not None:
        classes = _seconds(a_profile.by_class, b_profile.by_class)
        modules = _seconds(*_folded(a_profile.by_module, b_profile.by_module))
    return RunDifference(
        a,
        b,
        a_rank,
        b_rank,
        tuple(_settings(a, b)),
        (*role_changes(a_rank.at_peak_bytes, b_rank.at_peak_bytes), *rest),
        (*module_changes(a_rank.at_peak_by_module, b_rank.at_peak_by_module), *_unnamed_modules(a_rank, b_rank)),
        tensor_changes(a_rank.largest_at_peak, b_rank.largest_at_peak),
        classes,
        modules,
    )  # fmt: skip


def sentences(difference: RunDifference, a: str = "A", b: str = "B") -> list[str]:
    """Describe what changed: memory first, then whether it fits, then time, then settings."""
    found = [_memory(difference, b), _fitting(difference, a, b), _time(difference, b)]
    return [sentence for sentence in found if sentence] + list(_asked(difference, a, b))


def _rest(a: RankResult, b: RankResult) -> Iterator[Change]:
    """Yield the bytes that are not tensors: unattributed ones, and fragmentation."""
    unnamed = [rank.peak_bytes - rank.at_peak_bytes.total() for rank in (a, b)]
    if any(unnamed):
        yield Change("", UNNAMED, *unnamed)
    yield Change("", FRAGMENTS, *(rank.peak_with_fragments_bytes - rank.peak_bytes for rank in (a, b)))


def _unnamed_modules(a: RankResult, b: RankResult) -> Iterator[Change]:
    """Yield the same for modules: bytes that no module's row counts."""
    unnamed = [rank.peak_bytes - sum(s.n_bytes for s in rank.at_peak_by_module) for rank in (a, b)]
    if any(unnamed):
        yield Change("", UNNAMED, *unnamed)
    yield Change("", FRAGMENTS, *(rank.peak_with_fragments_bytes - rank.peak_bytes for rank in (a, b)))


def _seconds(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[Seconds, ...]:
    rows = [Seconds(name, a.get(name, 0.0), b.get(name, 0.0)) for name in dict.fromkeys((*a, *b))]
    return tuple(sorted(rows, key=lambda row: (-abs(row.b - row.a), -max(row.a, row.b), row.name)))


def _folded(a: Mapping[str, float], b: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    names = fold_paths({*a, *b})
    sides: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for side, times in zip(sides, (a, b), strict=True):
        for module, seconds in times.items():
            side[names[module]] = side.get(names[module], 0.0) + seconds
    return sides


def _settings(a: RunResult, b: RunResult) -> Iterator[Setting]:
    yield Setting("device", a.device.name, b.device.name)
    yield Setting("device memory", *(format_bytes(run.device.memory_bytes) for run in (a, b)))
    yield Setting("allocator", a.allocator, b.allocator)
    yield Setting("level", str(a.level), str(b.level))
    yield Setting("ranks", f"{a.world_size:,}", f"{b.world_size:,}")
    yield Setting("windtunnel", a.windtunnel, b.windtunnel)


def _memory(found: RunDifference, b: str) -> str:
    if not found.has_memory:
        low = [name for name, rank in (("A", found.a_rank), ("B", found.b_rank)) if not rank.peak_bytes]
        return f"There is no memory to compare: {' and '.join(low)} did not measure it."
    if not found.difference and all(not change.difference for change in found.roles):
        return f"{b} needs the same: {format_bytes(found.b_rank.peak_with_fragments_bytes)} on its tightest rank."
    little = _LITTLE * max(rank.peak_with_fragments_bytes for rank in (found.a_rank, found.b_rank))
    changed = sorted(found.roles, key=lambda c: -abs(c.difference))
    named = [c for c in changed if abs(c.difference) >= little][:_NAMED] or changed[:1]
    parts = [f"{role_word(c.role)} {_signed(c.difference)}" for c in named]
    same = [role_word(c.role) for c in found.roles if c.a_bytes == c.b_bytes and c.a_bytes > little]
    if found.difference:
        word = "more" if found.difference > 0 else "less"
        head = f"{b} needs {format_bytes(abs(found.difference))} {word} on its tightest rank"
    else:
        head = f"{b} needs the same total on its tightest rank"
    text = f"{head}: {', '.join(parts)}"
    return f"{text}; {_listed(same)} unchanged." if same else f"{text}."


def _fitting(found: RunDifference, a: str, b: str) -> str:
    if not found.has_memory:
        return ""
    needs = [
        f"{name} needs {format_bytes(rank.peak_with_fragments_bytes)} of {format_bytes(rank.usable_memory_bytes)}"
        f" and {'fits' if rank.fits else 'does not fit'}"
        for name, rank in ((a, found.a_rank), (b, found.b_rank))
    ]
    return f"{needs[0]}; {needs[1]}."


def _time(found: RunDifference, b: str) -> str:
    if found.a.time is None or found.b.time is None:
        return ""
    before, after = found.a.time.step_seconds, found.b.time.step_seconds
    if not before or not after:
        return ""
    if abs(after - before) <= _SAME_TIME * before:
        return f"A step of {b} takes the same time, within {_SAME_TIME:.1%}."
    return f"A step of {b} takes {after / before:.2f} times as long."


def _asked(found: RunDifference, a: str, b: str) -> Iterator[str]:
    differing = [s for s in found.settings if s.a != s.b]
    if differing:
        parts = [f"{s.name} {s.a} in {a} and {s.b} in {b}" for s in differing]
        yield f"Their settings differ: {'; '.join(parts)}."


def role_word(role: str) -> str:
    return _WORDS.get(role, role)


def _signed(n_bytes: int) -> str:
    return f"{'+' if n_bytes > 0 else ''}{format_bytes(n_bytes)}"


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
