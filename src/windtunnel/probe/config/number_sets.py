"""Sets of ranks and steps as a config writes them, stored as intervals.

    [0, "3", "7-9"] ──> read_numbers ──> NumberSet {0, 3, 7..9} ──> `step in steps`, steps.first, steps.last

A range of a million steps costs two numbers, not a million.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

__all__ = ["LARGEST", "NumberSet", "read_numbers"]

LARGEST = 1_000_000  # msProbe's limit for a rank or a step, and for the length of the list
_PIECE = re.compile(r"([0-9]+)(?:\s*-\s*([0-9]+))?")
_SHOWN_PIECES = 8


@dataclass(frozen=True, slots=True)
class NumberSet:
    """Integers as disjoint intervals in ascending order; never empty."""

    intervals: tuple[tuple[int, int], ...]  # (first, last), both included

    def __contains__(self, number: object) -> bool:
        if not isinstance(number, int):
            return False
        at = bisect_right(self.intervals, (number, LARGEST + 1)) - 1
        return at >= 0 and number <= self.intervals[at][1]

    def __iter__(self) -> Iterator[int]:
        for first, last in self.intervals:
            yield from range(first, last + 1)

    def __len__(self) -> int:
        return sum(last - first + 1 for first, last in self.intervals)

    def __str__(self) -> str:
        pieces = [str(first) if first == last else f"{first}-{last}" for first, last in self.intervals]
        if len(pieces) > _SHOWN_PIECES:
            pieces[_SHOWN_PIECES - 1 : -1] = ["…"]
        return f"[{', '.join(pieces)}]"

    @property
    def first(self) -> int:
        return self.intervals[0][0]

    @property
    def last(self) -> int:
        return self.intervals[-1][1]

    def overlaps(self, first: int, last: int) -> bool:
        """Whether any number of first..last is in the set."""
        return any(low <= last and high >= first for low, high in self.intervals)


def read_numbers(values: Iterable[object]) -> NumberSet | None:
    """Return the numbers that a list of 3, "3" and "4-6" denotes; None for an empty list, which means all.

    Raises ValueError that names the element and what is wrong with it.
    """
    intervals = sorted(_interval(value) for value in values)
    if not intervals:
        return None
    merged = [intervals[0]]
    for first, last in intervals[1:]:
        if first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(merged[-1][1], last))
        else:
            merged.append((first, last))
    return NumberSet(tuple(merged))


def _interval(value: object) -> tuple[int, int]:
    if isinstance(value, str):
        piece = _PIECE.fullmatch(value.strip())
        if piece is None:
            shown = json.dumps(value[:40], ensure_ascii=False)
            raise ValueError(f'{shown} is neither a number such as "3" nor a range such as "4-6"')
        first = _within_limits(piece[1])
        last = first if piece[2] is None else _within_limits(piece[2])
        if first > last:
            raise ValueError(f'the range "{value}" is reversed: {first} is greater than {last}')
        return first, last
    if isinstance(value, int) and not isinstance(value, bool):
        number = _within_limits(value)
        return number, number
    raise ValueError(f'{value!r:.40} is neither an integer nor a range such as "4-6"')


def _within_limits(value: int | str) -> int:
    # Long numbers are rejected before int() reads them, which would be slow and raise its own error.
    number = LARGEST + 1 if isinstance(value, str) and len(value.lstrip("0")) > 7 else int(value)
    if not 0 <= number <= LARGEST:
        raise ValueError(f"{str(value)[:20]} is not between 0 and {LARGEST}")
    return number
