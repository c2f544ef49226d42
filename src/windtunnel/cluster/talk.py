"""What one rank has to do with the others: its groups, its calls, and a digest of its work.

    Recording of a rank ──> RankTalk ──> classes (who does the same?), matching (does it fit together?)

A rank repeats few distinct calls many times: each is kept once, and a line of calls is a row of numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from windtunnel.cluster.digest import digest_of, peak_bytes_of
from windtunnel.cluster.groups import groups_of
from windtunnel.events.model import Kind, Recording, Signature, TensorSpec

__all__ = ["Call", "Line", "RankTalk", "talk_of"]

_PREFIX = "c10d."
_NO_PEER = -1


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, send or receive, as its peers see it. None and () stand for what cannot be known."""

    kind: str  # "all_reduce"
    source: str = ""  # "train.py:41"
    dtype: str | None = None
    n_elements: int | None = None  # what this rank gives or gets, of what its peers must agree on
    shares: tuple[
        int, ...
    ] = ()  # what it takes the others to give or get: one for all, or one for each member
    root: int | None = None  # global rank, of broadcast, reduce, gather and scatter
    reduction: str | None = None  # "SUM"


@dataclass(frozen=True, slots=True)
class Line:
    """Calls in program order, as indexes into `RankTalk.calls`."""

    order: tuple[int, ...] = ()
    n_settled: int = 0  # how many of them were made before the last optimizer step ended


@dataclass(frozen=True)
class RankTalk:
    """Everything that must be known of one rank to place it among the others. Small; can be pickled."""

    rank: int
    world_size: int
    groups: tuple[tuple[int, ...], ...]  # global ranks, in order of creation
    digest: str  # equal for ranks that do the same work
    calls: tuple[Call, ...] = ()
    collectives: tuple[Line, ...] = ()  # one for each group
    sends: Mapping[tuple[int, int], Line] = field(default_factory=dict)  # (index of the group, peer)
    receives: Mapping[tuple[int, int], Line] = field(default_factory=dict)  # peer -1: from anyone
    n_steps: int = 0
    rough_digest: str = ""  # equal for ranks whose model does the same, whatever their optimizer's pieces
    peak_bytes: int = 0
    is_whole: bool = True  # the program ended by itself; False: it was stopped, and would have said more
    group_names: tuple[str, ...] = ()  # what the program calls them, one for each group


def talk_of(recording: Recording, rank: int, world_size: int) -> RankTalk:
    """Read a rank's recording."""
    columns = recording.columns
    found = groups_of(recording, rank)
    groups, index_of_group = found.members, found.index_of
    steps = np.flatnonzero(columns["kind"] == Kind.STEP)
    last_step = int(steps[-1]) if len(steps) else -1
    writer = _LineWriter(recording, groups)
    rows = np.flatnonzero(columns["kind"] == Kind.COLLECTIVE)
    wanted = (columns[name][rows].tolist() for name in ("extra", "value", "frame"))
    for row, group, signature, frame in zip(rows.tolist(), *wanted, strict=True):
        if group in index_of_group:
            writer.add(index_of_group[group], signature, frame, row < last_step)
    none = Line()
    sizes = {id: len(groups[index]) for id, index in index_of_group.items()}
    return RankTalk(
        rank,
        world_size,
        groups,
        digest_of(recording, sizes),
        tuple(writer.calls),
        tuple(writer.lines("collective").get((index, _NO_PEER), none) for index in range(len(groups))),
        writer.lines("send"),
        writer.lines("recv"),
        len(steps),
        digest_of(recording, sizes, is_rough=True),
        peak_bytes_of(recording),
        _is_whole(recording, len(steps)),
        tuple(recording.name(name) for name in found.names),
    )


def _is_whole(recording: Recording, n_steps: int) -> bool:
    """Whether the program ran to its own end, as far as the recording says so.

    A run that `--steps` stopped is complete and "ok" too; only one without a step cannot have been stopped.
    """
    footer = recording.footer
    if not recording.is_complete or footer.get("status", "ok") != "ok":
        return False
    return n_steps == 0 or footer.get("is_stopped") is False


class _LineWriter:
    """Sorts calls into lines: one for each group, and one for each peer and direction."""

    def __init__(self, recording: Recording, groups: tuple[tuple[int, ...], ...]) -> None:
        self.calls: list[Call] = []
        self._recording, self._groups = recording, groups
        self._known: dict[tuple[int, int, int], tuple[int, tuple[str, int, int]]] = {}
        self._lines: dict[tuple[str, int, int], tuple[list[int], list[bool]]] = {}

    def add(self, group: int, signature: int, frame: int, is_settled: bool) -> None:
        key = (group, signature, frame)
        if key not in self._known:
            self._known[key] = self._intern(*key)
        index, line = self._known[key]
        order, settled = self._lines.setdefault(line, ([], []))
        order.append(index)
        settled.append(is_settled)

    def lines(self, direction: str) -> dict[tuple[int, int], Line]:
        found = ((key, line) for key, line in self._lines.items() if key[0] == direction)
        return {key[1:]: Line(tuple(order), sum(settled)) for key, (order, settled) in found}

    def _intern(self, group: int, signature: int, frame: int) -> tuple[int, tuple[str, int, int]]:
        call, peer = _call_of(
            self._recording.signatures[signature], len(self._groups[group]), self._source(frame)
        )
        self.calls.append(call)
        if call.kind in ("send", "recv"):
            return len(self.calls) - 1, (call.kind, group, peer)
        return len(self.calls) - 1, ("collective", group, _NO_PEER)

    def _source(self, frame: int) -> str:
        if frame < 0:
            return ""
        at = self._recording.frames[frame]
        file = at.file.replace("\\", "/")
        # inside a package the path from the package, else the name of the file: as a person would write it
        short = file.split("/site-packages/", 1)[1] if "/site-packages/" in file else file.rsplit("/", 1)[-1]
        return f"{short}:{at.line}"


def _call_of(signature: Signature, group_size: int, source: str) -> tuple[Call, int]:
    """What peers see of a call, and the partner of a send or receive."""
    kind = signature.name.removeprefix(_PREFIX)
    words = dict(word.split("=", 1) for word in signature.scalars.split() if "=" in word)
    peer = int(words.get("peer", _NO_PEER))
    specs = (*signature.inputs, *signature.outputs)
    dtype = specs[0].dtype if specs and kind != "barrier" else None
    n_elements, shares = _counts(kind, signature, group_size)
    if dtype == "uint8":  # pickled objects: as long as what a simulated peer would have put in
        n_elements, shares = None, ()
    has_root = kind in ("broadcast", "reduce", "gather", "scatter") and peer >= 0
    call = Call(kind, source, dtype, n_elements, shares, peer if has_root else None, words.get("op"))
    return call, peer


def _counts(kind: str, signature: Signature, group_size: int) -> tuple[int | None, tuple[int, ...]]:
    """Elements this rank gives or gets, and the shares it takes the others to have."""
    given, got = _sizes(signature.inputs), _sizes(signature.outputs)
    match kind:
        case "all_gather" | "gather":
            mine, everyone = given, got
        case "reduce_scatter" | "scatter":
            mine, everyone = got, given
        case "all_to_all" | "barrier":
            return None, ()
        case _:
            n_elements = sum(given or got) if given or got else None
            return n_elements, () if n_elements is None else (n_elements,)
    if len(mine) == 1 and len(everyone) == group_size:
        return mine[0], everyone
    n_elements = sum(mine) if mine else None
    is_even = len(mine) == len(everyone) and everyone == tuple(n * group_size for n in mine)
    return n_elements, (sum(mine),) if mine and is_even else ()


def _sizes(specs: tuple[TensorSpec, ...]) -> tuple[int, ...]:
    return tuple(prod(spec.shape) for spec in specs)
