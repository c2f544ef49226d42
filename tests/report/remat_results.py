"""Results of `windtunnel remat`, made by hand."""

from __future__ import annotations

from typing import Any

from tests.remat.points import point
from windtunnel.devices import find_device
from windtunnel.remat.simulated.curve import Curve, Point
from windtunnel.report.results.remat import CostSource, RematResult
from windtunnel.units import GIB, MIB

OFF = point(None, 1.0, 18, fits=False)
POINTS = (point(4, 1.5, 6), point(6, 1.25, 8), point(8, 1.1, 9), point(10, 1.0, 10, fits=False, n_retries=5))


def result(points: tuple[Point, ...] = POINTS, without: Point = OFF, **changes: Any) -> RematResult:
    fields = {
        "windtunnel": "1.2.3", "subject": "train.py", "rank": 0, "world_size": 1, "device": find_device("2080ti-11gb"),
        "allocator": "cuda", "n_steps": 3, "minimum_size": MIB, "is_sampling": False,
        "costs": CostSource(), "curve": Curve(without, points, 2 * GIB, 10 * GIB),
    }  # fmt: skip
    return RematResult(**(fields | changes))
