"""Where a difference begins and where it is only handed on, call by call and module by module."""

from __future__ import annotations

import numpy as np
import pytest

from tests.probe.dumps import Call, write_dump
from windtunnel.probe.compare import module_tree as tree_module
from windtunnel.probe.compare.call_states import A_ONLY, ONE_SIDED, UNCOMPARED, call_states
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.module_tree import API, GROUP, MODULE, module_tree
from windtunnel.probe.compare.tolerance import DIFFERENT, EQUAL, Tolerance

X = np.random.default_rng(0).standard_normal((16, 16)).astype(np.float32)
BLOCK, FC, ACT = (
    "Module.net.0.Block.forward.0",
    "Module.net.0.fc.Linear.forward.0",
    "Module.net.0.act.GELU.forward.0",
)


def block(factor=1.0, eps=1e-5, extra=()):
    """A block whose activation is off by a factor; what follows receives it."""
    y = X * np.float32(factor)
    return [
        Call("Functional.linear.0.forward", [X], [X], parent=FC),
        Call(FC, [X], [X], parent=BLOCK),
        Call("Functional.gelu.0.forward", [X], [y], parent=ACT),
        Call(ACT, [X], [y], parent=BLOCK),
        *extra,
        Call(BLOCK, [X], [y * 2]),
        Call("Functional.layer_norm.0.forward", [y * 2, eps], [y * 3]),
        Call("Functional.gelu.0.backward", [y], [y * 4], parent="Module.net.0.act.GELU.backward.0"),
    ]


def compared(tmp_path, a, b):
    paths = [write_dump(tmp_path / name, calls) for name, calls in (("a", a), ("b", b))]
    (found,) = compare_dumps(*paths, Tolerance())
    return found


def names_where(found, flags):
    return [found.name(place) for place in np.flatnonzero(flags).tolist()]


def test_a_difference_begins_where_inputs_agree_and_is_handed_on_elsewhere(tmp_path):
    found = compared(tmp_path, block(), block(1.5))
    states = call_states(found)
    assert found.name(states.first) == "Functional.gelu.0.forward"
    assert names_where(found, states.begins) == ["Functional.gelu.0.forward", ACT, BLOCK]
    different = names_where(found, states.state == DIFFERENT)
    assert different == [
        "Functional.gelu.0.forward", ACT, BLOCK, "Functional.layer_norm.0.forward", "Functional.gelu.0.backward",
    ]  # fmt: skip
    assert states.phase.tolist() == [0, 0, 0, 0, 0, 0, 1]


def test_an_argument_that_differs_begins_a_difference_even_late(tmp_path):
    found = compared(tmp_path, block(), block(1.5, eps=1e-3))
    assert "Functional.layer_norm.0.forward" in names_where(found, call_states(found).begins)


def test_equal_runs_begin_nothing(tmp_path):
    states = call_states(compared(tmp_path, block(), block()))
    assert states.first == -1
    assert not states.begins.any()
    assert set(states.state.tolist()) == {EQUAL}
    assert not states.error.any()


def test_the_tree_adds_up_from_the_leaves(tmp_path):
    found = compared(tmp_path, block(), block(1.5))
    states = call_states(found)
    parents = found.a.parents()
    tree = module_tree(states, [parents.get(found.name(place)) for place in range(len(states.state))])
    paths = {_path(tree, node): node for node in range(len(tree.names))}
    assert list(paths) == [
        "net", "net.0", "net.0.fc", "net.0.fc.Functional.linear", "net.0.act", "net.0.act.Functional.gelu", "Functional",
        "Functional.Functional.layer_norm",
    ]  # fmt: skip
    assert tree.kinds.tolist() == [MODULE, MODULE, MODULE, API, MODULE, API, GROUP, API]
    assert tree.class_names[paths["net.0.act"]] == "GELU"
    act, fc, net = paths["net.0.act"], paths["net.0.fc"], paths["net"]
    assert tree.counts[act].tolist() == [
        2,
        0,
        4,
        0,
    ]  # two inputs agree; two outputs and a gradient's two sides do not
    assert tree.counts[fc].tolist() == [4, 0, 0, 0]
    assert tree.counts[net].tolist() == (tree.counts[act] + tree.counts[fc] + states.counts[4]).tolist()
    roots = tree.counts[tree.parents < 0].sum(axis=0)
    assert roots.tolist() == states.counts.sum(axis=0).tolist()
    assert (tree.n_calls[net], tree.n_begins[net], tree.n_begins[fc]) == (6, 3, 0)
    assert tree.first[net] == states.first
    assert tree.first[fc] == -1
    assert tree.error[net] == states.error[:7].max()


def test_a_call_of_one_side_is_a_state_of_its_own(tmp_path):
    extra = [Call("Tensor.clone.0.forward", [X], [X], parent=BLOCK)]
    found = compared(tmp_path, block(extra=extra), block())
    states = call_states(found)
    at = [found.name(place) for place in range(len(states.state))].index("Tensor.clone.0.forward")
    assert (states.side[at], states.state[at], states.counts[at].tolist()) == (
        A_ONLY,
        ONE_SIDED,
        [0, 0, 0, 1],
    )


def test_a_call_without_figures_is_neither_equal_nor_different(tmp_path):
    states = call_states(compared(tmp_path, [Call("Torch.f.0.forward")], [Call("Torch.f.0.forward")]))
    assert states.state.tolist() == [UNCOMPARED]


@pytest.mark.parametrize("most", [1, 3, 5])
def test_what_a_full_tree_has_no_room_for_is_counted_above_it(tmp_path, monkeypatch, most):
    monkeypatch.setattr(tree_module, "_MOST_NODES", most)
    calls = [Call(f"Module.a{i}.b.c.Linear.forward.0", [X], [X]) for i in range(4)]
    states = call_states(compared(tmp_path, calls, calls))
    tree = module_tree(states, [None] * 4)
    assert not tree.is_whole
    assert len(tree.names) <= most + 1
    assert tree.counts[tree.parents < 0].sum() == 8


def test_a_path_of_ten_thousand_parts_makes_no_deep_tree(tmp_path):
    name = f"Module.{'.'.join(['x'] * 10_000)}.Linear.forward.0"
    states = call_states(compared(tmp_path, [Call(name, [X], [X])], [Call(name, [X], [X])]))
    tree = module_tree(states, [None])
    assert len(tree.names) < 60


def _path(tree, node):
    return (
        f"{_path(tree, tree.parents[node])}.{tree.names[node]}"
        if tree.parents[node] >= 0
        else tree.names[node]
    )
