"""Look for changes that make a run fit, or for a larger batch if it fits. Each change is simulated before it is advised.

    RunRequest, the tightest rank ──> its recording under other allocators ─────────────┐
                                  └─> dry runs with one thing changed ──> results ──────┴──> Remedy, …

Changes are simulated by the same dry run that gave the verdict, so that following the advice gives the promised number.
"""

from __future__ import annotations

import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from windtunnel.capture.routing import routing_of
from windtunnel.errors import WindtunnelError
from windtunnel.events.model import Recording
from windtunnel.memory.checkpoint_units import checkpoint_units
from windtunnel.memory.recorded_memory import RecordedMemory
from windtunnel.memory.what_if.logits import find_loss
from windtunnel.report.results.run import RankResult, Remedy
from windtunnel.session.rank_analysis import measure_again, read_recorded
from windtunnel.session.rank_recording import allocator_maker
from windtunnel.session.request import RunRequest, task_of

__all__ = ["find_remedies", "try_checkpointing"]

Run = Callable[[RunRequest], RankResult | None]  # one rank; None if its script did not finish
Tell = Callable[[str], None]

_WORTH_A_TRY = 0.05  # of the peak: a smaller saving is not worth a dry run
_BATCH_TRIES = 4
_N_CHUNKS = 8
_ROUTINGS = ("zipf:1.2", "worst")
_COMFORTABLE = 0.97  # of the usable memory: the target of the first batch size tried
_MOST_ROOM = 64  # times the batch: beyond that, memory is no longer the limit
_NOT_A_MICRO_BATCH = re.compile(r"global|eval|val|test|predict|num|\bn_batch|batches", re.I)
_SURELY_A_MICRO_BATCH = re.compile(r"micro|per[-_]device|per[-_]gpu|train", re.I)
_OPTION = re.compile(r"(?P<option>-{0,2}[\w.\-]*batch[\w.\-]*|--?m?bsz?)(?:=(?P<value>\d+))?", re.I)


def find_remedies(
    request: RunRequest, rank: RankResult, run: Run, tell: Tell, recorded: RecordedMemory | None = None
) -> tuple[Remedy, ...]:
    """Return the changes that were tried, those that fit first; for a rank that fits, a larger batch.

    `run` simulates a changed request; `tell` gets a description of each attempt; `recorded` is what the rank recorded, if
    it has been read already.
    """
    folder = request.folder / "advice"
    trial = _Trial(
        replace(
            request,
            ranks=(rank.rank,),
            level=min(request.level, 2),
            folder=folder,
            writes_page=False,
            writes_blocks=False,
            writes_snapshot=False,
            keep_files=None,
            is_advising=False,
        ),
        rank,
        run,
        tell,
    )
    try:
        if recorded is None:
            recorded = read_recorded(request, task_of(request, rank.rank).recording_path)
        is_tight = not rank.fits or rank.n_retries
        found = (
            trial.to_fit(recorded)
            if is_tight
            else [*trial.to_grow(recorded.recording), *trial.other_routings()]
        )
    except (WindtunnelError, OSError):
        return ()  # the run has its verdict; no advice without a simulation
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return tuple(sorted(dict.fromkeys(found), key=lambda remedy: not remedy.fits))


def try_checkpointing(request: RunRequest, modules: tuple[str, ...], run: Run) -> RankResult | None:
    """Dry-run the one rank of a request with these modules under activation checkpointing; None if that fails."""
    changed = replace(
        request, level=1, folder=request.folder / "advice", checkpointed=modules, is_recording_saves=False, writes_page=False,
        is_advising=False, keep_files=None,
    )  # fmt: skip
    changed.folder.mkdir(parents=True, exist_ok=True)
    try:
        result = run(changed)
    except (WindtunnelError, OSError):
        return None
    finally:
        shutil.rmtree(changed.folder, ignore_errors=True)
    return None if result is None or result.status == "failed" else result


@dataclass(frozen=True)
class _Batch:
    """What sets the batch size, and how to change it."""

    size: int
    option: str  # of the script; empty: only the DataLoader has the size
    arguments: tuple[str, ...]

    def asked_for(self, request: RunRequest, size: int) -> RunRequest:
        if not self.option:
            return replace(request, batch_factor=request.batch_factor * size / self.size)
        return replace(request, arguments=self._with(size))

    def how(self, size: int) -> str:
        if not self.option:
            return f"DataLoader(..., batch_size={size})"
        is_assignment = not self.option.startswith("-")
        return f"{self.option}={size}" if is_assignment else f"{self.option} {size}"

    def _with(self, size: int) -> tuple[str, ...]:
        given = list(self.arguments)
        for i, argument in enumerate(given):
            if argument == self.option and i + 1 < len(given):
                return (*given[: i + 1], str(size), *given[i + 2 :])
            if argument.startswith(f"{self.option}="):
                return (*given[:i], f"{self.option}={size}", *given[i + 1 :])
        return (*given, self.option, str(size))


@dataclass(frozen=True)
class _Checkpointed:
    """The dry run with activation checkpointing, to combine with other changes."""

    request: RunRequest
    recorded: RecordedMemory
    remedy: Remedy

    def and_also(self, others: Iterable[Remedy]) -> Iterator[Remedy]:
        for other in others:
            yield replace(
                other, what=f"{self.remedy.what} and {other.what}", how=f"{self.remedy.how}; {other.how}"
            )


class _Trial:
    def __init__(self, request: RunRequest, rank: RankResult, run: Run, tell: Tell) -> None:
        self.request = request
        self.rank = rank
        self._run = run
        self._tell = tell

    # -- it does not fit ------------------------------------------------------------------------------------------

    def to_fit(self, recorded: RecordedMemory) -> list[Remedy]:
        """Try each change alone, the cheapest first; if none is enough, combine it with checkpointing."""
        tried = [*self._other_settings(self.request, recorded)]
        tried += self._chunked_loss(self.request, recorded.recording, _need(self.rank))
        checkpointed = self._checkpointed()
        if checkpointed is not None:
            tried.append(checkpointed.remedy)
        if checkpointed is not None and not _any_fits(tried):
            request, after = checkpointed.request, checkpointed.recorded
            tried += checkpointed.and_also(self._other_settings(request, after))
            before = checkpointed.remedy.needs_bytes
            tried += checkpointed.and_also(self._chunked_loss(request, after.recording, before))
        tried += self._smaller_batch(recorded, self.request)
        if checkpointed is not None and not _any_fits(tried):
            tried += checkpointed.and_also(self._smaller_batch(checkpointed.recorded, checkpointed.request))
        return tried

    def _other_settings(self, request: RunRequest, recorded: RecordedMemory) -> Iterator[Remedy]:
        """Try other settings of the allocator, which need only a replay of the recording."""
        expandable = _expandable(request)
        if expandable is None:
            return
        other = recorded.under(allocator_maker(expandable, recorded.recording))
        result = measure_again(expandable, self.rank.rank, other)
        variable = "PYTORCH_NPU_ALLOC_CONF" if request.device.kind == "npu" else "PYTORCH_CUDA_ALLOC_CONF"
        if result.peak_with_fragments_bytes < self.rank.peak_with_fragments_bytes:
            yield self._remedy(
                "expandable segments", f"{variable}=expandable_segments:True", expandable, result
            )

    def _chunked_loss(self, request: RunRequest, recording: Recording, before_bytes: int) -> Iterator[Remedy]:
        """Try logits and loss in chunks, if the logits are large."""
        loss = find_loss(recording) if request.framework == "torch" and request.loss_chunks == 1 else None
        if loss is None or loss.n_bytes < _WORTH_A_TRY * before_bytes:
            return
        changed = replace(request, loss_chunks=_N_CHUNKS)
        self._tell(f"trying a cross-entropy in {_N_CHUNKS} chunks")
        result = self._ask(changed)
        if result is not None and result.peak_with_fragments_bytes < before_bytes:
            what = f"splitting the cross-entropy over {loss.n_classes:,} classes into {_N_CHUNKS} chunks"
            yield self._remedy(what, _CHUNK.format(-(-loss.n_rows // _N_CHUNKS)), changed, result)

    def _checkpointed(self) -> _Checkpointed | None:
        """Try checkpointing on the repeated blocks that hold most memory; None if that does not help."""
        units = checkpoint_units(self.rank.at_peak_by_module)
        blocks = [unit for unit in units if unit.is_repeated and unit.is_whole]
        if not blocks or blocks[0].n_bytes < _WORTH_A_TRY * self.rank.peak_with_fragments_bytes:
            return None
        module = blocks[0].module
        request = replace(self.request, checkpointed=(*self.request.checkpointed, module))
        self._tell(f"trying activation checkpointing on {module}")
        result = self._ask(request)
        if result is None or result.peak_with_fragments_bytes >= self.rank.peak_with_fragments_bytes:
            return None
        remedy = self._remedy(f"activation checkpointing on {module}", _CHECKPOINT, request, result)
        path = task_of(request, self.rank.rank).recording_path
        return _Checkpointed(request, read_recorded(request, path), remedy)

    def _smaller_batch(self, recorded: RecordedMemory, request: RunRequest) -> Iterator[Remedy]:
        """Find the largest batch that fits, in a few attempts."""
        batch = _find_batch(request, recorded.recording)
        if batch is None or batch.size < 2:
            return
        figures = {batch.size: measure_again(request, self.rank.rank, recorded)}
        # If none fits, the smallest one that was tried.
        size = self._search(batch, request, figures, 0, batch.size) or min(figures)
        if size < batch.size:
            what = f"a batch of {size} instead of {batch.size}"
            yield self._remedy(what, batch.how(size), batch.asked_for(request, size), figures[size])

    # -- it fits --------------------------------------------------------------------------------------------------

    def to_grow(self, recording: Recording) -> Iterator[Remedy]:
        """Find the largest batch that still fits, in a few attempts."""
        batch = _find_batch(self.request, recording)
        if batch is None:
            return
        figures = {batch.size: self.rank}
        least = self._search(batch, self.request, figures, batch.size, batch.size * _MOST_ROOM + 1)
        if least > batch.size:
            what = f"a batch of {least} instead of {batch.size}"
            yield self._remedy(
                what, batch.how(least), batch.asked_for(self.request, least), figures[least], grows=True
            )

    def other_routings(self) -> Iterator[Remedy]:
        """Find what this rank needs when tokens are spread less evenly over the experts."""
        for text in _ROUTINGS if self.rank.routing is not None else ():
            if text == self.request.routing.text:
                continue
            changed = replace(self.request, routing=routing_of(text))
            self._tell(f"trying {text} routing")
            result = self._ask(changed)
            if result is not None:
                yield self._remedy(
                    f"{text} routing of tokens to experts", f"--routing {text}", changed, result
                )

    def _search(
        self, batch: _Batch, request: RunRequest, figures: dict[int, RankResult], least: int, most: int
    ) -> int:
        """Search between a size that fits and one that does not; returns the largest that fits, adds to `figures`."""
        for _ in range(_BATCH_TRIES):
            size = _next_size(figures, least, most, self.rank)
            if size is None:
                break
            self._tell(f"trying a batch of {size} instead of {batch.size}")
            result = self._ask(batch.asked_for(request, size))
            is_larger = size > batch.size
            if result is None or is_larger != (_need(result) > _need(figures[batch.size])):
                break  # the data run out, or the option does not set the batch size
            figures[size] = result
            if result.fits and not result.n_retries:
                least = size
            else:
                most = size
        return least

    # -- asking ---------------------------------------------------------------------------------------------------

    def _ask(self, request: RunRequest) -> RankResult | None:
        shutil.rmtree(request.folder, ignore_errors=True)
        request.folder.mkdir(parents=True)
        result = self._run(request)
        if result is None or result.status == "failed" or result.steps != self.rank.steps:
            return None
        return result

    def _remedy(
        self, what: str, how: str, request: RunRequest, result: RankResult, *, grows: bool = False
    ) -> Remedy:
        fits = result.fits and not result.n_retries
        return Remedy(what, how, result.peak_with_fragments_bytes, fits, _command(request), grows)


_CHECKPOINT = "torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)"
_CHUNK = (
    'F.cross_entropy(head(x), labels, reduction="sum") for {:,} tokens at a time (views of x), each under'
    " torch.utils.checkpoint.checkpoint(..., use_reentrant=False); the loss is their sum / the number of labels"
)


def _need(result: RankResult) -> int:
    return result.peak_with_fragments_bytes


def _any_fits(remedies: list[Remedy]) -> bool:
    return any(remedy.fits for remedy in remedies)


def _expandable(request: RunRequest) -> RunRequest | None:
    family, _, settings = request.allocator.partition(":")
    if (
        "expandable_segments:True" in request.allocator_conf.replace(" ", "")
        or "expandable" in request.allocator
    ):
        return None
    if family == "cuda":
        spec = "cuda-expandable" + (f":{settings}" if settings else "")
        return replace(request, allocator=spec)
    if family == "npu":
        conf = ",".join(filter(None, (request.allocator_conf, "expandable_segments:True")))
        return replace(request, allocator_conf=conf)
    return None


def _find_batch(request: RunRequest, recording: Recording) -> _Batch | None:
    """Find the option or DataLoader that sets the micro-batch size; None if there is none, or several."""
    found = recording.footer.get("batches") or {}
    options = {str(option): int(size) for option, size in dict(found.get("options", {})).items()}
    options |= _options_given(request.arguments)
    options = {option: size for option, size in options.items() if not _NOT_A_MICRO_BATCH.search(option)}
    surely = {option: size for option, size in options.items() if _SURELY_A_MICRO_BATCH.search(option)}
    chosen = surely or options
    if len(chosen) == 1:
        ((option, size),) = chosen.items()
        return _Batch(size, option, request.arguments) if size > 0 else None
    loaders = {int(size) for size in found.get("loaders", ())}
    if not chosen and len(loaders) == 1:
        return _Batch(round(loaders.pop() * request.batch_factor), "", request.arguments)
    return None


def _options_given(arguments: tuple[str, ...]) -> dict[str, int]:
    """Find `--batch-size 8`, `--batch-size=8` and `train.batch_size=8` among a script's arguments."""
    found: dict[str, int] = {}
    for argument, following in zip(arguments, (*arguments[1:], ""), strict=False):
        match = _OPTION.fullmatch(argument)
        if match is None:
            continue
        if match["value"]:
            found[match["option"]] = int(match["value"])
        elif match["option"].startswith("-") and following.isdecimal():
            found[match["option"]] = int(following)
    return found


def _next_size(figures: dict[int, RankResult], least: int, most: int, rank: RankResult) -> int | None:
    """Return the next size to try: extrapolate two results linearly to the device memory, or bisect."""
    if most - least < 2:
        return None
    target = rank.usable_memory_bytes * _COMFORTABLE
    known = sorted(figures.items())
    if len(known) == 1:
        size, result = known[0]
        fixed = rank.at_peak_bytes.states + rank.at_peak_bytes.copies
        growing = max(result.peak_with_fragments_bytes - fixed, 1)
        guess = int(size * max(target - fixed, 0) / growing)
    else:
        (a, low), (b, high) = known[0], known[-1]
        slope = (high.peak_with_fragments_bytes - low.peak_with_fragments_bytes) / (b - a)
        guess = int(a + (target - low.peak_with_fragments_bytes) / slope) if slope > 0 else most
    guess = min(max(guess, least + 1), most - 1)
    return guess if guess not in figures else (least + most) // 2


def _command(request: RunRequest) -> str:
    """Return the command of the dry run that shows it."""
    return shlex.join(["windtunnel", "run", *request.options, *request.words])
