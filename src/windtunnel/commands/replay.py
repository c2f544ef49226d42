"""Replay recorded allocations with other allocators and settings: would it fit, and with how much fragmentation?

FILE is a torch memory snapshot (torch.cuda.memory._dump_snapshot), a recording of `windtunnel run`, or a file of a
MindSpore run: memory_block.csv, its logs, or the *_validate_*.ir of a static graph. The directory of a run works
too. Nothing in a file is executed.

Exit code 4: no allocator in a table fits the --device, or a rank in the logs does not fit.
"""

from __future__ import annotations

import json
import shlex
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from windtunnel import __version__
from windtunnel.commands.console import open_console
from windtunnel.devices import DEFAULT_DEVICE, DeviceProfile, find_device
from windtunnel.exit_codes import DOES_NOT_FIT
from windtunnel.memory.files.dryrun_log import read_logs
from windtunnel.memory.files.kind_of_file import ReplayFiles, find_replay_files
from windtunnel.memory.what_if.other_allocators import (
    AllocatorChoice,
    ask_what_if,
    default_choices,
    make_choice,
)
from windtunnel.memory.what_if.recorded_file import open_source
from windtunnel.report.terminal.dryrun_log import LogFacts, log_document, render_logs
from windtunnel.report.terminal.plain_console import PlainConsole
from windtunnel.report.terminal.what_if import (
    WhatIf,
    best_conf,
    render_ranks,
    render_what_if,
    what_if_document,
    worst_of,
)
from windtunnel.terminal_text import plain_json, plain_text

__all__ = ["add_arguments", "run"]

SCHEMA = 1
MINDSPORE_DEVICE = "ascend-910b-64gb"
_PATIENCE_S = 2.0  # a progress bar appears only after this time
_EPILOG = (
    "example: windtunnel replay snapshot.pickle --device a100-80gb --allocator cuda:max_split_size_mb=256"
)


def add_arguments(parser: ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="file or directory to replay")
    parser.add_argument(
        "--device",
        metavar="NAME",
        help="check whether it fits this device: NAME, NAME:mem=40GiB, or a TOML file",
    )
    parser.add_argument(
        "--allocator",
        action="append",
        default=[],
        metavar="NAME[:key=value,…]",
        help="allocator to try; may be repeated (default: several)",
    )
    parser.add_argument("--json", action="store_true", help="print the result to stdout as JSON")


def run(args: Namespace) -> int:
    """Replay every file; print a table and a sentence for each."""
    chosen = tuple(make_choice(spec) for spec in args.allocator)
    device = find_device(args.device) if args.device else None
    found = [find_replay_files(path) for path in args.files]
    logs = list(dict.fromkeys(file for one in found if one.kind == "log" for file in one.files))
    if logs and chosen:
        open_source(logs[0])  # raises: logs have totals only, and an allocator needs single allocations
    usable_bytes = device.usable_bytes if device else None
    facts = LogFacts(read_logs(logs), args.device, usable_bytes) if logs else None
    runs = [
        _ask_all(path, one, chosen, device, args.device)
        for path, one in zip(args.files, found, strict=True)
        if one.kind != "log"
    ]
    if args.json:
        _print_json(runs, facts, device)
    else:
        _print_tables(runs, facts, args)
    all_fit = all(result.best.fits for results in runs for result in results)
    return 0 if all_fit and (facts is None or facts.fits is not False) else DOES_NOT_FIT


def _ask_all(
    path: Path,
    found: ReplayFiles,
    chosen: tuple[AllocatorChoice, ...],
    device: DeviceProfile | None,
    called: str | None,
) -> list[WhatIf]:
    """Return a result for each rank; for a run of windtunnel, only for the rank that needs most."""
    paths = [path] if found.kind == "recording" else list(found.files)
    results = [_ask(one, chosen, device, called) for one in paths]
    source = replace(results[0].source, notes=(*found.notes, *results[0].source.notes))
    return [replace(results[0], source=source), *results[1:]]


def _ask(
    path: Path, chosen: tuple[AllocatorChoice, ...], device: DeviceProfile | None, called: str | None
) -> WhatIf:
    source = open_source(path)
    usable_bytes = device.usable_bytes if device else None
    choices = chosen or default_choices(source.allocator, source.conf, source.torch, device is not None)
    with _progress(path.name) as on_progress:
        outcomes = ask_what_if(source.tape, choices, usable_bytes, on_progress)
    return WhatIf(source, outcomes, called, usable_bytes)


def _print_json(runs: list[list[WhatIf]], facts: LogFacts | None, device: DeviceProfile | None) -> None:
    files = [what_if_document(result) for results in runs for result in results]
    document = {
        "schema": SCHEMA,
        "windtunnel": __version__,
        "device": {"name": device.id, "usable_bytes": device.usable_bytes} if device else None,
        "files": files + ([log_document(facts)] if facts else []),
    }
    print(plain_json(json.dumps(document, indent=1, ensure_ascii=False)))


def _print_tables(runs: list[list[WhatIf]], facts: LogFacts | None, args: Namespace) -> None:
    console = open_console()
    for results in runs:
        if len(results) > 1:
            console.print(render_ranks(results))
            console.print()
        console.print(render_what_if(worst_of(results)))
        console.print()
    if facts is not None:
        console.print(render_logs(facts))
        console.print()
    step = _next_command(worst_of(runs[0]), args) if runs else _next_for_logs(args)
    print(plain_text(f"next: {step}"))


def _next_command(result: WhatIf, args: Namespace) -> str:
    file = shlex.quote(str(args.files[0]))
    is_mindspore = result.source.allocator.startswith("mindspore")
    if result.device is None:
        device = result.source.device or (MINDSPORE_DEVICE if is_mindspore else DEFAULT_DEVICE)
        return f"windtunnel replay {file} --device {device}   (would it fit?)"
    conf = best_conf(result)
    if conf is not None:
        return f"{conf} python your_script.py   (the best row, on a real device)"
    device = shlex.quote(result.device)
    other = "mindspore:enable_vmm=True,vmm_align_size=4MB" if is_mindspore else "cuda:max_split_size_mb=512"
    return f"windtunnel replay {file} --device {device} --allocator {other}   (or yours)"


def _next_for_logs(args: Namespace) -> str:
    if args.device is None:
        file = shlex.quote(str(args.files[0]))
        return f"windtunnel replay {file} --device {MINDSPORE_DEVICE}   (would it fit?)"
    return "MS_ALLOC_CONF=memory_tracker:True python your_script.py, then windtunnel replay rank_0   (what uses the memory)"


@contextmanager
def _progress(name: str) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal if it takes long; it disappears when done."""
    started = time.monotonic()
    with Progress(
        console=PlainConsole(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task(f"replaying {name}", total=None, visible=False)

        def on_progress(done: int, total: int) -> None:
            is_due = time.monotonic() - started > _PATIENCE_S
            bar.update(task, completed=done, total=total, visible=is_due)

        yield on_progress
