"""The result of `windtunnel replay`: a table of allocators, and one sentence that answers the question.

WhatIf (source, outcomes, device) ──> render_what_if ──> table, notes, the sentence
                                  └─> what_if_document ──> JSON
WhatIf of every rank ──> render_ranks ──> a row for each, and which one is the worst
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from windtunnel.memory.what_if.other_allocators import Outcome, find_expandable
from windtunnel.memory.what_if.recorded_file import ReplaySource
from windtunnel.units import format_bytes

__all__ = [
    "WhatIf",
    "answer",
    "best_conf",
    "render_ranks",
    "render_what_if",
    "what_if_document",
    "worst_of",
]

_KINDS = {
    "snapshot": "torch memory snapshot",
    "memory_block": "MindSpore memory_block.csv",
    "graph_ir": "MindSpore static graph",
    "recording": "windtunnel recording",
}
_VARIABLES = {
    "cuda": "PYTORCH_CUDA_ALLOC_CONF",
    "npu": "PYTORCH_NPU_ALLOC_CONF",
    "mindspore": "MS_ALLOC_CONF",
}
_WORTH_SAYING = 0.01  # of the reserved memory: a smaller difference does not count


@dataclass(frozen=True)
class WhatIf:
    """One replayed source, and the outcome of every allocator."""

    source: ReplaySource
    outcomes: tuple[Outcome, ...]  # the recorded setting first, unless the user chose them
    device: str | None
    usable_bytes: int | None

    @property
    def is_mindspore(self) -> bool:
        """Whether the program runs on MindSpore, which cannot use torch's allocators or their settings."""
        return _is_mindspore(self.source.allocator)

    @property
    def first(self) -> Outcome:
        return self.outcomes[0]

    @property
    def best(self) -> Outcome:
        """The outcome that fits, without releasing its cache, and reserves least, among those the program can use."""
        of_framework = [o for o in self.outcomes if _is_mindspore(o.choice.spec) == self.is_mindspore]
        return min(
            of_framework or self.outcomes, key=lambda o: (not o.fits, o.n_retries > 0, o.peak_reserved_bytes)
        )


def render_what_if(result: WhatIf) -> RenderableType:
    """Return everything about one source, for a terminal."""
    source = result.source
    title = f"{source.path}: {_KINDS[source.kind]}, {len(source.tape):,} requests"
    if result.device is not None:
        title += f", on {result.device} ({format_bytes(result.usable_bytes or 0)} usable)"
    parts: list[RenderableType] = [Text(title, style="bold", overflow="fold"), _table(result)]
    parts += (Text(line) for line in _below(result))
    colour = "bold red" if not result.best.fits else "bold"
    return Group(*parts, Text(), Text(answer(result), style=colour))


def worst_of(results: Sequence[WhatIf]) -> WhatIf:
    """Return the rank that decides whether a run fits: it needs most with the recorded settings."""
    return max(results, key=lambda result: (not result.first.fits, result.first.peak_reserved_bytes))


def render_ranks(results: Sequence[WhatIf]) -> RenderableType:
    """Return the ranks of one run with the allocator they ran with."""
    worst, label = worst_of(results), results[0].first.choice.label
    ranks = [result.source.rank for result in results]
    what = "rank" if None not in ranks and len(set(ranks)) == len(ranks) else "file"
    names = {id(r): str(r.source.rank if what == "rank" else r.source.path) for r in results}
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column(what, justify="right", overflow="fold")
    for heading in ("peak live", "peak reserved", "recorded"):
        table.add_column(heading, justify="right", no_wrap=True)
    if worst.device is not None:
        table.add_column("fits?", no_wrap=True)
    for result in results:
        recorded = result.source.tape.recorded_peak_reserved_bytes
        cells = [
            names[id(result)],
            format_bytes(result.first.peak_bytes),
            _reserved(result.first),
            "" if recorded is None else format_bytes(recorded),
        ]
        if result.device is not None:
            cells.append(_fits_cell(result.first))
        table.add_row(*cells, style="" if result.first.fits else "red")
    sentence = (
        f"{what.title()} {names[id(worst)]} needs most: {_reserved(worst.first)}. It is replayed below."
    )
    return Group(Text(f"{len(results)} {what}s, with {label}", style="bold"), table, Text(), Text(sentence))


def what_if_document(result: WhatIf) -> dict[str, Any]:
    """Return the same as plain values for JSON."""
    tape = result.source.tape
    return {
        "file": str(result.source.path),
        "kind": result.source.kind,
        "rank": result.source.rank,
        "requests": len(tape),
        "recorded_peak_bytes": tape.recorded_peak_bytes,
        "recorded_peak_reserved_bytes": tape.recorded_peak_reserved_bytes,
        "notes": list(result.source.notes),
        "profiles": [_row_document(result, outcome) for outcome in result.outcomes],
        "answer": answer(result),
    }


def best_conf(result: WhatIf) -> str | None:
    """Return the environment variable to set: that of the best row, if it is better than the first."""
    best, first = result.best, result.first
    family = best.choice.spec.partition(":")[0].removesuffix("-expandable")
    variable = _VARIABLES.get(family)
    is_same = result.is_mindspore or best.choice.torch == first.choice.torch
    gained = first.peak_reserved_bytes - best.peak_reserved_bytes
    is_tight = not first.fits or first.n_retries > 0
    is_better = best.fits and (is_tight or gained > _WORTH_SAYING * first.peak_reserved_bytes)
    if best is first or variable is None or not is_same or not is_better:
        return None
    conf = best.choice.conf or best.choice.spec.partition(":")[2].replace("=", ":")
    if best.choice.spec == "cuda-expandable":
        conf = "expandable_segments:True"
    return f"{variable}={conf}" if conf else None


def _is_mindspore(spec: str) -> bool:
    return spec.startswith("mindspore")


# -- the table ----------------------------------------------------------------------------------------------


def _table(result: WhatIf) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("allocator", overflow="fold")
    for heading in ("peak live", "peak reserved", "fragments"):
        table.add_column(heading, justify="right", no_wrap=True)
    if result.device is not None:
        table.add_column("fits?", no_wrap=True)
    for outcome in result.outcomes:
        cells = [
            outcome.choice.label,
            format_bytes(outcome.peak_bytes),
            format_bytes(outcome.peak_reserved_bytes),
            f"{outcome.fragment_share:.1%}",
        ]
        if result.device is not None:
            cells.append(_fits_cell(outcome))
        table.add_row(*cells, style="" if outcome.fits else "red")
    return table


def _fits_cell(outcome: Outcome) -> str:
    if not outcome.fits:
        return "no"
    if not outcome.n_retries:
        return "yes"
    return f"yes, {outcome.n_retries} {'retry' if outcome.n_retries == 1 else 'retries'}"


def _below(result: WhatIf) -> Iterator[str]:
    tape = result.source.tape
    recorded = tape.recorded_peak_reserved_bytes
    if recorded is not None:
        same = f"{result.first.choice.label} above: {_against(result.first, recorded)}"
        yield f"recorded peak reserved: {format_bytes(recorded)} ({same})"
    failed: dict[str, list[str]] = {}  # where -> the allocators that fail there
    for outcome in result.outcomes:
        if outcome.failure is not None:
            where = result.source.describe(int(tape.event[outcome.failure.position]))
            asked = format_bytes(outcome.failure.requested_bytes)
            failed.setdefault(f"{where}, asking for {asked}", []).append(outcome.choice.label)
    for where, labels in failed.items():
        yield f"out of memory at {where}: {', '.join(labels)}"
    if any(o.fits and o.n_retries for o in result.outcomes):
        yield "retry: the allocator releases its whole cache and tries again, which stalls training"
    for outcome in result.outcomes:
        if outcome.choice.conf.startswith(outcome.choice.label + ","):
            rest = outcome.choice.conf.removeprefix(outcome.choice.label + ",")
            yield f"{outcome.choice.label}: replayed with {rest}, without which torch ignores it"
    for note in result.source.notes:
        yield f"note: {note}"


def _against(outcome: Outcome, recorded: int) -> str:
    difference = outcome.peak_reserved_bytes - recorded
    if difference == 0:
        return "the same"
    return f"{difference / recorded:+.2%}" if recorded > 0 else "another figure"


# -- the sentence -------------------------------------------------------------------------------------------


def answer(result: WhatIf) -> str:
    """Say whether expandable segments would have helped, with numbers."""
    pair = find_expandable(result.outcomes)
    if pair is None:
        return _best_of_all(result)
    without, having = pair
    if result.device is not None:
        return _answer_on_device(result, without, having)
    is_on = result.first.choice.is_expandable
    saved, share = _saving(without, having)
    change = f"{_reserved(without)} -> {_reserved(having)} reserved"
    if abs(share) < _WORTH_SAYING:
        return f"Expandable segments {'make' if is_on else 'would have made'} no difference: {change}."
    if saved < 0:
        verb = "cost" if is_on else "would have cost"
        return f"Expandable segments {verb} {format_bytes(-saved)} more: {change}."
    verb = "save" if is_on else "would have saved"
    live = format_bytes(having.peak_bytes)
    return f"Expandable segments {verb} {format_bytes(saved)} ({share:.0%}): {change}, {live} of it live."


def _answer_on_device(result: WhatIf, without: Outcome, having: Outcome) -> str:
    needs = f"{_need('with them', having)}, {_need('without', without)}"
    needs += f"; {format_bytes(result.usable_bytes or 0)} is usable on {result.device}"
    if without.fits and having.fits:
        if without.n_retries and not having.n_retries:
            return f"Expandable segments avoid the retries: {needs}."
        return f"It fits with or without expandable segments: {needs}."
    if having.fits:
        return f"Yes, expandable segments make it fit: {needs}."
    if without.fits:
        return f"No, it fits only without expandable segments: {needs}."
    if result.best.fits:
        best = f"{result.best.choice.label} is"
        return f"No, expandable segments are not enough, but {best}: {needs}."
    live = format_bytes(having.peak_bytes)
    return f"No, expandable segments would not make it fit: {needs}, and {live} is live at the same time."


def _need(how: str, outcome: Outcome) -> str:
    if not outcome.fits or not outcome.n_retries:
        return f"{how} it needs {_reserved(outcome)}"
    times = "once" if outcome.n_retries == 1 else f"{outcome.n_retries} times"
    return f"{how} it would need {_reserved(outcome)}, but fits after releasing its cache {times}"


def _best_of_all(result: WhatIf) -> str:
    best, first = result.best, result.first
    if not best.fits:
        usable = f"{format_bytes(result.usable_bytes or 0)} usable on {result.device}"
        which = "No MindSpore setting fits" if result.is_mindspore else "None of them fits"
        return f"{which} the {usable}: {_reserved(best)} is the least."
    gained = first.peak_reserved_bytes - best.peak_reserved_bytes
    if not first.fits or gained > _WORTH_SAYING * first.peak_reserved_bytes:
        label = best.choice.label
        return f"{label} needs least: {_reserved(best)}, compared with {_reserved(first)} for {first.choice.label}."
    rest = "; none of the others needs clearly less" if len(result.outcomes) > 1 else ""
    return f"{first.choice.label} needs {_reserved(first)}{rest}."


def _reserved(outcome: Outcome) -> str:
    return format_bytes(outcome.peak_reserved_bytes)


def _saving(without: Outcome, having: Outcome) -> tuple[int, float]:
    saved = without.peak_reserved_bytes - having.peak_reserved_bytes
    return saved, saved / max(1, without.peak_reserved_bytes)


def _row_document(result: WhatIf, outcome: Outcome) -> dict[str, Any]:
    tape, choice, failure = result.source.tape, outcome.choice, outcome.failure
    out_of_memory = None
    if failure is not None:
        where = result.source.describe(int(tape.event[failure.position]))
        out_of_memory = {"at": where, "requested_bytes": failure.requested_bytes, "message": failure.message}
    return {
        "profile": choice.label,
        "allocator": choice.spec,
        "conf": choice.conf,
        "torch": choice.torch,
        "peak_bytes": outcome.peak_bytes,
        "peak_reserved_bytes": outcome.peak_reserved_bytes,
        "fragment_share": round(outcome.fragment_share, 6),
        "fits": outcome.fits if result.device is not None else None,
        "n_retries": outcome.n_retries,
        "out_of_memory": out_of_memory,
    }
