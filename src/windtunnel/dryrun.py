"""`windtunnel.dry_run`: a dry run from Python, of a script or a function.

report = windtunnel.dry_run(train, device="h100")     # a function of this process, run in a forked child
report = windtunnel.dry_run("train.py", level=1)      # a script, as on the command line
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from windtunnel.capture.routing import routing_of
from windtunnel.capture.script_check import check_script
from windtunnel.capture.task import RankTask
from windtunnel.devices import DEFAULT_DEVICE, find_device
from windtunnel.errors import UsageError
from windtunnel.isolation.entrance import Order, enter
from windtunnel.report.results.run import RunResult
from windtunnel.session.page_stage import allocation_limits, ranks_in_detail
from windtunnel.session.rank_analysis import analyse_rank
from windtunnel.session.rank_process import OUR_BUG, simulate_rank
from windtunnel.session.request import RunRequest, check_request, conf_of_environment, task_of
from windtunnel.session.run_folder import prepare_folder
from windtunnel.session.simulation import isolation_of, simulate, summarise

__all__ = ["dry_run"]


def dry_run(
    fn_or_script: Callable[[], Any] | str | os.PathLike[str],
    *,
    arguments: Sequence[str] = (),
    world_size: int | None = None,
    rank: int = 0,
    ranks: Literal["auto", "all"] | Sequence[int] | None = None,
    level: int = 1,
    device: str = DEFAULT_DEVICE,
    allocator: str | None = None,
    steps: int | None = None,
    workspace: str | os.PathLike[str] | None = None,
    network: str | None = None,
    tokens_per_step: int | None = None,
    out: str | os.PathLike[str] | None = None,
    network_access: bool = False,
    routing: str = "balanced",
) -> RunResult:
    """Dry-run a function or a script and return the contents of report.json. Prints nothing.

    One rank is simulated, or for a script the ranks in `ranks`; "auto" simulates one representative of each kind of work.
    The other options are those of the command line.
    The files of the run, including its output, are kept in the folder `out`; without it they are removed.
    A function runs in a forked child, so this process, its torch and its variables are not changed. Files on disk are not
    changed either: files that the function or script writes are listed in `files` of the result, then discarded.
    """
    profile = find_device(device)
    n_devices = 1 if world_size is None else world_size
    chosen = allocator or profile.allocator
    request = RunRequest(
        script=getattr(fn_or_script, "__name__", "function") if callable(fn_or_script) else str(fn_or_script),
        arguments=tuple(arguments),
        is_module=False,
        device=profile,
        allocator=chosen,
        allocator_conf=conf_of_environment(chosen),
        ranks=_ranks(rank, ranks, n_devices),
        world_size=n_devices,
        nproc_per_node=max(1, min(n_devices, 8)),
        is_launched=world_size is not None,
        level=level,
        max_steps=steps,
        writes_blocks=False,
        writes_snapshot=False,
        folder=Path(),
        workspace_file=None if workspace is None else Path(workspace),
        network=network,
        tokens_per_step=tokens_per_step,
        is_network_allowed=network_access,
        routing=routing_of(routing),
    )
    check_request(request)
    if callable(fn_or_script) and ranks is not None:
        raise UsageError(
            "a function can be simulated as one rank only", hint="use rank=, or put it in a script"
        )
    if not callable(fn_or_script):
        check_script(Path(fn_or_script))
    if out is not None:
        return _run_in(Path(out), request, fn_or_script)
    folder = Path(tempfile.mkdtemp(prefix="windtunnel-"))
    try:
        return _run_in(folder, replace(request, writes_page=False), fn_or_script)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ranks(rank: int, ranks: str | Sequence[int] | None, world_size: int) -> tuple[int, ...] | None:
    if ranks is None:
        return (rank,)
    if ranks == "auto":
        return None if world_size > 1 else (0,)
    if ranks == "all":
        return tuple(range(world_size))
    if isinstance(ranks, str):
        raise UsageError(f"cannot read ranks {ranks!r}", hint='use "auto", "all", or a list of numbers')
    return tuple(dict.fromkeys(ranks))


def _run_in(folder: Path, request: RunRequest, fn_or_script: Any) -> RunResult:
    request = replace(request, folder=folder)
    with prepare_folder(folder, force=True):
        if not callable(fn_or_script):
            return simulate(request, lambda rank, line: None, lambda progress: None).result
        return _run_function(request, fn_or_script)


def _run_function(request: RunRequest, function: Callable[[], Any]) -> RunResult:
    (rank,) = request.ranks or (0,)
    task = task_of(request, rank)
    isolation = isolation_of(request)
    try:
        analysis = analyse_rank(request, task, _fork(task, function, isolation.order()))
        files = isolation.files()
    finally:
        isolation.remove()
    finding, details = analysis.finding, {}
    if request.writes_page and ranks_in_detail({rank: finding.result}):
        details[rank] = analysis.detail(*allocation_limits(1))
    recorded = {} if analysis.recorded is None else {rank: analysis.recorded}
    return summarise(
        request, {rank: finding}, {rank: rank}, details=details, files=files, recorded=recorded
    ).result


def _fork(task: RankTask, program: Callable[[], Any], order: Order) -> int:
    """Run the function in a forked child; its output goes to run.log."""
    sys.stdout.flush()
    sys.stderr.flush()  # otherwise the child would write this buffered output again
    child = os.fork()
    if child == 0:
        _be_the_child(task, program, order)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    return os.waitstatus_to_exitcode(status)


def _be_the_child(task: RankTask, program: Callable[[], Any], order: Order) -> None:
    leave, code = os._exit, OUR_BUG
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        log = os.open(Path(task.folder) / "run.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        # A test runner may have replaced these streams with its own, which do not write to the log.
        sys.stdin, sys.stdout, sys.stderr = (os.fdopen(i, mode) for i, mode in enumerate(("r", "w", "w")))
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(
                1
            )  # the threads of the parent's pools do not exist in the child
        enter(order)
        code = simulate_rank(task, program, None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        leave(code)
