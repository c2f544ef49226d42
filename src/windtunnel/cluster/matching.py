"""Check that what the ranks say to each other fits together; what does not would hang on a cluster.

    RankTalk of each class ──> the same group's calls side by side ──> first difference ──> Mismatch

A rank that was not simulated speaks through the one that stands for it. If that one is in the group itself, its
own calls there count; otherwise its calls in the group that lies in the mesh as this one does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from windtunnel.cluster.differences import (
    Difference,
    Voice,
    collective_sentence,
    find_difference,
    message_sentence,
)
from windtunnel.cluster.mesh import Mesh, mesh_of, pattern_of
from windtunnel.cluster.talk import Line, RankTalk

__all__ = ["Mismatch", "find_mismatches"]

_ANYONE = -1
_SILENCE = Line()
_GroupKey = tuple[tuple[int, ...], int]  # members, and how many groups with the same ones were made before


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Two ranks that wait for different things."""

    ranks: tuple[int, ...]
    sentence: str


def find_mismatches(
    talks: Mapping[int, RankTalk], representative: Mapping[int, int], world_size: int
) -> tuple[Mismatch, ...]:
    """Compare the simulated ranks' calls; `representative` says who stands for each rank of the world.

    A rank whose representative is not among `talks` failed: nothing is said about it. One mistake is reported
    once, for the first ranks that meet it.
    """
    mesh = mesh_of(talks[min(talks)].groups if talks else (), world_size)
    cast = {rank: _Part(talks[rank], mesh) for rank in sorted(talks)}
    found: dict[tuple[object, ...], Mismatch] = {}
    keys = dict.fromkeys(key for part in cast.values() for key in part.keys if len(key[0]) > 1)
    for key in keys:
        difference = _in_group(key, cast, representative)
        if difference is not None:
            sentence = collective_sentence(difference, key[0])
            found.setdefault((len(key[0]), *difference.key), _mismatch(difference, sentence))
    for difference in _in_messages(cast, representative):
        sentence = message_sentence(difference)
        found.setdefault(difference.key, _mismatch(difference, sentence))
    return tuple(found.values())


def _mismatch(difference: Difference, sentence: str) -> Mismatch:
    return Mismatch((difference.one.rank, difference.other.rank), sentence)


@dataclass(frozen=True)
class _Part:
    """A rank's talk, and its groups by what they have in common with other ranks' groups."""

    talk: RankTalk
    mesh: Mesh

    @cached_property
    def keys(self) -> tuple[_GroupKey, ...]:
        seen: dict[tuple[int, ...], int] = {}
        found = []
        for group in self.talk.groups:
            found.append((group, seen.get(group, 0)))
            seen[group] = seen.get(group, 0) + 1
        return tuple(found)

    @cached_property
    def index_of(self) -> dict[_GroupKey, int]:
        return {key: index for index, key in enumerate(self.keys)}

    def like(self, group: tuple[int, ...]) -> list[int]:
        """The groups of this rank that lie in the mesh as `group` does."""
        wanted = pattern_of(group, self.mesh)
        sizes = enumerate(map(len, self.talk.groups))
        return [
            i for i, n in sizes if n == len(group) and pattern_of(self.talk.groups[i], self.mesh) == wanted
        ]

    def line(self, key: _GroupKey) -> Line:
        return self.talk.collectives[self.index_of[key]] if key in self.index_of else _SILENCE

    @cached_property
    def listens_to_anyone(self) -> bool:
        return any(peer == _ANYONE for _, peer in self.talk.receives)


# -- collectives ----------------------------------------------------------------------------------------------


def _in_group(
    key: _GroupKey, cast: Mapping[int, _Part], representative: Mapping[int, int]
) -> Difference | None:
    """The earliest call of a group's first simulated member that some other member does not answer."""
    members = key[0]
    inside = set(members)
    positions: dict[int, list[int]] = {}  # in the group, of those each simulated rank speaks for
    for position, rank in enumerate(members):
        speaker = rank if rank in cast else representative.get(rank, rank)
        if speaker in cast:
            positions.setdefault(speaker, []).append(position)
    if not inside & positions.keys():
        return None
    first = cast[min(inside & positions.keys())]
    one = Voice(first.talk.rank, first.talk, first.line(key), tuple(positions[first.talk.rank]))
    found = []
    for speaker, places in positions.items():
        part = cast[speaker]
        if part is first:
            continue  # those it speaks for do what it does
        if speaker in inside:
            other = Voice(speaker, part.talk, part.line(key), tuple(places))
            found.append(find_difference(one, other, is_same_group=True))
        else:
            nth = first.like(members).index(first.index_of[key]) if key in first.index_of else 0
            silent = Voice(members[places[0]], part.talk, _SILENCE, tuple(places))
            found.append(_from_elsewhere(one, silent, part.like(members), nth))
    return min((d for d in found if d is not None), key=lambda d: d.index, default=None)


def _from_elsewhere(one: Voice, other: Voice, alike: list[int], nth: int) -> Difference | None:
    """Compare with a rank whose voice was recorded in another group: the nth of those that lie in the mesh alike.

    Which group answers to which is a guess, so any of the same size that fits is enough.
    """
    if not alike:
        return None
    lines, groups = other.talk.collectives, other.talk.groups
    size = len(groups[alike[0]])
    found = {
        i: find_difference(one, replace(other, line=lines[i]), is_same_group=False)
        for i, group in enumerate(groups)
        if len(group) == size
    }
    return None if None in found.values() else found[alike[min(nth, len(alike) - 1)]]


# -- sends and receives ---------------------------------------------------------------------------------------


def _in_messages(cast: Mapping[int, _Part], representative: Mapping[int, int]) -> Iterator[Difference]:
    for rank, part in cast.items():
        for (index, peer), line in part.talk.sends.items():
            sender, key = Voice(rank, part.talk, line), part.keys[index]
            difference = _closest(sender, _heard(key, rank, peer, cast, representative), is_sender=True)
            if difference is not None:
                yield difference
        for (index, peer), line in part.talk.receives.items():
            receiver, key = Voice(rank, part.talk, line), part.keys[index]
            said = _said(key, peer, rank, cast, representative)
            # a sender that was simulated and sends here has been compared above
            if not part.listens_to_anyone and not (peer in cast and any(v.line.order for v in said)):
                difference = _closest(receiver, said, is_sender=False)
                if difference is not None:
                    yield difference


def _heard(
    key: _GroupKey, sender: int, receiver: int, cast: Mapping[int, _Part], representative: Mapping[int, int]
) -> list[Voice]:
    """The lines of receives that what was sent could meet; none if that cannot be known."""
    part = cast.get(receiver) or cast.get(representative.get(receiver, _ANYONE))
    if part is None or part.listens_to_anyone:
        return []
    return _lines(key, receiver, sender, part, part.talk.receives)


def _said(
    key: _GroupKey, sender: int, receiver: int, cast: Mapping[int, _Part], representative: Mapping[int, int]
) -> list[Voice]:
    """The lines of sends that what is waited for could be; none if that cannot be known."""
    part = cast.get(sender) or cast.get(representative.get(sender, _ANYONE))
    return [] if part is None else _lines(key, sender, receiver, part, part.talk.sends)


def _lines(
    key: _GroupKey, rank: int, peer: int, part: _Part, lines: Mapping[tuple[int, int], Line]
) -> list[Voice]:
    if part.talk.rank == rank:
        index = part.index_of.get(key, -1)
        return [Voice(rank, part.talk, lines.get((index, peer), _SILENCE))]
    # Who the partner of a rank that was not simulated is, is not known: it may be one rank further along an
    # axis, or the same for all. Any line of its representative that fits will do.
    size = len(key[0])
    alike = [line for (index, _), line in lines.items() if len(part.talk.groups[index]) == size]
    return [Voice(rank, part.talk, line) for line in alike or [_SILENCE]]


def _closest(mine: Voice, theirs: list[Voice], *, is_sender: bool) -> Difference | None:
    """The difference to the line that fits longest; none if one fits."""
    found = []
    for other in theirs:
        pair = (mine, other) if is_sender else (other, mine)
        difference = find_difference(*pair, is_same_group=True)
        if difference is None:
            return None
        found.append(difference)
    return max(found, key=lambda d: d.index, default=None)
