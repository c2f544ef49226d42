"""List the known accelerators and their specifications.

Select a device with --device NAME, override values with NAME:mem=40GiB,link_gbs=200, or describe one in a TOML file.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from rich import box
from rich.table import Table

from windtunnel.commands.console import open_console
from windtunnel.devices import DeviceProfile, find_device, known_devices
from windtunnel.units import GIB

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print the table to stdout as JSON")
    form.add_argument("--toml", metavar="NAME", help="print one device as TOML, as a template for your own")


def run(args: Namespace) -> int:
    """Print the table, or one device."""
    if args.toml:
        print(_toml(find_device(args.toml)), end="")
        return 0
    devices = known_devices()
    if args.json:
        print(json.dumps({id: asdict(device) for id, device in devices.items()}, indent=1))
        return 0
    console = open_console()
    console.print(_table(devices))
    console.print(_link_table(devices))
    print("\nnext: windtunnel run --device h100 train.py   (or: windtunnel devices --toml h100 > mine.toml)")
    return 0


def _table(devices: dict[str, DeviceProfile]) -> Table:
    """Memory, arithmetic rates and memory bandwidth."""
    table = _empty_table("GiB", "usable", "fp16", "bf16", "fp8", "fp32", "GB/s")
    table.add_column("allocator")
    for device in devices.values():
        table.add_row(
            device.id,
            f"{device.memory_bytes / GIB:.1f}",
            f"{device.usable_bytes / GIB:.1f}",
            *map(_figure, (device.fp16_tflops, device.bf16_tflops, device.fp8_tflops, device.fp32_tflops)),
            _figure(device.bandwidth_gbs),
            device.allocator,
        )
    table.caption = "fp16 to fp32: dense TFLOPS; GB/s: memory bandwidth"
    return table


def _link_table(devices: dict[str, DeviceProfile]) -> Table:
    """Links between devices inside a node, and between nodes."""
    table = _empty_table("GB/s", "us", "NICs", "GB/s", "us")
    table.add_column("link")
    for device in devices.values():
        inside = (device.link_gbs, device.link_latency_us)
        across = (device.nics, device.nic_gbs, device.nic_latency_us)
        table.add_row(device.id, *map(_figure, inside), *map(_figure, across), device.link)
    table.caption = "per device or NIC, one direction; NICs: for 8 devices; us: latency of one hop"
    return table


def _empty_table(*headings: str) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True, caption_justify="left"
    )
    table.add_column("device", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right")
    return table


def _figure(number: float) -> str:
    return f"{number:.4g}" if number else "-"


def _toml(device: DeviceProfile) -> str:
    """Return the device as a TOML file that can be read back."""
    found = asdict(device)
    id, memory, usable = found.pop("id"), found.pop("memory_bytes"), found.pop("usable_bytes")
    lines = [f'memory = "{memory}"', f'usable = "{usable}"']
    # Strings, numbers and lists are written the same in JSON and TOML.
    lines += [f"{key} = {json.dumps(value)}" for key, value in found.items()]
    return (
        '# A device for windtunnel run --device FILE.toml; sizes are in bytes, or text such as "40GiB"; 0: none, or unknown.\n'
        f"[{id}]\n" + "\n".join(lines) + "\n"
    )
