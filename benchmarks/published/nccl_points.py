"""Published measurements of the bus bandwidth of collectives, compared with the model.

    python benchmarks/published/nccl_points.py

Bus bandwidth is that of nccl-tests: bytes / time, times 2(n-1)/n for an all-reduce and (n-1)/n for the others. Rows
marked `fit` were used to set a figure in timing/network/network.toml; the others were not. Times of small messages include
the launch from the host, which windtunnel counts separately; they are shown but not judged. Where a source gives no size
for its long messages (nccl#812, nccl#1374), 8 GiB is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from windtunnel.devices import find_device
from windtunnel.timing.network.collectives import CollectiveTime, collective_seconds
from windtunnel.timing.network.links import network_of

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
LEAST_BYTES = 4 * MIB  # judged from this size on

README = "stas00/ml-engineering@744d01e network/README.md"
ML_ENGINEERING_NOTES = "stas00/ml-engineering@744d01e todo.md"


@dataclass(frozen=True, slots=True)
class Point:
    device: str
    n_ranks: int
    n_bytes: int
    bus_gbs: float
    source: str
    kind: str = "all_reduce"
    nproc_per_node: int = 8
    network: str | None = None
    is_fit: bool = False


def points() -> Iterator[Point]:
    for n_bytes, bus in _curve(
        "32K 1.31 128K 4.43 512K 11.41 1M 18 2M 36.18 4M 72.33 8M 109.93 16M 106.16 32M 138.49 64M 171.54"
        " 128M 176.92 256M 194.07 512M 222.72 1G 229.04 4G 233.88 16G 234.89"
    ):
        yield Point("a100-80gb", 8, n_bytes, bus, README, is_fit=n_bytes >= LEAST_BYTES)
    for n_bytes, bus in _curve(
        "32K 1.44 128K 5.73 512K 23.94 1M 39.93 2M 64.53 4M 107.16 8M 155.53 16M 219.89 32M 275.84 64M 346.51"
        " 128M 401.93 256M 436.15 512M 450.29 1G 463.58 4G 473.1 16G 482.26"
    ):
        yield Point("h200-141gb", 8, n_bytes, bus, README, is_fit=n_bytes >= 2 * LEAST_BYTES)
    for n_bytes, bus in _curve(
        "1M 36.06 4M 76.48 8M 126.49 16M 254.96 64M 400.6 256M 646.11 1G 723.34 4G 740.64 8G 839.07 16G 845.67"
    ):
        yield Point("b200-180gb", 8, n_bytes, bus, README, is_fit=n_bytes == 8 * GIB)
    for n_bytes, bus in _curve(
        "1M 5.37 4M 18.9 16M 64.43 64M 156.74 256M 229.09 1G 361.99 4G 377.34 16G 381.8"
    ):
        yield Point("b200-180gb", 32, n_bytes, bus, README + " (EFA)")
    for n_ranks, bus in ((4, 363.3), (5, 414.2), (6, 435.6), (7, 460.0)):
        yield Point("h200-141gb", n_ranks, 8 * GIB, bus, README)
    for n_ranks, bus in ((4, 673.2), (6, 778.2), (7, 811.2)):
        yield Point("b200-180gb", n_ranks, 8 * GIB, bus, README)
    yield Point("h200-141gb", 8, 16 * GIB, 361.4, README, "all_gather")
    yield Point("h200-141gb", 8, 16 * GIB, 362.9, README, "reduce_scatter")
    yield Point("h200-141gb", 32, 4 * GIB, 364.87, README + " (EFA)")
    yield Point("h200-141gb", 16, 16 * GIB, 486.8, ML_ENGINEERING_NOTES + " (EFA)")
    yield Point("mi300x-192gb", 8, 4 * GIB, 312.91, README, is_fit=True)
    yield Point("mi300x-192gb", 2, 4 * GIB, 47.67, README, is_fit=True)
    yield Point("h100-80gb", 8, 8 * GIB, 479.41, "NVIDIA/nccl-tests#347")
    yield Point("h800-80gb", 8, 8 * GIB, 215.0, "NVIDIA/nccl#1374")
    yield Point("a100-80gb", 16, 8 * GIB, 192.0, "NVIDIA/nccl#812", is_fit=True)
    yield Point("a100-40gb", 24, 128 * MIB, 96.0, "NVIDIA/nccl-tests#119", network="nics=4")
    yield Point("h100-80gb", 40, 1 * GIB, 190.0, "NVIDIA/nccl#1368", network="nics=4")
    yield Point("h100-80gb", 256, 2 * GIB, 340.0, "NVIDIA/nccl#1218")
    yield Point("h100-80gb", 256, 2 * GIB, 200.0, "NVIDIA/nccl#1218", "all_gather")
    for n_bytes, bus in _curve("2M 18.53 4M 27.16 8M 36.24 16M 39.9 32M 41.31"):
        yield Point("h100-80gb", 2, n_bytes, bus, "NVIDIA/nccl-tests#232", nproc_per_node=1)


def predict(point: Point) -> tuple[float, CollectiveTime]:
    """The model's bus bandwidth in GB/s, and its time."""
    network = network_of(find_device(point.device), point.nproc_per_node, point.network)
    time = collective_seconds(point.kind, point.n_bytes, range(point.n_ranks), network)
    turns = 2 if point.kind == "all_reduce" else 1
    share = turns * (point.n_ranks - 1) / point.n_ranks
    return point.n_bytes / time.seconds * share / 1e9, time


def errors(is_fit: bool) -> list[float]:
    """Relative errors of the judged points that were, or were not, used to set the model's figures."""
    judged = [point for point in points() if point.n_bytes >= LEAST_BYTES and point.is_fit == is_fit]
    return [predict(point)[0] / point.bus_gbs - 1 for point in judged]


def main() -> None:
    print("device        ranks  collective      bytes    measured   model   error  algorithm      source")
    for point in points():
        bus, time = predict(point)
        error = f"{bus / point.bus_gbs - 1:+7.1%}" if point.n_bytes >= LEAST_BYTES else "       "
        mark = " fit" if point.is_fit else ""
        print(
            f"{point.device:13} {point.n_ranks:5}  {point.kind:14} {_short(point.n_bytes):>6} {point.bus_gbs:9.2f}"
            f" {bus:9.2f} {error}  {time.algorithm:13}  {point.source}{mark}"
        )
    for name, found in (("fitted", errors(True)), ("not fitted", errors(False))):
        sizes = [abs(error) for error in found]
        print(f"{name}: {len(sizes)} points, median error {median(sizes):.1%}, worst {max(sizes):.1%}")


def _curve(text: str) -> Iterator[tuple[int, float]]:
    words = text.split()
    units = {"K": KIB, "M": MIB, "G": GIB}
    for size, bus in zip(words[::2], words[1::2], strict=True):
        yield int(size[:-1]) * units[size[-1]], float(bus)


def _short(n_bytes: int) -> str:
    unit, name = next((unit, name) for unit, name in ((GIB, "G"), (MIB, "M"), (KIB, "K")) if n_bytes >= unit)
    return f"{n_bytes // unit}{name}"


if __name__ == "__main__":
    main()
