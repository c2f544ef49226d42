"""`windtunnel remat --advise`: checkpointing, the best fixed set and windtunnel.dtr on the same recording.

Program, costs, card ──> advise ──> table | JSON, and DIR/advice.json, advice.png, advice.svg, report.html
"""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from windtunnel.commands.console import open_console
from windtunnel.commands.remat_page import add_to_page
from windtunnel.devices import DeviceProfile
from windtunnel.errors import MissingFramework, UsageError
from windtunnel.remat.advisor import Advice, advise
from windtunnel.remat.curve import MakeAllocator
from windtunnel.remat.engine import Settings
from windtunnel.remat.program import Program
from windtunnel.remat.program_costs import ProgramCosts
from windtunnel.remat.selective_model import check_solver
from windtunnel.report.advisor_picture import draw_advice
from windtunnel.report.advisor_table import advice_document, recommended, render_advice
from windtunnel.report.page_remat import advice_part
from windtunnel.report.plain_console import PlainConsole
from windtunnel.terminal_text import plain_json, plain_text
from windtunnel.units import MIB

__all__ = ["check_request", "give_advice"]

_SOLVER_S = 30.0  # for all budgets together


def check_request(policies: Sequence[str]) -> None:
    """Before anything is run: can this be answered?"""
    if len(policies) > 1:
        raise UsageError("--advise compares ways to compute again, not policies", hint="name one --policy")
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
    writes_page: bool = False,
) -> int:
    """Compare, write, show; the exit code."""
    advice = _advise(program, costs, device, settings, budgets, make_allocator)
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
    return 0 if recommended(advice) is not None else 4


def _advise(
    program: Program,
    costs: ProgramCosts,
    device: DeviceProfile,
    settings: Settings,
    budgets: Sequence[int] | None,
    make_allocator: MakeAllocator,
) -> Advice:
    """With a bar on the terminal that vanishes when done."""
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


def _write(folder: Path, advice: Advice, subject: str) -> list[str]:
    """The files; a picture that cannot be drawn is a note."""
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
            f"cannot write {path}: {error.strerror or error}", hint="name another folder with --out"
        ) from error
    return notes


def _next(advice: Advice, folder: Path | None) -> str:
    chosen = recommended(advice)
    lines = []
    if chosen is None:
        lines.append("a smaller micro-batch, or more cards to shard the model over")
    elif chosen.way == "dtr":
        size = f"{chosen.threshold_bytes // MIB}MiB"
        lines.append(
            f'import windtunnel.dtr as dtr; dtr.eviction_threshold = "{size}"; dtr.enable()   (in the script)'
        )
    elif chosen.way == "blocks":
        lines.append(
            "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)   (where blocks are called)"
        )
    else:
        lines.append("train: it fits as it is")
    if folder is not None:
        picture = shlex.quote(str(folder / "advice.png"))
        lines.append(f"{picture}   (time against memory)")
    return "next: " + "\n      ".join(lines)


def _text(advice: Advice) -> str:
    return json.dumps(advice_document(advice), indent=2) + "\n"
