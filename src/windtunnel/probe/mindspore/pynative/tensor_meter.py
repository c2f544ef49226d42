"""Measures MindSpore tensors through numpy: no operator of MindSpore is called, on any device target.

tensor ──> its values on the host ──> a slice of them, if asked ──> Statistics by one pass over the memory

On a CPU the array is the tensor's own memory. bfloat16 is measured by its bits; its checksum is that of the same
values in float32, as msProbe writes it, and so are its files.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor

from windtunnel.probe.collect.elements import Measured
from windtunnel.probe.files.tensor_types import element_type, numbers
from windtunnel.probe.measure.statistics import Statistics, array_statistics, array_xor, in_own_type
from windtunnel.probe.mindspore.pynative.errors import wait

__all__ = ["MindSporeMeter", "host_array", "plain_array"]


def host_array(tensor: Tensor) -> np.ndarray | None:
    """The tensor's values on the host, of live memory where that is the host's; None if it has none (yet).

    Raises ProgramError if the program failed to compute them.
    """
    wait()
    try:
        return tensor.asnumpy()
    except (RuntimeError, TypeError, ValueError):
        return None  # a parameter that is not initialised, a type that numpy has no name for


def plain_array(array: np.ndarray) -> np.ndarray:
    """The values in a type of numpy's own: bfloat16 and 8-bit floats as float32."""
    if array.dtype.kind in _KINDS:
        return array
    bits = np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")
    return numbers(bits, element_type(array.dtype.name))


class MindSporeMeter:
    """Measures tensors, from any thread.

    summary_mode "statistics" gives everything but the checksum, "md5" adds the CRC-32, "xor" gives only the xor of the
    bytes. Sums are always accurate; with precision "low" their results are rounded to the tensor's own type.
    """

    def __init__(self, summary_mode: str, precision: str = "high") -> None:
        self.summary_mode = summary_mode
        self._is_low = precision == "low"
        self._wants_crc = summary_mode == "md5"
        self._is_xor = summary_mode == "xor"

    def measure(self, tensor: Tensor) -> Measured:
        """Measure a tensor as it is now; one that cannot be measured has statistics of None."""
        array = host_array(tensor)
        return Measured(Statistics() if array is None else self.statistics(array), None)

    def statistics(self, array: np.ndarray) -> Statistics:
        """Measure the values of a tensor."""
        if self._is_xor:
            return array_xor(plain_array(array))
        found = self._exact(array)
        return in_own_type(found, array.dtype.name) if self._is_low else found

    def _exact(self, array: np.ndarray) -> Statistics:
        if array.dtype.kind not in _KINDS:
            if array.dtype.name == "bfloat16" and not self._wants_crc:
                return array_statistics(array.view(np.int16), bfloat16=True)
            array = plain_array(array)
        return array_statistics(array, crc=self._wants_crc)

    def settle(self) -> None:
        """Nothing waits: a tensor is measured when it is seen."""

    def forget(self) -> None:
        """Nothing is remembered: MindSpore does not count the versions of a tensor's memory."""


_KINDS = "fiubc"
