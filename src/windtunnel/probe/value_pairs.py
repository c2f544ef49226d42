"""Which value of a call is which, where the two sides order or name its arguments differently.

    paired entries, rows of both ──> told by the user; same name; nearly the same figures; same shape, in order ──> rows

A keyword here may be a position there, and a primitive may take (x, weight, bias, mean, variance) where a function takes
(x, mean, variance, weight, bias). Figures that agree to a thousandth say more about which value is which than a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from windtunnel.probe.dump_columns import TENSOR, Columns, Vocabulary
from windtunnel.probe.framework_names import neutral_shape, neutral_suffix

__all__ = ["NEAR", "Told", "ValuePairs"]

NEAR = 1e-3  # relative: figures of the same value in two frameworks
Told = Callable[[int, int], Mapping[str, str]]  # entries of A and B -> suffix of A to suffix of B


class ValuePairs:
    """Pairs the rows of two entries."""

    def __init__(self, a: Columns, b: Columns, words: Vocabulary, told: Told) -> None:
        self._a, self._b, self._told = a, b, told
        self._suffixes = list(words.suffixes)
        self._roles = words.roles
        codes: dict[str, int] = {}
        self._names = [codes.setdefault(neutral_suffix(each), len(codes)) for each in self._suffixes]
        self._shapes = [neutral_shape(shape) for shape in words.shapes]

    def __call__(self, i: int, j: int, *, is_module: bool) -> Iterator[tuple[int, int]]:
        """Rows of entry i of A with rows of entry j of B; -1 for a row without a partner, in A's order."""
        rows_a = range(int(self._a.starts[i]), int(self._a.starts[i + 1]))
        rows_b = range(int(self._b.starts[j]), int(self._b.starts[j + 1]))
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
        # Functions of two frameworks may flatten or turn what they work on; modules of the same path do not.
        rules = [self._is_named_alike, self._is_near, self._is_same_place, self._is_same_shape]
        return [*rules, self._is_same_name] if is_module else rules

    def _is_told(self, told: Mapping[str, str]) -> Callable[[int, int], bool]:
        return lambda x, y: told.get(self._suffix(self._a, x)) == self._suffix(self._b, y)

    def _is_named_alike(self, x: int, y: int) -> bool:
        """The same name, and nothing that speaks against it."""
        if not self._is_same_name(x, y):
            return False
        return self._is_near(x, y) if self._a.kind[x] == TENSOR else True

    def _is_near(self, x: int, y: int) -> bool:
        if not self._is_same_shape(x, y):
            return False
        both = int(self._a.has[x] & self._b.has[y]) & 15
        figures_a, figures_b = self._a.statistics[x], self._b.statistics[y]
        scale = max(
            abs(float(figures_a[0])),
            abs(float(figures_a[1])),
            abs(float(figures_b[0])),
            abs(float(figures_b[1])),
        )
        if not both or not np.isfinite(scale):
            return False
        return all(
            abs(float(figures_a[k]) - float(figures_b[k])) <= NEAR * scale for k in (0, 1, 2) if both >> k & 1
        )

    def _is_same_place(self, x: int, y: int) -> bool:
        return self._is_same_shape(x, y) and self._is_same_name(x, y)

    def _is_same_name(self, x: int, y: int) -> bool:
        return self._name(self._a, x) == self._name(self._b, y) and self._a.kind[x] == self._b.kind[y]

    def _is_same_shape(self, x: int, y: int) -> bool:
        """Both are tensors of one shape, and inputs, parameters or outputs."""
        role_a, role_b = self._roles[int(self._a.suffix[x])], self._roles[int(self._b.suffix[y])]
        is_tensor = self._a.kind[x] == self._b.kind[y] == TENSOR
        return is_tensor and role_a == role_b and self._shape(self._a, x) == self._shape(self._b, y)

    def _suffix(self, columns: Columns, row: int) -> str:
        return self._suffixes[int(columns.suffix[row])]

    def _name(self, columns: Columns, row: int) -> int:
        return self._names[int(columns.suffix[row])]

    def _shape(self, columns: Columns, row: int) -> tuple[int, ...]:
        return self._shapes[int(columns.shape[row])]
