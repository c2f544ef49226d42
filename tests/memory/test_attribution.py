"""Adding up who holds memory along the module tree."""

from __future__ import annotations

import pytest

from windtunnel.memory.attribution import ModuleShare, fold_layers, short_op, to_depth

SHARES = (
    ModuleShare("model.layers.0.mlp", "activations", 10),
    ModuleShare("model.layers.1.mlp", "activations", 20),
    ModuleShare("model.layers.3.mlp", "activations", 40),
    ModuleShare("model.layers.0.mlp", "weights", 1),
    ModuleShare("model.embed", "weights", 5),
)


def test_siblings_that_differ_only_by_index_fold_into_a_range():
    assert fold_layers(SHARES) == (
        ModuleShare("model.layers.0-1,3.mlp", "activations", 70),
        ModuleShare("model.embed", "weights", 5),
        ModuleShare("model.layers.0-1,3.mlp", "weights", 1),
    )


def test_every_index_of_a_path_folds_on_its_own():
    experts = [ModuleShare(f"layers.{i}.experts.{j}.up", "weights", 1) for i in range(2) for j in range(8)]
    assert fold_layers(experts) == (ModuleShare("layers.0-1.experts.0-7.up", "weights", 16),)


def test_deeper_modules_add_to_their_ancestor():
    assert to_depth(SHARES, 1) == (
        ModuleShare("model", "activations", 70),
        ModuleShare("model", "weights", 6),
    )


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("aten.mm.default", "aten.mm"),
        ("aten.mm", "aten.mm"),
        ("Dense", "Dense"),
        ("c10d.allreduce_.default", "c10d.allreduce_"),
    ],
)
def test_an_operator_is_shown_without_its_overload(name, short):
    assert short_op(name) == short
