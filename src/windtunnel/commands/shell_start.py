"""`windtunnel run bash job.sh`: run the script until it starts its training, then simulate that.

Command ──> CommandRun ──> what it hands over ──> RunRequest ──> simulate ──> the rest of the script
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from windtunnel.commands.run_request import given_by, read_request
from windtunnel.commands.screen import Screen, harmless
from windtunnel.devices import DEFAULT_DEVICE, find_device
from windtunnel.errors import WindtunnelError
from windtunnel.report.facts import five_facts
from windtunnel.report.results.run import DeviceResult, RankResult
from windtunnel.session.launchers.command_run import CommandRun, adopted, check_start
from windtunnel.session.launchers.recognise import Command
from windtunnel.session.launchers.worker_logs import worker_log
from windtunnel.session.request import RunRequest
from windtunnel.session.run_folder import discard_empty_run, prepare_folder
from windtunnel.session.simulation import Simulation, simulate

__all__ = ["simulate_command"]


def simulate_command(
    args: argparse.Namespace, command: Command, console: Console
) -> tuple[RunRequest, Screen, Simulation]:
    """Run a program that starts the training, and simulate what it starts first."""
    check_start(args.executor, args.isolation, args.keep_files)
    folder = Path(args.out)
    output = _Output(console)
    with ExitStack() as closing:
        closing.enter_context(prepare_folder(folder, args.force))
        device = find_device(args.device or DEFAULT_DEVICE)
        started = closing.enter_context(
            CommandRun(
                command, folder, given_by(args), device, output.write,
                is_network_allowed=args.network_access, isolation=args.isolation,
            )
        )  # fmt: skip
        try:
            handed = started.wait_for_launch()
            closing.enter_context(adopted(handed.environment))
            request = replace(read_request(args, handed), folder=folder.absolute(), view=started.view(handed))
            shown = request.ranks[0] if request.ranks else 0

            def on_line(rank: int, text: str) -> None:
                if args.verbose or rank == shown:
                    started.send_line(f"[rank {rank}] {text}" if args.verbose else text)

            def after_ranks(results: Mapping[int, RankResult]) -> tuple[str, ...]:
                is_good = all(result.status not in ("failed", "oom") for result in results.values())
                return started.finish(is_good, _logs(request, results))

            with Screen(console, request, shows_every_rank=args.verbose) as screen:
                output.screen = screen
                simulation = simulate(request, on_line, screen.watch, screen.tell, after_ranks)
        except (KeyboardInterrupt, WindtunnelError):
            discard_empty_run(folder)
            raise
    return replace(request, folder=folder), screen, simulation


class _Output:
    """The script's own output: printed as it comes, above the progress line once there is one."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self.screen: Screen | None = None

    def write(self, line: str) -> None:
        if self.screen is not None:
            self.screen.write(line)
            return
        try:
            self._console.file.write(harmless(line) + "\n")
            self._console.file.flush()
        except (OSError, ValueError):
            pass  # nobody reads it: the script goes on


def _logs(request: RunRequest, results: Mapping[int, RankResult]) -> list[tuple[str, str, str]]:
    """The logs that the launcher would have written: source, path in the script's view, the five facts."""
    if request.launch is None or not request.launch.log_dir:
        return []
    device = DeviceResult(request.device.id, request.device.memory_bytes)
    place = os.path.join(request.view.folder if request.view is not None else "", request.launch.log_dir)
    return [
        (
            str(request.folder / f"rank{rank}" / "run.log"),
            os.path.join(place, worker_log(rank)),
            "\n".join(five_facts(result, device)) + "\n",
        )
        for rank, result in results.items()
        if (request.folder / f"rank{rank}").is_dir()
    ]
