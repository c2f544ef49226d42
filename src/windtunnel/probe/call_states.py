"""What a comparison says of every call: its worst value, and whether the difference begins there.

    RankComparison ──> call_states ──> CallStates, one element per call in the order of execution

A difference begins at a call whose outputs differ although its inputs and parameters do not. A call that received what
differs hands it on. A gradient whose call already differed in forward is made of what differs, so it hands on too.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.probe.comparison import RankComparison
from windtunnel.probe.dump_columns import OUTPUT
from windtunnel.probe.entry_name import BACKWARD, GRADIENT, EntryName, parse_entry_name
from windtunnel.probe.tolerance import DIFFERENT, EQUAL, ROUNDING
from windtunnel.probe.verdict import find_divergence

__all__ = ["A_ONLY", "BOTH", "B_ONLY", "ONE_SIDED", "PHASES", "UNCOMPARED", "CallStates", "call_states"]

# States beside EQUAL, ROUNDING and DIFFERENT: only one side makes the call or has one of its values; nothing to compare.
ONE_SIDED, UNCOMPARED = 3, 4
BOTH, A_ONLY, B_ONLY = 0, 1, 2
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True, slots=True)
class CallStates:
    names: tuple[EntryName, ...]
    phase: np.ndarray  # index into PHASES
    side: np.ndarray  # BOTH, A_ONLY or B_ONLY
    state: np.ndarray
    error: np.ndarray  # the worst; infinite where only one side is finite, 0 where nothing differs
    counts: (
        np.ndarray
    )  # of values, a column each: EQUAL, ROUNDING, DIFFERENT, on one side (or the call itself is)
    begins: np.ndarray
    first: int  # place of the first difference; -1: there is none


def call_states(found: RankComparison) -> CallStates:
    """Judge calls by their values."""
    n = len(found.match.entry_a)
    names = tuple(parse_entry_name(found.name(place)) for place in range(n))
    side = np.where(found.match.entry_b < 0, A_ONLY, np.where(found.match.entry_a < 0, B_ONLY, BOTH))
    counts = np.zeros((n, 4), np.int64)
    np.add.at(counts, (found.place, found.judged), 1)
    np.add.at(counts[:, ONE_SIDED], found.lone_place, 1)
    lone = side != BOTH
    counts[lone] = (0, 0, 0, 1)  # a call of one side counts once, however many values it has
    state = np.full(n, UNCOMPARED)
    for each in (EQUAL, ROUNDING, ONE_SIDED, DIFFERENT):  # the last that applies stays
        state[counts[:, each] > 0] = each
    error = np.zeros(n)
    errors = np.nan_to_num(found.numbers.error, nan=0.0, posinf=np.inf)
    # What is nothing but rounding has an error of one, and would hide what matters.
    np.maximum.at(error, found.place, np.where(found.is_noise, 0.0, errors))
    divergence = find_divergence(found)
    first = divergence.place if divergence is not None else -1
    begins = _begins(found, names, state)
    if first >= 0:
        begins[first] = True
    return CallStates(names, _phases(names), side, state, error, counts, begins, first)


def _phases(names: tuple[EntryName, ...]) -> np.ndarray:
    """Backward by name; what runs forward after the last backward is the optimizer's."""
    is_back = np.array([name.direction in (BACKWARD, GRADIENT) for name in names], bool)
    phases = is_back.astype(np.int64)
    last = np.flatnonzero(is_back)
    if len(last):
        phases[last[-1] + 1 :] = PHASES.index("optimizer")
    return phases


def _begins(found: RankComparison, names: tuple[EntryName, ...], state: np.ndarray) -> np.ndarray:
    n = len(names)
    has_received, received = np.zeros(n, bool), np.zeros(n, bool)
    taken = found.role != OUTPUT
    has_received[found.place[taken]] = True
    received[found.place[taken & (found.judged == DIFFERENT)]] = True
    begins = (state == DIFFERENT) & has_received & ~received
    is_back = np.array([name.direction in (BACKWARD, GRADIENT) for name in names], bool)
    differing = {_call(names[place]) for place in np.flatnonzero((state == DIFFERENT) & ~is_back).tolist()}
    for place in np.flatnonzero(begins & is_back).tolist():
        begins[place] = _call(names[place]) not in differing
    return begins


def _call(name: EntryName) -> tuple[str, str, str, int]:
    return name.prefix, name.path, name.class_name, name.call
