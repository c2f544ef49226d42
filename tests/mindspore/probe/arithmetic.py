"""A fingerprint of the arithmetic under a program: one checksum over the bits of all that it learnt.

    a program with Nobody for a debugger ──> its weights and gradients ──> fingerprint(values) ──> "9f2c01ab"

Which kernel multiplies two matrices, and in which order it adds, MindSpore and oneDNN choose each for itself: by processor, by
instruction set, by version, by shape. The program that was recorded tells whether two machines come to the same bits, if
it is run once more with nobody watching. The loss is not among the values: its last bit is another the first time.

Needs MindSpore only, so that a Python with msProbe and without windtunnel can run it too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from mindspore import Tensor

__all__ = ["Nobody", "fingerprint"]


class Nobody:
    """Stands where a debugger would, and looks at nothing."""

    def start(self, *models: Any) -> None: ...

    def stop(self) -> None: ...

    def step(self) -> None: ...

    def save(self, *args: Any, **kwargs: Any) -> None: ...


def fingerprint(values: Iterable[Tensor]) -> str:
    """One checksum over tensors."""
    crc = 0
    for value in values:
        crc = zlib.crc32(np.ascontiguousarray(value.asnumpy()), crc)
    return f"{crc:08x}"
