"""Uninitialised memory: its contents differ from run to run and mean nothing.

    pairs that differ ──> output of empty(), or about to be overwritten and not the output of any call ──> not compared

A buffer is often created by `torch.empty`, which the probe does not record, and filled piece by piece.
"""

from __future__ import annotations

import numpy as np

from windtunnel.probe.compare.pairing import Match, value_hashes
from windtunnel.probe.compare.relative_errors import NOTHING, PairNumbers
from windtunnel.probe.compare.value_columns import OUTPUT, Columns, Vocabulary
from windtunnel.probe.files.entry_name import parse_entry_name

__all__ = ["leave_out_uninitialised"]

_MAKES = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
_OVERWRITES = {
    "__setitem__", "copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_", "exponential_",
    "index_copy_", "index_put_", "scatter_", "masked_scatter_",
}  # fmt: skip
_DESTINATION = "input.0"


def leave_out_uninitialised(
    match: Match, numbers: PairNumbers, a: Columns, b: Columns, words: Vocabulary
) -> None:
    """Exclude uninitialised memory: set its error to unknown and its evidence to NOTHING."""
    destination = words.suffixes.get(_DESTINATION, -1)
    roles = np.frombuffer(words.roles, np.int8)
    suspects = np.flatnonzero((numbers.error > 0) | numbers.only_one_finite)
    made: list[tuple[np.ndarray, dict[int, int]]] = []
    for index in suspects.tolist():
        name = parse_entry_name(a.entries[match.entry_a[match.place[index]]])
        suffix = a.suffix[match.row_a[index]]
        api = name.path.rpartition(".")[2]
        if name.is_module or (api not in _MAKES and api not in _OVERWRITES):
            continue
        is_blank = roles[suffix] == OUTPUT if api in _MAKES else False
        if api in _OVERWRITES and suffix == destination:
            made = made or [_made(columns, roles) for columns in (a, b)]
            is_blank = not _is_made(match, index, made)
        if is_blank:
            numbers.error[index], numbers.evidence[index] = np.nan, NOTHING
            numbers.only_one_finite[index] = numbers.bits_differ[index] = False


def _made(columns: Columns, roles: np.ndarray) -> tuple[np.ndarray, dict[int, int]]:
    """The hash of every row, and the first row at which a call returned each value."""
    hashes = value_hashes(columns)
    rows = np.flatnonzero(roles[columns.suffix] == OUTPUT)
    values, first = np.unique(hashes[rows], return_index=True)
    return hashes, dict(zip(values.tolist(), rows[first].tolist(), strict=True))


def _is_made(match: Match, index: int, made: list[tuple[np.ndarray, dict[int, int]]]) -> bool:
    """Whether a call before this one returned the value, on either side."""
    for row, (hashes, first) in zip((match.row_a[index], match.row_b[index]), made, strict=True):
        if first.get(int(hashes[row]), row) < row:
            return True
    return False
