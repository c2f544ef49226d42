"""What one rank has to do with the others: its groups, its communication calls, and a digest of its work.

    Recording of a rank ──> RankCommunication ──> classes (which ranks are equal?), matching (do their calls match?)

A rank repeats a few distinct calls many times. Each distinct call is stored once; a sequence of calls is a list of
indexes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

import numpy as np

from windtunnel.cluster.equal_work import digest_of, peak_bytes_of
from windtunnel.cluster.groups import groups_of
from windtunnel.events.model import Kind, Recording, Signature, TensorSpec

__all__ = ["Call", "CallOrder", "RankCommunication", "communication_of"]

_PREFIX = "c10d."
_NO_PEER = -1


@dataclass(frozen=True, slots=True)
class Call:
    """One collective, send or receive, as its peers see it. None and () mean unknown."""

    kind: str  # "all_reduce"
    source: str = ""  # "train.py:41"
    dtype: str | None = None
    n_elements: int | None = None  # that this rank contributes or receives, where peers must agree on it
    shares: tuple[int, ...] = ()  # elements it expects of the others: one number for all, or one per member
    root: int | None = None  # global rank, of broadcast, reduce, gather and scatter
    reduction: str | None = None  # "SUM"


@dataclass(frozen=True, slots=True)
class CallOrder:
    """Calls in program order, as indexes into `RankCommunication.calls`."""

    indexes: tuple[int, ...] = ()
    n_settled: int = 0  # number of calls before the end of the last optimizer step


@dataclass(frozen=True)
class RankCommunication:
    """Everything needed to compare one rank with the others. Small, and can be pickled."""

    rank: int
    world_size: int
    groups: tuple[tuple[int, ...], ...]  # global ranks, in order of creation
    digest: str  # equal for ranks that do the same work
    calls: tuple[Call, ...] = ()
    collectives: tuple[CallOrder, ...] = ()  # one for each group
    sends: Mapping[tuple[int, int], CallOrder] = field(default_factory=dict)  # (index of the group, peer)
    receives: Mapping[tuple[int, int], CallOrder] = field(default_factory=dict)  # peer -1: from anyone
    n_steps: int = 0
    rough_digest: str = ""  # equal for ranks with the same model work, however their optimizer state is cut
    peak_bytes: int = 0
    is_whole: bool = (
        True  # the program ended by itself; False: it was stopped, and more calls would have followed
    )
    group_names: tuple[str, ...] = ()  # what the program calls them, one for each group


def communication_of(recording: Recording, rank: int, world_size: int) -> RankCommunication:
    """Extract the communication of a rank from its recording."""
    columns = recording.columns
    found = groups_of(recording, rank)
    groups, index_of_group = found.members, found.index_of
    steps = np.flatnonzero(columns["kind"] == Kind.STEP)
    last_step = int(steps[-1]) if len(steps) else -1
    sorter = _CallSorter(recording, groups)
    rows = np.flatnonzero(columns["kind"] == Kind.COLLECTIVE)
    wanted = (columns[name][rows].tolist() for name in ("extra", "value", "frame"))
    for row, group, signature, frame in zip(rows.tolist(), *wanted, strict=True):
        if group in index_of_group:
            sorter.add(index_of_group[group], signature, frame, row < last_step)
    none = CallOrder()
    sizes = {id: len(groups[index]) for id, index in index_of_group.items()}
    return RankCommunication(
        rank,
        world_size,
        groups,
        digest_of(recording, sizes),
        tuple(sorter.calls),
        tuple(sorter.orders("collective").get((index, _NO_PEER), none) for index in range(len(groups))),
        sorter.orders("send"),
        sorter.orders("recv"),
        len(steps),
        digest_of(recording, sizes, is_rough=True),
        peak_bytes_of(recording),
        _is_whole(recording, len(steps)),
        tuple(recording.name(name) for name in found.names),
    )


def _is_whole(recording: Recording, n_steps: int) -> bool:
    """Whether the program ran to its own end, as far as the recording tells.

    A run that `--steps` stopped is complete and "ok" too; only one without a step cannot have been stopped.
    """
    footer = recording.footer
    if not recording.is_complete or footer.get("status", "ok") != "ok":
        return False
    return n_steps == 0 or footer.get("is_stopped") is False


class _CallSorter:
    """Sorts calls into sequences: one for each group, and one for each peer and direction."""

    def __init__(self, recording: Recording, groups: tuple[tuple[int, ...], ...]) -> None:
        self.calls: list[Call] = []
        self._recording, self._groups = recording, groups
        self._known: dict[tuple[int, int, int], tuple[int, tuple[str, int, int]]] = {}
        self._orders: dict[tuple[str, int, int], tuple[list[int], list[bool]]] = {}

    def add(self, group: int, signature: int, frame: int, is_settled: bool) -> None:
        key = (group, signature, frame)
        if key not in self._known:
            self._known[key] = self._intern(*key)
        index, channel = self._known[key]
        indexes, settled = self._orders.setdefault(channel, ([], []))
        indexes.append(index)
        settled.append(is_settled)

    def orders(self, direction: str) -> dict[tuple[int, int], CallOrder]:
        found = ((key, calls) for key, calls in self._orders.items() if key[0] == direction)
        return {key[1:]: CallOrder(tuple(indexes), sum(settled)) for key, (indexes, settled) in found}

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
        # the path below site-packages inside a package, else the bare file name
        short = file.split("/site-packages/", 1)[1] if "/site-packages/" in file else file.rsplit("/", 1)[-1]
        return f"{short}:{at.line}"


def _call_of(signature: Signature, group_size: int, source: str) -> tuple[Call, int]:
    """Return the call as its peers see it, and the peer of a send or receive."""
    kind = signature.name.removeprefix(_PREFIX)
    words = dict(word.split("=", 1) for word in signature.scalars.split() if "=" in word)
    peer = int(words.get("peer", _NO_PEER))
    specs = (*signature.inputs, *signature.outputs)
    dtype = specs[0].dtype if specs and kind != "barrier" else None
    n_elements, shares = _counts(kind, signature, group_size)
    if dtype == "uint8":  # pickled objects: their length depends on values that a dry run does not have
        n_elements, shares = None, ()
    has_root = kind in ("broadcast", "reduce", "gather", "scatter") and peer >= 0
    call = Call(kind, source, dtype, n_elements, shares, peer if has_root else None, words.get("op"))
    return call, peer


def _counts(kind: str, signature: Signature, group_size: int) -> tuple[int | None, tuple[int, ...]]:
    """Return the elements that this rank contributes or receives, and the shares it expects of the others."""
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
