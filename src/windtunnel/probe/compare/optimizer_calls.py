"""Optimizers that reach the same weights by different calls: tensor by tensor, in lists (foreach), in one kernel (fused).

    optimizer calls that only one side makes ──> the values they leave in place ──> does the other side have them too?

An optimizer's results are what it wrote in place and did not read again. If each side has all results of the other, its
calls are another way to compute the same, and not a difference.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from windtunnel.probe.compare.pairing import Match, value_hashes
from windtunnel.probe.compare.relative_errors import pair_numbers
from windtunnel.probe.compare.side import Side
from windtunnel.probe.compare.tolerance import Tolerance, one_operation
from windtunnel.probe.compare.value_columns import OUTPUT, TENSOR, Vocabulary
from windtunnel.probe.files.entry_name import FORWARD, parse_entry_name

__all__ = ["NO_OTHER_CALLS", "OtherCalls", "same_weights_by_other_calls"]

_PARENT = "optimizer"  # in construct.json
_OPTIMIZER = re.compile(r"/(?:torch|mindspore|apex|deepspeed|transformer_engine)/(?:\w+/)*optim\w*/")


@dataclass(frozen=True, slots=True)
class OtherCalls:
    """Optimizer calls that differ between the sides but lead to the same weights."""

    places: np.ndarray  # of the match
    notes: tuple[str, ...]


NO_OTHER_CALLS = OtherCalls(np.zeros(0, np.int64), ())


def same_weights_by_other_calls(
    match: Match, a: Side, b: Side, words: Vocabulary, tolerance: Tolerance
) -> OtherCalls:
    """Which optimizer calls can be ignored."""
    lone_a, lone_b = match.entry_b < 0, match.entry_a < 0
    if not lone_a.any() or not lone_b.any():
        return NO_OTHER_CALLS
    mine = _InPlaceResults(a, match.entry_a[lone_a], words)
    other = _InPlaceResults(b, match.entry_b[lone_b], words)
    if not (len(mine.rows) and len(other.rows)):
        return NO_OTHER_CALLS
    if not (_has_all(other, mine, words, tolerance) and _has_all(mine, other, words, tolerance)):
        return NO_OTHER_CALLS
    # Also calls that both sides make: an argument may be a number on one side and a tensor on the other.
    is_mine, is_other = np.isin(match.entry_a, mine.entries), np.isin(match.entry_b, other.entries)
    places = np.flatnonzero((is_mine | lone_b) & (is_other | lone_a))
    note = f"the optimizers reach the same weights by different calls ({mine} in A, {other} in B)"
    return OtherCalls(places, (note,))


class _InPlaceResults:
    """What the optimizer of one side wrote in place; `rows` are the results of the calls that only this side makes."""

    def __init__(self, side: Side, lone: np.ndarray, words: Vocabulary) -> None:
        self.columns = columns = side.columns
        is_optimizer = _are_of_optimizer(side)
        self.entries = np.flatnonzero(is_optimizer)
        self.lone = np.array([entry for entry in lone.tolist() if is_optimizer[entry]], dtype=np.int64)
        self.first = parse_entry_name(columns.entries[self.lone[0]]) if len(self.lone) else None
        self.hashes = value_hashes(columns)
        entry_of = columns.entry_of_rows()
        is_in_place = np.array([_is_in_place(entry) for entry in columns.entries] or [False])
        role = np.frombuffer(words.roles, np.int8)[columns.suffix]
        is_mine = np.array(is_optimizer or [False])[entry_of] & (columns.kind == TENSOR)
        is_written = is_mine & (role == OUTPUT) & is_in_place[entry_of]
        # A step counter is a zero-dimensional tensor in one implementation, and a number in another.
        scalar = words.shapes.get((), -1)
        self.written = np.flatnonzero(is_written & (columns.shape != scalar))
        taken = np.flatnonzero(is_mine & (role != OUTPUT))
        last_taken = dict(zip(self.hashes[taken].tolist(), entry_of[taken].tolist(), strict=True))
        self.rows = np.array(
            [
                row
                for row in self.written[np.isin(entry_of[self.written], self.lone)].tolist()
                if last_taken.get(int(self.hashes[row]), -1) <= entry_of[row]
            ],
            dtype=np.int64,
        )

    def __str__(self) -> str:
        name = self.first
        return f"{name.prefix}.{name.path} and {len(self.lone) - 1} more" if name is not None else "none"


def _has_all(side: _InPlaceResults, other: _InPlaceResults, words: Vocabulary, tolerance: Tolerance) -> bool:
    """Whether `side` wrote all results of `other`, up to the rounding of one operation."""
    missing = other.rows[~np.isin(other.hashes[other.rows], side.hashes[side.written])]
    if tolerance.exact:
        return not len(missing)
    limit = one_operation(words) if tolerance.fail_over is None else None
    shapes = side.columns.shape[side.written]
    for row in missing.tolist():
        like = side.written[shapes == other.columns.shape[row]]
        found = pair_numbers(other.columns, side.columns, np.full(len(like), row), like, words)
        allowed = tolerance.fail_over if limit is None else limit[other.columns.dtype[row]]
        error = np.where(found.dtype_differs, np.inf, np.nan_to_num(found.error, nan=np.inf))
        if not (error <= allowed).any():
            return False
    return True


def _are_of_optimizer(side: Side) -> list[bool]:
    """Of every entry: whether an optimizer made the call."""
    parents = side.parents()
    known: dict[tuple[str, ...], bool] = {}  # many calls share a stack
    found = []
    for entry in side.columns.entries:
        parent = parents.get(entry)
        if parent is not None:
            found.append(parent == _PARENT)
            continue
        # At L1 a dump does not record which module a call ran in, but where it was called from.
        frames = side.stack_of(entry)
        if frames not in known:
            known[frames] = any(_OPTIMIZER.search(frame) for frame in frames)
        found.append(known[frames])
    return found


def _is_in_place(entry: str) -> bool:
    name = parse_entry_name(entry)
    if name.direction != FORWARD or name.is_module:
        return False
    word = name.path.partition(".")[0]
    return word.startswith("__i") if word.endswith("__") else word.endswith("_")
