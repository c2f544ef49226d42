"""The result of a comparison as one page: the module tree, the error of every call, the values of both sides.

    RankComparison, one by one ──> PrecisionPage.add ──┐
    CompareResult ─────────────────────────────────────┴──> PrecisionPage.finish ──> bytes of a page

The tree counts every value. The number of values listed one by one is limited, and the page says so.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from windtunnel.probe.compare.call_states import BOTH, PHASES, CallStates, call_states
from windtunnel.probe.compare.comparison import RankComparison
from windtunnel.probe.compare.module_tree import ModuleTree, module_tree
from windtunnel.report.json.compare import compare_document
from windtunnel.report.page.columns import pack
from windtunnel.report.page.precision_values import EVIDENCE_WORDS, chosen_calls, packed_texts, value_columns
from windtunnel.report.page.web_page import page_bytes
from windtunnel.report.results.compare import CompareResult, counts, headline, rule

__all__ = ["PrecisionPage"]

_MOST_VALUES = 90_000  # about 100 bytes each in the page
_MOST_CALLS = 40_000
_MOST_PARTS = 64  # steps and ranks with their own tree
_LEAST_VALUES = 200  # of every part: where its differences start
_MOST_STACKS = 200


class PrecisionPage:
    """Collects what the page needs, one step and rank after the other."""

    def __init__(self) -> None:
        self._parts: list[dict[str, Any]] = []
        self._values_left, self._calls_left = _MOST_VALUES, _MOST_CALLS
        self._n_left_out = 0  # parts

    def add(self, found: RankComparison) -> None:
        if len(self._parts) >= _MOST_PARTS:
            self._n_left_out += 1
            return
        states = call_states(found)
        # Half of the remaining budget, so that later steps and ranks get some too.
        most_values = max(
            _LEAST_VALUES, self._values_left // 2 if self._parts else self._values_left * 2 // 3
        )
        most_calls = max(_LEAST_VALUES, self._calls_left // 2)
        places, told = chosen_calls(found, states, most_values, most_calls)
        values = value_columns(found, places, told)
        self._values_left = max(0, self._values_left - values["n"])
        self._calls_left = max(0, self._calls_left - len(places))
        tree = module_tree(states, _parents(found))
        self._parts.append(_part(found, states, tree, places, told, values))

    def finish(self, result: CompareResult) -> bytes:
        document = {
            "kind": "precision",
            "title": f"{_short(result.a)} and {_short(result.b)}",
            "made_by": f"windtunnel {result.windtunnel}",
            "headline": headline(result),
            "is_equal": result.findings.is_equal,
            "counts_sentence": counts(result),
            "rule": rule(result),
            "compare": compare_document(result),
            "phases": list(PHASES),
            "evidence": list(EVIDENCE_WORDS),
            "parts": self._parts,
            "n_parts_left_out": self._n_left_out,
        }
        return page_bytes("precision", document)


def _short(path: str) -> str:
    return path.rstrip("/").replace("\\", "/").rpartition("/")[2] or path


def _parents(found: RankComparison) -> list[str | None]:
    """Return the module of each call, if the dump has it."""
    a, b = found.a.parents(), found.b.parents()
    return [
        a.get(found.name(place)) if entry >= 0 else b.get(found.name(place))
        for place, entry in enumerate(found.match.entry_a.tolist())
    ]


def _part(
    found: RankComparison,
    states: CallStates,
    tree: ModuleTree,
    places: np.ndarray,
    told: np.ndarray,
    values: dict[str, Any],
) -> dict[str, Any]:
    n = len(states.state)
    n_values = int(states.counts[states.side == BOTH].sum())
    return {
        "area": found.pair.area,
        "step": found.pair.step,
        "rank": found.pair.rank,
        "n_calls": n,
        "n_values": n_values,
        "n_told": values["n"],
        "first": states.first,
        "is_whole_tree": tree.is_whole,
        "nodes": {
            "names": packed_texts(list(tree.names)),
            "classes": packed_texts(list(tree.class_names)),
            "kind": pack(tree.kinds),
            "parent": pack(tree.parents),
            "equal": pack(tree.counts[:, 0]),
            "rounding": pack(tree.counts[:, 1]),
            "different": pack(tree.counts[:, 2]),
            "one_sided": pack(tree.counts[:, 3]),
            "error": pack(tree.error.astype(np.float64)),
            "calls": pack(tree.n_calls),
            "begins": pack(tree.n_begins),
            "first": pack(tree.first),
        },
        "calls": {
            "names": packed_texts([found.name(place) for place in places.tolist()]),
            "place": pack(places, is_rising=True),
            "node": pack(tree.node_of_call[places]),
            "phase": pack(states.phase[places]),
            "side": pack(states.side[places]),
            "state": pack(states.state[places]),
            "error": pack(states.error[places].astype(np.float64)),
            "begins": pack(states.begins[places]),
            "is_told": pack(told),
        },
        "names_in_b": _names_in_b(found, places),
        "stacks": _stacks(found, states, places),
        "values": values,
    }


def _names_in_b(found: RankComparison, places: np.ndarray) -> dict[str, str]:
    """Return index of a call -> its name in B, where that differs."""
    names = {}
    for index, place in enumerate(places.tolist()):
        i, j = int(found.match.entry_a[place]), int(found.match.entry_b[place])
        if i >= 0 and j >= 0 and found.a.columns.entries[i] != found.b.columns.entries[j]:
            names[str(index)] = found.b.columns.entries[j]
    return names


def _stacks(found: RankComparison, states: CallStates, places: np.ndarray) -> dict[str, list[str]]:
    """Return the first calls where a difference starts."""
    stacks: dict[str, list[str]] = {}
    for index in np.flatnonzero(states.begins[places])[:_MOST_STACKS].tolist():
        place = int(places[index])
        side = found.a if found.match.entry_a[place] >= 0 else found.b
        frames = [" ".join(frame.split()) for frame in side.stack_of(found.name(place))]
        if frames:
            stacks[str(index)] = frames
    return stacks
