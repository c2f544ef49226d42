"""Mapping files: the forms msProbe's users know, what they change, and how a mistake in one is reported."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tests.probe.dumps import Call, write_dump
from windtunnel.commands.main import main
from windtunnel.errors import UsageError
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.mapping import Mapping
from windtunnel.probe.compare.mapping_file import API, CELL, DATA, LAYER, Rule, read_mapping
from windtunnel.probe.compare.tolerance import Tolerance

RANDOM = np.random.default_rng(2)


def value(*shape):
    return RANDOM.standard_normal(shape or (4, 4)).astype(np.float32)


def rules_of(tmp_path, text, suffix=".yaml"):
    path = tmp_path / f"mapping{suffix}"
    path.write_text(text, encoding="utf-8")
    return read_mapping(path)


def pairs_of(tmp_path, torch_calls, mindspore_calls, text):
    """Names that were paired, the same for both orders of the sides, and the findings of the first."""
    write_dump(tmp_path / "torch", torch_calls)
    write_dump(tmp_path / "mindspore", mindspore_calls, framework="mindspore")
    mapping = Mapping(rules_of(tmp_path, text))
    orders = []
    for one, two in (("torch", "mindspore"), ("mindspore", "torch")):
        findings, pairs = Findings(), set()
        for found in compare_dumps(tmp_path / one, tmp_path / two, Tolerance(), mapping=mapping):
            findings.add(found)
            for i, j in zip(found.match.entry_a.tolist(), found.match.entry_b.tolist(), strict=True):
                names = (found.a.columns.entries[i], found.b.columns.entries[j])
                pairs |= {tuple(names if one == "torch" else names[::-1])} if min(i, j) >= 0 else set()
        orders.append((findings, pairs))
    assert orders[0][1] == orders[1][1]
    assert orders[0][0].n_different == orders[1][0].n_different
    return orders[0][1], orders[0][0]


YAML = """
# as msProbe's users write them
---
fc2.Dense: fc3.Linear   # a comment
"blocks.0": 'layers.0'
Cell.head.Dense: Module.out.Linear
Functional.dense: Functional.linear
Functional.add.4.forward.input.0: Torch.add.1.forward.input.1
cell_mapping:
  a#b: c
"""


def test_plain_lines_are_distinguished_by_their_names(tmp_path):
    assert rules_of(tmp_path, YAML) == (
        Rule(CELL, "fc2.Dense", "fc3.Linear", 4),
        Rule(CELL, "blocks.0", "layers.0", 5),
        Rule(CELL, "head.Dense", "out.Linear", 6),
        Rule(API, "Functional.dense", "Functional.linear", 7),
        Rule(DATA, "Functional.add.4.forward.input.0", "Torch.add.1.forward.input.1", 8),
        Rule(CELL, "a#b", "c", 10),
    )


BLOCKS = """
- ms_api: Functional.bn
  pt_api: Functional.batch_norm
  ms_args: [0, 1, weight]
  pt_args: [0, 3, '1']
  ms_output: []
  pt_output: []
- ms_api: Functional.dense
  pt_api: Functional.linear
"""


def test_blocks_of_functions_say_which_argument_is_which(tmp_path):
    expected = (
        Rule(API, "Functional.bn", "Functional.batch_norm", 2,
             values=(("input.0", "input.0"), ("input.1", "input.3"), ("input.weight", "input.1"))),
        Rule(API, "Functional.dense", "Functional.linear", 8),
    )  # fmt: skip
    assert rules_of(tmp_path, BLOCKS) == expected
    inside = "api_mapping:\n" + "\n".join(f"  {line}" for line in BLOCKS.strip().splitlines())
    assert rules_of(tmp_path, inside) == expected
    level = "api_mapping:\n" + BLOCKS.strip() + "\n"  # YAML lets a list stand below its key without indent
    assert [rule.left for rule in rules_of(tmp_path, level)] == ["Functional.bn", "Functional.dense"]


def test_a_section_of_another_name_is_a_class_of_layers(tmp_path):
    text = "TopLayer:\n  network: module\nAttention:\n  qkv: wqkv(fused)\n"
    assert rules_of(tmp_path, text) == (
        Rule(LAYER, "network", "module", 2, scope="TopLayer"),
        Rule(LAYER, "qkv", "wqkv", 4, scope="Attention"),
    )


def test_toml_and_json_say_the_same(tmp_path):
    document = {
        "cell_mapping": {"fc2.Dense": "fc3.Linear"},
        "api_mapping": [{"ms_api": "F.a", "pt_api": "F.b"}],
    }
    toml = '[cell_mapping]\n"fc2.Dense" = "fc3.Linear"\n[[api_mapping]]\nms_api = "F.a"\npt_api = "F.b"\n'
    expected = (Rule(CELL, "fc2.Dense", "fc3.Linear", 0), Rule(API, "F.a", "F.b", 0))
    assert rules_of(tmp_path, json.dumps(document), ".json") == expected
    assert rules_of(tmp_path, toml, ".toml") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("fc1: a\nfc2\n", "line 2 of .*'fc2' is not of the form `left: right`"),
        ("fc1: a\n\n\tfc2: b\n", "line 3 of .*it is indented with a tab"),
        ("fc1: &anchor a\n", "line 1 of .*YAML syntax that is not supported"),
        ("fc1: {a: b}\n", "line 1 of .*YAML syntax that is not supported"),
        ("a:\n  b:\n    c: d\n", "line 2 of .*'b' is a section inside a section"),
        ("fc1: [a, b]\n", "line 1 of .*'fc1' has no name on the other side"),
        ("- ms_api: F.a\n", "line 1 of .*needs both ms_api and pt_api"),
        ("- ms_api: F.a\n  pt_api: F.b\n  pt_argz: [1]\n", "line 1 of .*'pt_argz' is not allowed"),
        ("- ms_api: F.a\n  pt_api: F.b\n  ms_args: [0]\n  pt_args: [0, 1]\n", "line 1 of .*same length"),
        ("# nothing\n", "contains no mapping"),
        ('"a\\q": b\n', "cannot be read"),
    ],
)
def test_a_mistake_is_reported_with_its_line(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        rules_of(tmp_path, text)


@pytest.mark.parametrize(("suffix", "text"), [(".json", "{"), (".json", "[1]"), (".json", "3"), (".toml", "a ="),
                                              (".json", '{"a": {"b": {"c": "d"}}}'), (".json", '{"a": 3}')])  # fmt: skip
def test_a_document_that_is_none_is_refused(tmp_path, suffix, text):
    with pytest.raises(UsageError):
        rules_of(tmp_path, text, suffix)


def test_a_file_that_is_not_there_or_not_text_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        read_mapping(tmp_path / "none.yaml")
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="cannot be read"):
        read_mapping(tmp_path / "x.yaml")


def crossed():
    """Two modules that changed places: only a mapping can know."""
    x, y, z = value(), value(), value()
    torch_calls = [
        Call("Module.one.Linear.forward.0", [x], [y]),
        Call("Module.two.Linear.forward.0", [y], [z]),
    ]
    mindspore_calls = [
        Call("Cell.two.Dense.forward.0", [x], [y]),
        Call("Cell.first.Dense.forward.0", [y], [z]),
    ]
    return torch_calls, mindspore_calls


@pytest.mark.parametrize(
    "text",
    [
        "two.Dense: one.Linear\nfirst.Dense: two.Linear\n",
        "two: one\nfirst: two\n",
        "Cell.two.Dense.forward.0: Module.one.Linear.forward.0\n"
        "Cell.first.Dense.forward.0: Module.two.Linear.forward.0\n",
        "TopLayer:\n  two: one\n  first: two\n",
    ],
)
def test_modules_are_paired_as_the_file_says(tmp_path, text):
    pairs, findings = pairs_of(tmp_path, *crossed(), text)
    assert pairs == {
        ("Module.one.Linear.forward.0", "Cell.two.Dense.forward.0"),
        ("Module.two.Linear.forward.0", "Cell.first.Dense.forward.0"),
    }
    assert findings.is_equal
    assert findings.n_equal == 4


def test_part_of_a_path_is_replaced_whole_component_by_component(tmp_path):
    x, y = value(), value()
    torch_calls = [Call("Module.decoder.layers.1.ff.up.Linear.forward.0", [x], [y])]
    mindspore_calls = [Call("Cell.decoder.blocks.1.mlp.w1.Dense.forward.0", [x], [value()])]
    text = "blocks: layers\nmlp.w1: ff.up\nblock: wrong\n"
    pairs, findings = pairs_of(tmp_path, torch_calls, mindspore_calls, text)
    assert pairs == {(torch_calls[0].name, mindspore_calls[0].name)}
    assert findings.first.item == "Module.decoder.layers.1.ff.up.Linear.forward.0.output.0"
    assert "the mapping of block in line 3 matches no entry" in findings.notes


def test_layers_are_renamed_by_the_class_that_holds_them(tmp_path):
    x, y, z = value(), value(), value()
    torch_calls = [
        Call("Module.a.wqkv.Linear.forward.0", [x], [y]),
        Call("Module.a.Attention.forward.0", [x], [y]),
        Call("Module.b.qkv.Linear.forward.0", [y], [z]),
    ]
    mindspore_calls = [
        Call("Cell.a.qkv.Dense.forward.0", [x], [value()]),
        Call("Cell.a.Attention.forward.0", [x], [y]),
        Call("Cell.b.qkv.Dense.forward.0", [y], [value()]),
        Call("Cell.b.Mlp.forward.0", [y], [z]),
    ]
    pairs, _ = pairs_of(tmp_path, torch_calls, mindspore_calls, "Attention:\n  qkv: wqkv\n")
    assert pairs == {(p.name, q.name) for p, q in zip(torch_calls, mindspore_calls, strict=False)}


def test_functions_and_their_arguments_are_paired_as_the_file_says(tmp_path):
    x, y, out = value(), value(), value()
    torch_calls = [Call("Torch.lerp.0.forward", [x, y], [out])]
    mindspore_calls = [Call("Functional.mixed.0.forward", [y * 2, x], [out])]
    text = "- ms_api: Functional.mixed\n  pt_api: Torch.lerp\n  ms_args: [1, 0]\n  pt_args: [0, 1]\n"
    pairs, findings = pairs_of(tmp_path, torch_calls, mindspore_calls, text)
    assert pairs == {("Torch.lerp.0.forward", "Functional.mixed.0.forward")}
    assert findings.first.item == "Torch.lerp.0.forward.input.1"
    assert findings.first.item_b == "Functional.mixed.0.forward.input.0"


def test_single_values_are_paired_as_the_file_says(tmp_path):
    x, y, out = value(), value(), value()
    torch_calls = [Call("Torch.f.0.forward", [x, y], [out])]
    mindspore_calls = [Call("Functional.g.3.forward", [y * 3, x], [out])]
    text = "Functional.g.3.forward.input.0: Torch.f.0.forward.input.1\n"
    _, findings = pairs_of(tmp_path, torch_calls, mindspore_calls, text)
    assert (findings.n_equal, findings.n_different) == (2, 1)
    assert findings.first.item_b == "Functional.g.3.forward.input.0"


def test_between_dumps_of_one_framework_left_is_a(tmp_path, capsys):
    x, y = value(), value()
    write_dump(tmp_path / "a", [Call("Module.old.Linear.forward.0", [x], [y])])
    write_dump(tmp_path / "b", [Call("Module.new.Conv.forward.0", [x], [value()])])
    (tmp_path / "m.yaml").write_text("old.Linear: new.Conv\n")
    arguments = ["compare", str(tmp_path / "a"), str(tmp_path / "b")]
    assert main([*arguments, "--mapping", str(tmp_path / "m.yaml")]) == 3
    assert "Module.new.Conv.forward.0.output.0" in capsys.readouterr().out
    assert main([*arguments, "--mapping", str(tmp_path / "none.yaml")]) == 2
    assert "cannot read" in capsys.readouterr().err
