"""How close a device comes to its peaks: figures by generation, each with its source.

calibration.toml ──> calibration_of(device) ──> Calibration ──> roofline
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from windtunnel.devices import DeviceProfile

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["Calibration", "calibrated_like", "calibration_of", "generation_of", "known_generations"]

_FILE = Path(__file__).parent / "calibration.toml"
_GENERATIONS = ((10, "blackwell"), (9, "hopper"), (8, "ampere"), (7, "volta"))  # by major capability


@dataclass(frozen=True, slots=True)
class Calibration:
    """Shares are of the device's peak rate or bandwidth; times are in microseconds."""

    matmul_share: float  # of a large product in the largest tile
    tile_loss: float  # how much smaller tiles lose: by the numbers loaded for each multiplied
    tile_us: float  # to start a tile and to store it
    kernel_us: float  # least time of any kernel
    convolution_share: float  # of what the same product reaches as a matrix product
    attention_share: float  # fused kernels, heads 128 wide, long sequences
    attention_backward_share: float
    narrow_head_share: float  # of the above with heads 64 wide
    efficient_attention_share: float  # memory-efficient kernels against flash ones
    bandwidth_share: float  # long reads and writes
    cache_gain: float  # bandwidth of what fits in half of the L2 cache, against memory's
    strided_share: float  # of the bandwidth, for copies that turn a tensor
    reduction_share: float  # of the bandwidth, for the classes below
    norm_share: float
    norm_backward_share: float
    softmax_share: float
    random_share: float
    scatter_share: float
    optimizer_share: float
    sort_passes: float  # over the data
    transfer_gbs: float  # between host and device
    host_forward_us: float  # of the program's thread for one operator
    host_backward_us: float
    host_fused_us: float  # for one kernel of a compiled function
    host_tensor_us: float  # for each tensor of an operator over lists
    host_module_us: float  # for one call of a module
    host_collective_us: float
    host_sync_us: float


def generation_of(device: DeviceProfile) -> str:
    """The table of calibration.toml for a device."""
    family = getattr(device, "family", "")
    if device.kind == "npu":
        return "ascend"
    if device.kind == "cpu":
        return "cpu"
    if family == "amd":
        return "cdna3"
    major, minor = device.capability
    if (major, minor) == (8, 9):
        return "ada"
    return next((name for least, name in _GENERATIONS if major >= least), "volta")


def calibration_of(device: DeviceProfile) -> Calibration:
    return _by_generation(generation_of(device))


def calibrated_like(device: DeviceProfile) -> str:
    """The generation whose published runs its shares were fitted to: its own, or the one it inherits from."""
    table, chapter = known_generations(), generation_of(device)
    while "matmul_share" not in table[chapter]:
        chapter = table[chapter]["inherits"]
    return chapter


def known_generations() -> dict[str, dict[str, Any]]:
    """Chapter -> parameter -> {value, unit, source}, as the file has them."""
    return tomllib.loads(_FILE.read_text(encoding="utf-8"))


@cache
def _by_generation(generation: str) -> Calibration:
    table = known_generations()
    found: dict[str, float] = {}
    chapter: str | None = generation
    while chapter is not None:
        entries = table[chapter]
        for name, entry in entries.items():
            if name != "inherits":
                found.setdefault(name, float(entry["value"]))
        chapter = entries.get("inherits")
    return Calibration(**{field.name: found[field.name] for field in fields(Calibration)})
