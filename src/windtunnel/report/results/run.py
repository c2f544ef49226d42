"""What a run found, as records: exactly the fields of report.json.

    RankMemory (one per simulated rank) ──> RankResult ──┐
    ranks that do the same work ────> same_as ───────────┼──> RunResult ──> report.json, terminal, pictures, page
    Mismatch (mismatched collectives) ───────────────────┘

Nothing here depends on how the numbers were found; every output is made from these records alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from windtunnel.cluster.matching import Mismatch
from windtunnel.cluster.mesh_axes import MeshAxis
from windtunnel.events.model import Kind, Recording
from windtunnel.isolation.file_changes import Files
from windtunnel.memory.analysis import Moment, OutOfMemory, RankMemory, Timeline, thin_timeline
from windtunnel.memory.attribution import LiveTensors, ModuleShare, RoleBytes
from windtunnel.memory.step_parts import PartMemory
from windtunnel.report.results.time import RankTimeResult, TimeResult
from windtunnel.units import format_bytes

__all__ = [
    "DeviceResult",
    "RankResult",
    "Remedy",
    "RunResult",
    "UnknownValue",
    "build_times",
    "failed_rank",
    "rank_result",
    "same_as",
]

SCHEMA = 1
_TIMELINE_POINTS = 400  # enough for a picture as wide as a page


@dataclass(frozen=True, slots=True)
class UnknownValue:
    """A value the script read that is unknown on a simulated device, and the value it got instead."""

    where: str  # "train.py:41"
    what: str  # "float(loss)"
    value: bool | int | float | str | None
    count: int


@dataclass(frozen=True, slots=True)
class CompilerNote:
    """A graph break or a recompilation: the program's line, and torch's reason."""

    where: str  # "model.py:41"
    why: str
    count: int = 1


@dataclass(frozen=True, slots=True)
class CompiledCode:
    """What torch.compile made of the program, in its own counts."""

    n_graphs: int
    n_graph_breaks: int
    n_recompilations: int
    graph_breaks: tuple[CompilerNote, ...] = ()
    recompilations: tuple[CompilerNote, ...] = ()


@dataclass(frozen=True, slots=True)
class Router:
    """A line that chose experts, where the choice decided a value that the program read."""

    where: str
    experts: int
    chosen: int  # by each token


@dataclass(frozen=True, slots=True)
class RoutingResult:
    """The routing of tokens to experts that was assumed."""

    policy: str  # as given to --routing
    routers: tuple[Router, ...]


@dataclass(frozen=True, slots=True)
class DeviceResult:
    name: str
    memory_bytes: int

    @property
    def is_ascend(self) -> bool:
        return self.name.lower().startswith("ascend")


@dataclass(frozen=True)
class RankResult:
    """One rank. Everything after `error` is an addition to the fixed part of the schema."""

    rank: int
    status: str  # "ok", "same_as" (shown by its representative), "failed" (the script raised) or "oom"
    same_as: int | None = None
    steps: int = 0
    device_memory_bytes: int = 0
    usable_memory_bytes: int = 0
    base_address: str = "0x0"
    peak_bytes: int = 0
    peak_with_fragments_bytes: int = 0
    peak_at: Moment | None = None
    at_peak_bytes: RoleBytes = field(default_factory=RoleBytes)
    step_time_us: float | None = None
    build_time_us: dict[str, int] = field(default_factory=dict)  # module path -> microseconds of CPU time
    unknown_values: tuple[UnknownValue, ...] = ()
    error: str | None = None
    fits: bool = True
    n_retries: int = 0  # times the allocator had to release its cache to fit
    out_of_memory: OutOfMemory | None = None
    at_peak_by_module: tuple[ModuleShare, ...] = ()
    largest_at_peak: tuple[LiveTensors, ...] = ()
    timeline: Timeline | None = None
    peak_in_pages_bytes: int | None = None  # MindSpore: with fragments, as counted on a real device
    library_buffers_bytes: int = 0  # NCCL's or HCCL's own memory: an estimate, not in the peak
    notes: tuple[str, ...] = ()
    time: RankTimeResult | None = None  # level 3
    memory_by_phase: tuple[PartMemory, ...] = ()  # rollout, reward, update; (): the step is one training step
    compiled: CompiledCode | None = None  # None: the script compiled nothing, or nothing of it could be
    routing: RoutingResult | None = None  # None: no value that was read depends on one


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change to the program that was simulated, and what the program needs with it."""

    what: str  # "activation checkpointing on model.layers.0-27"
    how: str  # the code or setting to use
    needs_bytes: int  # with fragments, of the tightest rank
    fits: bool  # on the device, without ever releasing the cache
    command: str = ""  # the dry run that shows it; empty: it needs a change to the script
    grows: bool = False  # the run fits, and this change uses more memory

    @property
    def need(self) -> str:
        """The bytes as shown to the user."""
        return format_bytes(self.needs_bytes)


@dataclass(frozen=True)
class RunResult:
    """A whole run."""

    windtunnel: str  # our version
    level: int
    world_size: int
    device: DeviceResult
    allocator: str
    ranks: tuple[RankResult, ...]
    mismatches: tuple[Mismatch, ...] = ()  # ranks that would wait for each other forever
    time: TimeResult | None = None  # level 3
    mesh: tuple[MeshAxis, ...] = ()  # outermost first; (): unknown, or one rank
    files: Files | None = None  # what the script would have written; None: unknown
    framework: str = "torch"  # or "mindspore"
    advice: tuple[Remedy, ...] = ()  # changes that were tried, those that fit first; (): none were

    @property
    def verdict(self) -> str:
        """Whether it fits, in one sentence, and what would make it fit."""
        from windtunnel.report.results.fit_verdict import verdict  # late: it imports this module

        return verdict(self)

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of all simulated ranks, without repetitions."""
        return tuple(dict.fromkeys(note for rank in self.ranks for note in rank.notes))

    @property
    def fits(self) -> bool:
        """Whether every rank ran and fits."""
        return all(rank.fits and rank.status != "failed" for rank in self.ranks)

    @property
    def tightest(self) -> RankResult | None:
        """The simulated rank that needs the most memory."""
        simulated = [rank for rank in self.ranks if rank.status != "same_as"]
        return max(simulated, key=lambda r: (r.peak_with_fragments_bytes, -r.rank), default=None)


def rank_result(rank: int, memory: RankMemory, device_memory_bytes: int) -> RankResult:
    """Return the result of a rank whose script finished; add the rest with `dataclasses.replace`."""
    notes = () if memory.is_complete else ("the recording ends early: the numbers cover the part until then",)
    return RankResult(
        rank=rank,
        status="ok" if memory.fits else "oom",
        steps=memory.n_steps,
        device_memory_bytes=device_memory_bytes,
        usable_memory_bytes=device_memory_bytes if memory.usable_bytes is None else memory.usable_bytes,
        base_address=hex(memory.base_address),
        peak_bytes=memory.peak_bytes,
        peak_with_fragments_bytes=memory.peak_with_fragments_bytes,
        peak_at=memory.peak_at,
        at_peak_bytes=memory.at_peak,
        fits=memory.fits,
        n_retries=memory.n_retries,
        out_of_memory=memory.out_of_memory,
        at_peak_by_module=memory.by_module,
        largest_at_peak=memory.largest,
        timeline=thin_timeline(memory.timeline, _TIMELINE_POINTS),
        memory_by_phase=memory.parts,
        notes=notes,
    )


def failed_rank(rank: int, error: str) -> RankResult:
    """Return the result of a rank whose script raised before anything could be measured."""
    return RankResult(rank=rank, status="failed", error=error)


def same_as(rank: int, representative: RankResult) -> RankResult:
    """Return the result of a rank that does the same work as another: its numbers, without the details."""
    return replace(
        representative,
        rank=rank,
        status="same_as",
        same_as=representative.rank,
        build_time_us={},
        unknown_values=(),
        n_retries=0,
        out_of_memory=None,
        at_peak_by_module=(),
        largest_at_peak=(),
        timeline=None,
        memory_by_phase=(),
        notes=(),
        time=None,
    )


def build_times(recording: Recording, top: int = 50) -> dict[str, int]:
    """Return the modules that took longest to construct, including children, longest first."""
    is_build = recording.columns["kind"] == Kind.BUILD
    total: dict[str, int] = {}
    for module, time_us in zip(
        recording.columns["subject"][is_build].tolist(),
        recording.columns["value"][is_build].tolist(),
        strict=True,
    ):
        name = recording.name(module)
        total[name] = total.get(name, 0) + time_us
    return dict(sorted(total.items(), key=lambda item: -item[1])[:top])
