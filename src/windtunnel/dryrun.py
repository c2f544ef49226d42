"""`windtunnel.dry_run`: the same dry run from Python, for a script or for a function.

    report = windtunnel.dry_run(train, device="h100")     # a function of this process, run in a forked child
    report = windtunnel.dry_run("train.py", level=1)      # a script, as on the command line
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from windtunnel.commands.rank import simulate_rank
from windtunnel.commands.simulation import RunRequest, prepare_folder, simulate, summarise, task_of
from windtunnel.devices import DEFAULT_DEVICE, find_device
from windtunnel.errors import UsageError
from windtunnel.report.result import RunResult

__all__ = ["dry_run"]


def dry_run(
    fn_or_script: Callable[[], Any] | str | os.PathLike[str],
    *,
    arguments: Sequence[str] = (),
    world_size: int | None = None,
    rank: int = 0,
    level: int = 1,
    device: str = DEFAULT_DEVICE,
    allocator: str | None = None,
    steps: int | None = None,
    out: str | os.PathLike[str] | None = None,
) -> RunResult:
    """Dry-run a function or a script; returns the fields of report.json. Prints nothing."""
    if level not in (0, 1):
        raise UsageError(f"level {level} is not built yet", hint="use level 0 or 1")
    profile = find_device(device)
    folder = Path(out) if out is not None else Path(tempfile.mkdtemp(prefix="windtunnel-"))
    prepare_folder(folder, force=True)
    n_cards = world_size or 1
    request = RunRequest(
        str(fn_or_script) if not callable(fn_or_script) else getattr(fn_or_script, "__name__", "function"),
        tuple(arguments), False, profile, allocator or profile.allocator, "", (rank,), n_cards, min(n_cards, 8),
        world_size is not None, level, steps, False, False, folder, 1,
    )  # fmt: skip
    if not callable(fn_or_script):
        if not Path(fn_or_script).is_file():
            raise UsageError(f"there is no script {fn_or_script}")
        return simulate(request, lambda rank, kind, value: None)
    task = task_of(request, rank)
    return summarise(request, [task], [_fork(lambda: simulate_rank(task, fn_or_script, None))])


def _fork(work: Callable[[], int]) -> int:
    """Run `work` in a child that shares this process's memory: torch in the parent stays as it is."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            code = work()
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
