"""The state of every call in a comparison: its worst value, and whether a difference begins there.

    RankComparison ──> call_states ──> CallStates, one element per call in the order of execution

A difference begins at a call whose outputs differ although the tensors it received do not, and by much more than these
do; or whose arguments, which are part of the program, differ. Other calls that differ pass on what they received. A
gradient also depends on what its call had in forward.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.probe.compare.comparison import RankComparison
from windtunnel.probe.compare.first_divergence import find_divergence
from windtunnel.probe.compare.tolerance import DIFFERENT, EQUAL, ROUNDING
from windtunnel.probe.compare.value_columns import OUTPUT, TENSOR
from windtunnel.probe.files.entry_name import BACKWARD, GRADIENT, EntryName, parse_entry_name

__all__ = ["A_ONLY", "BOTH", "B_ONLY", "ONE_SIDED", "PHASES", "UNCOMPARED", "CallStates", "call_states"]

# States beside EQUAL, ROUNDING and DIFFERENT: only one side makes the call or has one of its values; nothing to compare.
ONE_SIDED, UNCOMPARED = 3, 4
BOTH, A_ONLY, B_ONLY = 0, 1, 2
_MUCH_MORE = 10.0  # times the error of its inputs: a call may amplify it by less
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
    )  # values per state: EQUAL, ROUNDING, DIFFERENT, only on one side (1 if the call itself is)
    begins: np.ndarray
    first: int  # place of the first difference; -1: there is none


def call_states(found: RankComparison) -> CallStates:
    """Derive the state of each call from its values."""
    n = len(found.match.entry_a)
    names = tuple(parse_entry_name(found.name(place)) for place in range(n))
    side = np.where(found.match.entry_b < 0, A_ONLY, np.where(found.match.entry_a < 0, B_ONLY, BOTH))
    counts = np.zeros((n, 4), np.int64)
    np.add.at(counts, (found.place, found.judged), 1)
    np.add.at(counts[:, ONE_SIDED], found.lone_place, 1)
    lone = side != BOTH
    counts[lone] = (0, 0, 0, 1)  # a call on one side only counts once, however many values it has
    state = np.full(n, UNCOMPARED)
    for each in (EQUAL, ROUNDING, ONE_SIDED, DIFFERENT):  # the last that applies stays
        state[counts[:, each] > 0] = each
    error = np.zeros(n)
    errors = np.nan_to_num(found.numbers.error, nan=0.0, posinf=np.inf)
    # Pure rounding noise has a relative error of one, and would hide what matters.
    np.maximum.at(error, found.place, np.where(found.is_noise, 0.0, errors))
    divergence = find_divergence(found)
    first = divergence.place if divergence is not None else -1
    begins = _begins(found, names, state)
    if first >= 0:
        begins[first] = True
    return CallStates(names, _phases(names), side, state, error, counts, begins, first)


def _phases(names: tuple[EntryName, ...]) -> np.ndarray:
    """Backward by name; forward calls after the last backward belong to the optimizer."""
    is_back = np.array([name.direction in (BACKWARD, GRADIENT) for name in names], bool)
    phases = is_back.astype(np.int64)
    last = np.flatnonzero(is_back)
    if len(last):
        phases[last[-1] + 1 :] = PHASES.index("optimizer")
    return phases


def _begins(found: RankComparison, names: tuple[EntryName, ...], state: np.ndarray) -> np.ndarray:
    n = len(names)
    is_taken = found.role != OUTPUT
    is_different = found.judged == DIFFERENT
    is_tensor = found.a.columns.kind[found.row_a] == TENSOR
    errors = np.where(found.is_noise, 0.0, np.nan_to_num(found.numbers.error, nan=0.0, posinf=np.inf))
    has_inputs, received, is_argued = np.zeros(n, bool), np.zeros(n, bool), np.zeros(n, bool)
    worst_in, worst_out = np.zeros(n), np.zeros(n)
    has_inputs[found.place[is_taken]] = True
    received[found.place[is_taken & is_tensor & is_different]] = True
    is_argued[found.place[is_taken & ~is_tensor & is_different]] = True
    np.maximum.at(worst_in, found.place[is_taken & is_tensor], errors[is_taken & is_tensor])
    np.maximum.at(worst_out, found.place[~is_taken], errors[~is_taken])
    # A gradient also depends on what its call saved in forward.
    kept: dict[tuple[str, str, str, int], float] = {}
    is_back = np.array([name.direction in (BACKWARD, GRADIENT) for name in names], bool)
    for place in np.flatnonzero(~is_back).tolist():
        kept[_call(names[place])] = max(worst_in[place], worst_out[place])
    for place in np.flatnonzero(is_back).tolist():
        worst_in[place] = max(worst_in[place], kept.get(_call(names[place]), 0.0))
    grows = worst_out > _MUCH_MORE * worst_in
    begins = (state == DIFFERENT) & has_inputs & ~received & grows
    return begins | is_argued


def _call(name: EntryName) -> tuple[str, str, str, int]:
    return name.prefix, name.path, name.class_name, name.call
