"""From a request to a result: simulate the ranks, compare them, write the files of the run.

RunRequest ──> World ──> a Finding per simulated rank ──┬──> same_as for the ranks they represent
                                                        └──> find_mismatches
                                            ──> RunResult ──> report.json, run.log, pictures
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Any

from windtunnel import __version__
from windtunnel.caches import cache_folder
from windtunnel.cluster.matching import Mismatch, find_mismatches
from windtunnel.cluster.mesh_axes import MeshAxis, mesh_axes
from windtunnel.cluster.ranks_to_simulate import RankClasses
from windtunnel.errors import WindtunnelError
from windtunnel.exit_codes import BAD_USAGE, DOES_NOT_FIT, INTERNAL_ERROR, INTERRUPTED, SCRIPT_FAILED
from windtunnel.frameworks import load
from windtunnel.isolation.file_changes import Files
from windtunnel.isolation.layer import Isolation
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.report.facts import five_facts
from windtunnel.report.json.run import write_report
from windtunnel.report.results.run import DeviceResult, RankResult, Remedy, RunResult, failed_rank, same_as
from windtunnel.report.results.time import TimeResult
from windtunnel.session.analysts import Analysts
from windtunnel.session.executor import Events, Executor, OnLine
from windtunnel.session.fork_server import ForkServer
from windtunnel.session.launchers.worker_logs import link_worker_logs
from windtunnel.session.local_executor import LocalExecutor
from windtunnel.session.page_stage import ranks_in_detail, write_run_page
from windtunnel.session.rank_analysis import Finding
from windtunnel.session.rank_process import CANNOT_RECORD, CANNOT_START, OUR_BUG
from windtunnel.session.remedies import find_remedies
from windtunnel.session.request import RunRequest, task_of
from windtunnel.session.world import Choice, ChosenRanks, Outcome, World, WorldProgress

__all__ = ["Simulation", "isolation_of", "simulate", "simulate_rank_quietly", "summarise"]

Tell = Callable[[str], None]
AfterRanks = Callable[[Mapping[int, RankResult]], tuple[str, ...]]

_OVERLOOKED = (
    "irregular process groups single out {:,} more ranks than were simulated: these are assumed to do the same work as"
    " their neighbours; --ranks all simulates every rank"
)
_FEW_RANKS = 4  # up to this many ranks, each gets a picture
_SOON_S = 60.0  # advice takes a few more runs: after a longer run, only if the user asks for it


@dataclass(frozen=True)
class Simulation:
    """The result of a request: the report, and the exit codes of the ranks' processes."""

    result: RunResult
    codes: tuple[int, ...]

    @property
    def exit_code(self) -> int:
        """0 fits, 1 internal error, 2 could not start or record, 3 the script failed, 4 does not fit, 130 interrupted."""
        for code, answer in (
            (INTERRUPTED, INTERRUPTED),
            (OUR_BUG, INTERNAL_ERROR),
            (CANNOT_RECORD, BAD_USAGE),
            (CANNOT_START, BAD_USAGE),
        ):
            if code in self.codes:
                return answer
        if self.result.mismatches or any(rank.status == "failed" for rank in self.result.ranks):
            return SCRIPT_FAILED
        return 0 if self.result.fits else DOES_NOT_FIT


def simulate(
    request: RunRequest,
    on_line: OnLine,
    watch: Callable[[WorldProgress], None],
    tell: Tell = lambda text: None,
    after_ranks: AfterRanks = lambda results: (),
) -> Simulation:
    """Simulate the ranks of the request, and write the files of the run.

    `on_line` gets every output line of the scripts, `watch` gets the progress object once, `tell` gets the stages that
    follow. `after_ranks` is called when all ranks have run, and returns notes for the report.
    """
    is_local = request.executor == "local"
    isolation = isolation_of(request) if is_local else None
    try:
        return _simulate(request, isolation, on_line, watch, tell, after_ranks)
    finally:
        if isolation is not None:
            isolation.remove()


def _simulate(
    request: RunRequest,
    isolation: Isolation | None,
    on_line: OnLine,
    watch: Callable[[WorldProgress], None],
    tell: Tell,
    after_ranks: AfterRanks,
) -> Simulation:
    with ExitStack() as closing:
        workers = _start_workers(request, isolation, on_line, closing)
        found = _run_ranks(request, workers, watch)
        _note_the_start(request, found, after_ranks)
        _write_early_report(request, found)
        details = _draw_and_detail(request, workers, found, tell)
    files = _list_files(request, isolation, workers.executor, found)
    recorded = workers.analysts.recorded()
    advice: tuple[Remedy, ...] = ()
    try:
        if not found.is_interrupted:
            advice = _advice(request, found.result(request), recorded, found.seconds, tell)
    except KeyboardInterrupt:
        found.is_interrupted = True
    return _finish(
        request, found, lambda asked: summarise(
            asked, found.reported, found.representative, found.mismatches, tell, details, files, advice, recorded,
        ),
    )  # fmt: skip


@dataclass(frozen=True)
class _Workers:
    """What runs and analyses ranks."""

    events: Events
    executor: Executor
    analysts: Analysts
    n_jobs: int


@dataclass
class _Found:
    """What is known after the ranks have run; the stages after them add notes."""

    reported: dict[int, Finding]
    representative: dict[int, int]
    mismatches: tuple[Mismatch, ...]
    seconds: float
    is_interrupted: bool

    def note(self, rank: int, notes: tuple[str, ...]) -> None:
        self.reported[rank] = _noted(self.reported[rank], notes)

    def result(self, request: RunRequest) -> RunResult:
        return _run_result(request, self.reported, self.representative, self.mismatches)


def _start_workers(
    request: RunRequest, isolation: Isolation | None, on_line: OnLine, closing: ExitStack
) -> _Workers:
    """Prepare processes on this machine, or connect to Ray; `closing` ends them."""
    events: Events = Events()
    is_local = isolation is not None
    n_ranks = request.world_size if request.ranks is None else len(request.ranks)
    # Each rank imports MindSpore itself: the import reads DEVICE_ID and MS_ALLOC_CONF, which are those of one rank.
    fork_server = ForkServer(n_ranks if is_local and request.framework == "torch" else 0, isolation=isolation)
    closing.callback(fork_server.close)
    executor: Executor
    if is_local:
        executor = LocalExecutor(events, fork_server, on_line)
    else:
        ray = load("windtunnel.session.ray_executor", "ray")
        executor = ray.RayExecutor(
            request.executor,
            events,
            on_line,
            request.is_network_allowed,
            request.isolation,
            "" if request.is_module else request.script,
        )
    closing.callback(executor.close)
    return _Workers(
        events, executor, Analysts(request, events, fork_server), request.n_jobs or executor.n_slots
    )


def _run_ranks(request: RunRequest, workers: _Workers, watch: Callable[[WorldProgress], None]) -> _Found:
    """Simulate the ranks and decide which of them the report shows."""
    choice: Choice = RankClasses(request.world_size) if request.ranks is None else ChosenRanks(request.ranks)
    world = World(
        choice, workers.executor, workers.analysts, workers.events, lambda rank: task_of(request, rank), workers.n_jobs,
        world_size=request.world_size, stops_with_rank_0=request.ranks is None,
    )  # fmt: skip
    watch(world.progress)
    started = monotonic()
    outcome = world.run()
    seconds = monotonic() - started
    if outcome.is_interrupted and not any(_has_recorded(request, rank) for rank in outcome.findings):
        raise KeyboardInterrupt  # there is nothing to report
    findings = _with_remarks(outcome)
    representative = choice.representatives() if outcome.is_whole else {}
    reported, representative = _reported(request, findings, representative, outcome)
    if representative and choice.n_overlooked and 0 in reported:
        reported[0] = _noted(reported[0], (_OVERLOOKED.format(choice.n_overlooked),))
    mismatches = () if outcome.is_interrupted else _mismatches(request, reported, representative)
    return _Found(reported, representative, mismatches, seconds, outcome.is_interrupted)


def _note_the_start(request: RunRequest, found: _Found, after_ranks: AfterRanks) -> None:
    """Let whoever started the job, such as a shell script, go on; add what it and the launcher have to say."""
    if not found.is_interrupted:
        results = {rank: finding.result for rank, finding in found.reported.items()}
        notes = (*(request.launch.notes if request.launch is not None else ()), *after_ranks(results))
        found.note(min(found.reported), notes)


def _write_early_report(request: RunRequest, found: _Found) -> None:
    """Write a report before the stages that take long for large ranks: a run that is killed there still has one."""
    if request.writes_page or request.level >= 3:
        with suppress(OSError):
            write_report(request.folder / "report.json", found.result(request))


def _draw_and_detail(
    request: RunRequest, workers: _Workers, found: _Found, tell: Tell
) -> dict[int, dict[str, Any]]:
    """Draw the pictures and return the details for the page; none if interrupted: the report matters more."""
    try:
        drawn = workers.analysts.draw(_worth_a_picture(request, found.reported), workers.n_jobs)
        tell("collecting every allocation for the page")
        details = workers.analysts.details(_devices_in_detail(request, found.reported), workers.n_jobs)
    except KeyboardInterrupt:
        found.is_interrupted = True
        return {}
    for rank, notes in drawn.items():
        found.note(rank, notes)
    return details


def _finish(
    request: RunRequest, found: _Found, summarise_as: Callable[[RunRequest], Simulation]
) -> Simulation:
    """Summarise; if that is interrupted or fails, the report has at least what needs no timing."""
    try:
        simulation = summarise_as(_without_time(request) if found.is_interrupted else request)
    except KeyboardInterrupt:  # report what was found so far
        found.is_interrupted = True
        simulation = summarise_as(_without_time(request))
    except WindtunnelError:
        summarise_as(_without_time(request))
        raise
    if found.is_interrupted:
        return replace(simulation, codes=(*simulation.codes, INTERRUPTED))
    return simulation


def summarise(
    request: RunRequest,
    findings: Mapping[int, Finding],
    representative: Mapping[int, int],
    mismatches: tuple[Mismatch, ...] = (),
    tell: Tell = lambda text: None,
    details: Mapping[int, dict[str, Any]] | None = None,
    files: Files | None = None,
    advice: tuple[Remedy, ...] = (),
    recorded: Mapping[int, RecordedMemory] | None = None,
) -> Simulation:
    """Combine the ranks, time them at level 3, and write report.json and the page, even if ranks failed.

    `recorded` has the recordings that this process has read already.
    """
    findings, time, trace = _timed(request, findings, representative, mismatches, recorded or {}, tell)
    result = _run_result(request, findings, representative, mismatches, time)
    result = replace(result, files=files, advice=advice)
    codes = [finding.code for finding in findings.values()]
    if request.launch is not None and request.launch.log_dir:
        link_worker_logs(request.folder, request.launch.log_dir, findings)
    try:
        write_report(request.folder / "report.json", result)
        for rank in findings:
            with (request.folder / f"rank{rank}" / "run.log").open("a", encoding="utf-8") as log:
                log.write("\n".join(five_facts(findings[rank].result, result.device)) + "\n")
    except OSError as error:
        note = f"files of this run could not be written: {error.strerror or error}"
        result = replace(result, ranks=tuple(replace(r, notes=(*r.notes, note)) for r in result.ranks))
        codes.append(CANNOT_RECORD)
    if request.writes_page:
        tell("writing the page")
        failure = write_run_page(request, result, details or {}, trace)
        if failure is not None:
            ranks = tuple(replace(r, notes=(*r.notes, failure)) for r in result.ranks)
            result = replace(result, ranks=ranks)
            codes.append(CANNOT_RECORD)
    return Simulation(result, tuple(codes))


def isolation_of(request: RunRequest) -> Isolation:
    """Return the file protection of a run; the output folder and windtunnel's cache are not protected."""
    if request.view is not None:
        return request.view.isolation()
    cache = cache_folder()
    if request.framework == "mindspore" or _names_compile(request):
        with suppress(OSError):  # loader stubs take a minute to build, a large model as long to compile
            cache.mkdir(parents=True, exist_ok=True)
    real = [request.folder, cache] if cache.is_dir() else [request.folder]
    return Isolation(real, request.is_network_allowed, request.isolation)


def _names_compile(request: RunRequest) -> bool:
    """Whether the script may use torch.compile: a program that does not leaves no cache folder behind."""
    if request.is_module:
        return True
    try:
        return b"compile" in Path(request.script).read_bytes()
    except OSError:
        return False


def _list_files(
    request: RunRequest, isolation: Isolation | None, executor: Executor, found: _Found
) -> Files | None:
    """Return the files the script would have written; --keep-files copies them, and a note says how that went."""
    files = executor.files()
    if request.keep_files is None or isolation is None:
        return files
    try:
        n_kept = isolation.keep(request.keep_files, Path.cwd())
        note = f"{n_kept} files written by the script are in {request.keep_files}"
    except OSError as error:
        reason = error.strerror or error
        note = f"the files the script wrote could not be copied to {request.keep_files}: {reason}"
    found.note(min(found.reported), (note,))
    return files


def simulate_rank_quietly(request: RunRequest, rank: int) -> RankResult | None:
    """Run a request whose output nobody watches, and return one of its ranks; None if it was not reported."""
    simulation = simulate(request, lambda rank, line: None, lambda progress: None)
    if INTERRUPTED in simulation.codes:
        raise KeyboardInterrupt
    return next((each for each in simulation.result.ranks if each.rank == rank), None)


def _advice(
    request: RunRequest,
    result: RunResult,
    recorded: Mapping[int, RecordedMemory],
    seconds: float,
    tell: Tell,
) -> tuple[Remedy, ...]:
    """Simulate remedies for the tightest rank: if requested, or if it does not fit and the run was short."""
    rank = result.tightest
    is_wanted = request.is_advising
    if is_wanted is None:
        is_wanted = not result.fits and seconds < _SOON_S
    can_be_tried = request.framework == "torch" and request.level > 0 and request.device.kind != "cpu"
    has_failed = bool(result.mismatches) or any(each.status == "failed" for each in result.ranks)
    if not is_wanted or not can_be_tried or has_failed or rank is None or not rank.peak_bytes:
        return ()

    run = partial(simulate_rank_quietly, rank=rank.rank)
    return find_remedies(request, rank, run, tell, recorded.get(rank.rank))


def _run_result(
    request: RunRequest,
    findings: Mapping[int, Finding],
    representative: Mapping[int, int],
    mismatches: tuple[Mismatch, ...],
    time: TimeResult | None = None,
) -> RunResult:
    results = tuple(_result_of(rank, findings, representative) for rank in sorted(representative))
    device = DeviceResult(request.device.id, request.device.memory_bytes)
    return RunResult(
        __version__, request.level, request.world_size, device, request.allocator, results, mismatches, time,
        _mesh(request, findings), framework=request.framework,
    )  # fmt: skip


def _has_recorded(request: RunRequest, rank: int) -> bool:
    return (request.folder / f"rank{rank}" / "recording.arrows").is_file()


def _without_time(request: RunRequest) -> RunRequest:
    return replace(request, level=min(request.level, 2))


def _timed(
    request: RunRequest,
    findings: Mapping[int, Finding],
    representative: Mapping[int, int],
    mismatches: tuple[Mismatch, ...],
    recorded: Mapping[int, RecordedMemory],
    tell: Tell,
) -> tuple[Mapping[int, Finding], TimeResult | None, dict[str, Any] | None]:
    """Add the times of level 3; with mismatched collectives, ranks would wait forever, so there are none."""
    if request.level < 3 or mismatches:
        return findings, None, None
    # Late: only level 3 needs the timing models and traces.
    from windtunnel.session.time_stage import time_run

    results = {rank: finding.result for rank, finding in findings.items()}
    recordings = {rank: each.recording for rank, each in recorded.items()}
    timed = time_run(request, results, representative, tell, recordings)
    if timed is None:
        return findings, None, None
    changed = {
        rank: replace(
            f, result=replace(f.result, time=timed.ranks.get(rank), step_time_us=timed.step_us.get(rank))
        )
        for rank, f in findings.items()
    }
    return changed, timed.time, timed.trace


def _mesh(request: RunRequest, findings: Mapping[int, Finding]) -> tuple[MeshAxis, ...]:
    """Return the mesh axes from the process groups of the first rank that finished."""
    communications = [findings[rank].communication for rank in sorted(findings)]
    communication = next(
        (communication for communication in communications if communication is not None), None
    )
    groups = (
        zip(communication.group_names, communication.groups, strict=True) if communication is not None else ()
    )
    return mesh_axes(groups, request.world_size)


def _result_of(rank: int, findings: Mapping[int, Finding], representative: Mapping[int, int]) -> RankResult:
    shown_by = findings[representative[rank]].result
    return shown_by if shown_by.rank == rank else same_as(rank, shown_by)


def _reported(
    request: RunRequest, findings: dict[int, Finding], representative: dict[int, int], outcome: Outcome
) -> tuple[dict[int, Finding], dict[int, int]]:
    """Select the ranks of the report: ranks that only sent messages to those the user chose become notes."""
    if request.ranks is None:
        known = {rank: shown for rank, shown in representative.items() if shown in findings}
        return findings, known | {rank: rank for rank in findings}
    kept = {rank: findings.get(rank) or _never_started(rank) for rank in request.ranks}
    for rank, asker in outcome.asked_by.items():
        if rank in kept or rank not in findings:
            continue
        note = f"rank {rank} was simulated too: rank {asker} receives objects from it"
        if findings[rank].result.error:
            note += f"; it failed: {findings[rank].result.error}"
        first = asker if asker in kept else request.ranks[0]
        kept[first] = _noted(kept[first], (note,))
    return kept, {rank: rank for rank in kept}


def _never_started(rank: int) -> Finding:
    return Finding(failed_rank(rank, "interrupted before it was started"), None, INTERRUPTED)


def _mismatches(
    request: RunRequest, findings: Mapping[int, Finding], representative: Mapping[int, int]
) -> tuple[Mismatch, ...]:
    """Find mismatched collectives among the ranks that finished."""
    communications = {
        rank: finding.communication for rank, finding in findings.items() if finding.communication is not None
    }
    if len(communications) < 2:
        return ()
    known = {rank: shown for rank, shown in representative.items() if shown in communications}
    return find_mismatches(communications, known, request.world_size)


def _with_remarks(outcome: Outcome) -> dict[int, Finding]:
    return {rank: _noted(f, outcome.remarks.get(rank, ())) for rank, f in outcome.findings.items()}


def _noted(finding: Finding, notes: tuple[str, ...]) -> Finding:
    if not notes:
        return finding
    return replace(finding, result=replace(finding.result, notes=(*finding.result.notes, *notes)))


def _devices_in_detail(request: RunRequest, findings: Mapping[int, Finding]) -> dict[int, int]:
    if not request.writes_page:
        return {}
    ranks = ranks_in_detail({rank: finding.result for rank, finding in findings.items()})
    return {rank: findings[rank].device_index for rank in ranks}


def _worth_a_picture(request: RunRequest, findings: Mapping[int, Finding]) -> dict[int, RankResult]:
    """Select the ranks to draw: all of a few, or those the user listed; of many, only the tightest."""
    results = {r: f.result for r, f in findings.items() if f.result.peak_bytes and f.result.timeline}
    if len(results) <= _FEW_RANKS or request.is_list:
        return results
    tightest = max(results.values(), key=lambda result: result.peak_with_fragments_bytes)
    return {tightest.rank: tightest}
