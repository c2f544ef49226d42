"""Level 2 of MindSpore's operators on Ascend, against what a card was measured to take (bytes as the pool hands them out)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.timing.signatures import spec
from windtunnel.devices import find_device
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, Kind, Op, Role, Signature, TensorSpec
from windtunnel.memory.workspace.rows import with_workspaces
from windtunnel.memory.workspace.table import WorkspaceTable

MIB = 1 << 20
TABLE = WorkspaceTable.built_in()
NPU = find_device("ascend-910b-64gb")
NUMBER = TensorSpec((), (), "int64")
SQUARE = spec(4096, 4096)
LOGITS = spec(4096, 129_280, dtype="float32")


def taken(name, inputs, outputs=()) -> int:
    demand = TABLE.demand_of(Signature(f"ms.{name}", tuple(inputs), tuple(outputs), ""), NPU)
    assert demand.failed == ()
    return sum(demand.call)


def pooled(n_bytes: int) -> int:
    """MindSpore's pool rounds a request up so."""
    return (n_bytes + 512 + 31) // 512 * 512 if n_bytes else 0


@pytest.mark.parametrize(
    ("name", "inputs", "outputs", "measured"),
    [
        ("MatMulExt", [SQUARE, SQUARE], [SQUARE], 20_972_544),
        ("RmsNorm", [SQUARE, spec(4096)], [SQUARE, spec(4096, 1)], 16_777_728),
        ("TopkExt", [spec(4096, 2048)], [spec(4096, 512)] * 2, 8_391_168),
        (
            "FlashAttentionScore", [spec(1, 64, 4096, 128)] * 3,
            [spec(1, 64, 4096, 8, dtype="float32")] * 2 + [spec(1), spec(1, 64, 4096, 128)], 79_693_312,
        ),
        ("ScatterAddExt", [LOGITS, spec(4096, 1, dtype="int64"), spec(4096, 1)], [LOGITS], 16_795_136),
        ("GatherD", [LOGITS, spec(4096, 1, dtype="int64")], [spec(4096, 1, dtype="float32")], 16_795_136),
        ("SumExt", [LOGITS], [spec(dtype="float32")], 1_536),
        ("Max", [LOGITS], [spec(4096, dtype="float32")], 17_408),
        ("Cast", [LOGITS], [spec(4096, 129_280)], 0),
        ("Exp", [LOGITS], [LOGITS], 0),
        ("Mul", [LOGITS, LOGITS], [LOGITS], 0),
        ("RmsNormGrad", [SQUARE, SQUARE, spec(4096, 1), spec(4096)], [SQUARE, spec(4096)], 16_779_264),
        ("IndexSelect", [SQUARE, spec(100, dtype="int64")], [spec(100, 4096)], 77_824),
    ],
)  # fmt: skip
def test_within_two_kib_of_the_block_that_was_measured(name, inputs, outputs, measured):
    assert abs(pooled(taken(name, inputs, outputs)) - measured) <= 2048


@pytest.mark.parametrize("numbers", [(), (NUMBER,)])  # a compiled graph passes `dim` too
@pytest.mark.parametrize(
    ("width", "n_tokens", "measured"),
    [
        (4096, 1024, 2084 * MIB + 3072), (4096, 2048, 2132 * MIB + 3072), (4096, 4096, 2228 * MIB + 3072),
        (1792, 8192, 1_119_620_096),
    ],
)  # fmt: skip
def test_the_gradient_of_looked_up_rows_takes_the_table_again(width, n_tokens, measured, numbers):
    table, rows = spec(129_280, width, dtype="float32"), spec(n_tokens, width, dtype="float32")
    indices = spec(n_tokens, width, dtype="int64")
    found = taken("GatherDGradV2", [table, *numbers, indices, rows], [table])
    assert abs(pooled(found) - measured) <= 4096


def test_along_the_last_dimension_it_takes_little():
    indices, values = spec(4096, 1, dtype="int64"), spec(4096, 1, dtype="float32")
    assert taken("GatherDGradV2", [LOGITS, indices, values], [LOGITS]) == 16 * MIB + 4 * 4096


def test_a_turned_operand_is_copied_first():
    turned = spec(129_280, 4096, strides=(1, 129_280))
    found = taken("InplaceAddExt", [spec(129_280, 4096), turned])
    assert found == 129_280 * 4096 * 2
    assert abs(pooled(found) - 1_059_064_320) <= 2560


@pytest.mark.parametrize(
    "name", ["Reshape", "ExpandDims", "SplitTensorView", "Transpose.view", "Slice.view", "Detach"]
)
def test_views_take_none(name):
    assert taken(name, [SQUARE], [SQUARE]) == 0


@pytest.mark.parametrize("name", ["Transpose", "SwigluGrad", "LayerNormExt", "AdamW", "SomethingNew"])
def test_every_other_kernel_takes_the_least(name):
    assert taken(name, [SQUARE], [SQUARE]) == 16 * MIB


def test_level_two_of_a_recording_has_a_row_for_each(tmp_path):
    signatures = [
        Signature("ms.MatMul", (SQUARE, SQUARE), (SQUARE,), ""),
        Signature("ms.Transpose.view", (SQUARE,), (SQUARE,), ""),
        Signature("ms.SwigluGrad", (SQUARE, SQUARE), (SQUARE,), ""),
    ]
    events = [Alloc(0, 32 * MIB, role=Role.WEIGHT), *(Op(i, i, (0,)) for i in range(3))]
    record_events(tmp_path / "r", events, signatures=signatures)
    found, notes = with_workspaces(read_recording(tmp_path / "r"), NPU, TABLE, env={})
    born = (found.columns["kind"] == Kind.ALLOC) & (found.columns["role"] == Role.WORKSPACE)
    assert found.columns["value"][born].tolist() == [20 * MIB, 16 * MIB]
    (note,) = notes
    assert note.startswith(
        "the workspace of ms.MatMul rests on one published measurement per operator, used for every shape"
    )


def test_no_primitive_in_any_form_leaves_the_table_without_an_answer():
    names = (
        (Path(__file__).parents[2] / "timing" / "data" / "mindspore_primitives.txt")
        .read_text(encoding="utf-8")
        .split()
    )
    forms = [([], []), ([SQUARE], []), ([SQUARE] * 3, [SQUARE] * 3)]
    for name in names:
        for inputs, outputs in forms:
            demand = TABLE.demand_of(Signature(f"ms.{name}", tuple(inputs), tuple(outputs), ""), NPU)
            assert min(demand.call, default=0) >= 0
            assert demand.failed == () or len(inputs) < 3, name
