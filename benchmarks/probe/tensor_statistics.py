"""What it costs to measure one tensor: our pass, and the four torch reductions that msProbe uses.

    tensor ──> max, min, mean, norm, each fetched by .item(), CRC by zlib     (msProbe's way)
           └─> one pass: the same, counts, sketch, CRC                        (ours)

One thread; the two alternate, and the minimum of many times counts. Run: python -m benchmarks.probe.tensor_statistics
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

import torch

from windtunnel.probe.pytorch.eager.tensor_meter import TorchMeter

__all__ = ["main"]

SIZES_KIB = (1, 4, 16, 64, 1024, 4096, 16384)
TURNS = 60


def main() -> None:
    torch.set_num_threads(1)
    plain, checked = TorchMeter("statistics"), TorchMeter("md5")
    print("time per tensor of float32, in microseconds                 with CRC-32")
    print("    size  layout       msProbe's way     ours  ratio   msProbe's way     ours  ratio   unchanged")
    for n_kib in SIZES_KIB:
        for layout in ("contiguous", "transposed"):
            tensor = torch.randn(n_kib * 256)
            if layout == "transposed":
                tensor = tensor.view(2 ** ((tensor.numel().bit_length() - 1) // 2), -1).t()
            theirs, ours, theirs_crc, ours_crc, again = smallest_us(
                lambda x=tensor: reductions(x),
                lambda x=tensor: anew(plain, x),
                lambda x=tensor: reductions_and_crc(x),
                lambda x=tensor: anew(checked, x),
                lambda x=tensor: plain.measure(x),
            )
            print(
                f"{n_kib:6d} KiB {layout} {theirs:13.1f} {ours:8.1f} {ours / theirs:6.2f}"
                f" {theirs_crc:15.1f} {ours_crc:8.1f} {ours_crc / theirs_crc:6.2f} {again:11.1f}"
            )


def reductions(tensor: torch.Tensor) -> list[float]:
    tensor = tensor.detach()
    found = torch.max(tensor), torch.min(tensor), torch.mean(tensor), torch.norm(tensor)
    return [one.item() for one in found]


def reductions_and_crc(tensor: torch.Tensor) -> int:
    reductions(tensor)
    return zlib.crc32(tensor.detach().contiguous().numpy())


def anew(meter: TorchMeter, tensor: torch.Tensor) -> None:
    meter.forget()
    meter.measure(tensor)


def smallest_us(*works: Callable[[], object]) -> list[float]:
    best, repeats = [float("inf")] * len(works), []
    for work in works:
        work()
        repeats.append(max(1, int(0.002 / _seconds(work, 1))))
    for _ in range(TURNS):
        for i, work in enumerate(works):
            best[i] = min(best[i], _seconds(work, repeats[i]))
    return [seconds * 1e6 for seconds in best]


def _seconds(work: Callable[[], object], n: int) -> float:
    start = time.perf_counter()
    for _ in range(n):
        work()
    return (time.perf_counter() - start) / n


if __name__ == "__main__":
    main()
