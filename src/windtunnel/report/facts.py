"""The five facts of a simulated rank, in the wording that existing parsers look for.

    RankResult ──> five lines of plain text

Wording and unit are those of MindSpore's dry run: whole mebibytes, rounded down, with an M.
"""

from __future__ import annotations

from windtunnel.report.results.run import DeviceResult, RankResult
from windtunnel.units import MIB

__all__ = ["five_facts"]


def five_facts(rank: RankResult, device: DeviceResult) -> tuple[str, ...]:
    """Return the lines for the terminal and for `rankR/run.log`."""
    usable = "MindSpore Used memory size" if device.is_ascend else "Usable memory size"
    owner = "MindSpore" if device.is_ascend else "Device"
    return (
        f"Device MOC memory size: {_mebibytes(rank.device_memory_bytes)}",
        f"{usable}: {_mebibytes(rank.usable_memory_bytes)}",
        f"{owner} memory base address: {rank.base_address}",
        f"Used peak memory usage (without fragments): {_mebibytes(rank.peak_bytes)}",
        f"Actual peak memory usage (with fragments): {_mebibytes(rank.peak_with_fragments_bytes)}",
    )


def _mebibytes(n_bytes: int) -> str:
    return f"{n_bytes // MIB}M"
