"""The result of a comparison, and the sentences that all reports of it share.

Findings, options ──> CompareResult ──> headline, counts
"""

from __future__ import annotations

from dataclasses import dataclass

from windtunnel.probe.compare.first_divergence import Divergence, Findings

__all__ = ["JUDGED", "CompareResult", "counts", "headline", "rule", "where"]

JUDGED = ("equal", "rounding", "different")


@dataclass(frozen=True, slots=True)
class CompareResult:
    windtunnel: str
    a: str
    b: str
    fail_over: float | None
    is_exact: bool
    findings: Findings


def headline(result: CompareResult) -> str:
    """The verdict in one line."""
    found = result.findings
    if found.first is not None:
        return f"First divergence: {found.first.item}{where(found.first)}"
    if not found.n_compared:
        return "Equal in structure: there were no values to compare."
    if found.n_rounding:
        return f"Equal within rounding: the largest relative error is {found.max_rounding:.2g}."
    return f"Equal: all {found.n_compared:,} values agree."


def where(divergence: Divergence) -> str:
    """Return step and rank, if there are any."""
    parts = [divergence.area] if divergence.area else []
    parts += [f"step {divergence.step}"] if divergence.step is not None else []
    parts += [f"rank {divergence.rank}"] if divergence.rank is not None else []
    return f"   ({', '.join(parts)})" if parts else ""


def counts(result: CompareResult) -> str:
    """Return the number of values of each kind, in one line."""
    found = result.findings
    noise = f" ({found.n_noise:,} of them rounding noise only)" if found.n_noise else ""
    parts = [
        f"{found.n_equal:,} equal",
        f"{found.n_rounding:,} within rounding{noise}",
        f"{found.n_different:,} different",
    ]
    if found.n_nothing:
        parts.append(f"{found.n_nothing:,} without numbers")
    text = f"{found.n_compared:,} values compared: {', '.join(parts)}"
    if found.only_a or found.only_b:
        text += f"; calls only in A: {found.only_a:,}, only in B: {found.only_b:,}"
    if found.n_ranks > 1:
        text += f"; {found.n_parted} of {found.n_ranks} folders (a step of a rank) differ"
    return f"{text}."


def rule(result: CompareResult) -> str:
    """Return what counted as different."""
    if result.is_exact:
        return "any difference"
    if result.fail_over is not None:
        return f"a relative error above {result.fail_over:g}"
    return "more than the rounding error of its data type"
