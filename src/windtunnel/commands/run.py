"""Run a training script on simulated devices: does it build, does it fit, what holds the memory.

The script is your own, unmodified: `windtunnel run --device a100-80gb train.py --batch-size 8`.
Options of windtunnel come before the script, the script's own after it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from windtunnel.capture.framework_choice import framework_of
from windtunnel.commands.page_stage import PAGE
from windtunnel.commands.request import RunRequest, check_request, conf_of_environment
from windtunnel.commands.run_folder import prepare_folder
from windtunnel.commands.screen import Screen
from windtunnel.commands.simulation import Simulation, simulate
from windtunnel.devices import DEFAULT_ASCEND, DEFAULT_DEVICE, find_device
from windtunnel.errors import UsageError
from windtunnel.foreign_files import read_at_most
from windtunnel.report.json_file import report_text
from windtunnel.report.plain_console import PlainConsole
from windtunnel.report.terminal import show_run
from windtunnel.terminal_text import plain_json, plain_text
from windtunnel.units import MIB

__all__ = ["add_arguments", "read_request", "run"]

_MOST_SCRIPT = 16 * MIB


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "windtunnel run [options] script.py [script arguments...]"
    add = parser.add_argument
    add("--level", type=int, metavar="{0,1,2,3}",
        help="0 builds and runs; 1 adds memory (default); 2 the workspace of kernels; 3 time and a trace")  # fmt: skip
    add("--device", metavar="NAME",
        help=f"accelerator to simulate: NAME, NAME:mem=40GiB, a TOML file or cpu (default {DEFAULT_DEVICE}; for MindSpore"
        f" {DEFAULT_ASCEND})")  # fmt: skip
    add("--world-size", type=int, metavar="N", help="cards of the job")
    add("--nproc-per-node", type=int, metavar="N", help="cards of one machine (default: up to 8)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, metavar="R", help="simulate this rank only")
    which.add_argument(
        "--ranks",
        default="auto",
        metavar="WHICH",
        help="auto (default: one of each kind of ranks), all, or a list such as 0,3,8-15",
    )
    add("--steps", type=int, metavar="N", help="stop cleanly after N optimizer steps")
    add(
        "--allocator",
        metavar="SPEC",
        help="allocator profile, NAME[:key=value,...] (default follows the device)",
    )
    add("--memory-tracker", action="store_true",
        help="write memory_block.csv: one row per allocation, with the Python stack")  # fmt: skip
    add("--snapshot", action="store_true", help="write snapshot.pickle for torch's memory viewer")
    add(
        "--workspace",
        type=Path,
        metavar="FILE",
        help="TOML file with workspaces of kernels of your own (level 2)",
    )
    add("--network", metavar="FIGURES",
        help="between cards, as in latency=5us,bandwidth=50GB/s,nics=8, or a TOML file (level 3)")  # fmt: skip
    add("--measure", action="store_true",
        help="time operators on the device of this machine, as --device cpu always does (level 3)")  # fmt: skip
    add(
        "--tokens-per-step",
        type=int,
        metavar="N",
        help="tokens of one step of the whole job (default: counted)",
    )
    add("--trace-ranks", metavar="LIST", help="ranks that get a trace, such as 0,8-11 (default: up to 4)")
    add("--library-buffers", action="store_true",
        help="take the estimated buffers of NCCL or HCCL off the usable memory")  # fmt: skip
    add(
        "--out",
        default="windtunnel-out",
        metavar="DIR",
        help="folder for the run's files (default windtunnel-out)",
    )
    add("--keep-files", type=Path, metavar="DIR",
        help="copy what the script wrote to this new folder (default: it is listed, and gone after the run)")  # fmt: skip
    add("--network-access", action="store_true",
        help="let the script reach other machines (default: only this one)")  # fmt: skip
    add("--isolation", default="auto", metavar="HOW",
        help="how files are protected: auto (default: a copy-on-write layer where the system allows one) or guard")  # fmt: skip
    add("--no-html", action="store_true", help="write no report.html")
    add("--json", action="store_true", help="print report.json instead of tables")
    add("--jobs", type=int, metavar="N", help="ranks simulated at the same time (default: number of cores)")
    add(
        "--executor",
        default="local",
        metavar="WHERE",
        help="local (default), ray, or ray:ADDRESS of a cluster",
    )
    add("--force", action="store_true", help="replace an earlier run in --out")
    add(
        "-v",
        "--verbose",
        action="store_true",
        help="show the output of every rank, not only of the first one",
    )
    add("-m", dest="is_module", action="store_true", help="the script is a module name, as in python -m")
    add("script", help="the training script")
    add("arguments", nargs=argparse.REMAINDER, help="its own arguments")


def run(args: argparse.Namespace) -> int:
    request = read_request(args)
    prepare_folder(request.folder, args.force)
    console = PlainConsole(stderr=args.json)
    with Screen(console, request, shows_every_rank=args.verbose) as screen:
        simulation = simulate(request, screen.on_line, screen.watch, screen.tell)
    screen.show_failures(simulation.result)
    try:
        if args.json:
            sys.stdout.write(plain_json(report_text(simulation.result)))
        else:
            show_run(console, simulation.result)
            print(plain_text(_next(request, simulation)))
        sys.stdout.flush()
    except BrokenPipeError:
        screen.close_stdout()  # `| head`: the files and the exit code still count
    return simulation.exit_code


def _next(request: RunRequest, simulation: Simulation) -> str:
    folder = request.folder
    failed = [rank for rank in simulation.result.ranks if rank.status == "failed"]
    if failed:
        return f"\nnext: less {folder}/rank{failed[0].rank}/run.log   (everything the script said)"
    page = f"; {folder}/{PAGE} is that page" if (folder / PAGE).is_file() else ""
    lines = [f"\nnext: windtunnel view {folder}   (look at it in a browser{page})"]
    rank = simulation.result.tightest
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
    """What the options and the environment ask for, checked."""
    if args.is_module:
        _check_module(args.script)
    else:
        _check_script(Path(args.script))
    framework = framework_of(args.script, args.is_module)
    device = find_device(args.device or (DEFAULT_ASCEND if framework == "mindspore" else DEFAULT_DEVICE))
    given = [n for n in (args.world_size, _env_int("RANK_SIZE"), _env_int("WORLD_SIZE")) if n is not None]
    n_cards = given[0] if given else 1
    allocator = args.allocator or ("mindspore" if framework == "mindspore" else device.allocator)
    request = RunRequest(
        script=args.script,
        arguments=tuple(args.arguments),
        is_module=args.is_module,
        device=device,
        allocator=allocator,
        allocator_conf=conf_of_environment(allocator),
        ranks=_ranks(args, n_cards),
        world_size=n_cards,
        nproc_per_node=_first(args.nproc_per_node, _env_int("LOCAL_WORLD_SIZE"), min(n_cards, 8)),
        is_launched=bool(given),
        level=_first(args.level, _env_int("MS_SIMULATION_LEVEL"), 1),
        max_steps=args.steps,
        writes_blocks=args.memory_tracker or _env_wants_tracker(),
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
    )
    check_request(request)
    return request


def _check_script(path: Path) -> None:
    """Fail in a sentence for what cannot be a Python script."""
    if not path.exists():
        raise UsageError(
            f"there is no script {path}", hint="check the path; options of windtunnel come before it"
        )
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name the script in it, or use -m for a package")
    hint = "name a Python script, as in `windtunnel run train.py`"
    try:
        compile(read_at_most(path, _MOST_SCRIPT), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        line = f" at line {error.lineno}" if error.lineno else ""
        raise UsageError(f"{path} is not valid Python{line}: {error.msg}", hint) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise UsageError(f"{path} is not a Python script: {error}", hint) from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", hint) from error


def _check_module(name: str) -> None:
    """Look for `package.module` as `python -m` would, without importing anything of the user's."""
    path: list[str] | None = [os.getcwd(), *sys.path]
    parts = name.split(".")
    for i in range(len(parts)):
        full_name = ".".join(parts[: i + 1])
        specs = (finder.find_spec(full_name, path) for finder in sys.meta_path)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None:
            hint = "name a module, without .py, that python -m would find from this folder"
            raise UsageError(f"there is no module {full_name!r}", hint)
        path = list(spec.submodule_search_locations or [])


def _ranks(args: argparse.Namespace, world_size: int) -> tuple[int, ...] | None:
    """The ranks asked for; None if they are to be found."""
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


def _env_wants_tracker() -> bool:
    return "memory_tracker:true" in os.environ.get("MS_ALLOC_CONF", "").replace(" ", "").lower()


def _first(*values: int | None) -> int:
    """The first one given."""
    return next(value for value in values if value is not None)
