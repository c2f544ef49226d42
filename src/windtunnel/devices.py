"""Known accelerators, and how to name one: `a100-80gb`, `h100:mem=40GiB,link_gbs=200`, or your own TOML file.

--device TEXT ──> DeviceProfile
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any

from windtunnel.errors import UsageError
from windtunnel.foreign_files import parse_toml, read_at_most
from windtunnel.units import MIB, parse_bytes

__all__ = ["DEFAULT_ASCEND", "DEFAULT_DEVICE", "DeviceProfile", "find_device", "known_devices"]

DEFAULT_DEVICE = "a100-80gb"
DEFAULT_ASCEND = "ascend-910b-64gb"  # for MindSpore scripts
_HOW_TO_START = "windtunnel devices --toml prints one to start from"
_MOST = 1e18  # upper limit of any number; in bytes, an exabyte
_CONTEXT_BYTES = 500 * MIB  # taken by the CUDA context before torch can allocate anything
_FAMILIES = {"cuda": "nvidia", "npu": "ascend", "cpu": "cpu"}  # the default family of each kind


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """What memory and time depend on, of one accelerator. Rates are peak rates; 0 means none or unknown."""

    id: str  # its name on the command line
    name: str  # the name the driver reports
    kind: str  # the device type in the program: cuda, npu or cpu
    memory_bytes: int  # 0: the CPU, whose memory is not a fixed budget
    usable_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    bf16_tflops: float  # dense, like all of them
    bandwidth_gbs: float
    allocator: str
    fp32_tflops: float = 0.0  # without TF32
    fp16_tflops: float = 0.0
    tf32_tflops: float = 0.0
    fp8_tflops: float = 0.0
    fp64_tflops: float = 0.0
    l2_mib: float = 0.0
    launch_us: float = 0.0  # from one empty kernel to the next in a queue
    link: str = ""  # what connects the devices of a node: "NVLink 3"
    link_gbs: float = 0.0  # per device, in one direction
    link_latency_us: float = 0.0  # per hop
    link_gpus: int = 0  # devices on one link; 0: those of a node
    link_wires: int = 0  # in a mesh: peers with a wire of their own; 0: a switch gives a pair all of it
    nic_gbs: float = 0.0  # per NIC, in one direction
    nics: int = 0  # per 8 devices
    nic_latency_us: float = 0.0
    family: str = ""  # whose libraries it runs: nvidia, amd, ascend or cpu
    source: str = ""  # where the numbers come from


_COUNTS = {field.name for field in fields(DeviceProfile) if field.type == "int"} - {
    "memory_bytes",
    "usable_bytes",
}
_NUMBERS = _COUNTS | {field.name for field in fields(DeviceProfile) if field.type == "float"}
_WORDS = {"name", "allocator", "link", "source"}
_KEYS = _NUMBERS | _WORDS | {"kind", "family", "memory", "usable", "capability"}
_SHORT_KEYS = {"bandwidth": "bandwidth_gbs"}
_ABOVE_ZERO = {
    "multiprocessors": 1,
    "bf16_tflops": 1.0,
    "bandwidth_gbs": 1.0,
}  # with the defaults for a file that lacks them


def known_devices() -> dict[str, DeviceProfile]:
    """Every built-in device by id."""
    return {id: _profile(id, device) for id, device in _built_in().items()}


@cache
def _built_in() -> dict[str, dict[str, Any]]:
    return parse_toml((Path(__file__).parent / "devices.toml").read_bytes())


def find_device(text: str) -> DeviceProfile:
    """Read `NAME`, `NAME:mem=40GiB,usable=38GiB,bandwidth=3000` or the path of a TOML file with the same fields."""
    if text.endswith(".toml"):
        return _from_file(Path(text))
    name, _, overrides = text.partition(":")
    device = _by_name(name.lower())
    for part in filter(None, overrides.split(",")):
        device = _with_override(device, part, text)
    return device


def _with_override(device: DeviceProfile, part: str, text: str) -> DeviceProfile:
    key, equals, value = part.partition("=")
    key = _SHORT_KEYS.get(key, key)
    if key == "mem" and equals:
        n_bytes = parse_bytes(value, device.memory_bytes)
        reserved = device.memory_bytes - device.usable_bytes  # what the framework leaves of this device
        return replace(device, memory_bytes=n_bytes, usable_bytes=max(n_bytes - reserved, 0))
    if key == "usable" and equals:
        n_bytes = parse_bytes(value, device.memory_bytes)
        if n_bytes > device.memory_bytes:
            raise UsageError(
                f"usable={value} in --device {text} is more than the device's memory",
                hint="write mem=… before it, or a smaller number",
            )
        return replace(device, usable_bytes=n_bytes)
    if key not in _NUMBERS or not equals:
        raise UsageError(
            f"cannot read {part!r} in --device {text}",
            hint=f"write NAME:mem=40GiB,usable=38GiB,KEY=NUMBER with keys {', '.join(sorted(_NUMBERS))}",
        )
    try:
        number = float(value)
    except ValueError:
        raise UsageError(f"{value!r} in --device {text} is not a number", hint=f"write {key}=123.4") from None
    changed: dict[str, Any] = {key: _number(key, number, f"--device {text}")}
    return replace(device, **changed)


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
        table = parse_toml(read_at_most(path, MIB))
    except OSError as error:
        raise UsageError(
            f"cannot read the device file {path}: {error.strerror}", hint=_HOW_TO_START
        ) from error
    except ValueError as error:
        raise UsageError(f"the device file {path} is not TOML: {error}", hint=_HOW_TO_START) from error
    if len(table) == 1 and isinstance(next(iter(table.values())), dict):
        table = next(iter(table.values()))
    missing = {"name", "kind", "memory"} - table.keys()
    if missing:
        raise UsageError(f"the device file {path} lacks {', '.join(sorted(missing))}", hint=_HOW_TO_START)
    for key in table.keys() - _KEYS:
        near = difflib.get_close_matches(key, _KEYS, n=1, cutoff=0.4) or [_HOW_TO_START]
        raise UsageError(f"the device file {path} has an unknown key {key!r:.40}", hint=f"nearest: {near[0]}")
    return _profile(path.stem, table)


def _profile(id: str, table: dict[str, Any]) -> DeviceProfile:
    kind = table["kind"]
    if not isinstance(kind, str) or kind not in _FAMILIES:
        raise UsageError(f"device {id}: kind is {kind!r:.40}", hint="use cuda, npu or cpu")
    family = table.get("family", _FAMILIES[kind])
    if family not in ("nvidia", "amd", "ascend", "cpu"):
        raise UsageError(f"device {id}: family is {family!r:.40}", hint="use nvidia, amd, ascend or cpu")
    memory = parse_bytes(table["memory"])
    if kind == "cpu" and memory == 0:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    numbers: dict[str, Any] = {
        key: _number(key, table[key], f"device {id}") for key in _NUMBERS & table.keys()
    }
    words: dict[str, Any] = {"allocator": kind}
    words |= {key: _word(key, table[key], id) for key in _WORDS & table.keys()}
    return DeviceProfile(
        id=id,
        kind=kind,
        family=family,
        memory_bytes=memory,
        usable_bytes=parse_bytes(table["usable"]) if "usable" in table else _usable(memory, kind),
        capability=_capability(id, table.get("capability", (0, 0))),
        **words,
        **_ABOVE_ZERO | numbers,
    )


def _number(key: str, value: object, where: str) -> int | float:
    """A number; counts and rates cannot be negative."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST:
        raise UsageError(f"{key} is {value!r:.40} in {where}", hint="write a non-negative number")
    if value == 0 and key in _ABOVE_ZERO:
        raise UsageError(f"{key} is 0 in {where}", hint="write a positive number")
    if key not in _COUNTS:
        return float(value)
    if value != int(value):
        raise UsageError(f"{key} is {value!r} in {where}", hint="write an integer")
    return int(value)


def _word(key: str, value: object, id: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"device {id}: {key} is {value!r:.40}", hint=f'write {key} = "text"')
    return value


def _capability(id: str, value: object) -> tuple[int, int]:
    match value:
        case [int() as major, int() as minor] if major >= 0 and minor >= 0:
            return major, minor
    raise UsageError(f"device {id}: capability is {value!r:.40}", hint="write capability = [8, 0]")


def _usable(memory_bytes: int, kind: str) -> int:
    return memory_bytes if kind == "cpu" else max(memory_bytes - _CONTEXT_BYTES, 0)
