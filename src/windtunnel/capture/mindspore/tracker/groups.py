"""Find the ranks that take part in a collective of a MindSpore program.

attributes of a graph's operator, or the next line of comm_execute_order.csv ──> Participants(group, ranks, peer)
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from windtunnel.capture.mindspore.tracker.files import Communication
from windtunnel.capture.mindspore.tracker.graph import TrackedOp

__all__ = ["ParticipantFinder", "Participants"]

_RANK = re.compile(r"[0-9]{1,8}")
_PEERS = ("src_rank", "dst_rank", "dest_rank", "root_rank")


class Participants(NamedTuple):
    group: str
    ranks: tuple[int, ...]
    peer: int | None  # the partner of a send or receive, the root of a broadcast


class ParticipantFinder:
    """Operators of a compiled graph have their group as attributes; a separate file lists the calls of a dynamic graph."""

    def __init__(self, communication: Iterable[Communication]) -> None:
        self._calls: dict[str, deque[Communication]] = {}
        for call in communication:
            self._calls.setdefault(call.primitive, deque()).append(call)

    def of(self, operator: TrackedOp, primitive: str) -> Participants:
        given = operator.attributes
        ranks = tuple(int(rank) for rank in given.get("comm_rank", "").split() if _RANK.fullmatch(rank))
        if ranks:
            peers = (peer for key in _PEERS if (peer := operator.number(key)) is not None)
            return Participants(given.get("group", ""), ranks, next(peers, None))
        calls = self._calls.get(primitive)
        if not calls:
            return Participants("", (), None)
        call = calls.popleft()
        found = (rank for rank in (call.source, call.target, call.root) if rank is not None)
        return Participants(call.group, call.ranks, next(found, None))
