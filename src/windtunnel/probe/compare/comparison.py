"""Compare two dumps, one step and rank at a time.

    two paths ──> parts ──> columns ──> (shards merged) ──> pairs ──> numbers ──> judged ──> RankComparison, one by one

A RankComparison holds the columns of both sides. Callers should extract what they need from each item and drop it, so
that memory is that of one rank, however many there are.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.errors import UsageError
from windtunnel.probe.compare.framework_pair import (
    excused,
    is_of_two_frameworks,
    neutral,
    pairing_notes,
    round_whole_numbers,
    unlike_sides,
)
from windtunnel.probe.compare.mapping import NO_MAPPING, Mapping
from windtunnel.probe.compare.noise import NO_NOISE, KnownNoise
from windtunnel.probe.compare.optimizer_calls import NO_OTHER_CALLS, same_weights_by_other_calls
from windtunnel.probe.compare.pairing import Match, match_columns
from windtunnel.probe.compare.relative_errors import BITS, VALUES, PairNumbers, leave_out, pair_numbers
from windtunnel.probe.compare.shard_merge import SPLIT
from windtunnel.probe.compare.side import Side, elements_of, how_divided, make_side, merge_sides
from windtunnel.probe.compare.step_reader import DumpData, read_part
from windtunnel.probe.compare.steps_and_ranks import DumpPart, PartPair, find_parts, pair_parts
from windtunnel.probe.compare.tensor_errors import TensorNumbers, compare_arrays
from windtunnel.probe.compare.tolerance import DIFFERENT, Tolerance, judge
from windtunnel.probe.compare.uninitialised import leave_out_uninitialised
from windtunnel.probe.compare.value_columns import OUTPUT, TENSOR, Columns, Vocabulary
from windtunnel.probe.files.entry_name import BACKWARD, parse_entry_name

__all__ = ["OnProgress", "RankComparison", "compare_dumps"]

OnProgress = Callable[[str, int, int], None]  # what, done, of

_MOST = 0.5  # of the pairs: if more than this have different types, that is intended
_DTYPE_PAIRS = 8  # with fewer pairs, that is not decided


@dataclass(frozen=True, slots=True)
class RankComparison:
    """Everything about one step of one rank. Arrays from `place` to `role` have one element per pair of values."""

    pair: PartPair
    a: Side
    b: Side
    words: Vocabulary
    match: Match  # entries side by side
    place: np.ndarray  # which of them
    row_a: np.ndarray
    row_b: np.ndarray
    role: np.ndarray
    numbers: PairNumbers
    judged: np.ndarray
    tensors: dict[int, TensorNumbers]  # pair -> element by element
    lone_place: np.ndarray  # values that one side of a paired entry lacks
    lone_row: np.ndarray  # >= 0: row of A; < 0: ~row of B
    is_noise: np.ndarray  # of the pairs: differs, but only by rounding
    noise: KnownNoise  # for the next step
    # of the places: a call of an optimizer that reaches the same weights by different calls
    is_excused: np.ndarray
    is_strict: bool  # a call that only one side has is a difference of the programs, not of tools or of parallel sizes
    last_place: int  # the end of the shorter side, if a run was interrupted
    notes: tuple[str, ...]

    def name(self, place: int) -> str:
        """The entry at a place, as A calls it if A has it."""
        i, j = self.match.entry_a[place], self.match.entry_b[place]
        return self.a.columns.entries[i] if i >= 0 else self.b.columns.entries[j]


def compare_dumps(
    path_a: Path,
    path_b: Path,
    tolerance: Tolerance,
    on_progress: OnProgress = lambda what, done, total: None,
    on_note: Callable[[str], None] = lambda note: None,
    mapping: Mapping = NO_MAPPING,
) -> Iterator[RankComparison]:
    """Yield every rank of every step, in the order they ran."""
    pairs, notes = pair_parts(find_parts(path_a), find_parts(path_b))
    for note in notes:
        on_note(note)
    reading = _Reading(sum(_size(part) for pair in pairs for part in (*pair.a, *pair.b)), on_progress)
    words = Vocabulary()
    noise: dict[tuple[str, int | None], KnownNoise] = {}  # of every rank: what its earlier steps left
    n_entries, n_common, is_strict = [0, 0], 0, False
    journals = [_JournalReads("A", path_a), _JournalReads("B", path_b)]
    for pair in pairs:
        data_a = tuple(read_part(part, words, reading.on_bytes) for part in pair.a)
        data_b = tuple(read_part(part, words, reading.on_bytes) for part in pair.b)
        for side, ranks in zip(journals, (data_a, data_b), strict=True):
            side.add(ranks)
        key = (pair.area, pair.rank)
        found = _compare(
            pair, data_a, data_b, words, tolerance, on_progress, noise.get(key, NO_NOISE), mapping
        )
        noise[key] = noise.get(key, NO_NOISE) | found.noise
        n_entries[0] += len(found.a.columns.entries)
        n_entries[1] += len(found.b.columns.entries)
        n_common += int(((found.match.entry_a >= 0) & (found.match.entry_b >= 0)).sum())
        is_strict |= found.is_strict
        yield found
    for side in journals:
        side.tell(on_note)
    _refuse_nothing((path_a, path_b), n_entries, has_common=n_common > 0 or is_strict)


def _refuse_nothing(paths: tuple[Path, Path], n_entries: list[int], *, has_common: bool) -> None:
    empty = [str(path) for path, n in zip(paths, n_entries, strict=True) if not n]
    if empty:
        raise UsageError(
            f"there is nothing to compare: {' and '.join(empty)} {'has' if len(empty) == 1 else 'have'} no entries",
            hint="check list, scope, step and rank of the config, and that the program ran between start() and stop()",
        )
    if not has_common:
        raise UsageError(
            f"there is nothing to compare: none of the {n_entries[0]} entries of {paths[0]} matches any of the "
            f"{n_entries[1]} of {paths[1]}",
            hint="collect both at the same level, or define pairs with --mapping",
        )


class _JournalReads:
    """Counts the entries of one side that are only in the journals of killed processes."""

    def __init__(self, name: str, path: Path) -> None:
        self._name, self._path = name, path
        self._n_entries = self._n_folders = self._n_running = 0

    def add(self, ranks: tuple[DumpData, ...]) -> None:
        for rank in ranks:
            self._n_entries += rank.n_recovered
            self._n_folders += rank.n_recovered > 0
            self._n_running += rank.is_running

    def tell(self, on_note: Callable[[str], None]) -> None:
        if self._n_running:
            on_note(f"{self._name} is still being written: only what it has so far was compared")
        elif self._n_folders:
            on_note(
                f"{self._n_entries} entries of {self._name} were read from the journals of {self._n_folders} interrupted "
                f"steps; `windtunnel recover {shlex.quote(str(self._path))}` writes them to dump.json"
            )


class _Reading:
    """Reports the bytes read so far, and the total."""

    def __init__(self, total: int, on_progress: OnProgress) -> None:
        self._done, self._total, self._on_progress = 0, total, on_progress

    def on_bytes(self, n_bytes: int) -> None:
        self._done += n_bytes
        self._on_progress("reading", self._done, self._total)


def _size(part: DumpPart) -> int:
    try:
        return sum((part.folder / name).stat().st_size for name in part.files)
    except OSError:
        return 0


def _compare(
    pair: PartPair, data_a: tuple[DumpData, ...], data_b: tuple[DumpData, ...], words: Vocabulary,
    tolerance: Tolerance, on_progress: OnProgress, known_noise: KnownNoise, mapping: Mapping,
) -> RankComparison:  # fmt: skip
    a, b = make_side(data_a), make_side(data_b)
    is_cross = is_of_two_frameworks(a, b)
    unlike, mapping_notes = unlike_sides(a, b, words, mapping)
    is_divided = a.n_ranks != b.n_ranks
    is_same_tool = a.first.is_ours == b.first.is_ours
    is_same_level = a.first.header.get("level") == b.first.header.get("level")
    is_same_area = {part.area for part in pair.a} == {part.area for part in pair.b}
    needs_parents = a.columns.entries != b.columns.entries
    match = match_columns(
        a.columns,
        b.columns,
        (a.parents(), b.parents()) if needs_parents else None,
        shapes=not is_divided,
        unlike=unlike,
    )
    a, b = merge_sides(a, b, match, words)
    is_pair = (match.row_a >= 0) & (match.row_b >= 0)
    is_comparable = is_same_tool and (a.first.is_ours or not is_cross)
    is_foreign = (
        np.zeros(len(is_pair), bool) if is_comparable else _foreign_gradients(match, a.columns, words)
    )
    is_pair &= ~is_foreign
    lone = ~((match.row_a >= 0) & (match.row_b >= 0))
    place, row_a, row_b = match.place[is_pair], match.row_a[is_pair], match.row_b[is_pair]
    columns_a, columns_b = (neutral(side.columns, words) if is_cross else side.columns for side in (a, b))
    numbers = pair_numbers(columns_a, columns_b, row_a, row_b, words, digests=is_same_tool and not is_cross)
    if is_cross or not is_same_tool:
        round_whole_numbers(numbers, (a.columns, b.columns), (row_a, row_b), words)
    role = (
        np.frombuffer(words.roles, np.int8)[a.columns.suffix[row_a]] if len(row_a) else np.zeros(0, np.int8)
    )
    tensors = _compare_tensors(a, b, row_a, row_b, numbers, on_progress)
    changed = int(numbers.dtype_differs.sum())
    n_tensors = int((a.columns.kind[row_a] == TENSOR).sum())
    ignores_types = n_tensors >= _DTYPE_PAIRS and changed > _MOST * n_tensors
    pairs_only = replace(match, place=place, row_a=row_a, row_b=row_b)
    leave_out_uninitialised(pairs_only, numbers, a.columns, b.columns, words)
    judged_by = partial(judge, pairs_only, numbers, a.columns, b.columns, role, words, tolerance,
                        ignores_types=ignores_types, known_noise=known_noise)  # fmt: skip
    judgement = judged_by()
    if is_cross and unlike is not None:
        leave_out(numbers, excused(pairs_only, a, unlike, role, judgement.verdict))
        judgement = judged_by()
    is_strict = is_same_tool and is_same_level and is_same_area and not is_divided and not is_cross
    others = same_weights_by_other_calls(match, a, b, words, tolerance) if is_strict else NO_OTHER_CALLS
    is_excused = np.isin(np.arange(len(match.entry_a)), others.places)
    if is_excused.any():
        leave_out(numbers, is_excused[place] & (judgement.verdict == DIFFERENT))
        judgement = judged_by()
    grads_a, grads_b = a.columns.requires_grad[row_a], b.columns.requires_grad[row_b]
    n_grads = int(((grads_a != grads_b) & (grads_a >= 0) & (grads_b >= 0)).sum())
    cut = a.first.was_killed or b.first.was_killed
    both = np.flatnonzero((match.entry_a >= 0) & (match.entry_b >= 0))
    return RankComparison(
        pair, a, b, words, match, place, row_a, row_b, role, numbers, judgement.verdict, tensors,
        lone_place=match.place[lone],
        lone_row=np.where(match.row_a[lone] >= 0, match.row_a[lone], ~match.row_b[lone]),
        is_noise=judgement.is_noise,
        noise=judgement.noise,
        is_excused=is_excused,
        is_strict=is_strict,
        last_place=int(both[-1]) if cut and len(both) else len(match.entry_a),
        notes=(
            *(pairing_notes(match, a, b, unlike) if unlike is not None else ()),
            *_notes(a, b, match, int(is_foreign.sum()), is_same_level, changed if ignores_types else 0, n_grads),
            *others.notes,
            *mapping_notes,
        ),
    )  # fmt: skip


def _foreign_gradients(match: Match, a: Columns, words: Vocabulary) -> np.ndarray:
    """For the backward of an API, msProbe writes gradients of its last autograd node, not of its inputs."""
    names = [parse_entry_name(name) for name in a.entries]
    is_api = np.array([not name.is_module and name.direction == BACKWARD for name in names], dtype=bool)
    entries = match.entry_a[match.place]
    roles = np.frombuffer(words.roles, np.int8)
    return (match.row_a >= 0) & is_api[entries] & (roles[a.suffix[match.row_a]] == OUTPUT)


def _compare_tensors(
    a: Side, b: Side, row_a: np.ndarray, row_b: np.ndarray, numbers: PairNumbers, on_progress: OnProgress
) -> dict[int, TensorNumbers]:
    """Element by element where both sides have the elements and the checksums do not settle it."""
    has_a, has_b = a.columns.files, b.columns.files
    if not has_a or not has_b:
        return {}
    rows = zip(row_a.tolist(), row_b.tolist(), strict=True)
    wanted = [
        index
        for index, (i, j) in enumerate(rows)
        if i in has_a and j in has_b and numbers.evidence[index] != BITS
    ]
    found: dict[int, TensorNumbers] = {}
    for done, index in enumerate(wanted):
        on_progress("comparing tensors", done, len(wanted))
        x, y = elements_of(a, int(row_a[index])), elements_of(b, int(row_b[index]))
        each = compare_arrays(x, y) if x is not None and y is not None else None
        if each is None:
            continue
        found[index] = each
        is_divided = any(
            how_divided(side, row) == SPLIT for side, row in ((a, row_a[index]), (b, row_b[index]))
        )
        if is_divided and each.relative_l2 > numbers.error[index]:
            continue  # parts of a fused weight may be interleaved: statistics do not depend on the order
        numbers.error[index], numbers.evidence[index] = each.relative_l2, VALUES
        numbers.only_one_finite[index] = each.n_nonfinite_differ > 0
        numbers.bits_differ[index] &= each.relative_l2 > 0
    return found


def _notes(
    a: Side, b: Side, match: Match, n_foreign: int, is_same_level: bool, n_changed_types: int, n_grads: int
) -> Iterator[str]:
    def header(side: Side, key: str) -> Any:
        return side.first.header.get(key)

    if n_foreign:
        yield (
            f"one dump is msProbe's: its {n_foreign} gradients of API inputs belong to another autograd node "
            "and were not compared"
        )
    if not is_same_level:
        yield f"the levels differ ({header(a, 'level')} and {header(b, 'level')}): only what both contain was compared"
    for name, side in (("A", a), ("B", b)):
        if any(rank.was_killed for rank in side.ranks):
            last = side.columns.entries[-1] if side.columns.entries else "none"
            yield f"{name} is incomplete: its last entry is {last}"
        areas = [rank.part.area for rank in side.ranks if rank.part.area]
        if len(side.ranks) > 1:
            n_ranks = len({rank.part.order for rank in side.ranks})
            yield (
                f"{n_ranks} ranks of {name} were merged"
                if n_ranks > 1
                else f"{' and '.join(areas)} of {name} were merged"
            )
    if n_grads:
        yield f"requires_grad differs for {n_grads} tensors"
    if match.n_renamed:
        yield f"{match.n_renamed} entries have different names on the two sides and were paired by structure"
    if n_changed_types:
        yield f"{n_changed_types} tensors have different types on the two sides: judged by the rounding of the coarser one"
