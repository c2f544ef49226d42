"""Pair the values of two calls where the sides order or name their arguments differently.

    paired entries, rows of both ──> the user's mapping; same name; nearly equal statistics; same shape, in order ──> rows

A keyword on one side may be a position on the other, and a primitive may take (x, weight, bias, mean, variance) where a
function takes (x, mean, variance, weight, bias). Statistics that agree to a thousandth identify a value better than its
position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import isfinite

from windtunnel.probe.compare.framework_names import neutral_shape, neutral_suffix
from windtunnel.probe.compare.value_columns import HAS_STATISTICS, TENSOR, Columns, Vocabulary

__all__ = ["Told", "ValuePairs"]

_NEAR = 1e-3  # relative: statistics of the same value in two frameworks
Told = Callable[[int, int], Mapping[str, str]]  # entries of A and B -> suffix of A to suffix of B


class _Rows:
    """What the rules need to know about a row, as plain lists: reading single array elements is slow."""

    def __init__(self, columns: Columns, names: list[int], shapes: list[int], roles: list[int]) -> None:
        suffixes = columns.suffix.tolist()
        self.starts = columns.starts.tolist()
        self.suffix = suffixes
        self.name = [names[code] for code in suffixes]
        self.role = [roles[code] for code in suffixes]
        self.shape = [shapes[code] for code in columns.shape.tolist()]
        self.kind = columns.kind.tolist()
        self.has = columns.has.tolist()
        self.statistics = columns.statistics.tolist()


class ValuePairs:
    """Pairs the rows of two entries."""

    def __init__(self, a: Columns, b: Columns, words: Vocabulary, told: Told) -> None:
        self._told = told
        self._suffixes = list(words.suffixes)
        names: dict[str, int] = {}
        shapes: dict[tuple[int, ...], int] = {}
        codes = [names.setdefault(neutral_suffix(each), len(names)) for each in self._suffixes]
        forms = [shapes.setdefault(neutral_shape(each), len(shapes)) for each in words.shapes]
        self._a, self._b = (_Rows(side, codes, forms, words.roles.tolist()) for side in (a, b))

    def __call__(self, i: int, j: int, *, is_module: bool) -> Iterator[tuple[int, int]]:
        """Rows of entry i of A with rows of entry j of B, in A's order; -1 for a row without a counterpart."""
        rows_a = range(self._a.starts[i], self._a.starts[i + 1])
        rows_b = range(self._b.starts[j], self._b.starts[j + 1])
        found: dict[int, int] = {}
        free_b = dict.fromkeys(rows_b)
        told = self._told(i, j)
        rules = [*([self._is_told(told)] if told else []), *self._rules(is_module)]
        for rule in rules:
            for row in rows_a:
                if row not in found:
                    other = next((each for each in free_b if rule(row, each)), -1)
                    if other >= 0:
                        found[row] = other
                        del free_b[other]
        yield from ((row, found.get(row, -1)) for row in rows_a)
        yield from ((-1, row) for row in free_b)

    def _rules(self, is_module: bool) -> list[Callable[[int, int], bool]]:
        # Functions of two frameworks may flatten or transpose their arguments; modules of the same path do not.
        rules: list[Callable[[int, int], bool]]
        rules = [self._is_named_alike, self._is_near, self._is_same_place, self._is_same_shape]
        return [*rules, self._is_same_name] if is_module else rules

    def _is_told(self, told: Mapping[str, str]) -> Callable[[int, int], bool]:
        return lambda x, y: told.get(self._suffixes[self._a.suffix[x]]) == self._suffixes[self._b.suffix[y]]

    def _is_named_alike(self, x: int, y: int) -> bool:
        """The same name, and for tensors nearly equal statistics too."""
        return self._is_same_name(x, y) and (self._a.kind[x] != TENSOR or self._is_near(x, y))

    def _is_near(self, x: int, y: int) -> bool:
        if not self._is_same_shape(x, y):
            return False
        both = self._a.has[x] & self._b.has[y]
        one, two = self._a.statistics[x], self._b.statistics[y]
        scale = max(abs(one[0]), abs(one[1]), abs(two[0]), abs(two[1]))
        if not both & HAS_STATISTICS or not isfinite(scale):
            return False
        return all(abs(one[k] - two[k]) <= _NEAR * scale for k in (0, 1, 2) if both >> k & 1)

    def _is_same_place(self, x: int, y: int) -> bool:
        return self._is_same_shape(x, y) and self._is_same_name(x, y)

    def _is_same_name(self, x: int, y: int) -> bool:
        return self._a.name[x] == self._b.name[y] and self._a.kind[x] == self._b.kind[y]

    def _is_same_shape(self, x: int, y: int) -> bool:
        """Both are tensors of the same shape and the same role."""
        is_tensor = self._a.kind[x] == self._b.kind[y] == TENSOR
        return is_tensor and self._a.role[x] == self._b.role[y] and self._a.shape[x] == self._b.shape[y]
