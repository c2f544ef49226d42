"""Axes and their names, from groups as real libraries make and name them."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

from tests.cluster.communications import mesh_groups, record
from windtunnel.cluster.mesh_axes import MeshAxis, mesh_axes
from windtunnel.cluster.rank_communication import RankCommunication, communication_of
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Group

BAD = "<script>alert(1)</script>"


def along(rank, sizes, *axes):
    """The group of a rank along some axes of a mesh, sizes from the innermost axis outwards."""
    strides = [prod(sizes[:i]) for i in range(len(sizes))]
    digits = [rank // stride % size for stride, size in zip(strides, sizes, strict=True)]
    found = [sum(d * s for i, (d, s) in enumerate(zip(digits, strides, strict=True)) if i not in axes)]
    for axis in axes:
        found = [at + step * strides[axis] for at in found for step in range(sizes[axis])]
    return tuple(sorted(found))


def megatron(rank, tp=1, cp=1, dp=1, pp=1):
    """Megatron-core's groups of one rank, in its order tp-cp-dp-pp."""
    sizes = (tp, cp, dp, pp)
    here = lambda *axes: along(rank, sizes, *axes)
    first, last = min(here(3)), max(here(3))
    groups = [
        ("default_pg", tuple(range(prod(sizes)))),
        ("DATA_PARALLEL_GROUP", here(2)),
        ("DATA_PARALLEL_GROUP_WITH_CP", here(1, 2)),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", here(1, 2)),
        ("CONTEXT_PARALLEL_GROUP", here(1)),
        ("MODEL_PARALLEL_GROUP", here(0, 3)),
        ("TENSOR_MODEL_PARALLEL_GROUP", here(0)),
        ("PIPELINE_MODEL_PARALLEL_GROUP", here(3)),
        ("EMBEDDING_GROUP", tuple(sorted({first, last}))),
        ("POSITION_EMBEDDING_GROUP", (first,)),
        ("TENSOR_AND_DATA_PARALLEL_GROUP", here(0, 2)),
        ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", here(0, 1, 2)),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", here(0, 1)),
        ("EXPERT_TENSOR_PARALLEL_GROUP", here(0)),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", here(0)),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", here(0, 3)),
        ("EXPERT_DATA_PARALLEL_GROUP", here(1, 2)),
    ]
    return [(name, ranks) for name, ranks in groups if rank in ranks]


@pytest.mark.parametrize(
    "sizes",
    [
        {"tp": 2, "cp": 2, "dp": 4, "pp": 4},
        {"tp": 8, "dp": 16, "pp": 8},
        {"tp": 8, "dp": 256, "pp": 8},
        {"tp": 2, "pp": 2},
        {"cp": 4, "pp": 2},
        {"tp": 4},
        {"cp": 8},
        {"dp": 8},
        {"pp": 8},
        {"dp": 2, "pp": 2},
    ],
    ids=lambda sizes: "x".join(f"{name}{size}" for name, size in sizes.items()),
)
@pytest.mark.parametrize("is_last", [False, True])
def test_megatrons_axes_have_their_names_whichever_rank_is_asked(sizes, is_last):
    world_size = prod(sizes.values())
    stride, expected = 1, []
    for name, size in sizes.items():
        expected.insert(0, MeshAxis(name, size, stride))
        stride *= size
    rank = world_size - 1 if is_last else 0
    assert mesh_axes(megatron(rank, **sizes), world_size) == tuple(expected)


def test_experts_split_the_data_parallel_axis():
    sizes = (2, 4, 2, 2)  # tp, ep, the data parallel of experts, pp
    groups = [
        ("default_pg", tuple(range(32))),
        ("DATA_PARALLEL_GROUP", along(0, sizes, 1, 2)),
        ("TENSOR_MODEL_PARALLEL_GROUP", along(0, sizes, 0)),
        ("PIPELINE_MODEL_PARALLEL_GROUP", along(0, sizes, 3)),
        ("EXPERT_MODEL_PARALLEL_GROUP", along(0, sizes, 1)),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", along(0, sizes, 0, 1)),
        ("EXPERT_DATA_PARALLEL_GROUP", along(0, sizes, 2)),
    ]
    found = mesh_axes(groups, 32)
    assert [(axis.name, axis.size) for axis in found] == [("pp", 2), ("dp", 2), ("ep", 4), ("tp", 2)]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("mesh_tp", "mesh_dp_shard"), ["fsdp", "tp"]),
        (("mesh_dp_shard", "mesh_dp_replicate"), ["dp", "fsdp"]),
        (("mesh_tp", "mesh_default"), ["axis of 4", "tp"]),
        (("undefined", "mesh_dim_0"), ["axis of 4", "axis of 2"]),
        (("mesh_rows", "mesh_columns"), ["columns", "rows"]),
        ((BAD, "mesh_" + BAD), ["axis of 4", "axis of 2"]),
    ],
)
def test_a_device_mesh_of_two_axes(names, expected):
    world, *groups = mesh_groups(5, (2, 4))
    found = mesh_axes([("default_pg", world), *zip(names, groups, strict=True)], 8)
    assert [axis.name for axis in found] == expected
    assert [(axis.size, axis.stride) for axis in found] == [(4, 2), (2, 1)]


def test_axes_nobody_names_are_distinguished():
    groups = [("", ranks) for ranks in mesh_groups(0, (4, 4, 4))]
    names = [axis.name for axis in mesh_axes(groups, 64)]
    assert names == ["axis of 4, 16 apart", "axis of 4, 4 apart", "axis of 4"]


def test_a_world_of_one_axis_is_called_after_it_or_simply_rank():
    everyone = tuple(range(8))
    assert mesh_axes([("default_pg", everyone), ("mesh_fsdp", everyone)], 8) == (MeshAxis("fsdp", 8, 1),)
    assert mesh_axes([("default_pg", everyone)], 8) == (MeshAxis("rank", 8, 1),)
    assert mesh_axes([], 6) == (MeshAxis("rank", 6, 1),)
    assert mesh_axes([("default_pg", (0,))], 1) == ()


def test_groups_no_mesh_explains_leave_one_axis():
    groups = [("TENSOR_MODEL_PARALLEL_GROUP", (0, 1)), ("DATA_PARALLEL_GROUP", (0, 1, 2)), ("", (0, 7))]
    assert mesh_axes(groups, 12) == (MeshAxis("rank", 12, 1),)


def test_a_rank_knows_what_its_groups_are_called(tmp_path):
    path = tmp_path / "r.arrows"
    record_events(path, [Group(3, (0, 1), name=0), Group(4, (0, 2)), Group(5, (1, 3), name=0)], ["mesh_tp"])
    communication = communication_of(read_recording(path), 0, 4)
    assert (communication.groups, communication.group_names) == (((0, 1), (0, 2)), ("mesh_tp", ""))
    record(path, [], [(0, 1)])
    assert communication_of(read_recording(path), 0, 2).group_names == ("",)
    assert replace(RankCommunication(0, 2, ((0, 1),), ""), rank=1).group_names == ()
