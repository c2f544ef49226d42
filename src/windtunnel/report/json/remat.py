"""remat.json: the threshold curve as JSON.

    RematResult ──> remat_text ──> write_remat ──> remat.json

The file gets its name only when it is complete.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from windtunnel.remat.simulated.curve import MARGIN, Point
from windtunnel.report.results.remat import RematResult, answer, assumptions, use_lines
from windtunnel.whole_file import whole_file

__all__ = ["SCHEMA", "remat_document", "remat_text", "write_remat"]

SCHEMA = 1


def remat_text(result: RematResult) -> str:
    """Return the result as JSON text."""
    return json.dumps(remat_document(result), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def write_remat(path: Path, result: RematResult) -> None:
    """Write remat.json."""
    with whole_file(path) as file:
        file.write(remat_text(result).encode("utf-8", "backslashreplace"))


def remat_document(result: RematResult) -> dict[str, Any]:
    """Return the result as plain values."""
    curve, device = result.curve, result.device
    return {
        "schema": SCHEMA,
        "windtunnel": result.windtunnel,
        "subject": result.subject,
        "rank": result.rank,
        "world_size": result.world_size,
        "steps": result.n_steps,
        "device": {
            "name": device.id,
            "memory_bytes": device.memory_bytes,
            "usable_bytes": curve.usable_bytes,
        },
        "allocator": result.allocator,
        "minimum_size_bytes": result.minimum_size,
        "sampling": result.is_sampling,
        "costs": asdict(result.costs),
        "margin": MARGIN,
        "never_evicted_bytes": curve.floor_bytes,
        "fits": curve.fits,
        "without": _point(curve.without),
        "points": [_point(point) | {"has_margin": curve.has_margin(point)} for point in curve.points],
        "best": None if curve.best is None else _point(curve.best),
        "answer": answer(result),
        "use": list(use_lines(result)),
        "cheaper": None if result.cheaper is None else asdict(result.cheaper),
        "assumptions": list(assumptions(result)),
        "notes": list(result.notes),
    }


def _point(point: Point) -> dict[str, Any]:
    """Return one point: times of the last step, peaks and stalls of the whole run."""
    step, statistics = point.step, point.outcome.statistics
    is_whole = point.fits or point.threshold is None  # otherwise the step did not finish
    return {
        "threshold_bytes": point.threshold,
        "policy": point.policy,
        "fits": point.fits,
        "step_seconds": point.step_seconds if is_whole else None,
        "extra_seconds": step.extra_seconds if is_whole else None,
        "slowdown": step.slowdown if is_whole else None,
        "evictions": step.evictions,
        "evicted_bytes": step.evicted_bytes,
        "rematerialisations": step.rematerialisations,
        "rematerialised_bytes": step.rematerialised_bytes,
        "longest_chain": statistics.longest_chain,
        "peak_live_bytes": point.peak_live_bytes,
        "peak_reserved_bytes": point.peak_reserved_bytes,
        "allocation_retries": sum(s.allocation_retries for s in point.outcome.steps),
        "cache_flushes": sum(s.cache_flushes for s in point.outcome.steps),
        "guarded_rounds": statistics.guarded_rounds,
        "raised_limit_bytes": statistics.raised_limit_bytes,
        "out_of_memory": None if point.out_of_memory is None else asdict(point.out_of_memory),
    }
