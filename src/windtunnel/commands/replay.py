"""Replay recorded allocations through other allocators: what if?

FILE is a torch memory snapshot (torch.cuda.memory._dump_snapshot), a MindSpore memory_block.csv, a recording
of `windtunnel run`, or the directory of such a run. Nothing in the file is executed.

Exit code 4: no allocator of the table fits the --device.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from windtunnel import __version__
from windtunnel.devices import DEFAULT_DEVICE, DeviceProfile, find_device
from windtunnel.memory.what_if import AllocatorChoice, ask_what_if, default_choices, make_choice
from windtunnel.memory.what_if_source import open_source
from windtunnel.report.what_if_table import WhatIf, best_conf, render_what_if, what_if_document

__all__ = ["add_arguments", "run"]

SCHEMA = 1
_PATIENCE_S = 2.0  # a bar appears only when the answer takes longer
_EPILOG = (
    "example: windtunnel replay snapshot.pickle --device a100-80gb --allocator cuda:max_split_size_mb=256"
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what to replay")
    parser.add_argument(
        "--device", metavar="NAME", help="would it fit this device? (NAME, NAME:mem=40GiB, or a TOML file)"
    )
    parser.add_argument(
        "--allocator",
        action="append",
        default=[],
        metavar="NAME[:key=value,…]",
        help="try this one; may be repeated",
    )
    parser.add_argument("--json", action="store_true", help="write the result to stdout as JSON")


def run(args: Namespace) -> int:
    """Replay every file; print a table and a sentence for each."""
    chosen = tuple(make_choice(spec) for spec in args.allocator)
    device = find_device(args.device) if args.device else None
    results = [_ask(path, chosen, device, args.device) for path in args.files]
    if args.json:
        _print_json(results, device)
    else:
        _print_tables(results, args)
    return 0 if all(result.best.fits for result in results) else 4


def _ask(
    path: Path, chosen: tuple[AllocatorChoice, ...], device: DeviceProfile | None, called: str | None
) -> WhatIf:
    source = open_source(path)
    usable_bytes = device.usable_bytes if device else None
    choices = chosen or default_choices(source.allocator, source.conf, source.torch, device is not None)
    with _progress(path.name) as on_progress:
        outcomes = ask_what_if(source.tape, choices, usable_bytes, on_progress)
    return WhatIf(source, outcomes, called, usable_bytes)


def _print_json(results: list[WhatIf], device: DeviceProfile | None) -> None:
    document = {
        "schema": SCHEMA,
        "windtunnel": __version__,
        "device": {"name": device.id, "usable_bytes": device.usable_bytes} if device else None,
        "files": [what_if_document(result) for result in results],
    }
    print(json.dumps(document, indent=1, ensure_ascii=False))


def _print_tables(results: list[WhatIf], args: Namespace) -> None:
    console = Console(highlight=False)
    for result in results:
        console.print(render_what_if(result))
        console.print()
    print(f"next: {_next_command(results[0], args)}")


def _next_command(result: WhatIf, args: Namespace) -> str:
    file = shlex.quote(str(args.files[0]))
    if result.device is None:
        device = result.source.device or DEFAULT_DEVICE
        return f"windtunnel replay {file} --device {device}   (would it fit?)"
    conf = best_conf(result)
    if conf is not None:
        return f"PYTORCH_CUDA_ALLOC_CONF={conf} python your_script.py   (the best row, on the real device)"
    device = shlex.quote(result.device)
    return f"windtunnel replay {file} --device {device} --allocator cuda:max_split_size_mb=512   (or yours)"


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on the terminal, once it is worth showing; it vanishes when done."""
    started = time.monotonic()
    with Progress(console=Console(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task(f"replaying {name}", total=None, visible=False)

        def on_progress(done: int, total: int) -> None:
            is_due = time.monotonic() - started > _PATIENCE_S
            bar.update(task, completed=done, total=total, visible=is_due)

        yield on_progress
