"""Predict rematerialisation: time and peak memory for many eviction thresholds, and which one to use.

The script needs no changes. It is dry-run once, and `windtunnel.dtr` is simulated on the recorded operators:
`windtunnel remat --device 2080ti-11gb train.py --batch-size 200`. Given a RECORDING (the folder or file of an
earlier run), the script is not run again.

Exit code 4: no threshold fits the --device.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from windtunnel import __version__
from windtunnel.commands.console import open_console
from windtunnel.commands.remat_advice import check_request, give_advice
from windtunnel.commands.remat_page import add_to_page, is_folder_of
from windtunnel.commands.remat_source import RematSource, open_recording
from windtunnel.commands.run import read_request
from windtunnel.commands.run_options import OUT
from windtunnel.commands.screen import Screen
from windtunnel.devices import DEFAULT_DEVICE, DeviceProfile, find_device
from windtunnel.errors import CorruptFile, MissingFramework, ScriptError, UsageError
from windtunnel.exit_codes import DOES_NOT_FIT
from windtunnel.foreign_files import read_at_most
from windtunnel.memory import Allocator
from windtunnel.remat.advisor.advisor import checkpointing_points
from windtunnel.remat.evict_and_recompute import BY_ADDRESS, Settings
from windtunnel.remat.policy import DEFAULT_POLICY, POLICIES
from windtunnel.remat.simulated.curve import MARGIN, Curve, Question, has_backward, trace_curve
from windtunnel.remat.simulated.program import Program, read_program
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.remat.simulated.thresholds import Thresholds, parse_thresholds, write_size
from windtunnel.report.json.remat import remat_text, write_remat
from windtunnel.report.page.remat import remat_part
from windtunnel.report.pictures.remat import draw_remat
from windtunnel.report.results.remat import Cheaper, CostSource, RematResult, use_lines
from windtunnel.report.results.run import RankResult
from windtunnel.report.terminal.plain_console import PlainConsole
from windtunnel.report.terminal.remat import render_remat
from windtunnel.session.remedies import try_checkpointing
from windtunnel.session.request import RunRequest, conf_of_environment
from windtunnel.session.run_folder import prepare_folder
from windtunnel.session.simulation import simulate, simulate_rank_quietly
from windtunnel.terminal_text import plain_json, plain_text
from windtunnel.timing.cost import CostTable
from windtunnel.units import MIB, format_bytes, parse_bytes

__all__ = ["add_arguments", "run"]

_STEPS = 3
_MOST_COSTS = 32 * MIB  # of a cost table: a hundred thousand operators take a tenth
_PATIENCE_S = 2.0  # a progress bar appears only after this time
_ALL = "all"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "windtunnel remat [options] script.py [script arguments...] | RECORDING"
    add = parser.add_argument
    add("--device", metavar="NAME",
        help=f"device: NAME, NAME:mem=40GiB or a TOML file (default: {DEFAULT_DEVICE}, or that of the recording)")  # fmt: skip
    add("--thresholds", metavar="SIZES",
        help="2GB..9GB, 2GB..9GB:0.5GB, 4GB,6GB or 40%%..90%%:10%% (default: about ten useful ones)")  # fmt: skip
    add("--policy", default=DEFAULT_POLICY, metavar="NAME",
        help=f"eviction policy: {', '.join((*POLICIES, BY_ADDRESS))}, or all to compare them"
        f" (default {DEFAULT_POLICY})")  # fmt: skip
    add(
        "--minimum-size",
        default=str(MIB),
        metavar="SIZE",
        help="never evict tensors smaller than this (default 1MB)",
    )
    add("--advise", action="store_true",
        help="compare with torch.utils.checkpoint and the best fixed set to recompute; needs windtunnel[plan]")  # fmt: skip
    add(
        "--sampling",
        action="store_true",
        help="score about sqrt(n) sampled candidates per eviction instead of all",
    )
    add(
        "--costs",
        type=Path,
        metavar="FILE",
        help="measured operator times (JSON) instead of the roofline model",
    )
    add("--allocator", metavar="SPEC",
        help="allocator to simulate, NAME[:key=value,...] (default: the one of the device)")  # fmt: skip
    add("--steps", type=int, metavar="N", help=f"optimizer steps to simulate (default {_STEPS})")
    add("--world-size", type=int, metavar="N", help="total number of devices in the job")
    add("--nproc-per-node", type=int, metavar="N", help="devices per machine (default: up to 8)")
    add("--rank", type=int, metavar="R", help="the rank to predict (default 0)")
    add(
        "--out",
        metavar="DIR",
        help="output folder (default windtunnel-out; with a RECORDING, no files are written)",
    )
    add("--network-access", action="store_true",
        help="let the script connect to other machines (default: only to this one)")  # fmt: skip
    add("--json", action="store_true", help="print remat.json to stdout instead of a table")
    add("--force", action="store_true", help="replace an earlier run in --out")
    add("--no-html", action="store_true", help="do not write report.html")
    add("-v", "--verbose", action="store_true", help="show the output of every rank that runs")
    add("-m", dest="is_module", action="store_true", help="the script is a module name, as in python -m")
    add(
        "script",
        metavar="script.py | RECORDING",
        help="the training script, or the recording of an earlier run",
    )
    add("arguments", nargs=argparse.REMAINDER, help="arguments passed to the script")


def run(args: argparse.Namespace) -> int:
    """Dry-run the script or read a recording, simulate every threshold, then print and write the curve."""
    with ExitStack() as closing:  # holds the lock of the output folder
        return _run(args, closing)


def _run(args: argparse.Namespace, closing: ExitStack) -> int:
    policies = _policies(args.policy)
    if args.advise:
        check_request(policies)
    minimum_size = parse_bytes(args.minimum_size)
    table = _read_costs(args.costs) if args.costs is not None else None
    source = _from_recording(args) if _is_recording(args) else None
    request = _request(args) if source is None else None
    device = _device(args, source)
    thresholds = parse_thresholds(args.thresholds, device.memory_bytes) if args.thresholds else None
    allocator = args.allocator or device.allocator
    Allocator.from_spec(allocator)
    folder = Path(args.out or OUT) if request is not None or args.out else None
    if folder is not None and not (source is not None and is_folder_of(args.script, folder)):
        closing.enter_context(prepare_folder(folder, args.force))
    console = open_console(stderr=args.json)
    if request is not None:
        source = _dry_run(request, console, args.verbose)
    assert source is not None  # read, or recorded just now
    program = _program_of(source)
    costs = ProgramCosts(program, device, table)
    make_allocator = _allocators(allocator, source.torch)
    if args.advise:
        settings = Settings(minimum_size=minimum_size, is_sampling=args.sampling, policy=policies[0])
        budgets = thresholds.sizes if thresholds else None
        return give_advice(
            program,
            costs,
            device,
            settings,
            budgets,
            subject=source.subject,
            folder=folder,
            is_json=args.json,
            make_allocator=make_allocator,
            confirm=partial(_checkpointed, request) if request is not None else None,
            writes_page=not args.no_html,
        )
    question = Question(
        program,
        costs,
        make_allocator,
        device.usable_bytes,
        is_cuda=device.kind == "cuda",
        minimum_size=minimum_size,
        is_sampling=args.sampling,
    )
    with _progress() as on_progress:
        curve = trace_curve(question, policies, thresholds.sizes if thresholds else None, on_progress)
    cheaper = _cheaper(question, curve, allocator, source.torch, request)
    result = RematResult(
        __version__, source.subject, source.rank, source.world_size, device, allocator, program.n_steps,
        minimum_size, args.sampling, _cost_source(args.costs, table, program), curve,
        (*source.notes, *_notes(program, thresholds, device)), cheaper,
    )  # fmt: skip
    if folder is not None:
        result = _write(folder, result, writes_page=not args.no_html)
    if args.json:
        sys.stdout.write(plain_json(remat_text(result)))
    else:
        console.print(render_remat(result))
        print(plain_text(f"\n{_next(args, folder, result)}"))
    return 0 if curve.fits else DOES_NOT_FIT


# -- what was asked ----------------------------------------------------------------------------------------


def _policies(name: str) -> tuple[str, ...]:
    known = (*POLICIES, BY_ADDRESS)
    if name == _ALL:
        return known
    if name not in known:
        raise UsageError(f"unknown policy {name!r}", hint=f"use one of {', '.join(known)}, or {_ALL}")
    return (name,)


def _device(args: argparse.Namespace, source: RematSource | None) -> DeviceProfile:
    """Return the device of --device, or that of the recording."""
    device = find_device(args.device or (source.device if source is not None else None) or DEFAULT_DEVICE)
    if device.kind == "cpu" and "mem=" not in (args.device or ""):
        raise UsageError(
            "the CPU has no device memory to compare a threshold with",
            hint="choose an accelerator, or give a memory size: --device cpu:mem=16GiB",
        )
    return device


def _read_costs(path: Path) -> CostTable:
    try:
        return CostTable.from_json(read_at_most(path, _MOST_COSTS).decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = (
            error.strerror.lower() if isinstance(error, OSError) and error.strerror else "not a text file"
        )
        raise UsageError(
            f"cannot read --costs {path}: {reason}", hint="pass a table of measured costs"
        ) from error
    except CorruptFile as error:
        raise CorruptFile(f"--costs {path}: {error.message}", error.hint) from None


def _allocators(spec: str, torch: str) -> Callable[[int | None], Allocator]:
    conf = conf_of_environment(spec)
    return lambda n_bytes: Allocator.from_spec(spec, torch=torch, conf=conf, device_bytes=n_bytes)


def _cost_source(path: Path | None, table: CostTable | None, program: Program) -> CostSource:
    if table is None:
        return CostSource()
    measured = [table.find_signature(signature) is not None for signature in program.signatures]
    return CostSource(str(path), sum(measured), len(measured))


# -- the program -------------------------------------------------------------------------------------------


def _is_recording(args: argparse.Namespace) -> bool:
    path = Path(args.script)
    return not args.is_module and (path.is_dir() or path.suffix == ".arrows")


def _from_recording(args: argparse.Namespace) -> RematSource:
    for name in ("steps", "world_size", "nproc_per_node"):
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} needs a script, but {args.script} is a recording", hint=f"remove {option}"
            )
    if args.arguments:
        raise UsageError(
            f"a recording takes no arguments, but {args.arguments[0]!r} follows it",
            hint="put options of windtunnel before the recording",
        )
    return open_recording(Path(args.script), args.rank)


def _request(args: argparse.Namespace) -> RunRequest:
    """Return the request for a dry run of one rank that also records what autograd saves."""
    options = argparse.Namespace(**vars(args))
    options.device = args.device or DEFAULT_DEVICE
    options.ranks, options.out = "auto", args.out or OUT
    options.steps = _STEPS if args.steps is None else args.steps
    options.level = 0  # the simulation of thresholds computes the memory
    options.jobs, options.executor = None, "local"
    options.memory_tracker = options.snapshot = options.library_buffers = options.measure = False
    options.no_html = True  # the page is written when there is a curve to show
    options.workspace = options.network = options.tokens_per_step = options.trace_ranks = None
    options.isolation, options.keep_files = "auto", None
    options.checkpoint, options.batch_factor, options.chunk_loss, options.advise = [], 1.0, 1, False
    options.routing = "balanced"
    request = read_request(options)
    return replace(request, is_recording_saves=True, writes_blocks=False, ranks=(request.ranks or (0,))[:1])


def _dry_run(request: RunRequest, console: Console, shows_every_rank: bool) -> RematSource:
    """Run the script."""
    assert request.ranks is not None  # _request chose one
    rank = request.ranks[0]
    with Screen(console, request, shows_every_rank=shows_every_rank) as screen:
        simulation = simulate(request, screen.on_line, screen.watch)
    screen.show_failures(simulation.result)
    found = next(result for result in simulation.result.ranks if result.rank == rank)
    if simulation.exit_code not in (0, DOES_NOT_FIT):
        error = ScriptError(
            found.error or "the dry run did not finish",
            hint=f"less {request.folder}/rank{rank}/run.log   (the script's full output)",
        )
        error.exit_code = simulation.exit_code
        raise error
    source = open_recording(request.folder, rank)
    made_up = [f"{value.what} at {value.where}" for value in found.unknown_values]
    notes = (f"values unknown to a dry run were made up: {', '.join(made_up[:3])}",) if made_up else ()
    return replace(source, subject=request.script, world_size=request.world_size, notes=notes)


def _program_of(source: RematSource) -> Program:
    program = read_program(source.recording)
    if not has_backward(program) and not source.recording.is_complete:
        what = "is damaged" if source.recording.is_damaged else "ends"
        raise CorruptFile(
            f"{source.subject} {what} before its first backward pass", hint="record at least one whole step"
        )
    if not has_backward(program):
        raise UsageError(
            f"{source.subject} has no backward pass, so there is nothing to recompute",
            hint="rematerialisation is for training: call loss.backward() in the script",
        )
    return program


def _checkpointed(request: RunRequest, modules: tuple[str, ...]) -> RankResult | None:
    """Dry-run the rank once more, with these modules checkpointed."""
    assert request.ranks is not None  # _request chose one
    return try_checkpointing(request, modules, partial(simulate_rank_quietly, rank=request.ranks[0]))


def _cheaper(
    question: Question, curve: Curve, allocator: str, torch: str, request: RunRequest | None
) -> Cheaper | None:
    """Find a cheaper way to fit than the best threshold; None if plain training fits, or none is known."""
    if curve.without.fits and curve.has_margin(curve.without):
        return None
    if allocator == "cuda":
        make_allocator = _allocators("cuda-expandable", torch)
        plain = replace(question, make_allocator=make_allocator).ask_without()
        if plain.fits and curve.has_margin(plain):
            return Cheaper("expandable segments", 0.0, plain.peak_reserved_bytes)
    points, blocks, paths = checkpointing_points(
        question.program, question.costs, question.usable_bytes, question.make_allocator, is_cuda=question.is_cuda
    )  # fmt: skip
    room = question.usable_bytes * (1 - MARGIN)
    fitting = [p for p in points if p.needs_bytes <= room and not p.is_out_of_memory]
    chosen = min(fitting, key=lambda p: p.seconds, default=None)
    if chosen is None or (curve.best is not None and chosen.slowdown >= curve.best.step.slowdown):
        return None
    is_all = chosen is points[-1]
    which = blocks if is_all else f"the first {chosen.n_blocks} of {blocks}"
    needs_bytes = chosen.needs_bytes
    if request is not None:
        result = _checkpointed(request, paths[: chosen.n_blocks])
        if result is None or not result.fits or result.n_retries:
            return None
        needs_bytes = result.peak_with_fragments_bytes
    return Cheaper(f"torch.utils.checkpoint on {which}", chosen.slowdown - 1, needs_bytes)


def _notes(program: Program, thresholds: Thresholds | None, device: DeviceProfile) -> Iterator[str]:
    if thresholds is not None and thresholds.left_out:
        first = write_size(thresholds.left_out[0])
        yield f"thresholds from {first} up were skipped: {device.id} has {format_bytes(device.memory_bytes)}"
    if program.recording.is_damaged:
        yield "the recording is damaged: this is based on the part that could be read"
    elif not program.recording.is_complete:
        yield "the program was killed: the recording ends at the last flush"
    if program.n_steps == 0:
        yield "the program took no optimizer step: the whole program counts as one step"
    elif program.n_steps < _STEPS:
        yield f"fewer than {_STEPS} optimizer steps ran: the last one is used, and may not be a steady step"


# -- what comes out ----------------------------------------------------------------------------------------


def _write(folder: Path, result: RematResult, *, writes_page: bool) -> RematResult:
    """Write the files; a picture or page that cannot be written becomes a note."""
    try:
        for name in ("remat.png", "remat.svg"):
            draw_remat(folder / name, result)
    except MissingFramework as error:
        result = replace(result, notes=(*result.notes, f"no picture was drawn: {error}"))
    except OSError as error:
        result = replace(result, notes=(*result.notes, f"no picture was drawn: {error.strerror or error}"))
    path = folder / "remat.json"
    try:
        write_remat(path, result)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}", hint="choose another folder with --out"
        ) from error
    if writes_page and (note := add_to_page(folder, remat_part(result))):
        result = replace(result, notes=(*result.notes, note))
    return result


def _next(args: argparse.Namespace, folder: Path | None, result: RematResult) -> str:
    where = shlex.quote(str(folder if folder is not None else args.script))
    device = f" --device {shlex.quote(args.device)}" if args.device else ""
    chosen = f" --allocator {shlex.quote(args.allocator)}" if args.allocator else ""
    allocator, curve, use = result.allocator, result.curve, use_lines(result)
    others = f"windtunnel remat{device}{chosen} --policy {_ALL} {where}"
    if not use and allocator == "cuda":
        expandable = f"windtunnel remat{device} --allocator cuda-expandable {where}"
        return f"next: {expandable}   (do expandable segments make it fit?)"
    if not use:
        return f"next: {others}   (or a smaller micro-batch)"
    is_one = len(curve.policies) == 1
    lines = [f"next: {'; '.join(use)}   (in the script, before training)"]
    if allocator == "cuda-expandable":
        lines.append(
            "      PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True   (in the environment, as simulated)"
        )
    if folder is not None and not args.no_html:
        lines.append(f"      windtunnel view {where}   (view the curve in a browser)")
    if is_one:
        lines.append(f"      {others}   (all policies, without running the script again)")
    return "\n".join(lines)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on a terminal if it takes long; it disappears when done."""
    started = time.monotonic()
    with Progress(
        console=PlainConsole(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("simulating thresholds", total=None, visible=False)

        def on_progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total, visible=time.monotonic() - started > _PATIENCE_S)

        yield on_progress
