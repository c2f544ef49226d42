"""The result of a comparison as JSON, for programs.

CompareResult ──> compare_text ──> stdout or a file
"""

from __future__ import annotations

import json
import math
from typing import Any

from windtunnel.probe.compare.first_divergence import Divergence
from windtunnel.report.results.compare import JUDGED, CompareResult, headline, rule

__all__ = ["SCHEMA", "compare_document", "compare_text"]

SCHEMA = 1


def compare_text(result: CompareResult) -> str:
    """Return strict JSON: an infinite error is the string "inf", an unknown one is null."""
    return json.dumps(compare_document(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def compare_document(result: CompareResult) -> dict[str, Any]:
    found = result.findings
    return {
        "schema": SCHEMA,
        "windtunnel": result.windtunnel,
        "a": result.a,
        "b": result.b,
        "different_means": rule(result),
        "equal": found.is_equal,
        "verdict": headline(result),
        "first_divergence": _divergence(found.first) if found.first is not None else None,
        "counts": {
            "compared": found.n_compared,
            "equal": found.n_equal,
            "rounding": found.n_rounding,
            "nothing_but_rounding": found.n_noise,
            "different": found.n_different,
            "without_figures": found.n_nothing,
            "calls_only_in_a": found.only_a,
            "calls_only_in_b": found.only_b,
            "parts": found.n_ranks,
            "parts_that_differ": found.n_parted,
        },
        "largest_rounding": found.max_rounding,
        "notes": found.notes,
    }


def _divergence(first: Divergence) -> dict[str, Any]:
    return {
        "item": first.item,
        "item_in_b": first.item_b,
        "area": first.area or None,
        "step": first.step,
        "rank": first.rank,
        "place": first.place,
        "kind": first.kind,
        "error": _number(first.error),
        "inputs": first.inputs,
        "explanation": list(first.sentences),
        "line": first.line or None,
        "stack": list(first.frames),
        "around": [
            {
                "item": row.name,
                "role": row.role,
                "a": row.a,
                "b": row.b,
                "error": _number(row.error),
                "judged": JUDGED[row.judged],
            }
            for row in first.rows
        ],
    }


def _number(value: float) -> float | str | None:
    return None if math.isnan(value) else value if math.isfinite(value) else "inf"
