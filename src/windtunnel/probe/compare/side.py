"""One side of a comparison: one rank, or several merged, with the elements of its values.

ranks ──> make_side ──> Side ──┐
                               ├──> merge_sides ──> both as if they had been one rank
ranks ──> make_side ──> Side ──┘
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from windtunnel.errors import CorruptFile
from windtunnel.probe.compare.eager_compiled_order import interleave
from windtunnel.probe.compare.pairing import Match
from windtunnel.probe.compare.shard_merge import (
    COPIED,
    ODD_RANK,
    SPLIT,
    UNLIKE,
    Merged,
    Union,
    merge_shards,
    unite,
)
from windtunnel.probe.compare.step_reader import DumpData
from windtunnel.probe.compare.steps_and_ranks import EAGER, GRAPH
from windtunnel.probe.compare.value_columns import Columns, Vocabulary
from windtunnel.probe.files.tensor_file import read_tensor

__all__ = ["Side", "elements_of", "how_divided", "make_side", "merge_sides"]


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a comparison: one rank, or several merged."""

    ranks: tuple[DumpData, ...]
    columns: Columns
    union: Union | None = None
    merged: Merged | None = None

    @property
    def first(self) -> DumpData:
        return self.ranks[0]

    def stack_of(self, entry: str) -> tuple[str, ...]:
        return next((stack for rank in self.ranks if (stack := rank.stack_of(entry))), ())

    def area_of(self, entry: str) -> str:
        """The folder, graph or pynative, that has an entry; "" where there are none."""
        if len(self.ranks) == 1:
            return self.first.part.area
        return next((rank.part.area for rank in self.ranks if entry in rank.columns.entries), "")

    @property
    def n_ranks(self) -> int:
        """The number of ranks; eager and compiled code of a rank count once."""
        return len({rank.part.order for rank in self.ranks})

    def parents(self) -> dict[str, str | None]:
        return {name: parent for rank in reversed(self.ranks) for name, parent in rank.parents.items()}


def make_side(ranks: tuple[DumpData, ...]) -> Side:
    if len(ranks) == 1:
        return Side(ranks, ranks[0].columns)
    areas = {rank.part.area: rank.columns.entries for rank in ranks}
    is_one_rank = len(ranks) == len(areas) == 2
    names = interleave(areas.get(EAGER, ()), areas.get(GRAPH, ())) if is_one_rank else None
    union = unite([rank.columns for rank in ranks], names)
    return Side(ranks, union.columns, union)


def merge_sides(a: Side, b: Side, match: Match, words: Vocabulary) -> tuple[Side, Side]:
    """Merge the shards of the side with more ranks to the shapes of the other side."""
    if len(a.ranks) == len(b.ranks):
        return a, b
    many, few = (a, b) if len(a.ranks) > len(b.ranks) else (b, a)
    assert many.union is not None  # it has several ranks
    row_many, row_few = (match.row_a, match.row_b) if many is a else (match.row_b, match.row_a)
    row_of_few = np.full(many.columns.n_rows, -1, dtype=np.int64)
    has_both = (row_many >= 0) & (row_few >= 0)
    row_of_few[row_many[has_both]] = row_few[has_both]
    merged = merge_shards(many.union, [rank.columns for rank in many.ranks], few.columns, row_of_few, words)
    whole = replace(many, columns=merged.columns, merged=merged)
    return (whole, b) if many is a else (a, whole)


def elements_of(side: Side, row: int) -> np.ndarray | None:
    """The elements of a row, merged from the ranks that share them."""
    if side.union is None or side.merged is None:
        path = side.first.tensor_path(row)
        return _read(path) if path is not None else None
    how = how_divided(side, row)
    if how in (ODD_RANK, UNLIKE):
        return None
    n_parts = 1 if how == COPIED else int(side.merged.n_parts[row])
    paths = [
        data.tensor_path(int(each))
        for data, each in zip(side.ranks, side.union.rows[row], strict=True)
        if each >= 0
    ][:n_parts]
    arrays = [array for path in paths if path is not None and (array := _read(path)) is not None]
    if len(arrays) != n_parts:
        return None
    divisor = float(side.merged.divisor[row])
    return _joined(arrays, how, int(side.merged.dim[row]), divisor)


def how_divided(side: Side, row: int) -> int:
    """How the ranks of a side hold a value: see `shard_merge`."""
    return int(side.merged.how[row]) if side.merged is not None else COPIED


def _joined(arrays: list[np.ndarray], how: int, dim: int, divisor: float) -> np.ndarray | None:
    if len(arrays) == 1:
        return arrays[0]
    try:
        if how == SPLIT:
            return np.concatenate(arrays, axis=dim)
        return np.sum([array.astype(np.float64) for array in arrays], axis=0) / divisor
    except ValueError:
        return None  # the files do not have the shapes that the dump declares


def _read(path: Path) -> np.ndarray | None:
    try:
        return read_tensor(path)[0]
    except CorruptFile:
        return None  # its statistics are still compared
