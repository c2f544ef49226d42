"""From recordings to classes to mismatches, for whole worlds: no correct program is reported, every broken one is."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from math import prod
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cluster.communications import (
    CallSpec,
    all_gather,
    all_reduce,
    broadcast,
    digits,
    mesh_groups,
    record,
    recv,
    send,
)
from windtunnel.cluster.matching import find_mismatches
from windtunnel.cluster.rank_communication import RankCommunication, communication_of
from windtunnel.cluster.ranks_to_simulate import RankClasses
from windtunnel.events.file import read_recording
from windtunnel.events.model import Step


@st.composite
def programs(draw):
    """A mesh of up to 48 ranks whose outermost axis is a pipeline, and calls in groups along each axis."""
    sizes = tuple(draw(st.lists(st.integers(2, 4), min_size=2, max_size=3)))
    calls = draw(
        st.lists(st.tuples(st.integers(0, 5), st.integers(0, len(sizes)), st.integers(1, 99)), max_size=8)
    )
    return sizes, calls


def calls_of(rank: int, sizes: tuple[int, ...], drawn: list[tuple[int, int, int]]) -> list[CallSpec | Step]:
    """A correct program: the calls of a rank depend on its stage, and on whether it is the last along an axis."""
    calls: list[CallSpec | Step] = []
    at, groups = digits(rank, sizes), mesh_groups(rank, sizes)
    stride = prod(sizes[:-1])
    for i, (what, where, n) in enumerate(drawn):
        group, line = groups[where], i + 1
        varies = where == len(sizes) or where == 0  # the group crosses stages: all must agree
        size = n if varies else n + at[-1]
        if what == 0:
            calls.append(all_reduce(size, group=where, line=line))
        elif what == 1:
            calls.append(broadcast(size, root=group[n % len(group)], group=where, line=line))
        elif what == 2:  # the last of the group has an uneven share
            shares = [size] * (len(group) - 1) + [size + 5]
            calls.append(all_gather(shares[group.index(rank)], *shares, group=where, line=line))
        elif what == 3:  # a pipeline: receive, work, send
            calls += [recv(rank - stride, n, line=line)] if at[-1] > 0 else []
            calls += [send(rank + stride, n, line=line)] if at[-1] < sizes[-1] - 1 else []
        elif what == 4:  # everyone to rank 0
            others = range(1, prod(sizes))
            calls += [recv(r, n, line=line) for r in others] if rank == 0 else [send(0, n, line=line)]
        else:  # a ring
            ring = groups[1]
            place = ring.index(rank)
            calls.append(send(ring[(place + 1) % len(ring)], n, group=1, line=line))
            calls.append(recv(ring[place - 1], n, group=1, line=line))
    return [*calls, Step(1)]


def communication(
    folder: Path, rank: int, sizes: tuple[int, ...], calls: list[CallSpec | Step]
) -> RankCommunication:
    record(folder / "r", calls, mesh_groups(rank, sizes))
    return communication_of(read_recording(folder / "r"), rank, prod(sizes))


def simulate(folder: Path, sizes: tuple[int, ...], calls) -> tuple[dict[int, RankCommunication], RankClasses]:
    classes, communications = RankClasses(prod(sizes)), {}
    while wanted := classes.wanted():
        for rank in wanted:
            communications[rank] = communication(folder, rank, sizes, calls(rank))
            classes.learn(communications[rank], rank)
    return communications, classes


@settings(max_examples=25, deadline=None)
@given(programs())
def test_a_correct_program_is_never_reported(program):
    sizes, calls = program
    with tempfile.TemporaryDirectory() as folder:
        communications, classes = simulate(Path(folder), sizes, lambda rank: calls_of(rank, sizes, calls))
        assert find_mismatches(communications, classes.representatives(), prod(sizes)) == ()
        everyone = {
            rank: communication(Path(folder), rank, sizes, calls_of(rank, sizes, calls))
            for rank in range(prod(sizes))
        }
    assert find_mismatches(everyone, {rank: rank for rank in everyone}, prod(sizes)) == ()
    stands_for = classes.representatives()
    assert {r: everyone[r].digest for r in everyone} == {r: everyone[q].digest for r, q in stands_for.items()}


@settings(max_examples=25, deadline=None)
@given(programs().filter(lambda program: program[1]), st.data())
def test_a_call_of_another_size_is_always_reported(program, data):
    sizes, calls = program
    culprit = data.draw(st.integers(0, prod(sizes) - 1))
    right = calls_of(culprit, sizes, calls)
    wrong = data.draw(st.sampled_from([i for i, each in enumerate(right) if isinstance(each, CallSpec)]))
    given_, got = ([n + 1000 for n in sizes] for sizes in (right[wrong].given, right[wrong].got))
    broken = [*right[:wrong], replace(right[wrong], given=tuple(given_), got=tuple(got)), *right[wrong + 1 :]]
    with tempfile.TemporaryDirectory() as folder:
        everyone = {
            rank: communication(
                Path(folder), rank, sizes, broken if rank == culprit else calls_of(rank, sizes, calls)
            )
            for rank in range(prod(sizes))
        }
    found = find_mismatches(everyone, {rank: rank for rank in everyone}, prod(sizes))
    assert len(found) == 1
    assert culprit in found[0].ranks
    assert f"train.py:{right[wrong].line}" in found[0].sentence
