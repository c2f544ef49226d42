"""The representatives of a timeline, and the ranks each one represents."""

from __future__ import annotations

from tests.cluster.programs import kernel, program, receive, reduce_all, send
from windtunnel.cluster import equal_times
from windtunnel.cluster.timeline_ranks import representatives_of


def mesh_program(rank: int, sizes: tuple[int, ...], steps):
    """A program with a group along every axis, the innermost first."""
    groups, stride = [], 1
    for size in sizes:
        first = rank - rank // stride % size * stride
        groups.append(tuple(range(first, first + size * stride, stride)))
        stride *= size
    return program(rank, steps, groups)


def test_equal_ranks_without_messages_have_one_representative():
    chosen = representatives_of(
        {0: mesh_program(0, (4, 2), [reduce_all(1.0, 0)])}, dict.fromkeys(range(8), 0), 8
    )
    assert [each.rank for each in chosen.ranks] == [0]
    assert set(chosen.image.values()) == {0}
    assert [group.ranks for group in chosen.ranks[0].groups] == [(0,), (0,)]


def test_two_kinds_of_ranks_call_together_in_the_groups_they_share():
    programs = {rank: mesh_program(rank, (2, 2), [kernel(1.0)]) for rank in (0, 2)}
    chosen = representatives_of(programs, {0: 0, 1: 0, 2: 2, 3: 2}, 4)
    first, second = chosen.ranks
    assert (first.rank, second.rank) == (0, 2)
    assert first.groups[0].ranks == (0,)
    assert second.groups[0].ranks == (2,)
    assert first.groups[1] == second.groups[1]
    assert first.groups[1].ranks == (0, 2)


def test_groups_of_the_same_ranks_are_distinguished():
    twins = {rank: program(rank, [kernel(1.0)], [(0, 1), (0, 1)]) for rank in (0, 1)}
    first, second = representatives_of(twins, {0: 0, 1: 1}, 2).ranks
    assert first.groups == second.groups
    assert len(set(first.groups)) == 2


def pipeline(n_replicas: int, n_stages: int, slow_replica: int = -1):
    """Stages are the outer axis; the middle ones are one class. One replica may be of another kind."""
    programs, shown = {}, {}
    lowest: dict[tuple[int, bool], int] = {}
    for rank in range(n_replicas * n_stages):
        stage, replica = divmod(rank, n_replicas)
        kind = (0 if stage == 0 else 2 if stage == n_stages - 1 else 1, replica == slow_replica)
        shown[rank] = lowest.setdefault(kind, rank)
        steps = [receive(rank - n_replicas, 1)] if stage else []
        steps += [kernel(1.0 + kind[1])] + ([send(rank + n_replicas, 1)] if stage < n_stages - 1 else [])
        if shown[rank] == rank:
            programs[rank] = mesh_program(rank, (n_replicas, n_stages), steps)
    return programs, shown


def test_one_whole_pipeline_represents_all_equal_ones():
    programs, shown = pipeline(n_replicas=4, n_stages=5)
    assert sorted(programs) == [0, 4, 16]
    chosen = representatives_of(programs, shown, 20)
    assert [each.rank for each in chosen.ranks] == [0, 4, 8, 12, 16]
    assert all(chosen.image[rank] == rank // 4 * 4 for rank in range(20))


def test_a_stage_that_was_not_simulated_sends_to_its_own_neighbours():
    programs, shown = pipeline(n_replicas=4, n_stages=5)
    by_rank = {each.rank: each for each in representatives_of(programs, shown, 20).ranks}
    assert by_rank[12].program is programs[4]
    assert dict(by_rank[12].peers) == {0: 8, 8: 16}  # as the program names them -> as they are here
    assert dict(by_rank[0].peers) == {4: 4}


def test_each_kind_of_pipeline_is_represented_once():
    programs, shown = pipeline(n_replicas=4, n_stages=3, slow_replica=3)
    chosen = representatives_of(programs, shown, 12)
    assert [each.rank for each in chosen.ranks] == [0, 3, 4, 7, 8, 11]
    assert chosen.image[6] == 4
    # replicas of one stage call together across both kinds
    groups = {each.rank: each.groups[0] for each in chosen.ranks}
    assert groups[4] == groups[7]
    assert groups[4].ranks == (4, 7)


def test_simulated_ranks_represent_themselves_if_possible():
    """Of two equal pipelines, the one with more simulated ranks is the representative."""
    programs, shown = pipeline(n_replicas=2, n_stages=3)
    own = {0: 1, 2: 3, 4: 5}  # rank -> the simulated one that does the same
    programs = {own[rank]: mesh_program(own[rank], (2, 3), _steps_of(own[rank])) for rank in programs}
    shown = {rank: own[first] for rank, first in shown.items()}
    assert [each.rank for each in representatives_of(programs, shown, 6).ranks] == [1, 3, 5]


def _steps_of(rank: int):
    stage = rank // 2
    return ([receive(rank - 2, 1)] if stage else []) + ([send(rank + 2, 1)] if stage < 2 else [])


def test_unknown_ranks_are_not_peers():
    programs, shown = pipeline(n_replicas=2, n_stages=3)
    known = {rank: r for rank, r in shown.items() if rank < 4}
    by_rank = {each.rank: each for each in representatives_of(programs, known, 6).ranks}
    assert dict(by_rank[2].peers) == {0: 0}
    assert set(representatives_of(programs, known, 6).image) == {0, 1, 2, 3}


def test_a_rank_that_waits_for_a_slow_rank_is_represented_by_itself():
    """Rank 3 is slow: 1 and 2 share a group with it, 0 waits for them. No two go through the same times."""
    programs = {rank: mesh_program(rank, (2, 2), [reduce_all(1.0, 0), reduce_all(1.0, 1)]) for rank in (0, 3)}
    chosen = representatives_of(programs, {0: 0, 1: 0, 2: 0, 3: 3}, 4)
    assert [each.rank for each in chosen.ranks] == [0, 1, 2, 3]
    groups = {each.rank: [group.ranks for group in each.groups] for each in chosen.ranks}
    assert groups == {0: [(0, 1), (0, 2)], 1: [(0, 1), (1, 3)], 2: [(2, 3), (0, 2)], 3: [(2, 3), (1, 3)]}


def test_groups_without_calls_separate_no_ranks():
    programs = {rank: mesh_program(rank, (2, 2), [kernel(1.0)]) for rank in (0, 3)}
    chosen = representatives_of(programs, {0: 0, 1: 0, 2: 0, 3: 3}, 4)
    assert [each.rank for each in chosen.ranks] == [0, 3]


def test_too_many_kinds_are_distinguished_by_messages_only(monkeypatch):
    programs, shown = pipeline(n_replicas=4, n_stages=3, slow_replica=3)
    for rank, each in programs.items():
        steps = [
            reduce_all(1.0, 0),
            *([send(rank + 4, 1)] if rank < 8 else []),
            *([receive(rank - 4, 1)] if rank > 3 else []),
        ]
        programs[rank] = program(rank, steps, each.groups)
    monkeypatch.setattr(equal_times, "MOST_KINDS", 3)
    chosen = representatives_of(programs, shown, 12)
    assert [each.rank for each in chosen.ranks] == [0, 3, 4, 7, 8, 11]
    assert all(peer in chosen.image.values() for each in chosen.ranks for peer in each.peers.values())


def test_too_many_kinds_are_reported_as_inexact(monkeypatch):
    programs, shown = pipeline(4, 6, slow_replica=2)
    assert representatives_of(programs, shown, 24).is_exact
    monkeypatch.setattr(equal_times, "MOST_KINDS", 2)
    assert not representatives_of(programs, shown, 24).is_exact
