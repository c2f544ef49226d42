"""`windtunnel remat --advise`: checkpointing, the best fixed set and windtunnel.dtr on the same recording.

Program, costs, device ──> advise ──> table | JSON, and DIR/advice.json, advice.png, advice.svg, report.html
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.progress import Progress

from windtunnel.commands.console import open_console
from windtunnel.commands.remat_page import add_to_page
from windtunnel.devices import DeviceProfile
from windtunnel.errors import MissingFramework, UsageError
from windtunnel.exit_codes import DOES_NOT_FIT
from windtunnel.remat.advisor.advisor import Advice, advise
from windtunnel.remat.advisor.solver_model import check_solver
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.simulated.curve import MakeAllocator
from windtunnel.remat.simulated.program import Program
from windtunnel.remat.simulated.program_costs import ProgramCosts
from windtunnel.report.page.remat import advice_part
from windtunnel.report.pictures.advisor import draw_advice
from windtunnel.report.results.run import RankResult
from windtunnel.report.terminal.advisor import advice_document, recommended, render_advice
from windtunnel.report.terminal.plain_console import PlainConsole
from windtunnel.terminal_text import plain_json, plain_text
from windtunnel.units import MIB

__all__ = ["check_request", "give_advice"]

Confirm = Callable[[tuple[str, ...]], RankResult | None]  # given the paths of modules to checkpoint

_MOST_CONFIRMATIONS = 3  # dry runs; what is recommended after them is marked as an estimate
_SOLVER_S = 30.0  # for all budgets together


def check_request(policies: Sequence[str]) -> None:
    """Check the options before anything runs."""
    if len(policies) > 1:
        raise UsageError(
            "--advise compares recomputation strategies, not policies", hint="pass a single --policy"
        )
    check_solver()


def give_advice(
    program: Program,
    costs: ProgramCosts,
    device: DeviceProfile,
    settings: Settings,
    budgets: Sequence[int] | None,
    *,
    subject: str,
    folder: Path | None,
    is_json: bool,
    make_allocator: MakeAllocator,
    confirm: Confirm | None = None,
    writes_page: bool = False,
) -> int:
    """Compare the strategies, write the files, print the result; returns the exit code.

    `confirm` dry-runs the program with modules checkpointed; without it the recording alone answers.
    """
    advice = _advise(program, costs, device, settings, budgets, make_allocator)
    if confirm is not None:
        advice = _confirmed(advice, confirm)
    notes = _write(folder, advice, subject) if folder is not None else []
    if folder is not None and writes_page:
        notes += filter(None, [add_to_page(folder, advice_part(advice, subject, device.id))])
    if is_json:
        sys.stdout.write(plain_json(_text(advice)))
    else:
        console = open_console()
        steps = f"{program.n_steps} step{'' if program.n_steps == 1 else 's'}"
        console.print(f"{subject}: {steps} on {device.id}, time against memory", style="bold", markup=False)
        console.print(render_advice(advice))
        for note in notes:
            console.print(f"note: {note}", markup=False)
        print(plain_text(f"\n{_next(advice, folder)}"))
    return 0 if recommended(advice) is not None else DOES_NOT_FIT


def _advise(
    program: Program,
    costs: ProgramCosts,
    device: DeviceProfile,
    settings: Settings,
    budgets: Sequence[int] | None,
    make_allocator: MakeAllocator,
) -> Advice:
    """Compare, with a progress bar on a terminal."""
    with Progress(
        console=PlainConsole(file=sys.stderr), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        task = bar.add_task("comparing", total=1.0)

        def on_progress(text: str, share: float) -> None:
            bar.update(task, description=text, completed=share)

        return advise(
            program, costs, device.usable_bytes, budgets, _SOLVER_S, on_progress,
            is_cuda=device.kind == "cuda", settings=settings, make_allocator=make_allocator,
        )  # fmt: skip


def _confirmed(advice: Advice, confirm: Confirm) -> Advice:
    """Replace the recording's answer about a recommended checkpointing with that of a dry run."""
    for _ in range(_MOST_CONFIRMATIONS):
        chosen = recommended(advice)
        if chosen is None or chosen.way != "blocks" or chosen.is_confirmed:
            break
        result = confirm(advice.block_paths[: chosen.n_blocks])
        if result is None:
            break
        is_out_of_memory = not result.fits or bool(result.n_retries)
        found = replace(
            chosen,
            reserved_bytes=result.peak_with_fragments_bytes,
            is_out_of_memory=is_out_of_memory,
            is_confirmed=True,
        )
        advice = replace(advice, points=tuple(found if p is chosen else p for p in advice.points))
    return advice


def _write(folder: Path, advice: Advice, subject: str) -> list[str]:
    """Write the files; a picture that cannot be drawn becomes a note."""
    notes = []
    try:
        for name in ("advice.png", "advice.svg"):
            draw_advice(folder / name, advice, subject)
    except (MissingFramework, OSError) as error:
        notes.append(f"no picture was drawn: {error}")
    path = folder / "advice.json"
    try:
        path.write_text(_text(advice), encoding="utf-8")
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}", hint="choose another folder with --out"
        ) from error
    return notes


def _next(advice: Advice, folder: Path | None) -> str:
    chosen = recommended(advice)
    lines = []
    if chosen is None:
        lines.append("use a smaller micro-batch, or shard the model over more devices")
    elif chosen.way == "dtr":
        size = f"{chosen.threshold_bytes // MIB}MiB"
        lines.append(
            f'import windtunnel.dtr as dtr; dtr.eviction_threshold = "{size}"; dtr.enable()   (in the script)'
        )
    elif chosen.way == "blocks":
        lines.append(
            "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)   (where the blocks are called)"
        )
        if not chosen.is_confirmed:
            modules = " ".join(f"--checkpoint {path}" for path in advice.block_paths[: chosen.n_blocks][:1])
            rest = " ..." if chosen.n_blocks > 1 else ""
            lines.append(
                f"windtunnel run {modules}{rest} SCRIPT   (the exact figure: this one was estimated from the recording)"
            )
    else:
        lines.append("train as is: it fits")
    if folder is not None:
        picture = shlex.quote(str(folder / "advice.png"))
        lines.append(f"{picture}   (time versus memory)")
    return "next: " + "\n      ".join(lines)


def _text(advice: Advice) -> str:
    return json.dumps(advice_document(advice), indent=2) + "\n"
