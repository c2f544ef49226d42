"""Check that the collectives and messages of all ranks match; a mismatch would hang the job on a cluster.

    RankCommunication of each class ──> the same group's calls side by side ──> first difference ──> Mismatch

A rank that was not simulated is checked by the calls of its representative: those in this very group if the
representative is a member, else those in the group that lies in the mesh as this one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from windtunnel.cluster.call_differences import (
    CallSequence,
    Difference,
    collective_sentence,
    find_difference,
    message_sentence,
)
from windtunnel.cluster.mesh import Mesh, mesh_of, pattern_of
from windtunnel.cluster.rank_communication import CallOrder, RankCommunication

__all__ = ["Mismatch", "find_mismatches"]

_ANYONE = -1
_NO_CALLS = CallOrder()
_GroupKey = tuple[tuple[int, ...], int]  # members, and the number of earlier groups with the same members


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two ranks whose calls do not match."""

    ranks: tuple[int, ...]
    sentence: str


def find_mismatches(
    communications: Mapping[int, RankCommunication], representative: Mapping[int, int], world_size: int
) -> tuple[Mismatch, ...]:
    """Compare the calls of the simulated ranks; `representative` maps each rank of the world to a simulated one.

    A rank whose representative is not in `communications` has failed and is skipped. One mistake is reported once, for
    the first ranks that make it.
    """
    mesh = mesh_of(communications[min(communications)].groups if communications else (), world_size)
    simulated = {rank: _RankCalls(communications[rank], mesh) for rank in sorted(communications)}
    found: dict[tuple[object, ...], Mismatch] = {}
    keys = dict.fromkeys(key for calls in simulated.values() for key in calls.keys if len(key[0]) > 1)
    for key in keys:
        difference = _in_group(key, simulated, representative)
        if difference is not None:
            sentence = collective_sentence(difference, key[0])
            found.setdefault((len(key[0]), *difference.key), _mismatch(difference, sentence))
    for difference in _in_messages(simulated, representative):
        sentence = message_sentence(difference)
        found.setdefault(difference.key, _mismatch(difference, sentence))
    return tuple(found.values())


def _mismatch(difference: Difference, sentence: str) -> Mismatch:
    return Mismatch((difference.one.rank, difference.other.rank), sentence)


@dataclass(frozen=True)
class _RankCalls:
    """The communication of a simulated rank, with keys that identify its groups across ranks."""

    communication: RankCommunication
    mesh: Mesh

    @cached_property
    def keys(self) -> tuple[_GroupKey, ...]:
        seen: dict[tuple[int, ...], int] = {}
        found = []
        for group in self.communication.groups:
            found.append((group, seen.get(group, 0)))
            seen[group] = seen.get(group, 0) + 1
        return tuple(found)

    @cached_property
    def index_of(self) -> dict[_GroupKey, int]:
        return {key: index for index, key in enumerate(self.keys)}

    def like(self, group: tuple[int, ...]) -> list[int]:
        """The groups of this rank that lie in the mesh as `group` does."""
        wanted = pattern_of(group, self.mesh)
        sizes = enumerate(map(len, self.communication.groups))
        return [
            i
            for i, n in sizes
            if n == len(group) and pattern_of(self.communication.groups[i], self.mesh) == wanted
        ]

    def order(self, key: _GroupKey) -> CallOrder:
        return self.communication.collectives[self.index_of[key]] if key in self.index_of else _NO_CALLS

    @cached_property
    def receives_from_anyone(self) -> bool:
        return any(peer == _ANYONE for _, peer in self.communication.receives)


# -- collectives ----------------------------------------------------------------------------------------------


def _in_group(
    key: _GroupKey, simulated: Mapping[int, _RankCalls], representative: Mapping[int, int]
) -> Difference | None:
    """Return the earliest call of the first simulated member that another member does not match."""
    members = key[0]
    inside = set(members)
    positions: dict[int, list[int]] = {}  # in the group, of the ranks that each simulated rank represents
    for position, rank in enumerate(members):
        source = rank if rank in simulated else representative.get(rank, rank)
        if source in simulated:
            positions.setdefault(source, []).append(position)
    if not inside & positions.keys():
        return None
    first = simulated[min(inside & positions.keys())]
    one = CallSequence(
        first.communication.rank,
        first.communication,
        first.order(key),
        tuple(positions[first.communication.rank]),
    )
    found = []
    for source, places in positions.items():
        calls = simulated[source]
        if calls is first:
            continue  # the ranks it represents make the same calls
        if source in inside:
            other = CallSequence(source, calls.communication, calls.order(key), tuple(places))
            found.append(find_difference(one, other, is_same_group=True))
        else:
            nth = first.like(members).index(first.index_of[key]) if key in first.index_of else 0
            other = CallSequence(members[places[0]], calls.communication, _NO_CALLS, tuple(places))
            found.append(_in_other_group(one, other, calls.like(members), nth))
    return min((d for d in found if d is not None), key=lambda d: d.index, default=None)


def _in_other_group(one: CallSequence, other: CallSequence, alike: list[int], nth: int) -> Difference | None:
    """Compare with the calls of a rank in another group: the nth of those with the same pattern in the mesh.

    Which group corresponds to which is a guess, so it is enough if any group of the same size matches.
    """
    if not alike:
        return None
    orders, groups = other.communication.collectives, other.communication.groups
    size = len(groups[alike[0]])
    found = {
        i: find_difference(one, replace(other, order=orders[i]), is_same_group=False)
        for i, group in enumerate(groups)
        if len(group) == size
    }
    return None if None in found.values() else found[alike[min(nth, len(alike) - 1)]]


# -- sends and receives ---------------------------------------------------------------------------------------


def _in_messages(
    simulated: Mapping[int, _RankCalls], representative: Mapping[int, int]
) -> Iterator[Difference]:
    for rank, calls in simulated.items():
        for (index, peer), order in calls.communication.sends.items():
            sender, key = CallSequence(rank, calls.communication, order), calls.keys[index]
            difference = _closest(
                sender, _receives(key, rank, peer, simulated, representative), is_sender=True
            )
            if difference is not None:
                yield difference
        for (index, peer), order in calls.communication.receives.items():
            receiver, key = CallSequence(rank, calls.communication, order), calls.keys[index]
            sends = _sends(key, peer, rank, simulated, representative)
            # a simulated sender that sends here has been compared above
            if not calls.receives_from_anyone and not (
                peer in simulated and any(each.order.indexes for each in sends)
            ):
                difference = _closest(receiver, sends, is_sender=False)
                if difference is not None:
                    yield difference


def _receives(
    key: _GroupKey,
    sender: int,
    receiver: int,
    simulated: Mapping[int, _RankCalls],
    representative: Mapping[int, int],
) -> list[CallSequence]:
    """The receive sequences that could match what was sent; none if that cannot be known."""
    calls = simulated.get(receiver) or simulated.get(representative.get(receiver, _ANYONE))
    if calls is None or calls.receives_from_anyone:
        return []
    return _sequences(key, receiver, sender, calls, calls.communication.receives)


def _sends(
    key: _GroupKey,
    sender: int,
    receiver: int,
    simulated: Mapping[int, _RankCalls],
    representative: Mapping[int, int],
) -> list[CallSequence]:
    """The send sequences that could match what is expected; none if that cannot be known."""
    calls = simulated.get(sender) or simulated.get(representative.get(sender, _ANYONE))
    return [] if calls is None else _sequences(key, sender, receiver, calls, calls.communication.sends)


def _sequences(
    key: _GroupKey, rank: int, peer: int, calls: _RankCalls, orders: Mapping[tuple[int, int], CallOrder]
) -> list[CallSequence]:
    if calls.communication.rank == rank:
        index = calls.index_of.get(key, -1)
        return [CallSequence(rank, calls.communication, orders.get((index, peer), _NO_CALLS))]
    # The peer of a rank that was not simulated is unknown: it may be one rank further along an axis, or the same
    # for all. Any matching sequence of its representative will do.
    size = len(key[0])
    alike = [order for (index, _), order in orders.items() if len(calls.communication.groups[index]) == size]
    return [CallSequence(rank, calls.communication, order) for order in alike or [_NO_CALLS]]


def _closest(mine: CallSequence, theirs: list[CallSequence], *, is_sender: bool) -> Difference | None:
    """Return the difference to the sequence that matches longest; None if one matches."""
    found = []
    for other in theirs:
        pair = (mine, other) if is_sender else (other, mine)
        difference = find_difference(*pair, is_same_group=True)
        if difference is None:
            return None
        found.append(difference)
    return max(found, key=lambda d: d.index, default=None)
