"""What groups are called, by the names that real libraries give them."""

from __future__ import annotations

import pytest

from windtunnel.cluster.mesh_axes import axis_label

PAIR = (0, 1)


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("TENSOR_MODEL_PARALLEL_GROUP", "tp"),  # Megatron
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pp"),
        ("DATA_PARALLEL_GROUP", "dp"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "dp"),
        ("CONTEXT_PARALLEL_GROUP", "cp"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "ep"),
        ("EXPERT_DATA_PARALLEL_GROUP", "ep"),
        ("MODEL_PARALLEL_GROUP", "mp"),
        ("EMBEDDING_GROUP", "embedding"),
        ("mesh_tp", "tp"),  # init_device_mesh
        ("mesh_pp", "pp"),
        ("mesh_dp", "dp"),
        ("mesh_cp", "cp"),
        ("mesh_ep", "ep"),
        ("mesh_dp_shard", "fsdp"),
        ("mesh_dp_shard_cp", "fsdp"),
        ("mesh_dp_replicate", "dp"),
        ("mesh_fsdp", "fsdp"),
        ("default_pg", "world"),
    ],
)
def test_a_group_is_called_after_the_axis_in_its_name(name, label):
    assert axis_label(name, PAIR) == label


@pytest.mark.parametrize("name", ["", "undefined", "group 7", "stop", "http", "mesh_default"])
def test_a_short_word_counts_only_as_a_word_of_its_own(name):
    assert axis_label(name, PAIR) == "2 ranks, 1 apart"


@pytest.mark.parametrize(
    ("ranks", "label"),
    [
        ((0, 1, 2, 3), "4 ranks, 1 apart"),
        ((0, 64, 128, 192), "4 ranks, 64 apart"),
        ((0, 1, 8, 9), "4 ranks"),
        ((5,), "1 ranks"),
    ],
)
def test_a_group_without_a_name_is_reported_by_where_its_ranks_lie(ranks, label):
    assert axis_label("undefined", ranks) == label
