"""Known accelerators and how to name one: `a100-80gb`, `h100:mem=40GiB`, or a TOML file of your own.

--device TEXT ──> DeviceProfile
"""

from __future__ import annotations

import difflib
import os
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from windtunnel.errors import UsageError
from windtunnel.units import MIB, parse_bytes

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["DEFAULT_DEVICE", "DeviceProfile", "find_device", "known_devices"]

DEFAULT_DEVICE = "a100-80gb"
_HOW_TO_START = "windtunnel devices --toml prints one to start from"
_CONTEXT_BYTES = 500 * MIB  # what the CUDA context takes before torch can allocate anything


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """One accelerator, as far as memory and time depend on it."""

    id: str  # how the command line names it
    name: str  # what the driver calls it
    kind: str  # the device word of the program: cuda, npu or cpu
    memory_bytes: int  # 0: the CPU, whose memory is not a fixed budget
    usable_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    bf16_tflops: float
    bandwidth_gbs: float
    allocator: str
    fp32_tflops: float = 0.0  # 0: not known


def known_devices() -> dict[str, DeviceProfile]:
    """Every built-in device by id."""
    table = tomllib.loads((Path(__file__).parent / "devices.toml").read_text(encoding="utf-8"))
    return {id: _profile(id, fields) for id, fields in table.items()}


def find_device(text: str) -> DeviceProfile:
    """Read `NAME`, `NAME:mem=40GiB` or the path of a TOML file with the same fields."""
    if text.endswith(".toml"):
        return _from_file(Path(text))
    name, _, overrides = text.partition(":")
    device = _by_name(name.lower())
    for part in filter(None, overrides.split(",")):
        key, equals, value = part.partition("=")
        if key != "mem" or not equals:
            raise UsageError(f"cannot read {part!r} in --device {text}", hint="write NAME:mem=40GiB")
        n_bytes = parse_bytes(value, device.memory_bytes)
        device = replace(device, memory_bytes=n_bytes, usable_bytes=_usable(n_bytes, device.kind))
    return device


def _by_name(name: str) -> DeviceProfile:
    devices = known_devices()
    if name in devices:
        return devices[name]
    starting = sorted(id for id in devices if id.startswith(name + "-"))
    if starting:
        return devices[starting[-1]]  # "h100" means its largest variant
    near = difflib.get_close_matches(name, devices, n=3, cutoff=0.4) or sorted(devices)[:3]
    raise UsageError(
        f"there is no device called {name!r}", hint=f"nearest: {', '.join(near)}; all: windtunnel devices"
    )


def _from_file(path: Path) -> DeviceProfile:
    try:
        fields = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"cannot read the device file {path}: {error.strerror}", hint=_HOW_TO_START
        ) from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"the device file {path} is not TOML: {error}", hint=_HOW_TO_START) from error
    if len(fields) == 1 and isinstance(next(iter(fields.values())), dict):
        fields = next(iter(fields.values()))
    missing = {"name", "kind", "memory"} - fields.keys()
    if missing:
        raise UsageError(f"the device file {path} lacks {', '.join(sorted(missing))}", hint=_HOW_TO_START)
    return _profile(path.stem, fields)


def _profile(id: str, fields: dict[str, Any]) -> DeviceProfile:
    kind = fields["kind"]
    if kind not in ("cuda", "npu", "cpu"):
        raise UsageError(f"device {id}: kind is {kind!r}", hint="use cuda, npu or cpu")
    memory = parse_bytes(fields["memory"])
    if kind == "cpu" and memory == 0:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    usable = parse_bytes(fields["usable"]) if "usable" in fields else _usable(memory, kind)
    major, minor = fields.get("capability", (0, 0))
    return DeviceProfile(
        id, fields["name"], kind, memory, usable, (major, minor), int(fields.get("multiprocessors", 1)),
        float(fields.get("bf16_tflops", 1.0)), float(fields.get("bandwidth_gbs", 1.0)),
        fields.get("allocator", kind), float(fields.get("fp32_tflops", 0.0)),
    )  # fmt: skip


def _usable(memory_bytes: int, kind: str) -> int:
    return memory_bytes if kind == "cpu" else max(memory_bytes - _CONTEXT_BYTES, 0)
