"""List the known accelerators and their figures.

A device is chosen with --device NAME, changed with NAME:mem=40GiB, or described in a TOML file of your own.
"""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from dataclasses import asdict

from rich import box
from rich.console import Console
from rich.table import Table

from windtunnel.devices import DeviceProfile, find_device, known_devices
from windtunnel.units import format_bytes

__all__ = ["add_arguments", "run"]


def add_arguments(parser: ArgumentParser) -> None:
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="write the table to stdout as JSON")
    form.add_argument("--toml", metavar="NAME", help="print one device as a TOML file to start from")


def run(args: Namespace) -> int:
    """Print the table, or one device."""
    if args.toml:
        print(_toml(find_device(args.toml)), end="")
        return 0
    devices = known_devices()
    if args.json:
        print(json.dumps({id: asdict(device) for id, device in devices.items()}, indent=1))
        return 0
    Console(highlight=False).print(_table(devices))
    print("\nnext: windtunnel run --device h100 train.py   (or: windtunnel devices --toml h100 > mine.toml)")
    return 0


def _table(devices: dict[str, DeviceProfile]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("device", no_wrap=True)
    for heading in ("memory", "usable", "bf16 TFLOPS", "GB/s"):
        table.add_column(heading, justify="right")
    table.add_column("allocator")
    for device in devices.values():
        table.add_row(
            device.id,
            format_bytes(device.memory_bytes),
            format_bytes(device.usable_bytes),
            f"{device.bf16_tflops:g}",
            f"{device.bandwidth_gbs:g}",
            device.allocator,
        )
    return table


def _toml(device: DeviceProfile) -> str:
    major, minor = device.capability
    return (
        f'# A device for windtunnel run --device FILE.toml; sizes are bytes, or text such as "40GiB".\n'
        f"[{device.id}]\n"
        f'name = "{device.name}"\n'
        f'kind = "{device.kind}"\n'
        f'memory = "{device.memory_bytes}"\n'
        f'usable = "{device.usable_bytes}"\n'
        f"capability = [{major}, {minor}]\n"
        f"multiprocessors = {device.multiprocessors}\n"
        f"bf16_tflops = {device.bf16_tflops}\n"
        f"fp32_tflops = {device.fp32_tflops}\n"
        f"bandwidth_gbs = {device.bandwidth_gbs}\n"
        f'allocator = "{device.allocator}"\n'
    )
