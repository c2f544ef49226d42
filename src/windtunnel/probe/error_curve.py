"""The error of every call in the order of execution, thinned out for a picture.

    RankComparison ──> error_curve ──> ErrorCurve: the worst error of each stretch of calls

A call that only one side makes has no error; its place is kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.probe.comparison import RankComparison
from windtunnel.probe.entry_name import BACKWARD, GRADIENT, parse_entry_name
from windtunnel.probe.tolerance import DIFFERENT

__all__ = ["PHASES", "ErrorCurve", "error_curve"]

PHASES = ("forward", "backward", "optimizer")

_MOST_POINTS = 3000


@dataclass(frozen=True, slots=True)
class ErrorCurve:
    """One step of one rank."""

    area: str
    step: int | None
    rank: int | None
    n_places: int
    place: np.ndarray  # of the points
    error: np.ndarray  # relative; infinite where only one side is finite
    phase: np.ndarray  # index into PHASES
    is_different: np.ndarray
    names: tuple[str, ...]  # of the calls at the points
    lone: np.ndarray  # places that only one side has


def error_curve(found: RankComparison) -> ErrorCurve:
    """At most a few thousand points, however long the dump."""
    n = len(found.match.entry_a)
    worst = np.zeros(n)
    errors = np.nan_to_num(found.numbers.error, nan=0.0, posinf=np.inf)
    # What is nothing but rounding has an error of one, and would hide what matters.
    np.maximum.at(worst, found.place, np.where(found.is_noise, 0.0, errors))
    is_different = np.zeros(n, bool)
    is_different[found.place[found.judged == DIFFERENT]] = True
    is_pair = (found.match.entry_a >= 0) & (found.match.entry_b >= 0)
    places = _thinned(worst, is_pair, is_different)
    lone = np.flatnonzero(~is_pair)
    phases = _phases(found, n)
    return ErrorCurve(
        found.pair.area,
        found.pair.step,
        found.pair.rank,
        n,
        places,
        worst[places],
        phases[places],
        is_different[places],
        tuple(found.name(place) for place in places.tolist()),
        lone[:: max(1, len(lone) // 500)],
    )


def _thinned(worst: np.ndarray, is_pair: np.ndarray, is_different: np.ndarray) -> np.ndarray:
    """Of every stretch the place with the largest error; the first that differs always."""
    places = np.flatnonzero(is_pair)
    if len(places) > _MOST_POINTS:
        stretch = np.arange(len(places)) * _MOST_POINTS // len(places)
        order = np.lexsort((-worst[places], stretch))
        firsts = np.concatenate([[True], np.diff(stretch[order]) > 0])
        places = places[order[firsts]]
        different = np.flatnonzero(is_different)
        places = np.union1d(places, different[:1])
    return places


def _phases(found: RankComparison, n: int) -> np.ndarray:
    """Backward by name; what runs forward after the last backward is the optimizer's."""
    directions = [parse_entry_name(found.name(place)).direction for place in range(n)]
    is_backward = np.array([direction in (BACKWARD, GRADIENT) for direction in directions], dtype=bool)
    phases = is_backward.astype(np.int8)
    last = np.flatnonzero(is_backward)
    if len(last):
        phases[last[-1] + 1 :] = 2
    return phases
