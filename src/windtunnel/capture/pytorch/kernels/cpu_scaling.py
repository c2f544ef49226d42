"""What a CPU kernel too large to run would allocate, extrapolated from three smaller inputs.

    rows 65536 ──> measured with 1024, 2048, 3072 rows ──> each allocation as a polynomial of the rows

One size is reduced wherever it occurs, in shapes and in arguments. The sizes of the results are known, so if the
extrapolation does not match them, the next size is tried.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import torch

from windtunnel.capture.pytorch.tensors.storage import sim_of

__all__ = ["Step", "extrapolated", "tensors_in"]

Tensor = torch.Tensor
Step = tuple[str, int, int]  # ("output" | "scratch" | "free", which, bytes)
_ALIGNED = 64  # kernels work on blocks of rows: cuts keep to whole blocks
_SMALLEST = 8  # smaller sizes are not cut: the kernel would take other code paths
_empty_strided = torch.empty_strided


def extrapolated(
    measure: Callable[[Callable[[Any], Any]], list[Step] | None],
    arguments: Any,
    share: Fraction,
    results: dict[int, int],
) -> list[Step] | None:
    """Allocation steps at full size, or None; `measure` runs the kernel with its arguments cut by a function."""
    for size in _candidates(arguments):
        unit = max(int(size * share) // 3, 1)
        unit -= unit % _ALIGNED if unit > _ALIGNED else 0
        measured = [measure(_cutter(size, unit * n)) for n in (1, 2, 3)]
        steps = _at(Fraction(size, unit), measured)
        if steps is not None and all(results[which] == n for kind, which, n in steps if kind == "output"):
            return steps
    return None


def _cut_tensor(a: Tensor, size: int, to: int) -> Tensor | None:
    """Zeros like a tensor, with `to` for dimensions of `size`; None if its strides are not those of a permutation."""
    shape = [to if n == size else n for n in a.shape]
    order = sorted(range(a.dim()), key=lambda i: (a.stride(i), a.shape[i]))
    strides, expected, step = [0] * a.dim(), 1, 1
    for i in order:
        if a.shape[i] != 1 and a.stride(i) not in (0, expected):
            return None
        if a.stride(i):
            strides[i] = step
            expected, step = expected * a.shape[i], step * shape[i]
    return _empty_strided(shape, strides, dtype=a.dtype).zero_()


def _candidates(arguments: Any) -> list[int]:
    """Sizes to cut, the first dimension of the largest tensor (the batch) first, then the largest ones."""
    tensors = sorted(tensors_in(arguments), key=lambda t: -t.numel())
    sizes = [n for t in tensors[:1] for n in t.shape[:1]]
    sizes += sorted({n for t in tensors for n in t.shape}, reverse=True)
    return [n for n in dict.fromkeys(sizes) if n >= _SMALLEST]


def tensors_in(a: Any) -> Iterator[Tensor]:
    """Every tensor anywhere in the arguments."""
    if isinstance(a, Tensor):
        yield a
    elif isinstance(a, (list, tuple)):
        for each in a:
            yield from tensors_in(each)


class _Uncuttable(ValueError):
    """A tensor's strides do not allow a smaller tensor of the same kind."""


def _cutter(size: int, to: int) -> Callable[[Any], Any]:
    made: dict[int, Tensor] = {}

    def cut(a: Any) -> Any:
        if isinstance(a, Tensor):
            if sim_of(a) is None and a.dim() == 0:
                return a
            if id(a) not in made:
                smaller = _cut_tensor(a, size, to)
                if smaller is None:
                    raise _Uncuttable
                made[id(a)] = smaller
            return made[id(a)]
        if isinstance(a, (list, tuple)):
            return [cut(each) for each in a]
        return to if a.__class__ is int and a == size else a

    return cut


def _at(x: Fraction, measured: list[list[Step] | None]) -> list[Step] | None:
    """For each step, the polynomial through three measurements at 1, 2 and 3, evaluated at x."""
    one, two, three = measured
    if one is None or two is None or three is None or not len(one) == len(two) == len(three):
        return None
    steps = []
    for a, b, c in zip(one, two, three, strict=True):
        if not a[:2] == b[:2] == c[:2]:
            return None
        n = a[2] * (x - 2) * (x - 3) / 2 - b[2] * (x - 1) * (x - 3) + c[2] * (x - 1) * (x - 2) / 2
        steps.append((a[0], a[1], round(n)))
    return steps
