"""From the options of `windtunnel run`, the environment and a launcher's command line to a request.

args ──> Launch or Command, if the script is started by one ──> layout, ranks, device ──> RunRequest, checked
"""

from __future__ import annotations

import argparse
import os
import shutil
from pathlib import Path

from windtunnel.capture.framework_choice import FRAMEWORKS, framework_of
from windtunnel.capture.launcher_names import LAUNCHERS, MODULES
from windtunnel.capture.path_patterns import split_patterns
from windtunnel.capture.routing import routing_of
from windtunnel.capture.script_check import check_module, check_script
from windtunnel.capture.values_set_by_user import values_set_by_user
from windtunnel.commands.run_options import misplaced_options
from windtunnel.devices import DEFAULT_ASCEND, DEFAULT_DEVICE, find_device
from windtunnel.errors import UsageError
from windtunnel.session.launchers.command_run import Handed
from windtunnel.session.launchers.launch import Given, Launch, check_agreement
from windtunnel.session.launchers.python_words import PYTEST, is_python
from windtunnel.session.launchers.recognise import Command, shell_words, understand
from windtunnel.session.mindspore_files import asks_for_blocks
from windtunnel.session.request import RunRequest, check_request, conf_of_environment

__all__ = ["given_by", "read_request", "start_of", "typed_words"]


def start_of(args: argparse.Namespace) -> Launch | Command | None:
    """Return the launcher or the shell script that starts the training script; None if it is given itself."""
    words = [args.script, *args.arguments]
    if args.is_module:
        return (
            understand(["python", "-m", *words], given_by(args), os.environ)
            if args.script in MODULES
            else None
        )
    if args.script.endswith(".py"):
        return None
    is_launcher = os.path.basename(args.script) in (*LAUNCHERS, *PYTEST) or is_python(args.script)
    if is_launcher and not (Path(args.script).is_dir() and "/" in args.script):
        return understand(words, given_by(args), os.environ)
    command = shell_words(words)
    if command is None and not Path(args.script).exists() and shutil.which(args.script) is not None:
        command = tuple(words)  # any other program, such as make
    return None if command is None else Command(command)


def typed_words(args: argparse.Namespace) -> tuple[str, ...]:
    """Return the command as it was typed, with the options that settle what a launcher leaves open."""
    given = {"--nproc-per-node": args.nproc_per_node, "--nnodes": getattr(args, "nnodes", None)}
    options = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    module = ["-m"] if args.is_module else []
    return (*options, *module, args.script, *args.arguments)


def given_by(args: argparse.Namespace) -> Given:
    """Return what the options say about the layout of the job."""
    kind = find_device(args.device).kind if args.device else "cuda"
    return Given(args.nproc_per_node, getattr(args, "nnodes", None), args.world_size, kind)


def read_request(args: argparse.Namespace, start: Launch | Handed | None = None) -> RunRequest:
    """Build the request from the options and the environment, and check it.

    `start` is the launcher's command line, or the one that a shell script handed over, if that is known already.
    """
    launch = start.launch if isinstance(start, Handed) else start
    if start is None:
        launch = _launch_of(args)
    if launch is None:
        launch, is_launched_by = (
            Launch("windtunnel", args.script, tuple(args.arguments), args.is_module),
            False,
        )
    else:
        is_launched_by = True
        check_agreement(launch, given_by(args), args.level, args.rank)
    if not isinstance(start, Handed):
        check_module(launch.script) if launch.is_module else check_script(Path(launch.script))
    framework = _framework(args, launch, start.framework if isinstance(start, Handed) else None)
    device = find_device(args.device or (DEFAULT_ASCEND if framework == "mindspore" else DEFAULT_DEVICE))
    _env_int("WINDTUNNEL_MOST_READS")  # every rank reads these: report a wrong value now
    values_set_by_user()
    n_given, per_node = (
        _layout(args) if launch.world_size is None else (launch.world_size, launch.nproc_per_node)
    )
    n_devices = 1 if n_given is None else n_given
    allocator = args.allocator or ("mindspore" if framework == "mindspore" else device.allocator)
    request = RunRequest(
        script=launch.script,
        arguments=launch.arguments,
        misplaced=misplaced_options(launch.arguments),
        is_module=launch.is_module,
        device=device,
        allocator=allocator,
        allocator_conf=conf_of_environment(allocator),
        ranks=_ranks(args, n_devices, launch),
        world_size=n_devices,
        nproc_per_node=_first(per_node, _env_int("LOCAL_WORLD_SIZE"), min(n_devices, 8)),
        is_launched=n_given is not None and (launch.world_size is None or launch.is_torch_like),
        level=_first(args.level, launch.level, _env_int("MS_SIMULATION_LEVEL"), 1),
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
        loss_chunks=args.chunk_loss,
        routing=routing_of(args.routing),
        is_advising=args.advise,
        device_option=args.device or "",
        launch=launch if is_launched_by else None,
        typed=typed_words(args) if is_launched_by else (),
    )
    check_request(request)
    return request


def _launch_of(args: argparse.Namespace) -> Launch | None:
    found = start_of(args)
    if isinstance(found, Command):
        raise UsageError(
            f"{args.script} is not a Python script",
            hint="give the training script or its launcher; only `windtunnel run` runs shell scripts",
        )
    return found


def _framework(args: argparse.Namespace, launch: Launch, found: str | None) -> str:
    asked = getattr(args, "framework", None)  # `remat` has no such option
    if asked is not None:
        names = {"pytorch": "torch"} | {name: name for name in FRAMEWORKS}
        if asked not in names:
            raise UsageError(f"unknown framework {asked!r}", hint="use pytorch or mindspore")
        return names[asked]
    return found or framework_of(launch.script, launch.is_module, arguments=launch.arguments)


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


def _ranks(args: argparse.Namespace, world_size: int, launch: Launch) -> tuple[int, ...] | None:
    """Return the chosen ranks; None if representatives are to be found."""
    # A launcher sets these itself; what they were before it does not count.
    told = (launch.rank,) if launch.world_size is not None else (_env_int("RANK_ID"), _env_int("RANK"))
    launched = [rank for rank in told if rank is not None]
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
