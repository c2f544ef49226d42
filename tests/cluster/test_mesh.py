"""Axes read off groups."""

from __future__ import annotations

import pytest

from tests.cluster.communications import mesh_groups
from windtunnel.cluster.mesh import Axis, mesh_of, pattern_of


def axes(groups, world_size):
    return [(axis.stride, axis.size) for axis in mesh_of(groups, world_size).axes]


@pytest.mark.parametrize("rank", [0, 5, 1023])
def test_the_groups_of_any_rank_give_the_axes(rank):
    assert axes(mesh_groups(rank, (8, 16, 8)), 1024) == [(1, 8), (8, 16), (128, 8)]


def test_groups_along_several_axes_at_once_give_their_cuts():
    tensor_and_stage = tuple(r + s for s in (0, 16) for r in (0, 1))
    assert axes([tensor_and_stage], 32) == [(1, 2), (2, 8), (16, 2)]


def test_a_world_without_groups_has_one_axis_and_a_world_of_one_has_none():
    assert axes([], 6) == [(1, 6)]
    assert axes([(0,)], 1) == []


def test_the_first_and_the_last_stage_in_one_group_are_positions_of_an_axis():
    groups = [*mesh_groups(0, (8, 16, 8)), (0, 896)]
    assert mesh_of(groups, 1024).axes == (Axis(1, 8), Axis(8, 16), Axis(128, 8, anchors=(0, 7)))


def test_a_group_that_takes_part_of_an_axis_names_anchors():
    assert mesh_of([(0, 1, 2)], 8).axes == (Axis(1, 8, anchors=(0, 1, 2)),)


def test_groups_no_mesh_explains_give_one_axis_and_anchors():
    mesh = mesh_of([(0, 1), (0, 1, 2), (0, 7)], 12)
    assert mesh.axes == (Axis(1, 12, anchors=(0, 1, 2, 7)),)


def test_anchors_do_not_grow_with_the_group():
    (axis,) = mesh_of([(0, 1), tuple(range(0, 3000, 3))], 16384).axes
    assert len(axis.anchors) <= 10


def test_patterns_forget_where_a_group_lies():
    mesh = mesh_of(mesh_groups(0, (2, 4, 2)), 16)
    assert pattern_of((0, 1), mesh) == pattern_of((14, 15), mesh)
    assert pattern_of((0, 2, 4, 6), mesh) == pattern_of((9, 11, 13, 15), mesh)
    different = [(0, 1), (0, 2), (0, 8), (0, 2, 4, 6), (2, 4)]
    assert len({pattern_of(group, mesh) for group in different}) == len(different)


def test_positions_that_are_too_many_to_look_at_are_counted():
    assert mesh_of([(0, 1, 2)], 8).n_overlooked == 0
    assert mesh_of([tuple(range(20))], 64).n_overlooked == 12
    assert mesh_of([(0, i) for i in range(3, 40, 2)], 64).n_overlooked == 3
