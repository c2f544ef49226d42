"""Run a training script on simulated devices: does it build, does it fit, what holds the memory.

The script is your own, unmodified: `windtunnel run --device a100-80gb train.py --batch-size 8`.
Options of windtunnel come before the script, the script's own after it.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.status import Status

from windtunnel.commands.simulation import RunRequest, prepare_folder, simulate
from windtunnel.devices import DEFAULT_DEVICE, DeviceProfile, find_device
from windtunnel.errors import UsageError
from windtunnel.memory import Allocator
from windtunnel.report.json_file import report_text
from windtunnel.report.result import RunResult
from windtunnel.report.terminal import show_run

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    env = os.environ
    parser.add_argument("--level", type=int, choices=(0, 1, 2, 3), default=_env_int("MS_SIMULATION_LEVEL", 1),
                        help="0 builds and runs; 1 adds memory (default); 2 and 3 come later")  # fmt: skip
    parser.add_argument("--device", default=DEFAULT_DEVICE, metavar="NAME", help="accelerator to simulate: NAME, NAME:mem=40GiB, a TOML file, or cpu")
    parser.add_argument("--world-size", type=int, default=None, metavar="N", help="cards of the job")
    parser.add_argument("--nproc-per-node", type=int, default=None, metavar="N", help="cards of one machine (default: up to 8)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--rank", type=int, default=None, metavar="R", help="simulate this rank only")
    which.add_argument("--ranks", default="auto", metavar="WHICH", help="auto, all, or a list such as 0,3,8-15")
    parser.add_argument("--steps", type=int, default=None, metavar="N", help="stop cleanly after N optimizer steps")
    parser.add_argument("--allocator", default=None, metavar="SPEC", help="allocator profile, NAME[:key=value,...] (default follows the device)")
    parser.add_argument("--memory-tracker", action="store_true", default="memory_tracker:True" in env.get("MS_ALLOC_CONF", ""),
                        help="write memory_block.csv: one row per allocation, with the Python stack")  # fmt: skip
    parser.add_argument("--snapshot", action="store_true", help="write snapshot.pickle for torch's memory viewer")
    parser.add_argument("--out", default="windtunnel-out", metavar="DIR", help="folder for the run's files (default windtunnel-out)")
    parser.add_argument("--json", action="store_true", help="print report.json instead of tables")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="ranks simulated at the same time")
    parser.add_argument("--force", action="store_true", help="replace an earlier run in --out")
    parser.add_argument("-v", "--verbose", action="store_true", help="show all of the script's output at the end, too")
    parser.add_argument("-m", dest="is_module", action="store_true", help="the script is a module name, as in python -m")
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")


def run(args: argparse.Namespace) -> int:
    request = _request(args)
    prepare_folder(request.folder, args.force)
    console = Console(stderr=args.json, soft_wrap=False, highlight=False)
    result = _simulate_with_progress(request, console)
    if args.json:
        print(report_text(result))
    else:
        show_run(console, result)
        _print_next(request, result)
    return _exit_code(result)


def _print_next(request: RunRequest, result: RunResult) -> None:
    folder = request.folder
    print(f"\nnext: windtunnel view {folder}        (this report again; files are in {folder}/)")
    if result.level >= 1 and any(rank.peak_bytes for rank in result.ranks):
        rank = result.tightest
        print(f"      windtunnel replay {folder}/rank{rank.rank if rank else 0}   (the same program under other allocators)")


def _exit_code(result: RunResult) -> int:
    if any("interrupted" in (rank.error or "") for rank in result.ranks):
        return 130
    if any(rank.status == "failed" for rank in result.ranks):
        return 3
    return 0 if result.fits else 4


# -- the request ------------------------------------------------------------------------------------------------


def _request(args: argparse.Namespace) -> RunRequest:
    device = find_device(args.device)
    if not args.is_module:
        _check_script(Path(args.script))
    if args.level > 1:
        raise UsageError(f"level {args.level} is not built yet", hint="use --level 1")
    world_size, is_launched = _world_size(args)
    nproc = args.nproc_per_node or int(os.environ.get("LOCAL_WORLD_SIZE", 0)) or min(world_size, 8)
    if nproc < 1 or (world_size > nproc and world_size % nproc):
        raise UsageError(f"--world-size {world_size} is not a multiple of --nproc-per-node {nproc}")
    allocator = args.allocator or device.allocator
    conf = _allocator_conf(device)
    Allocator.from_spec(allocator, conf=conf)  # a wrong name or option is said now, not after the run
    if args.steps is not None and args.steps < 1:
        raise UsageError(f"--steps {args.steps}: at least one step is needed")
    return RunRequest(
        args.script, tuple(args.arguments), args.is_module, device, allocator, conf, _ranks(args, world_size), world_size,
        nproc, is_launched, args.level, args.steps, args.memory_tracker, args.snapshot, Path(args.out), args.jobs,
    )  # fmt: skip


def _check_script(path: Path) -> None:
    """Fail in a sentence for what cannot be a Python script."""
    if not path.exists():
        raise UsageError(f"there is no script {path}", hint="check the path; options of windtunnel come before it")
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint="name the script in it, or use -m for a package")
    try:
        compile(path.read_bytes(), str(path), "exec")
    except SyntaxError as error:
        raise UsageError(f"{path} is not Python: line {error.lineno}: {error.msg}") from error
    except ValueError as error:
        raise UsageError(f"{path} is not a Python script: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error


def _world_size(args: argparse.Namespace) -> tuple[int, bool]:
    given = args.world_size
    if given is None:
        given = _env_int("RANK_SIZE", None) or _env_int("WORLD_SIZE", None)
    if given is None:
        return 1, False
    if given < 1:
        raise UsageError(f"--world-size {given}: a job has at least one card")
    return given, True


def _ranks(args: argparse.Namespace, world_size: int) -> tuple[int, ...]:
    if args.rank is not None:
        chosen = [args.rank]
    elif args.ranks == "auto":
        chosen = [_env_int("RANK_ID", None) or _env_int("RANK", None) or 0]
    elif args.ranks == "all":
        chosen = list(range(world_size))
    else:
        chosen = _rank_list(args.ranks)
    wrong = [rank for rank in chosen if not 0 <= rank < world_size]
    if wrong:
        raise UsageError(f"rank {wrong[0]} does not exist: ranks go from 0 to {world_size - 1}", hint="raise --world-size")
    return tuple(dict.fromkeys(chosen))


def _rank_list(text: str) -> list[int]:
    chosen: list[int] = []
    for part in text.split(","):
        first, dash, last = part.partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise UsageError(f"cannot read --ranks {text!r}", hint="write auto, all, or a list such as 0,3,8-15")
        chosen += range(int(first), int(last) + 1) if dash else [int(first)]
    return chosen


def _allocator_conf(device: DeviceProfile) -> str:
    """The allocator settings of the user's environment, first one set, as torch reads them."""
    names = {"cuda": ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "npu": ("PYTORCH_NPU_ALLOC_CONF", "PYTORCH_ALLOC_CONF")}
    if device.allocator not in ("cuda", "cuda-expandable", "npu"):
        return ""
    return next((os.environ[n] for n in names.get(device.kind, ()) if os.environ.get(n)), "")


def _env_int(name: str, default: int | None) -> Any:
    text = os.environ.get(name, "")
    return int(text) if text.isdigit() else default


# -- while it runs ------------------------------------------------------------------------------------------------


def _simulate_with_progress(request: RunRequest, console: Console) -> RunResult:
    many = len(request.ranks) > 1
    steps: dict[int, int] = {}
    with Status(_progress_text(request, steps), console=console, spinner="dots") as status:

        def listen(rank: int, kind: str, value: Any) -> None:
            if kind == "step":
                steps[rank] = value
                status.update(_progress_text(request, steps))
            else:
                console.print(f"[rank {rank}] {value}" if many else value, markup=False, soft_wrap=True)

        return simulate(request, listen)


def _progress_text(request: RunRequest, steps: dict[int, int]) -> str:
    n = len(request.ranks)
    what = f"rank {request.ranks[0]}" if n == 1 else f"{n} ranks"
    return f"simulating {what} of {request.world_size} on {request.device.id}: {sum(steps.values())} steps"
