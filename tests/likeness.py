"""How closely the figures of two recordings have to agree, where one arithmetic made both and where two did.

    likeness(is_same_arithmetic) ──> .within(an entry) ──> .accepts("Mean", a value of the entry, another)

A value is [dtype, shape, {"Max": …, "Min": …, "Mean": …, "Norm": …}], as the extracts of the parity tests have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

__all__ = ["Likeness", "likeness"]

SAME_BITS = 1e-6  # eight roundings of float32, as each tool adds in an order of its own
# 84 roundings. The kernels that one processor has, its own and those for older ones, part by up to 39 in the deepest program of
# the tests (MindSpore's transformer; torch's: 8).
OTHER_BITS = 1e-5


@dataclass(frozen=True)
class Likeness:
    """`scale`: of the largest numbers in sight, on which those that are computed from them are rounded."""

    has_same_bits: bool
    tolerance: float
    scale: float = 0.0

    def within(self, entry: Mapping[str, Any]) -> Likeness:
        """For the values of one entry: a gradient that is nothing but rounding has no digits of its own."""
        if self.has_same_bits:
            return self
        return replace(self, scale=max((_typical(value) for value in entry.values()), default=0.0))

    def accepts(self, key: str, value: list, figure: Any) -> bool:
        """Whether a figure may stand for that of a value."""
        dtype, _, figures = value
        one = figures[key]
        if one == figure:
            return True
        if not isinstance(one, (int, float)) or not isinstance(figure, (int, float)):
            return False
        if math.isnan(one) and math.isnan(figure):
            return True
        is_rounded = "float" in dtype.lower()  # what is counted is the same everywhere
        # A mean of what cancels is rounded as its summands are.
        scale = max(self.scale if is_rounded else 0.0, _typical(value) if key == "Mean" else 0.0)
        tolerance = self.tolerance if is_rounded else SAME_BITS
        return abs(one - figure) <= tolerance * max(abs(one), abs(figure), scale)


def likeness(is_same_arithmetic: bool, amplifies: float = 1.0) -> Likeness:
    """`amplifies`: how many times larger a rounding error of the first call is at the end of the program."""
    return Likeness(is_same_arithmetic, SAME_BITS if is_same_arithmetic else OTHER_BITS * amplifies)


def _typical(value: Any) -> float:
    """The root of the mean square, for a value that is a tensor with a norm."""
    if not (isinstance(value, list) and len(value) == 3 and isinstance(value[2], dict)):
        return 0.0
    norm = value[2].get("Norm")
    return abs(norm) / max(1, math.prod(value[1])) ** 0.5 if isinstance(norm, (int, float)) else 0.0
