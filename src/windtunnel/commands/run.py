"""Run a training script on simulated devices: does it run, does it fit, what uses the memory.

The script needs no changes: `windtunnel run --device a100-80gb train.py --batch-size 8`.
Options of windtunnel come before the script, the script's own options after it.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path

from windtunnel.capture.framework_choice import framework_of
from windtunnel.capture.path_patterns import split_patterns
from windtunnel.commands.console import open_console
from windtunnel.commands.run_options import OUT, add_arguments, misplaced_options
from windtunnel.commands.screen import Screen
from windtunnel.devices import DEFAULT_ASCEND, DEFAULT_DEVICE, find_device
from windtunnel.errors import UsageError
from windtunnel.report.json.run import report_text
from windtunnel.report.terminal.run import show_run
from windtunnel.session.page_stage import PAGE
from windtunnel.session.request import RunRequest, check_request, conf_of_environment
from windtunnel.session.run_folder import discard_empty_run, prepare_folder
from windtunnel.session.script_check import check_module, check_script
from windtunnel.session.seed_files import asks_for_blocks, copy_blocks, copy_traces
from windtunnel.session.simulation import Simulation, simulate
from windtunnel.terminal_text import plain_json, plain_text

__all__ = ["add_arguments", "read_request", "run"]


def run(args: argparse.Namespace) -> int:
    request = read_request(args)
    console = open_console(stderr=args.json)
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
    """Put files where a user of MindSpore's own dry run looks for them."""
    if request.framework != "mindspore":
        return []
    settings, ranks = os.environ.get("MS_ALLOC_CONF", ""), [rank.rank for rank in simulation.result.ranks]
    told = copy_blocks(request.folder, settings, ranks) if asks_for_blocks(settings) else []
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
        again = shlex.join(["windtunnel", "run", *options, request.script, *request.arguments])
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
        lines[0] = f"\nnext: windtunnel run --force --level 1 {request.script}   (memory as well)"
    return "\n".join(lines)


# -- the request -------------------------------------------------------------------------------------------


def read_request(args: argparse.Namespace) -> RunRequest:
    """Build the request from the options and the environment, and check it."""
    if args.is_module:
        check_module(args.script)
    else:
        check_script(Path(args.script))
    framework = framework_of(args.script, args.is_module)
    device = find_device(args.device or (DEFAULT_ASCEND if framework == "mindspore" else DEFAULT_DEVICE))
    _env_int("WINDTUNNEL_MOST_READS")  # every rank reads it: report a wrong value now
    n_given, per_node = _layout(args)
    n_devices = 1 if n_given is None else n_given
    allocator = args.allocator or ("mindspore" if framework == "mindspore" else device.allocator)
    request = RunRequest(
        script=args.script,
        arguments=tuple(args.arguments),
        misplaced=misplaced_options(args.arguments),
        is_module=args.is_module,
        device=device,
        allocator=allocator,
        allocator_conf=conf_of_environment(allocator),
        ranks=_ranks(args, n_devices),
        world_size=n_devices,
        nproc_per_node=_first(per_node, _env_int("LOCAL_WORLD_SIZE"), min(n_devices, 8)),
        is_launched=n_given is not None,
        level=_first(args.level, _env_int("MS_SIMULATION_LEVEL"), 1),
        max_steps=args.steps,
        writes_blocks=args.memory_tracker or asks_for_blocks(os.environ.get("MS_ALLOC_CONF", "")),
        writes_snapshot=args.snapshot,
        counts_library_buffers=args.library_buffers,
        folder=Path(args.out),
        n_jobs=args.jobs,
        executor=args.executor,
        workspace_file=args.workspace,
        network=args.network,
        is_measuring=args.measure,
        tokens_per_step=args.tokens_per_step,
        trace_ranks=None
        if args.trace_ranks is None
        else tuple(dict.fromkeys(_rank_list(args.trace_ranks, "--trace-ranks"))),
        framework=framework,
        writes_page=not args.no_html,
        is_network_allowed=args.network_access,
        isolation=args.isolation,
        keep_files=args.keep_files,
        checkpointed=tuple(pattern for text in args.checkpoint for pattern in split_patterns(text)),
        batch_factor=args.batch_factor,
        is_advising=args.advise,
        device_option=args.device or "",
    )
    check_request(request)
    return request


def _layout(args: argparse.Namespace) -> tuple[int | None, int | None]:
    """Devices in the job and per machine, as far as they are given: torchrun counts machines, others count devices."""
    per_node = args.nproc_per_node
    n_nodes = getattr(args, "nnodes", None)  # `remat` has no such option
    of_launcher = () if n_nodes is not None else (_env_int("RANK_SIZE"), _env_int("WORLD_SIZE"))
    n_devices = next((n for n in (args.world_size, *of_launcher) if n is not None), None)
    if n_nodes is not None and n_nodes < 1:
        raise UsageError(f"--nnodes is {n_nodes}, but a job needs at least 1 machine", hint="--nnodes 2")
    if n_devices is not None:
        if n_nodes is not None and per_node is not None and n_devices != n_nodes * per_node:
            raise UsageError(
                f"world size {n_devices} is not {n_nodes} machines with {per_node} devices each",
                hint="leave --world-size out",
            )
        if n_nodes is not None and n_devices % n_nodes:
            raise UsageError(
                f"world size {n_devices} is not a multiple of the {n_nodes} machines",
                hint="change --world-size or --nnodes",
            )
        return n_devices, per_node if n_nodes is None else n_devices // n_nodes
    if per_node is not None:
        return per_node * _first(n_nodes, 1), per_node
    if n_nodes is not None:
        raise UsageError(
            f"--nnodes {n_nodes} needs the number of devices per machine", hint="add --nproc-per-node 8"
        )
    return None, None


def _ranks(args: argparse.Namespace, world_size: int) -> tuple[int, ...] | None:
    """Return the chosen ranks; None if representatives are to be found."""
    launched = [rank for rank in (_env_int("RANK_ID"), _env_int("RANK")) if rank is not None]
    if args.rank is not None:
        chosen = [args.rank]
    elif args.ranks == "auto" and launched:
        chosen = launched[:1]
    elif args.ranks == "auto" and world_size > 1:
        return None
    elif args.ranks == "auto":
        chosen = [0]
    elif args.ranks == "all":
        chosen = list(range(world_size))
    else:
        chosen = _rank_list(args.ranks, "--ranks")
    return tuple(dict.fromkeys(chosen))


def _rank_list(text: str, option: str) -> list[int]:
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        is_range = bool(dash)
        if not first.isdecimal() or (is_range and not (last.isdecimal() and int(first) <= int(last))):
            words = "auto, all, or " if option == "--ranks" else ""
            raise UsageError(f"cannot read {option} {text!r}", hint=f"write {words}a list such as 0,3,8-15")
        chosen += range(int(first), int(last) + 1) if is_range else [int(first)]
    return chosen


# -- the environment ---------------------------------------------------------------------------------------


def _env_int(name: str) -> int | None:
    text = os.environ.get(name, "").strip()
    if text and not text.isdecimal():
        raise UsageError(f"the environment variable {name} is {text!r}, not a number", hint=f"unset {name}")
    return int(text) if text else None


def _first(*values: int | None) -> int:
    """Return the first value that is given."""
    return next(value for value in values if value is not None)
