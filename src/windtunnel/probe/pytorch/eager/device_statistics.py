"""Statistics of tensors on an accelerator: computed there, kept there, fetched all at once.

    tensor ──> chunks ──> a few numbers each, still on the device ──> settle(): one copy per device ──> Statistics

Nothing waits for the device before settle(), except where checksums are wanted and the copies of the tensors they need
would exceed `most_bytes`. Only element-wise operations and sums are used: matrix products may be rounded to TF32 or
refused by deterministic mode, as the user's program has set it.
"""

from __future__ import annotations

import math
import threading
from typing import Any, Protocol

import numpy as np
import torch

from windtunnel.probe.files.checksum import crc32, crc_text, xor_text, xor_words
from windtunnel.probe.measure.sketch import FOLDS, NUMBERS, ROW, column_weights, row_weights
from windtunnel.probe.measure.statistics import Statistics, in_own_type
from windtunnel.probe.pytorch.eager.transforms import outside

__all__ = ["DeviceQueue"]

_CHUNK = 1 << 24  # elements worked on at a time: bounds the temporary memory on the device
_INTEGERS = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


class HasStatistics(Protocol):
    """Whatever is waiting for its statistics."""

    stats: Statistics | None


class DeviceQueue:
    """Tensors whose statistics are still on their devices. May be used from several threads."""

    def __init__(self, summary_mode: str, precision: str = "high", *, most_bytes: int = 1 << 28) -> None:
        self._mode = summary_mode
        self._is_low = precision == "low"
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._waiting: list[_Waiting] = []
        self._n_bytes = 0
        self._weights: dict[tuple[Any, torch.dtype], tuple[torch.Tensor, torch.Tensor]] = {}

    def add(self, tensor: torch.Tensor, owner: HasStatistics) -> None:
        """Queue the work on the device; `owner.stats` is set by settle(). The tensor may change at once."""
        plain = tensor.resolve_conj().resolve_neg().reshape(-1)
        one = _Waiting(owner, plain)
        if self._mode != "xor":
            for start in range(0, plain.numel(), _CHUNK):
                one.chunks.append(self._figures(plain[start : start + _CHUNK], start))
        if self._mode != "statistics":
            one.copy = plain.clone().view(torch.uint8)
        with self._lock:
            self._waiting.append(one)
            self._n_bytes += 0 if one.copy is None else one.copy.numel()
            full = self._n_bytes > self._most_bytes
        if full:
            self.settle()

    def settle(self) -> None:
        """Wait for the devices, once each, and hand out what they found."""
        with self._lock:
            waiting, self._waiting, self._n_bytes = self._waiting, [], 0
        if not waiting:
            return
        with outside(), torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch(), torch.no_grad():
            found = _fetch([chunk for one in waiting for chunk in one.chunks])
            for one in waiting:
                chunks = [next(found) for _ in one.chunks]
                stats = one.combine(chunks) if chunks else Statistics()
                if self._is_low:
                    stats = in_own_type(stats, str(one.dtype))
                if one.copy is not None:
                    data = one.copy.cpu().numpy()
                    stats.crc = crc_text(crc32(data)) if self._mode == "md5" else xor_text(xor_words(data))
                    one.copy = None
                one.owner.stats = stats

    def _figures(self, chunk: torch.Tensor, start: int) -> torch.Tensor:
        """All figures of a chunk as bytes: largest, smallest | total, squares, scale, sketch | NaN, infinite, zero."""
        if chunk.is_complex():
            ranged, values = chunk.abs(), torch.view_as_real(chunk).reshape(-1)
            start *= 2
        else:
            values = _summed(chunk)
            ranged = chunk if chunk.dtype in _INTEGERS else values
        high, low = ranged.max(), ranged.min()
        sizes = ranged if chunk.is_complex() else values
        largest = torch.maximum(high.abs(), low.abs()).to(values.dtype)
        usable = (largest > 0) & (largest < math.inf)
        scale = torch.where(usable, largest, torch.ones_like(largest))
        scaled = sizes / scale
        sums = [scaled.sum(), (scaled * scaled).sum(), scale]
        sketch = self._sketch(torch.nan_to_num(values / scale, 0.0, 0.0, 0.0), start // ROW)
        counts = [torch.isnan(sizes).sum(), torch.isinf(sizes).sum(), (sizes == 0).sum()]
        parts = torch.stack([high, low]), torch.cat([torch.stack(sums), sketch]), torch.stack(counts)
        return torch.cat([part.view(torch.uint8) for part in parts])

    def _sketch(self, values: torch.Tensor, row: int) -> torch.Tensor:
        n_rows, rest = divmod(values.numel(), ROW)
        rows, columns = self._weights_on(values.device, values.dtype, row + n_rows + 1)
        whole, last = values[: n_rows * ROW].view(n_rows, ROW), values[n_rows * ROW :]
        numbers, each = [], NUMBERS // FOLDS
        for fold in range(FOLDS):
            folded = (whole * rows[fold, row : row + n_rows, None]).sum(0)
            if rest:
                folded[:rest] += last * rows[fold, row + n_rows]
            numbers.append((columns[fold * each : (fold + 1) * each] * folded).sum(1))
        return torch.cat(numbers)

    def _weights_on(self, device: Any, dtype: torch.dtype, n_rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        known = self._weights.get((device, dtype))
        if known is None or known[0].shape[1] < n_rows:
            rows = row_weights(max(n_rows, 4096 if known is None else 2 * known[0].shape[1]))
            known = (
                torch.from_numpy(rows).to(dtype).to(device),
                torch.from_numpy(column_weights()).to(dtype).to(device),
            )
            self._weights[device, dtype] = known
        return known


class _Waiting:
    """One tensor: what its figures are, once they are here."""

    def __init__(self, owner: HasStatistics, tensor: torch.Tensor) -> None:
        self.owner = owner
        self.chunks: list[torch.Tensor] = []
        self.copy: torch.Tensor | None = None
        self._n = tensor.numel()
        self.dtype = tensor.dtype
        value = np.float64 if _summed(tensor[:1]).dtype in (torch.float64, torch.complex128) else np.float32
        self._value = np.dtype(value)
        self._range = (
            np.dtype(str(tensor.dtype).removeprefix("torch.")) if tensor.dtype in _INTEGERS else self._value
        )

    def combine(self, chunks: list[np.ndarray]) -> Statistics:
        highs, lows, counts = [], [], np.zeros(3, np.int64)
        total, squares, sketch = 0.0, 0.0, np.zeros(NUMBERS)
        edge, middle = 2 * self._range.itemsize, (3 + NUMBERS) * self._value.itemsize
        for chunk in chunks:
            high, low = chunk[:edge].view(self._range).tolist()
            highs.append(high)
            lows.append(low)
            sums = chunk[edge : edge + middle].copy().view(self._value).astype(np.float64)
            total += float(sums[0] * sums[2])
            squares = math.hypot(squares, math.sqrt(sums[1]) * sums[2]) if sums[1] >= 0 else math.nan
            sketch += sums[3:] * sums[2]
            counts += chunk[edge + middle :].copy().view(np.int64)
        n_nan, n_inf, n_zero = counts.tolist()
        high, low = (math.nan, math.nan) if n_nan else (max(highs), min(lows))
        numbers = tuple(sketch.tolist()) if np.isfinite(sketch).all() else None
        if self.dtype is torch.bool:
            return Statistics(bool(high), bool(low), None, None, 0, 0, n_zero, numbers)
        norm = math.nan if n_nan else squares
        return Statistics(high, low, total / self._n, norm, n_nan, n_inf, n_zero, numbers)


def _summed(values: torch.Tensor) -> torch.Tensor:
    """Values in the type they are summed in."""
    if values.dtype in (torch.float32, torch.float64) or values.is_complex():
        return values
    if values.dtype in _INTEGERS:
        try:
            return values.to(torch.float64)
        except (RuntimeError, TypeError):  # a device that has no float64
            pass
    return values.to(torch.float32)


def _fetch(chunks: list[torch.Tensor]):
    """The bytes of every chunk, in order, by one copy from each device."""
    places: dict[Any, list[int]] = {}
    for index, chunk in enumerate(chunks):
        places.setdefault(chunk.device, []).append(index)
    found: list[np.ndarray] = [np.empty(0)] * len(chunks)
    for indices in places.values():
        data = torch.cat([chunks[index] for index in indices]).cpu().numpy()
        sizes = [chunks[index].numel() for index in indices]
        for index, part in zip(indices, np.split(data, np.cumsum(sizes)[:-1]), strict=True):
            found[index] = part
    return iter(found)
