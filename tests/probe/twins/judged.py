"""What compare says of two twins, and how many modules it paired."""

from __future__ import annotations

from pathlib import Path

from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tolerance import Tolerance
from windtunnel.probe.files.entry_name import parse_entry_name

__all__ = ["judged"]


def judged(a: Path, b: Path) -> tuple[Findings, float]:
    """The findings, and the share of A's modules that have a partner in B of the same path."""
    findings = Findings()
    paired: dict[str, bool] = {}
    for found in compare_dumps(a, b, Tolerance()):
        findings.add(found)
        for i, j in zip(found.match.entry_a.tolist(), found.match.entry_b.tolist(), strict=True):
            name = parse_entry_name(found.a.columns.entries[i])
            if i >= 0 and name.is_module:
                other = parse_entry_name(found.b.columns.entries[j]).path if j >= 0 else ""
                is_same = other.removeprefix("_backbone.") == name.path.removeprefix("_backbone.")
                paired[name.path] = paired.get(name.path, True) and is_same
    return findings, sum(paired.values()) / max(1, len(paired))
