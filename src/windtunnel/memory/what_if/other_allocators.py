"""What other allocators would have done with the same requests.

    ReplaySource ──> default_choices ──> AllocatorChoice, … ──┐
    AllocationTape + device bytes ────────────────────────────┴──> ask_what_if ──> Outcome, …

Every row of the answer is an exact replay. An allocator that hits the device's limit (it fails, or gets by with
releasing its cache) is replayed again without a limit: its peaks are what it would have taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from windtunnel.errors import UsageError
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.peak import Failure, replay_limited
from windtunnel.memory.tape import AllocationTape, play

__all__ = ["AllocatorChoice", "Outcome", "ask_what_if", "default_choices", "find_expandable", "make_choice"]

NEWEST_TORCH = "2.13"
OLDER_TORCH = "2.9"  # represents every torch up to 2.11: they break ties between equal blocks by address
EXPANDABLE = "expandable_segments:True"
VIRTUAL_MEMORY = "enable_vmm:True"  # what MindSpore does on a real device, and never in a dry run
_CUDA_CONFS = ("max_split_size_mb:128", "roundup_power2_divisions:8")
# Collection does nothing unless the process has a memory fraction below 1: torch checks that first.
_GARBAGE = "garbage_collection_threshold:0.8"
_GARBAGE_NEEDS = "per_process_memory_fraction:0.99"
_CHUNK = 20_000  # requests between two reports of progress: about a twentieth of a second


@dataclass(frozen=True, slots=True)
class AllocatorChoice:
    """One allocator to try."""

    label: str  # what the table calls it
    spec: str  # as --allocator spells it
    conf: str = ""
    torch: str = NEWEST_TORCH
    is_only_if_different: bool = False  # left out of the answer when it does the same as the first choice

    def make(self, device_bytes: int | None) -> Allocator:
        return Allocator.from_spec(self.spec, torch=self.torch, conf=self.conf, device_bytes=device_bytes)

    @property
    def is_expandable(self) -> bool:
        text = f"{self.spec},{self.conf}".replace(" ", "").replace("=", ":")
        return EXPANDABLE in text or "-expandable" in text


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one allocator fared."""

    choice: AllocatorChoice
    peak_bytes: int  # live, after the allocator's rounding
    peak_reserved_bytes: int
    failure: Failure | None = None
    n_retries: int = 0  # times the whole cache had to be released to find room

    @property
    def fits(self) -> bool:
        return self.failure is None

    @property
    def fragment_share(self) -> float:
        """The share of the peak reservation that never held live bytes."""
        return 1 - self.peak_bytes / self.peak_reserved_bytes if self.peak_reserved_bytes else 0.0


def make_choice(spec: str) -> AllocatorChoice:
    """A choice the user spelled out; refuses a wrong one before any replay starts."""
    choice = AllocatorChoice(spec, spec)
    choice.make(None)
    return choice


def default_choices(
    allocator: str, conf: str, torch: str | None, is_limited: bool
) -> tuple[AllocatorChoice, ...]:
    """What to try for data recorded under `allocator` and `conf`; the recorded setting comes first.

    An unknown `torch` is taken as the newest.
    """
    family, version = allocator.partition(":")[0], torch or NEWEST_TORCH
    first = AllocatorChoice(f"{allocator} {conf}".strip(), allocator, conf, version)
    others: list[AllocatorChoice] = []
    if family.startswith("cuda"):
        others += _older(first)
    else:
        others.append(AllocatorChoice(family, family))
    if family == "npu":
        others.append(AllocatorChoice(f"npu {EXPANDABLE}", "npu", EXPANDABLE))
    if family == "mindspore":
        others.append(AllocatorChoice(f"mindspore {VIRTUAL_MEMORY}", "mindspore", VIRTUAL_MEMORY))
    others += (AllocatorChoice(name, name, "", version) for name in ("cuda", "cuda-expandable"))
    if family.startswith("cuda"):
        others += (AllocatorChoice(conf, "cuda", conf, version) for conf in _CUDA_CONFS)
        if is_limited:
            others.append(AllocatorChoice(_GARBAGE, "cuda", f"{_GARBAGE},{_GARBAGE_NEEDS}", version))
    return (first, *(c for c in others if not _is_same(c, first)))


def ask_what_if(
    tape: AllocationTape,
    choices: Sequence[AllocatorChoice],
    usable_bytes: int | None = None,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[Outcome, ...]:
    """Replay a tape through every choice. `on_progress` gets the requests done so far and their total."""
    outcomes: list[Outcome] = []
    total = len(tape) * len(choices)
    for i, choice in enumerate(choices):

        def on_done(n: int, start: int = i * len(tape)) -> None:
            on_progress(start + n, total)

        outcome = _try(tape, choice, usable_bytes, on_done)
        if not (choice.is_only_if_different and _is_alike(outcome, outcomes[0])):
            outcomes.append(outcome)
    on_progress(total, total)
    return tuple(outcomes)


def find_expandable(outcomes: Sequence[Outcome]) -> tuple[Outcome, Outcome] | None:
    """The pair that answers "would expandable segments have helped?": without them, and with them.

    Both are of one family of allocators, and the first of its kind in the table.
    """
    family = outcomes[0].choice.spec.partition(":")[0].removesuffix("-expandable")
    mine = [o for o in outcomes if o.choice.spec.partition(":")[0].removesuffix("-expandable") == family]
    without = next((o for o in mine if not o.choice.is_expandable), None)
    having = next((o for o in mine if o.choice.is_expandable), None)
    return (without, having) if without is not None and having is not None else None


def _older(first: AllocatorChoice) -> list[AllocatorChoice]:
    """The same settings under an older torch, unless they did not exist there."""
    older = replace(
        first, label=f"{first.label} (torch <= 2.11)", torch=OLDER_TORCH, is_only_if_different=True
    )
    try:
        older.make(None)
    except UsageError:
        return []
    return [older]


def _try(
    tape: AllocationTape, choice: AllocatorChoice, usable_bytes: int | None, on_done: Callable[[int], None]
) -> Outcome:
    if usable_bytes is None:
        return _play_freely(tape, choice, on_done)
    allocator = choice.make(usable_bytes)
    failure, n_retries = None, 0
    for start, chunk in _chunks(tape):
        limited = replay_limited(chunk, allocator)
        n_retries = limited.n_retries
        if limited.failure is not None:
            failure = replace(limited.failure, position=start + limited.failure.position)
            break
        on_done(start)
    if failure is not None or n_retries:
        return replace(_play_freely(tape, choice, on_done), failure=failure, n_retries=n_retries)
    return Outcome(choice, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)


def _play_freely(tape: AllocationTape, choice: AllocatorChoice, on_done: Callable[[int], None]) -> Outcome:
    allocator = choice.make(None)
    for start, chunk in _chunks(tape):
        play(chunk, allocator)
        on_done(start)
    return Outcome(choice, allocator.peak_allocated_bytes, allocator.peak_reserved_bytes)


def _chunks(tape: AllocationTape) -> Iterator[tuple[int, AllocationTape]]:
    for start in range(0, len(tape), _CHUNK):
        part = slice(start, start + _CHUNK)
        yield (
            start,
            AllocationTape(
                tape.kind[part],
                tape.id[part],
                tape.n_bytes[part],
                tape.stream[part],
                tape.persistent[part],
                tape.event[part],
            ),
        )


def _is_same(a: AllocatorChoice, b: AllocatorChoice) -> bool:
    def effect(choice: AllocatorChoice) -> tuple[str, str, str]:
        conf = choice.conf.replace(" ", "")
        if choice.spec == "cuda-expandable" and not conf:
            return "cuda", EXPANDABLE, choice.torch
        return choice.spec, conf, choice.torch

    return effect(a) == effect(b)


def _is_alike(a: Outcome, b: Outcome) -> bool:
    return (a.peak_bytes, a.peak_reserved_bytes, a.fits) == (b.peak_bytes, b.peak_reserved_bytes, b.fits)
