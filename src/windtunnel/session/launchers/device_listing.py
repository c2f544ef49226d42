"""What `nvidia-smi` and `npu-smi` say about the simulated machine, for shell scripts that count devices.

["-L"], the device ──> GPU 0: a100-80gb (UUID: GPU-0) ...
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windtunnel.units import MIB

__all__ = ["LISTERS", "listing"]

LISTERS = ("nvidia-smi", "npu-smi")


def listing(name: str, words: Sequence[str], device: Mapping[str, Any], write: Callable[[str], Any]) -> int:
    """Answer the questions that scripts ask; returns the exit code."""
    if name == "npu-smi":
        return _npu_listing(words, device, write)
    query = next((word.partition("=")[2] for word in words if word.startswith("--query-gpu=")), None)
    layout = next((word.partition("=")[2] for word in words if word.startswith("--format=")), "csv")
    if query is None:
        for index in range(device["count"]):
            write(f"GPU {index}: {device['name']} (UUID: GPU-{index})\n")
        return 0
    fields = [field.strip() for field in query.split(",")]
    if "noheader" not in layout:
        write(", ".join(fields) + "\n")
    for index in range(device["count"]):
        values = _values(index, device, "" if "nounits" in layout else " MiB")
        write(", ".join(values.get(field, "[N/A]") for field in fields) + "\n")
    return 0


def _values(index: int, device: Mapping[str, Any], unit: str) -> dict[str, str]:
    total = device["memory_bytes"] // MIB
    capability = ".".join(map(str, device["capability"]))
    return {
        "name": device["name"], "gpu_name": device["name"], "index": str(index), "count": str(device["count"]),
        "uuid": f"GPU-{index}", "gpu_uuid": f"GPU-{index}", "memory.total": f"{total}{unit}",
        "memory.used": f"0{unit}", "memory.free": f"{total}{unit}", "compute_cap": capability,
        "utilization.gpu": "0" if not unit else "0 %",
    }  # fmt: skip


def _npu_listing(words: Sequence[str], device: Mapping[str, Any], write: Callable[[str], Any]) -> int:
    write(f"\tTotal Count                    : {device['count']}\n")
    for index in range(device["count"]):
        write(f"\n\tNPU ID                         : {index}\n\tChip Count                     : 1\n")
    return 0
