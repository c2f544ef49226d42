"""MindSpore beside PyTorch, with dumps written by hand: names, values, arguments, and what is no difference."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from tests.probe.compare.test_compare_damage import damage
from tests.probe.dumps import Call, write_dump
from windtunnel.errors import WindtunnelError
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.eager_compiled_order import interleave
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.framework_names import readers
from windtunnel.probe.compare.tolerance import Tolerance
from windtunnel.probe.files.entry_name import parse_entry_name

RANDOM = np.random.default_rng(1)


def value(*shape):
    return RANDOM.standard_normal(shape or (4, 4)).astype(np.float32)


def noisy(x):
    """The same, as another framework computes it."""
    return (x * (1 + 2e-7 * RANDOM.standard_normal(x.shape))).astype(x.dtype)


def compared(tmp_path, torch_calls, mindspore_calls, **options):
    """Findings, and the pairs of names; both orders of the sides must come to the same."""
    write_dump(tmp_path / "torch", torch_calls, **options)
    write_dump(tmp_path / "mindspore", mindspore_calls, framework="mindspore", **options)
    findings, names = Findings(), []
    for found in compare_dumps(tmp_path / "torch", tmp_path / "mindspore", Tolerance()):
        findings.add(found)
        a, b = found.a.columns.entries, found.b.columns.entries
        names += [
            (a[i] if i >= 0 else None, b[j] if j >= 0 else None)
            for i, j in zip(found.match.entry_a, found.match.entry_b, strict=True)
        ]
    back = Findings()
    for found in compare_dumps(tmp_path / "mindspore", tmp_path / "torch", Tolerance()):
        back.add(found)
    assert back.is_equal == findings.is_equal
    assert (back.n_compared, back.n_different) == (findings.n_compared, findings.n_different)
    if findings.first is not None:
        assert (back.first.item, back.first.item_b) == (findings.first.item_b, findings.first.item)
    return findings, names


@pytest.mark.parametrize(
    ("torch_name", "mindspore_name"),
    [
        ("Module.a.norm.LayerNorm.forward.0", "Cell.a.norm.LayerNorm.forward.0"),
        ("Module.a.fc.Linear.backward.1", "Cell.a.fc.Dense.backward.1"),
        ("Module.a.Sequential.parameters_grad.0", "Cell.a.SequentialCell.parameters_grad.0"),
        ("Functional.linear.3.forward", "Primitive.dense.Dense.3.forward"),
        ("Functional.linear.3.forward", "Functional.dense.3.forward"),
        ("Functional.linear.3.forward", "MintFunctional.linear.3.forward"),
        ("Tensor.__matmul__.0.backward", "Primitive.matmul.BatchMatMul.0.backward"),
        ("Torch.bmm.0.forward", "Mint.matmul.0.forward"),
        ("Functional.relu.0.forward", "Primitive.act.ReLU.0.forward"),
        ("Functional.layer_norm.0.forward", "Primitive.layer_norm.LayerNorm.0.forward"),
        ("Tensor.__truediv__.0.forward", "Primitive.div.RealDiv.0.forward"),
        ("Torch.cat.0.forward", "Functional.concat.0.forward"),
        ("Torch.gather.0.forward", "Functional.gather_elements.0.forward"),
        ("Distributed.all_reduce.0.forward", "MintDistributed.all_reduce.0.forward"),
        ("Distributed.all_reduce.0.forward", "Primitive.reduce.AllReduce.0.forward"),
        ("NPU.npu_fusion_attention.0.forward", "Primitive.attention.FlashAttentionScore.0.forward"),
        ("hidden.0.debug", "hidden.0.debug"),
    ],
)
def test_equal_things_have_equal_names(torch_name, mindspore_name):
    read = readers(
        ([torch_name], [mindspore_name]), ("pytorch", "mindspore"), (parse_entry_name, parse_entry_name)
    )
    assert read[0](torch_name) == read[1](mindspore_name)


@pytest.mark.parametrize(
    ("torch_name", "mindspore_name"),
    [
        ("Tensor.add_.0.forward", "Primitive.add.Add.0.forward"),  # one writes to its input
        ("Torch.gather.0.forward", "Primitive.gather.Gather.0.forward"),  # index_select, by another name
        ("Module.a.fc.Linear.forward.0", "Cell.a.fc.Dense.forward.1"),
    ],
)
def test_unlike_things_have_unlike_names(torch_name, mindspore_name):
    read = readers(
        ([torch_name], [mindspore_name]), ("pytorch", "mindspore"), (parse_entry_name, parse_entry_name)
    )
    assert read[0](torch_name) != read[1](mindspore_name)


def network(prefix_path, words, depth=3):
    """Forward and backward of some layers: `words` are a framework's for (kind, Linear, LayerNorm, weight, bias)."""
    kind, linear, norm, weight, bias = words
    random = np.random.default_rng(5)
    calls, x = [], random.standard_normal((6, 8)).astype(np.float32)
    for i in range(depth):
        for name, cls, w, b in (("norm", norm, weight, bias), ("fc", linear, "weight", "bias")):
            y = random.standard_normal((6, 8)).astype(np.float32)
            parameters = {w: random.standard_normal(8).astype(np.float32), b: x[0]}
            calls.append(Call(f"{kind}.{prefix_path}layers.{i}.{name}.{cls}.forward.0", [x], [y], parameters))
            x = y
    for call in reversed(list(calls)):
        calls.append(Call(call.name.replace("forward", "backward"), call.outputs, call.inputs))
        calls.append(
            Call(
                call.name.replace("forward", "parameters_grad"),
                parameters=dict(reversed(call.parameters.items())),
            )
        )
    return calls


TORCH = ("Module", "Linear", "LayerNorm", "weight", "bias")
MINDSPORE = ("Cell", "Dense", "LayerNorm", "gamma", "beta")


@pytest.mark.parametrize("torch_prefix", ["", "module.", "_orig_mod.module."])
@pytest.mark.parametrize(
    "mindspore_prefix", ["", "_backbone.", "network._backbone.", "network.network._backbone.model."]
)
def test_modules_are_paired_whatever_wraps_them(tmp_path, torch_prefix, mindspore_prefix):
    a, b = network(torch_prefix, TORCH), network(mindspore_prefix, MINDSPORE)
    findings, names = compared(tmp_path, a, b)
    assert names == [(p.name, q.name) for p, q in zip(a, b, strict=True)]
    assert findings.is_equal
    assert findings.n_equal == findings.n_compared == 6 * (2 + 2) + 6 * 2 + 6 * 2  # gamma and beta among them
    assert (
        "6 of 6 modules of A (PyTorch) and 6 of 6 modules of B (MindSpore) have a counterpart"
        in findings.notes
    )


def test_the_path_decides_where_classes_differ(tmp_path):
    x, y, z = value(), value(), value()
    a = [
        Call("Module.q.Linear.forward.0", [x], [y]),
        Call("Module.k.ColumnParallelLinear.forward.0", [x], [z]),
    ]
    b = [Call("Cell.q.MyDense.forward.0", [x], [y]), Call("Cell.k.Dense.forward.0", [x], [z])]
    findings, names = compared(tmp_path, a, b)
    assert names == [(p.name, q.name) for p, q in zip(a, b, strict=True)]
    assert findings.is_equal


def test_gradients_in_another_order_are_paired_by_path(tmp_path):
    a, b = network("", TORCH), network("_backbone.", MINDSPORE)
    n = len(a) // 3
    b[n:] = b[n:][1::2] + b[n:][::2]  # all gradients of parameters first
    findings, names = compared(tmp_path, a, b)
    assert findings.is_equal
    assert not any(None in pair for pair in names)


def test_modules_of_one_class_that_change_places_keep_their_paths(tmp_path):
    x, y = value(), value(3, 4)
    a = [Call("Module.token.Embedding.backward.0", [x]), Call("Module.place.Embedding.backward.0", [y])]
    b = [Call("Cell.place.Embedding.backward.0", [y]), Call("Cell.token.Embedding.backward.0", [x])]
    findings, names = compared(tmp_path, a, b)
    assert set(names) == {(a[0].name, b[1].name), (a[1].name, b[0].name)}
    assert findings.is_equal


def test_a_cell_that_only_mindspore_has_is_no_difference(tmp_path):
    a, b = network("", TORCH), network("", MINDSPORE)
    b.insert(1, Call("Cell.layers.0.drop.Dropout.forward.0", b[0].outputs, b[0].outputs))
    findings, _ = compared(tmp_path, a, b)
    assert findings.is_equal
    assert (findings.only_a, findings.only_b) == (0, 1)


def test_rounding_of_another_framework_is_none_and_a_planted_value_is_found(tmp_path):
    a, b = network("", TORCH), network("_backbone.", MINDSPORE)
    for call in b:
        call.inputs, call.outputs = [noisy(x) for x in call.inputs], [noisy(x) for x in call.outputs]
    assert compared(tmp_path / "clean", a, b)[0].is_equal
    b[3].outputs = [b[3].outputs[0] * np.float32(1.001)]
    findings, _ = compared(tmp_path / "planted", a, b)
    assert findings.first.item == "Module.layers.1.fc.Linear.forward.0.output.0"
    assert findings.first.item_b == "Cell._backbone.layers.1.fc.Dense.forward.0.output.0"


def test_a_parameter_is_named_as_each_side_names_it(tmp_path):
    a, b = network("", TORCH), network("_backbone.", MINDSPORE)
    b[2].parameters["gamma"] = value(8)
    findings, _ = compared(tmp_path, a, b)
    assert findings.first.item == "Module.layers.1.norm.LayerNorm.forward.0.parameters.weight"
    assert findings.first.item_b == "Cell._backbone.layers.1.norm.LayerNorm.forward.0.parameters.gamma"


def test_a_transposed_weight_is_a_shape(tmp_path):
    x, w = value(), value(3, 5)
    a = [Call("Module.fc.Linear.forward.0", [x], [x], {"weight": w})]
    findings, _ = compared(tmp_path, a, [Call("Cell.fc.Dense.forward.0", [x], [x], {"weight": w.T.copy()})])
    assert (findings.first.kind, findings.first.item) == (
        "shape",
        "Module.fc.Linear.forward.0.parameters.weight",
    )


def test_widths_of_integers_and_dimensions_of_one_are_conventions(tmp_path):
    tokens, w = RANDOM.integers(0, 9, (4, 3)), value(6, 5, 3)
    a = [Call("Module.conv.Conv1d.forward.0", [tokens], [tokens > 4], {"weight": w})]
    b = [
        Call(
            "Cell.conv.Conv1d.forward.0",
            [tokens.astype(np.int32)],
            [(tokens > 4).astype(np.uint8)],
            {"weight": w.reshape(6, 5, 1, 3)},
        )
    ]
    findings, _ = compared(tmp_path, a, b)
    assert findings.is_equal
    assert findings.n_equal == 3


def test_one_wrong_integer_is_found(tmp_path):
    tokens = RANDOM.integers(0, 9, (4, 3))
    wrong = tokens.astype(np.int32)
    wrong[2, 1] += 1
    a = [Call("Module.embed.Embedding.forward.0", [tokens], [])]
    findings, _ = compared(tmp_path, a, [Call("Cell.embed.Embedding.forward.0", [wrong], [])])
    assert findings.first.item == "Module.embed.Embedding.forward.0.input.0"


def test_another_type_is_a_difference(tmp_path):
    x = value()
    a = [Call("Module.f.F.forward.0", [x], [x])]
    findings, _ = compared(tmp_path, a, [Call("Cell.f.F.forward.0", [x.astype(np.float16)], [x])])
    assert findings.first.kind == "dtype"


def test_arguments_in_another_order_are_found_by_their_figures(tmp_path):
    x, mean, variance, weight, bias, y = value(4, 8), value(8), value(8), value(8), value(8), value(4, 8)
    a = [Call("Functional.batch_norm.0.forward", [x, mean, variance, weight, bias, True, 0.1, 1e-5], [y])]
    b = [Call("Primitive.bn.BatchNorm.0.forward", [x, weight, bias, mean, variance], [y, mean, variance])]
    findings, _ = compared(tmp_path, a, b)
    assert findings.is_equal
    assert findings.n_equal == 6
    b[0].inputs[1] = value(8)  # weight
    findings, _ = compared(tmp_path, a, b)
    assert findings.first.item == "Functional.batch_norm.0.forward.input.3"
    assert findings.first.item_b == "Primitive.bn.BatchNorm.0.forward.input.1"


def test_settings_count_only_where_the_call_returns_something_else(tmp_path):
    x, y = value(), value()
    a = [Call("Functional.f.0.forward", [x, 0.1], [y])]
    assert compared(tmp_path, a, [Call("Functional.f.0.forward", [x, 0.9], [y])])[0].is_equal
    findings, _ = compared(tmp_path, a, [Call("Functional.f.0.forward", [x, 0.9], [y * np.float32(1.01)])])
    assert findings.first.item == "Functional.f.0.forward.input.1"
    assert "the argument is 0.1 in A and 0.9 in B" in findings.first.sentences


def test_functions_may_differ_in_a_module_that_returns_the_same(tmp_path):
    x, y, z, part = value(), value(), value(), value()
    names = ("Module.gate.Gate.forward.0", "Cell.gate.Gate.forward.0")

    def calls(name, inner, result):
        return [Call("Tensor.__mul__.0.forward", [x], [inner], parent=name), Call(name, [x], [result])]

    findings, _ = compared(tmp_path, calls(names[0], part, y), calls(names[1], part * np.float32(2), y))
    assert findings.is_equal
    assert findings.n_nothing == 1
    findings, _ = compared(tmp_path, calls(names[0], part, y), calls(names[1], part * np.float32(2), z))
    assert findings.first.item == "Tensor.__mul__.0.forward.output.0"


def test_what_msprobe_writes_for_the_backward_of_functions_is_left_out(tmp_path):
    x, y = value(), value()
    a = [Call("Functional.gelu.0.backward", [x], [y]), Call("Module.f.GELU.backward.0", [x], [y])]
    b = [Call("Functional.gelu.0.backward", [x], [value()]), Call("Cell.f.GELU.backward.0", [x], [y])]
    findings, _ = compared(tmp_path, a, b, ours=False, sketch=False)
    assert findings.is_equal
    assert findings.n_equal == 3


@pytest.mark.parametrize("is_wrong", [False, True])
def test_ranks_of_mindspore_that_share_the_work_of_one_are_put_together(tmp_path, is_wrong):
    x, w, y, z = value(6, 8), value(16, 8), value(6, 16), value(6, 8)
    a = [
        Call("Module.up.Linear.forward.0", [x], [y], {"weight": w}),
        Call("Module.down.Linear.forward.0", [y], [z]),
    ]
    write_dump(tmp_path / "a" / "step0" / "rank0", a)
    for rank, (rows, columns) in enumerate(zip(np.split(w, 2), np.split(y, 2, axis=1), strict=True)):
        calls = [
            Call("Cell._backbone.up.Dense.forward.0", [x], [noisy(columns)], {"weight": rows}),
            Call("Cell._backbone.down.Dense.forward.0", [columns], [z * np.float32(2 if is_wrong else 1)]),
        ]
        write_dump(tmp_path / "b" / "step0" / f"rank{rank}", calls, framework="mindspore")
    findings = Findings()
    for found in compare_dumps(tmp_path / "a", tmp_path / "b", Tolerance()):
        findings.add(found)
    assert findings.n_compared == 5
    expected = "Module.down.Linear.forward.0.output.0" if is_wrong else None
    assert (findings.first.item if findings.first else None) == expected


def test_two_dumps_of_mindspore_are_compared_strictly(tmp_path):
    calls = network("_backbone.", MINDSPORE)
    for side, chosen in (("a", calls), ("b", calls[:4] + calls[5:])):
        write_dump(tmp_path / side, chosen, framework="mindspore")
    findings = Findings()
    for found in compare_dumps(tmp_path / "a", tmp_path / "b", Tolerance()):
        findings.add(found)
    assert (findings.first.kind, findings.first.item) == ("only in A", calls[4].name)


def test_what_ran_in_a_graph_stands_where_the_graph_was_called():
    eager = ["Cell.embed.E.forward.0", "Cell.block.B.forward.0", "Cell.head.H.forward.0", "Cell.head.H.backward.0",
             "Cell.block.B.backward.0", "Cell.embed.E.backward.0"]  # fmt: skip
    graph = ["Primitive.add.Add.0.forward", "Cell.block.fc.D.forward.0", "Cell.block.B.forward.0",
             "Cell.block.fc.D.backward.0", "Cell.block.fc.D.parameters_grad.0", "Cell.other.O.forward.0"]  # fmt: skip
    assert interleave(eager, graph) == [
        eager[0], *graph[:2], *eager[1:3], graph[5], eager[3], *graph[3:5], *eager[4:],
    ]  # fmt: skip


@pytest.mark.parametrize(("at", "area"), [(0, "pynative"), (2, "graph")])
def test_graph_and_eager_folders_of_mindspore_are_one_run(tmp_path, at, area):
    a = network("", TORCH)
    b = network("_backbone.", MINDSPORE)
    b[at].outputs = [value(6, 8)]
    for call in b[at + 1 :]:  # a difference is carried on
        call.inputs, call.outputs = (
            [x * np.float32(1.5) for x in each] for each in (call.inputs, call.outputs)
        )
    in_graph = [call for call in b if ".layers.1." in call.name]
    outside = [call for call in b if call not in in_graph]
    n = next(i for i, call in enumerate(outside) if ".layers.2." in call.name)
    outside.insert(
        n, Call("Cell._backbone.layers.1.Block.forward.0", in_graph[0].inputs, in_graph[1].outputs)
    )
    write_dump(tmp_path / "a" / "step0" / "proc1", a)
    write_dump(tmp_path / "b" / "graph" / "step0" / "proc2", in_graph, framework="mindspore")
    write_dump(tmp_path / "b" / "pynative" / "step0" / "proc2", outside, framework="mindspore")
    findings = Findings()
    for found in compare_dumps(tmp_path / "a", tmp_path / "b", Tolerance()):
        findings.add(found)
    assert findings.first.item == f"{a[at].name}.output.0"
    assert findings.first.area == area
    assert "graph and pynative of B were merged" in findings.notes


def test_no_damage_ends_in_a_traceback(tmp_path):
    draw = random.Random(3)
    write_dump(tmp_path / "torch", network("", TORCH))
    write_dump(tmp_path / "mindspore", network("_backbone.", MINDSPORE), framework="mindspore")
    file = tmp_path / "mindspore" / "dump.json"
    whole, n_answers = file.read_text(), 0
    for _ in range(60):
        document = json.loads(whole)
        for _ in range(draw.randrange(1, 10)):
            document["data"] = damage(draw, document["data"])
        file.write_text(json.dumps(document))
        try:
            for found in compare_dumps(tmp_path / "torch", tmp_path / "mindspore", Tolerance()):
                Findings().add(found)
                n_answers += 1
        except WindtunnelError:
            pass
    assert n_answers > 40
