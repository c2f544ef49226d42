"""Statistics of torch tensors."""

from __future__ import annotations

import itertools

import torch

from windtunnel.probe.statistics import Statistics, array_statistics, array_xor

__all__ = ["Measured", "TorchMeter"]


class Measured:
    __slots__ = ("json", "key", "stats")

    def __init__(self, stats: Statistics, key):
        self.stats, self.key, self.json = stats, key, None


_serials = itertools.count(1)


class TorchMeter:
    def __init__(self, summary_mode: str, precision: str = "low"):
        self.summary_mode = summary_mode

    def measure(self, tensor) -> Measured:
        try:
            with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
                return self._measure(tensor)
        except Exception:
            return Measured(Statistics(), None)

    def forget(self) -> None:
        pass

    def settle(self) -> None:
        pass

    def _measure(self, tensor):
        t = tensor.detach()
        if t.dtype is torch.bfloat16:
            a, bf = t.view(torch.int16).numpy(), True
        else:
            a, bf = t.resolve_conj().resolve_neg().numpy(), False
        if self.summary_mode == "xor":
            return Measured(array_xor(a), next(_serials))
        return Measured(array_statistics(a, crc=self.summary_mode == "md5", bfloat16=bf), next(_serials))
