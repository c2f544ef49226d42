"""From judged pairs to an answer: the first place where two runs diverge, and what is known about it.

    RankComparison, one by one ──> Findings.add ──> counts, first Divergence

"First" means in execution order: forward before backward before optimizer, the innermost call before the module around
it, inputs before outputs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from windtunnel.probe.compare.cause import explain
from windtunnel.probe.compare.comparison import RankComparison
from windtunnel.probe.compare.relative_errors import NOTHING
from windtunnel.probe.compare.side import Side
from windtunnel.probe.compare.source_line import own_line
from windtunnel.probe.compare.tolerance import DIFFERENT, EQUAL, ROUNDING
from windtunnel.probe.compare.value_columns import HAS_SKETCH, INPUT, NUMBER, OUTPUT, PARAMETER, TEXT

__all__ = ["Divergence", "Findings", "ItemRow", "find_divergence", "item_rows"]

_BEFORE = 3  # entries shown before the place
_MOST_ROWS = 14  # of the entry itself


@dataclass(frozen=True, slots=True)
class ItemRow:
    """One value as a table shows it."""

    name: str  # of the entry, with the suffix
    role: str  # "input", "parameter", "output", "call"
    a: str
    b: str
    error: float  # NaN: none
    judged: int


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of one rank in one step."""

    area: str
    step: int | None
    rank: int | None
    place: int  # in the order of execution
    item: str  # the value, or the call if one side does not make it
    item_b: str  # as B calls it
    kind: str  # "value", "shape", "dtype", "non-finite", "bits", "only in A", "only in B"
    error: float
    inputs: str  # of the call: "equal", "rounding", "different", "none"
    sentences: tuple[str, ...]
    frames: tuple[str, ...]  # innermost first
    line: str  # the user's own line among them
    rows: tuple[ItemRow, ...]


@dataclass(slots=True)
class Findings:
    """The totals over all ranks of all steps."""

    n_compared: int = 0
    n_equal: int = 0
    n_rounding: int = 0
    n_different: int = 0
    n_nothing: int = 0  # pairs without figures to compare
    only_a: int = 0  # entries
    only_b: int = 0
    n_ranks: int = 0
    n_parted: int = 0  # ranks of steps that diverge
    n_noise: int = 0  # of n_rounding: sums that cancel, and what is computed from them
    max_rounding: float = 0.0  # relative error of the others
    first: Divergence | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, found: RankComparison) -> None:
        judged = found.judged
        self.n_ranks += 1
        self.n_compared += len(judged)
        self.n_equal += int((judged == EQUAL).sum())
        self.n_rounding += int((judged == ROUNDING).sum())
        self.n_different += int((judged == DIFFERENT).sum())
        self.n_nothing += int((found.numbers.evidence == NOTHING).sum())
        self.only_a += int((found.match.entry_b < 0).sum())
        self.only_b += int((found.match.entry_a < 0).sum())
        self.n_noise += int(found.is_noise.sum())
        errors = found.numbers.error[(judged == ROUNDING) & ~found.is_noise]
        self.max_rounding = max(
            self.max_rounding, float(np.nan_to_num(errors, nan=0.0, posinf=np.inf).max(initial=0.0))
        )
        self.notes += [note for note in found.notes if note not in self.notes]
        divergence = find_divergence(found)
        if divergence is None:
            return
        self.n_parted += 1
        # The first step; in it, the rank that diverges earliest: others may only have received what it sent.
        if self.first is None or (divergence.step or 0, divergence.place) < (
            self.first.step or 0,
            self.first.place,
        ):
            self.first = divergence

    @property
    def is_equal(self) -> bool:
        return self.first is None


def find_divergence(found: RankComparison) -> Divergence | None:
    """The first difference of one rank, with its context."""
    n = len(found.match.entry_a)
    different = np.flatnonzero(found.judged == DIFFERENT)
    at_value = int(found.place[different[0]]) if len(different) else n
    at_call = at_lone = n
    lone = np.flatnonzero(~found.is_excused[found.lone_place])
    if found.is_strict:
        is_lone = (found.match.entry_a < 0) | (found.match.entry_b < 0)
        alone = np.flatnonzero(is_lone & ~found.is_excused)
        alone = alone[alone < found.last_place]
        at_call = int(alone[0]) if len(alone) else n
        at_lone = int(found.lone_place[lone[0]]) if len(lone) else n
    place = min(at_value, at_call, at_lone)
    if place == n:
        return None
    if place == at_call:
        return _lone_call(found, place)
    if place == at_lone and not (place == at_value and _is_before(found, int(different[0]), int(lone[0]))):
        return _lone_value(found, int(lone[0]))
    return _value(found, int(different[0]))


def item_rows(found: RankComparison, place: int) -> list[ItemRow]:
    """The values of one call; the worst ones if there are too many."""
    name = found.name(place)
    rows = [_item_row(found, index, name) for index in np.flatnonzero(found.place == place).tolist()]
    for row in found.lone_row[found.lone_place == place].tolist():
        rows.append(_lone_row(found, row, name))
    if len(rows) > _MOST_ROWS:
        kept = sorted(range(len(rows)), key=lambda i: (-rows[i].judged, i))[:_MOST_ROWS]
        rows = [rows[i] for i in sorted(kept)]
    return rows


def _is_before(found: RankComparison, index: int, lone: int) -> bool:
    """Whether a pair's value comes before the lone one of the same call: inputs before outputs."""
    row = int(found.lone_row[lone])
    columns = found.a.columns if row >= 0 else found.b.columns
    role = found.words.roles[int(columns.suffix[row if row >= 0 else ~row])]
    return int(found.role[index]) <= role


def _value(found: RankComparison, index: int) -> Divergence:
    numbers, place = found.numbers, int(found.place[index])
    suffix = _suffix(found, found.a.columns.suffix[found.row_a[index]])
    kind = "value"
    for name, flags in (
        ("shape", numbers.shape_differs),
        ("non-finite", numbers.only_one_finite),
        ("dtype", numbers.dtype_differs),
    ):
        if flags[index]:
            kind = name
            break
    if kind == "value" and numbers.bits_differ[index] and not numbers.error[index] > 0:
        kind = "bits"
    suffix_b = _suffix(found, found.b.columns.suffix[found.row_b[index]])
    error = float(numbers.error[index])
    return _divergence(found, place, (suffix, suffix_b), kind, error, explain(found, index, kind))


def _lone_call(found: RankComparison, place: int) -> Divergence:
    kind = "only in A" if found.match.entry_b[place] < 0 else "only in B"
    has, lacks = ("A", "B") if kind == "only in A" else ("B", "A")
    run = [place]
    while (
        run[-1] + 1 < len(found.match.entry_a)
        and min(found.match.entry_a[run[-1] + 1], found.match.entry_b[run[-1] + 1]) < 0
    ):
        run.append(run[-1] + 1)
    others = [found.name(at) for at in run[1:] if (found.match.entry_b[at] < 0) != (kind == "only in A")]
    more = sum((found.match.entry_b[at] < 0) == (kind == "only in A") for at in run) - 1
    sentence = f"{has} calls {found.name(place)}{f' and {more} more after it' if more else ''} here, {lacks} "
    sentence += f"calls {others[0]} instead" if others else "does not"
    before = "everything before it agrees" if place else "it is the first call"
    return _divergence(found, place, ("", ""), kind, math.nan, (f"{sentence}; {before}",))


def _lone_value(found: RankComparison, lone: int) -> Divergence:
    row = int(found.lone_row[lone])
    columns = found.a.columns if row >= 0 else found.b.columns
    has, lacks = ("A", "B") if row >= 0 else ("B", "A")
    suffix = _suffix(found, columns.suffix[row if row >= 0 else ~row])
    place = int(found.lone_place[lone])
    sentence = f"{has} has a value here, {lacks} has none"
    if "grad" in found.name(place) or ".backward" in found.name(place):
        sentence += ": no gradient reached it"
    return _divergence(found, place, (suffix, suffix), f"only in {has}", math.nan, (sentence,))


def _divergence(
    found: RankComparison,
    place: int,
    suffixes: tuple[str, str],
    kind: str,
    error: float,
    sentences: tuple[str, ...],
) -> Divergence:
    """`suffixes` are the names of the value in A and in B; empty for a call."""
    name = found.name(place)
    i, j = int(found.match.entry_a[place]), int(found.match.entry_b[place])
    name_b = found.b.columns.entries[j] if j >= 0 else name
    frames = (found.a if i >= 0 else found.b).stack_of(name)
    dot_a, dot_b = (f".{suffix}" if suffix else "" for suffix in suffixes)
    rows = [row for at in range(max(0, place - _BEFORE), place) for row in _summary_row(found, at)]
    rows += item_rows(found, place) or [_call_row(found, place)]
    area = found.a.area_of(name) or found.b.area_of(name_b)
    return Divergence(
        area, found.pair.step, found.pair.rank, place, name + dot_a, name_b + dot_b, kind, error,
        _inputs(found, place), sentences, frames, own_line(frames), tuple(rows),
    )  # fmt: skip


def _inputs(found: RankComparison, place: int) -> str:
    """How the inputs of a call compare, parameters included."""
    judged = found.judged[(found.place == place) & (found.role != OUTPUT)]
    return ("equal", "rounding", "different")[int(judged.max())] if len(judged) else "none"


def _summary_row(found: RankComparison, place: int) -> list[ItemRow]:
    """An earlier call in one row: its worst value."""
    indices = np.flatnonzero(found.place == place)
    if not len(indices):
        return [_call_row(found, place)]
    errors = np.nan_to_num(found.numbers.error[indices], nan=0.0, posinf=np.inf)
    worst = int(indices[int(np.argmax(errors))])
    row = _item_row(found, worst, found.name(place))
    return [ItemRow(found.name(place), "call", row.a, row.b, row.error, int(found.judged[indices].max()))]


def _call_row(found: RankComparison, place: int) -> ItemRow:
    is_a, is_b = found.match.entry_a[place] >= 0, found.match.entry_b[place] >= 0
    is_pair = bool(is_a and is_b)
    text_a, text_b = ("called" if present else "-" for present in (is_a, is_b))
    return ItemRow(found.name(place), "call", text_a, text_b, math.nan, EQUAL if is_pair else DIFFERENT)


def _item_row(found: RankComparison, index: int, name: str) -> ItemRow:
    row_a, row_b = int(found.row_a[index]), int(found.row_b[index])
    suffix = _suffix(found, found.a.columns.suffix[row_a])
    return ItemRow(
        f"{name}.{suffix}", _ROLES[int(found.role[index])], _figure(found, found.a, row_a), _figure(found, found.b, row_b),
        float(found.numbers.error[index]), int(found.judged[index]),
    )  # fmt: skip


def _lone_row(found: RankComparison, row: int, name: str) -> ItemRow:
    side, at = (found.a, row) if row >= 0 else (found.b, ~row)
    code = int(side.columns.suffix[at])
    figure = _figure(found, side, at)
    return ItemRow(
        f"{name}.{_suffix(found, code)}", _ROLES[found.words.roles[code]], figure if row >= 0 else "-",
        "-" if row >= 0 else figure, math.nan, DIFFERENT,
    )  # fmt: skip


_ROLES = {INPUT: "input", PARAMETER: "parameter", OUTPUT: "output"}


def _figure(found: RankComparison, side: Side, row: int) -> str:
    """One number that represents a value: its norm, or the argument itself."""
    columns = side.columns
    if columns.kind[row] == NUMBER:
        return f"{columns.statistics[row, 0]:.6g}"
    if columns.kind[row] == TEXT:
        return list(found.words.texts)[int(columns.text[row])][:24]
    if columns.has[row] & 8:
        return f"{columns.statistics[row, 3]:.7g}"
    if columns.has[row] & HAS_SKETCH:  # a sum over ranks: its norm is only estimated
        return f"~{math.sqrt(float(np.square(columns.sketch[row]).mean())):.3g}"
    if columns.has[row] & 1:
        return f"max {columns.statistics[row, 0]:.6g}"
    return f"{int(columns.digest[row]):08x}" if columns.digest_kind[row] else "?"


def _suffix(found: RankComparison, code: int) -> str:
    return list(found.words.suffixes)[int(code)]
