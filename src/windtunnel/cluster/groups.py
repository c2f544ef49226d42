"""The process groups one rank is in.

GROUP rows of a recording ──> RankGroups: members and names in order of creation, and the index of each by its id
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from windtunnel.events.model import Kind, Recording

__all__ = ["RankGroups", "groups_of"]


@dataclass(frozen=True, slots=True)
class RankGroups:
    members: tuple[tuple[int, ...], ...]  # global ranks
    names: tuple[int, ...]  # the program's names for them: indexes into `Recording.names`
    index_of: dict[int, int]  # by the id that calls use


def groups_of(recording: Recording, rank: int) -> RankGroups:
    columns = recording.columns
    offsets, ranks = recording.inputs
    members: list[tuple[int, ...]] = []
    names: list[int] = []
    index_of: dict[int, int] = {}
    for row in np.flatnonzero(columns["kind"] == Kind.GROUP).tolist():
        group = tuple(ranks[offsets[row] : offsets[row + 1]].tolist())
        if rank in group:
            index_of[int(columns["subject"][row])] = len(members)
            members.append(group)
            names.append(int(columns["value"][row]))
    return RankGroups(tuple(members), tuple(names), index_of)
