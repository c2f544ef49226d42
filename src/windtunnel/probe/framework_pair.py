"""Two sides of different frameworks, or with a mapping between them: what is neutral, and what the two may differ in.

    Side, Side, Mapping ──> unlike_sides ──> Unlike: how to pair
    pairs, judged once  ──> excused ──> pairs that no judgement should rest on

Inside a module the frameworks may compute in their own way: functions that differ in a module whose results agree are
no finding. Numbers and texts among the arguments follow conventions of a framework (momentum 0.9 is the other's 0.1);
they count where the call returns something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from windtunnel.probe.compared_side import Side
from windtunnel.probe.dump_columns import OUTPUT, TENSOR, Columns, Vocabulary
from windtunnel.probe.entry_name import EntryName
from windtunnel.probe.framework_names import neutral_dtype, neutral_shape, readers
from windtunnel.probe.framework_words import FRAMEWORKS
from windtunnel.probe.mapping import Mapping
from windtunnel.probe.match import Match, Unlike
from windtunnel.probe.pair_numbers import PairNumbers
from windtunnel.probe.tolerance import DIFFERENT, type_eps
from windtunnel.probe.value_pairs import ValuePairs

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
    """How to pair two sides whose words differ, None if theirs are the same; and notes on the mapping."""
    if not is_of_two_frameworks(a, b) and not mapping:
        return None, []
    frameworks = (_framework(a), _framework(b))
    entries = (a.columns.entries, b.columns.entries)
    oriented = mapping.oriented(frameworks)
    found = readers(entries, frameworks, oriented.readers(entries))
    told = oriented.told(*entries)
    notes = [
        f"the mapping of {rule.left}{f' in line {rule.line}' if rule.line else ''} fits no entry"
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
    """Take away what rounding puts into the mean and the norm of integers: each framework, or tool, has its own way."""
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
    """How many modules of each side have a partner."""
    if not is_of_two_frameworks(a, b):
        return []
    texts: list[str] = []
    n_modules = 0
    for name, side, entries, others, read in (
        ("A", a, match.entry_a, match.entry_b, unlike.readers[0]),
        ("B", b, match.entry_b, match.entry_a, unlike.readers[1]),
    ):
        paired = {}
        for at, other in zip(entries.tolist(), others.tolist(), strict=True):
            if at >= 0 and (each := read(side.columns.entries[at])).is_module:
                paired[each.path] = paired.get(each.path, False) or other >= 0
        texts.append(
            f"{sum(paired.values())} of {len(paired)} modules of {name} ({FRAMEWORKS[_framework(side)]})"
        )
        n_modules += len(paired)
    return [f"{' and '.join(texts)} have a partner"] if n_modules else []


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
