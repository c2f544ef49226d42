"""Two sides of different frameworks, or with a mapping between them: how to pair them, and what may differ.

    Side, Side, Mapping ──> unlike_sides ──> Unlike: how to pair
    pairs, judged once  ──> excused ──> pairs to leave out of the judgement

Inside a module, each framework may compute in its own way: functions that differ in a module whose results agree are
not reported. Numbers and strings among the arguments follow conventions of a framework (momentum 0.9 is 0.1 in the
other); they count only if the call returns a different result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from windtunnel.probe.compare.framework_names import neutral_dtype, neutral_shape, readers
from windtunnel.probe.compare.framework_words import FRAMEWORKS
from windtunnel.probe.compare.mapping import Mapping
from windtunnel.probe.compare.pairing import Match, Unlike
from windtunnel.probe.compare.relative_errors import PairNumbers
from windtunnel.probe.compare.side import Side
from windtunnel.probe.compare.tolerance import DIFFERENT, type_eps
from windtunnel.probe.compare.value_columns import OUTPUT, TENSOR, Columns, Vocabulary
from windtunnel.probe.compare.value_pairs import ValuePairs
from windtunnel.probe.files.entry_name import EntryName

__all__ = [
    "excused",
    "is_of_two_frameworks",
    "neutral",
    "pairing_notes",
    "round_whole_numbers",
    "unlike_sides",
]

_WHOLE = 4 * 2.0**-23  # relative: a mean or a norm in float32


def is_of_two_frameworks(a: Side, b: Side) -> bool:
    names = {FRAMEWORKS.get(_framework(side), "") for side in (a, b)}
    return len(names - {""}) > 1


def unlike_sides(a: Side, b: Side, words: Vocabulary, mapping: Mapping) -> tuple[Unlike | None, list[str]]:
    """How to pair two sides with different vocabularies, None if they are the same; and notes on the mapping."""
    if not is_of_two_frameworks(a, b) and not mapping:
        return None, []
    frameworks = (_framework(a), _framework(b))
    entries = (a.columns.entries, b.columns.entries)
    oriented = mapping.oriented(frameworks)
    found = readers(entries, frameworks, oriented.readers(entries))
    told = oriented.told(*entries)
    notes = [
        f"the mapping of {rule.left}{f' in line {rule.line}' if rule.line else ''} matches no entry"
        for rule in oriented.unused()
    ]
    return Unlike(found, ValuePairs(a.columns, b.columns, words, told), words), notes


def neutral(columns: Columns, words: Vocabulary) -> Columns:
    """The same with one code for types and shapes that mean the same in both frameworks."""
    dtypes: dict[str, int] = {}
    shapes: dict[tuple[int, ...], int] = {}
    known = list(words.shapes)
    dtype = np.array(
        [dtypes.setdefault(neutral_dtype(name), at) for at, name in enumerate(words.dtypes)] or [0]
    )
    shape = np.array([shapes.setdefault(neutral_shape(each), at) for at, each in enumerate(known)] or [0])
    return replace(columns, dtype=dtype[columns.dtype], shape=shape[columns.shape])


def round_whole_numbers(
    numbers: PairNumbers, sides: Sequence[Columns], rows: Sequence[np.ndarray], words: Vocabulary
) -> None:
    """Ignore rounding in the mean and the norm of integers: each framework, or tool, computes them differently."""
    is_exact = np.array([type_eps(name) == 0 for name in words.dtypes] or [False])
    chosen = numbers.error <= _WHOLE
    for columns, at in zip(sides, rows, strict=True):
        chosen &= (columns.kind[at] == TENSOR) & is_exact[columns.dtype[at]]
    numbers.error[chosen] = 0.0


def excused(match: Match, a: Side, unlike: Unlike, roles: np.ndarray, judged: np.ndarray) -> np.ndarray:
    """Pairs to leave out; the rows of `match` are pairs."""
    names = [unlike.readers[0](entry) for entry in a.columns.entries]
    n_places = len(match.entry_a)
    parts = (roles == OUTPUT) & (judged == DIFFERENT)
    is_off = np.zeros(n_places, bool)
    is_off[match.place[parts]] = True
    has_results = np.zeros(n_places, bool)
    has_results[match.place[roles == OUTPUT]] = True
    is_setting = (a.columns.kind[match.row_a] != TENSOR) & ~is_off[match.place] & has_results[match.place]
    is_inside = _inside_agreeing(match, a, names, is_off, has_results)[match.place]
    return (is_setting | is_inside) & (judged == DIFFERENT)


def pairing_notes(match: Match, a: Side, b: Side, unlike: Unlike) -> list[str]:
    """How many modules of each side have a counterpart."""
    if not is_of_two_frameworks(a, b):
        return []
    texts: list[str] = []
    n_modules = 0
    for name, side, entries, others, read in (
        ("A", a, match.entry_a, match.entry_b, unlike.readers[0]),
        ("B", b, match.entry_b, match.entry_a, unlike.readers[1]),
    ):
        paired: dict[str, bool] = {}  # path of a module -> has a counterpart
        for at, other in zip(entries.tolist(), others.tolist(), strict=True):
            if at >= 0 and (each := read(side.columns.entries[at])).is_module:
                paired[each.path] = paired.get(each.path, False) or other >= 0
        texts.append(
            f"{sum(paired.values())} of {len(paired)} modules of {name} ({FRAMEWORKS[_framework(side)]})"
        )
        n_modules += len(paired)
    return [f"{' and '.join(texts)} have a counterpart"] if n_modules else []


def _framework(side: Side) -> str:
    return str(side.first.header.get("framework") or "").lower()


def _inside_agreeing(
    match: Match, a: Side, names: list[EntryName], is_off: np.ndarray, has_results: np.ndarray
) -> np.ndarray:
    """Places of functions in a module that both sides have, and whose results agree."""
    place_of = {
        i: place for place, i in enumerate(match.entry_a.tolist()) if i >= 0 and match.entry_b[place] >= 0
    }
    index = {entry: i for i, entry in enumerate(a.columns.entries)}
    parents = a.parents()
    found = np.zeros(len(match.entry_a), bool)
    for i, place in place_of.items():
        parent = parents.get(a.columns.entries[i])
        at = place_of.get(index.get(parent, -1), -1) if parent else -1
        found[place] = not names[i].is_module and at >= 0 and bool(has_results[at]) and not is_off[at]
    return found
