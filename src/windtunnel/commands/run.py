"""Run a training script on simulated devices: does it run, does it fit, what uses the memory.

The script needs no changes: `windtunnel run --device a100-80gb train.py --batch-size 8`.
Options of windtunnel come before the script, the script's own options after it.
What starts the script stays as it is: `windtunnel run torchrun --nproc-per-node 8 train.py`, `windtunnel run bash job.sh`.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from windtunnel.commands.console import open_console
from windtunnel.commands.run_options import OUT, add_arguments
from windtunnel.commands.run_request import read_request, start_of
from windtunnel.commands.screen import Screen
from windtunnel.commands.shell_start import simulate_command
from windtunnel.report.json.run import report_text
from windtunnel.report.terminal.run import show_run
from windtunnel.session.launchers.recognise import Command
from windtunnel.session.launchers.worker_logs import show_worker_logs
from windtunnel.session.mindspore_files import asks_for_blocks, copy_blocks, copy_traces
from windtunnel.session.page_stage import PAGE
from windtunnel.session.request import RunRequest
from windtunnel.session.run_folder import discard_empty_run, prepare_folder
from windtunnel.session.simulation import Simulation, simulate
from windtunnel.terminal_text import plain_json, plain_text

__all__ = ["add_arguments", "read_request", "run"]


def run(args: argparse.Namespace) -> int:
    start = start_of(args)
    console = open_console(stderr=args.json)
    if isinstance(start, Command):
        request, screen, simulation = simulate_command(args, start, console)
    else:
        request = read_request(args, start)
        with prepare_folder(request.folder, args.force):
            try:
                with Screen(console, request, shows_every_rank=args.verbose) as screen:
                    simulation = simulate(request, screen.on_line, screen.watch, screen.tell)
            except KeyboardInterrupt:
                discard_empty_run(request.folder)
                raise
    screen.show_failures(simulation.result)
    told = _copied_files(request, simulation)
    try:
        if args.json:
            sys.stdout.write(plain_json(report_text(simulation.result)))
        else:
            show_run(console, simulation.result)
            print(plain_text("\n".join([_next(request, simulation), *told])))
        sys.stdout.flush()
    except BrokenPipeError:
        screen.close_stdout()  # `| head`: the files and the exit code still count
    return simulation.exit_code


def _copied_files(request: RunRequest, simulation: Simulation) -> list[str]:
    """Put files where a user of msrun and of MindSpore's own dry run looks for them."""
    ranks = [rank.rank for rank in simulation.result.ranks]
    told = []
    if request.launch is not None and request.launch.log_dir:
        home = request.view.folder if request.view is not None else ""
        told += show_worker_logs(request.folder, Path(home, request.launch.log_dir), ranks)
    if request.framework != "mindspore":
        return told
    settings = os.environ.get("MS_ALLOC_CONF", "")
    told += copy_blocks(request.folder, settings, ranks) if asks_for_blocks(settings) else []
    return [*told, *(copy_traces(request.folder, ranks) if request.level == 3 else [])]


def _next(request: RunRequest, simulation: Simulation) -> str:
    folder = request.folder
    failed = [rank for rank in simulation.result.ranks if rank.status == "failed"]
    if failed:
        return f"\nnext: less {folder}/rank{failed[0].rank}/run.log   (the script's full output)"
    page = f"; the page is {folder}/{PAGE}" if (folder / PAGE).is_file() else ""
    lines = [f"\nnext: windtunnel view {folder}   (view it in a browser{page})"]
    rank = simulation.result.tightest
    is_to_ask = request.is_advising is None and request.framework == "torch" and request.level > 0
    if is_to_ask and not simulation.result.advice and request.device.kind != "cpu":
        why = "how large a batch would fit" if simulation.result.fits else "what would make it fit"
        out = ["--out", str(request.folder)] if str(request.folder) != OUT else []
        options = ["--advise", "--force", *out, *request.options]
        again = shlex.join(["windtunnel", "run", *options, *request.words])
        lines.append(f"      {again}   ({why}; takes a few more runs)")
    if rank is not None and rank.peak_bytes:
        lines.append(
            f"      windtunnel replay {folder}/rank{rank.rank}   (the same program under other allocators)"
        )
    traces = [
        rank.time.trace for rank in simulation.result.ranks if rank.time is not None and rank.time.trace
    ]
    if traces:
        lines.append(
            f"      open {folder}/trace.html, or drop {folder}/{traces[0]} on ui.perfetto.dev   (the trace)"
        )
    if request.level == 0:
        lines[0] = f"\nnext: windtunnel run --force --level 1 {shlex.join(request.words)}   (memory as well)"
    return "\n".join(lines)
