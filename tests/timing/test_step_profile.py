"""Which operators and modules the time of a step goes to, and what it computes."""

from __future__ import annotations

import numpy as np
import pytest

from tests.timing.fixed_costs import FixedCosts, recording_of
from tests.timing.signatures import spec
from windtunnel.events.model import ModuleEnter, ModuleExit, Op, Phase, Signature, Step
from windtunnel.events.recomputation import is_recomputed
from windtunnel.timing.operators.op_cost import Basis, OpCost
from windtunnel.timing.row_costs import row_costs
from windtunnel.timing.step_profile import OperatorTime, profile_of, shapes_text, tokens_of

MM = Signature("aten.mm.default", (spec(4, 8), spec(8, 2)), (spec(4, 2),), "")
MM_WIDE = Signature("aten.mm.default", (spec(4, 8), spec(8, 16)), (spec(4, 16),), "")
MM_OUT = Signature("aten.mm.out", (spec(4, 8), spec(8, 2)), (spec(4, 2),), "")
ODD = Signature("mine.odd.default", (spec(3),), (spec(3),), "")
VIEW = Signature("aten.view.default", (spec(3),), (spec(3),), "")
RELU = Signature("aten.relu.default", (spec(3),), (spec(3),), "")
COSTS = {
    "aten.mm.default": OpCost(2.0, 0.0, flops=4 * 10**12, n_bytes=10**9, op_class="matmul"),
    "aten.mm.out": OpCost(1.0, 0.0, flops=4 * 10**12, n_bytes=10**9, op_class="matmul"),
    "mine.odd.default": OpCost(3.0, 0.0, Basis.BYTES, n_bytes=6 * 10**9, op_class="other"),
    "aten.view.default": OpCost(0.0, 0.0, Basis.FREE, op_class="free"),
    "aten.relu.default": OpCost(0.5, 0.0, Basis.MEASURED, op_class="elementwise", spread=0.4),
}


def profile(events, signatures, names=("net", "net.a", "net.b"), rows=None, **source):
    footer = {"compiled": source.pop("compiled", None)}
    recording = recording_of(events, signatures, names, **footer)
    rows = np.arange(len(recording)) if rows is None else np.array(rows)
    return profile_of(
        recording, rows, row_costs(recording, FixedCosts(COSTS, **source)), is_recomputed(recording)
    )


def test_calls_with_the_same_tensors_are_one_line_longest_first():
    found = profile([Op(0, 0), Op(1, 0), Op(2, 1), Op(3, 2)], [MM, MM_WIDE, ODD])
    assert found.operators == (
        OperatorTime("aten.mm", "matmul", "4x8 bf16, 8x2 bf16", 2, 4.0, 2.0, 0.5, "model"),
        OperatorTime("mine.odd", "other", "3 bf16", 1, 3.0, 0.0, 2.0, "bytes"),
        OperatorTime("aten.mm", "matmul", "4x8 bf16, 8x16 bf16", 1, 2.0, 2.0, 0.5, "model"),
    )
    assert (found.seconds, found.n_kernels) == (9, 4)


def test_overloads_of_one_operator_are_told_together():
    (only,) = profile([Op(0, 0), Op(1, 1)], [MM, MM_OUT]).operators
    assert (only.op, only.count, only.seconds) == ("aten.mm", 2, 3.0)
    assert only.tflops == pytest.approx(8 / 3)


def test_time_is_reported_by_class_module_and_phase():
    events = [
        Op(0, 0, module=1), Op(1, 1, module=2), Op(2, 0, module=1, phase=Phase.BACKWARD), Op(3, 1, phase=Phase.OPTIMIZER),
    ]  # fmt: skip
    found = profile(events, [MM, ODD])
    assert list(found.by_class.items()) == [("other", 6), ("matmul", 4)]
    assert list(found.by_module.items()) == [("net.a", 4), ("", 3), ("net.b", 3)]
    assert found.by_phase == {"forward": 5, "backward": 2, "optimizer": 3}
    assert sum(found.by_module.values()) == sum(found.by_phase.values()) == found.seconds


def test_only_the_rows_of_the_step_count():
    found = profile([Op(0, 0), Step(1), Op(1, 0), Op(2, 1), Step(2)], [MM, ODD], rows=[2, 3, 4])
    assert (found.seconds, found.hardware_flops) == (5, 4 * 10**12)


def test_model_flops_leave_out_what_is_computed_again_and_hardware_flops_do_not():
    events = [
        ModuleEnter(1), Op(0, 0), ModuleExit(1),  # forward
        ModuleEnter(1, is_again=True), ModuleEnter(2), Op(1, 0), ModuleExit(2), Op(2, 0), ModuleExit(1, is_again=True),
        Op(3, 0, phase=Phase.BACKWARD),
    ]  # fmt: skip
    found = profile(events, [MM])
    assert (found.model_flops, found.hardware_flops) == (2 * 4 * 10**12, 4 * 4 * 10**12)
    assert found.seconds == 8  # which does take time


def test_an_operator_without_a_model_is_named_and_counted():
    found = profile([Op(0, 0), Op(1, 1), Op(2, 1)], [MM, ODD])
    assert (found.bounded, found.bounded_seconds) == ({"mine.odd": 2}, 6.0)


def test_a_measurement_that_did_not_settle_is_named_with_its_spread():
    assert profile([Op(0, 0), Op(1, 1)], [MM, RELU]).unsettled == {"aten.relu 3 bf16": 0.4}


def test_what_takes_no_time_is_no_kernel_and_not_in_the_list():
    found = profile([Op(0, 0), Op(1, 1)], [VIEW, MM])
    assert (found.n_kernels, [op.op for op in found.operators]) == (1, ["aten.mm"])
    assert found.by_class == {"matmul": 2}


def test_kernels_of_a_compiler_are_one_line():
    events = [Op(i, s, (i,), (i + 1,), module=1) for i, s in enumerate([0, 0, 1, 0, 0])]
    compiled = {"functions": [], "modules": ["net.a"]}
    found = profile(events, [RELU, MM], compiled=compiled, fused=OpCost(0.25, 0.0))
    assert found.operators[-1] == OperatorTime(
        "(kernels of the compiler)", "fused", "", 2, 0.5, 0.0, 0.0, "model"
    )
    assert found.by_class == {"matmul": 2, "fused": 0.5}
    assert (found.seconds, found.n_kernels, found.unsettled) == (2.5, 3, {})


def test_nothing_ran():
    found = profile([], [])
    assert (found.seconds, found.operators, found.by_class, found.model_flops) == (0, (), {}, 0)


def embedding(n_rows, *indices):
    return Signature("aten.embedding.default", (spec(n_rows, 16), spec(*indices, dtype="int64")), (), "")


def tokens(events, signatures):
    recording = recording_of(events, signatures, ["net"])
    return tokens_of(recording, np.arange(len(recording)), is_recomputed(recording))


def test_tokens_are_what_is_looked_up_in_the_largest_table():
    positions, words = embedding(1024, 512), embedding(50257, 4, 512)
    assert tokens([Op(0, 0), Op(1, 1)], [positions, words]) == 4 * 512


def test_micro_batches_add_up_and_recomputation_does_not():
    again = [ModuleEnter(0, is_again=True), Op(3, 0), ModuleExit(0, is_again=True)]
    assert tokens([Op(0, 0), Op(1, 0), Op(2, 1), *again], [embedding(99, 2, 8), embedding(99, 1, 8)]) == 40


def test_the_gradient_of_an_embedding_is_no_lookup():
    backward = Signature(
        "aten.embedding_dense_backward.default", (spec(4, 8), spec(4, dtype="int64")), (), ""
    )
    assert tokens([Op(0, 0)], [backward]) == 0
    assert tokens([Op(0, 0)], [MM]) == 0


def test_shapes_are_written_as_people_write_them():
    assert shapes_text(MM) == "4x8 bf16, 8x2 bf16"
    many = Signature("x", (spec(dtype="float32"), *(spec(2, dtype="bool"),) * 4), (), "")
    assert shapes_text(many) == "scalar f32, 2 bool, 2 bool, and 2 more"
    assert shapes_text(Signature("x", (), (), "")) == ""
