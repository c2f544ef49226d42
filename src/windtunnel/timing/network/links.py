"""What joins the devices of a job: links inside a node, NICs between nodes, and the library that uses them.

DeviceProfile, ranks per node, --network TEXT or FILE.toml ──> Network ──> collectives
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import Any

from windtunnel.devices import DeviceProfile, find_device
from windtunnel.errors import UsageError
from windtunnel.foreign_files import parse_toml, read_at_most
from windtunnel.timing.network.library import Library, library_of, link_of
from windtunnel.units import MIB

__all__ = ["Network", "check_network", "host_network", "network_of"]

_EXAMPLE = "write --network latency=5us,bandwidth=400Gb/s,nics=8,link=450GB/s,link_latency=1us, or a TOML file of these"
_DEVICES_OF_A_SERVER = 8  # that `nics` of a device profile refers to
_QUANTITY = re.compile(r"(\d+(?:\.\d*)?(?:e[+-]?\d+)?)\s*([A-Za-z/]+)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}
# A capital B is a byte and a small b a bit, as on data sheets; all are powers of 1000.
_RATE = re.compile(r"([KMGT])(B|b|bit)(?:/s|ps)")
_FACTORS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, slots=True)
class Network:
    """Figures of one direction, as on data sheets; the library has its own efficiency factors. 0: unknown."""

    ranks_per_node: int  # ranks that the link joins
    link_gbs: float  # of one rank
    link_latency_us: float  # of one hop
    nics: float  # of all ranks that a link joins
    nic_gbs: float  # of one NIC
    nic_latency_us: float
    library: Library
    link: str = ""
    link_share: float = 1.0  # of link_gbs that long messages get
    switch_share: float = 0.0  # of link_gbs where the switch makes the sums; 0: it cannot
    link_wires: int = 0  # a mesh: peers that each have a wire of their own; 0: a switch
    device: str = ""  # whose figures they are

    def node_of(self, rank: int) -> int:
        return rank // self.ranks_per_node


def network_of(device: DeviceProfile, nproc_per_node: int, text: str | None = None) -> Network:
    """The network of a job on a device; `text` is what the user wrote, and wins over the device's own figures."""
    known = link_of(device.link)
    # A link that joins whole racks makes one node of them.
    ranks_per_node = max(nproc_per_node, device.link_gpus)
    network = Network(
        ranks_per_node, device.link_gbs, device.link_latency_us,
        device.nics * ranks_per_node / _DEVICES_OF_A_SERVER, device.nic_gbs, device.nic_latency_us,
        library_of(device.family or "nvidia"), device.link, known.share, known.switch_share, device.link_wires, device.id,
    )  # fmt: skip
    if device.nics:
        # A job on part of a server has the NICs nearest to its devices, and never less than one.
        network = replace(network, nics=max(network.nics, 1.0))
    return network if text is None else _changed(network, text, ranks_per_node / nproc_per_node)


def host_network(nproc_per_node: int) -> Network:
    """The network of a group whose library runs on the host (gloo), whatever the devices."""
    return network_of(find_device("cpu"), nproc_per_node)


def check_network(network: Network, world_size: int) -> None:
    """Refuse a network that lacks what this many ranks need."""
    needed = {}
    if world_size > 1 and network.ranks_per_node > 1:
        needed["link_gbs"] = network.link_gbs
    if world_size > network.ranks_per_node:
        needed |= {"nic_gbs": network.nic_gbs, "nics": network.nics}
    missing = [name for name, figure in needed.items() if not figure]
    if missing:
        raise UsageError(
            f"device {network.device} has no {', '.join(missing)}, so {world_size} ranks with"
            f" {network.ranks_per_node} per node cannot be timed",
            hint="give them in its TOML file, or " + _EXAMPLE,
        )


def _changed(network: Network, text: str, n_nodes_of_link: float) -> Network:
    """The network with what the user wrote. `nics` are of a node as the launcher counts them."""
    where = f"--network {text}"
    fields: dict[str, Any] = {}  # floats, by field of Network
    for key, value in _entries(text).items():
        if key in ("latency", "link_latency"):
            name = "nic_latency_us" if key == "latency" else "link_latency_us"
            fields[name] = _seconds(key, value, where) * 1e6
        elif key in ("bandwidth", "link"):
            fields["nic_gbs" if key == "bandwidth" else "link_gbs"] = _rate(key, value, where) / 1e9
        else:
            fields["nics"] = _count(key, value, where) * n_nodes_of_link
    return replace(network, **fields)


def _entries(text: str) -> Mapping[str, object]:
    known = ("latency", "bandwidth", "nics", "link", "link_latency")
    entries = _from_file(Path(text)) if text.endswith(".toml") else _from_text(text)
    for key in entries:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
            hint = f"nearest: {near[0]}" if near else _EXAMPLE
            raise UsageError(f"there is no {key!r} in --network", hint=hint)
    return entries


def _from_text(text: str) -> dict[str, object]:
    entries: dict[str, object] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not key or not equals or not value:
            raise UsageError(f"cannot read {part.strip()!r} in --network {text}", hint=_EXAMPLE)
        if key in entries:
            raise UsageError(f"--network {text} gives {key} twice", hint="keep one of them")
        entries[key] = value
    return entries


def _from_file(path: Path) -> dict[str, object]:
    try:
        table = parse_toml(read_at_most(path, MIB))
    except OSError as error:
        raise UsageError(f"cannot read the network file {path}: {error.strerror}", hint=_EXAMPLE) from error
    except ValueError as error:
        raise UsageError(f"the network file {path} is not TOML: {error}", hint=_EXAMPLE) from error
    inner = list(table.values())
    return inner[0] if len(inner) == 1 and isinstance(inner[0], dict) else table


def _seconds(key: str, value: object, where: str) -> float:
    match = _QUANTITY.fullmatch(value.replace("µ", "u")) if isinstance(value, str) else None
    if match is None or match.group(2) not in _SECONDS:
        raise UsageError(
            f"cannot read {key}={value!s:.40} in {where}", hint=f"write {key}=5us, with ns, us, ms or s"
        )
    return _finite(key, float(match.group(1)) * _SECONDS[match.group(2)], where)


def _rate(key: str, value: object, where: str) -> float:
    """Bytes in a second."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    unit = _RATE.fullmatch(match.group(2)) if match else None
    if match is None or unit is None or float(match.group(1)) == 0:
        raise UsageError(
            f"cannot read {key}={value!s:.40} in {where}",
            hint=f"write {key}=50GB/s (bytes) or {key}=400Gb/s (bits), above 0 and in one direction",
        )
    rate = float(match.group(1)) * _FACTORS[unit.group(1)] / (1 if unit.group(2) == "B" else 8)
    return _finite(key, rate, where)


def _finite(key: str, figure: float, where: str) -> float:
    if not isfinite(figure):
        raise UsageError(f"{key} in {where} is larger than any number", hint=_EXAMPLE)
    return figure


def _count(key: str, value: object, where: str) -> int:
    text = str(value)[:10]
    if isinstance(value, bool) or not text.isascii() or not text.isdecimal() or not 1 <= int(text) < 10**9:
        raise UsageError(
            f"cannot read {key}={value!s:.40} in {where}", hint=f"write {key}=8, a whole number above 0"
        )
    return int(text)
