"""An installed MindSpeed loads our operators where it would compile its extensions for CANN.

The package here is as small as it can be: builder classes with MindSpeed's names, whose `load` would need a compiler.
"""

from __future__ import annotations

import sys

import pytest
import torch

from tests.capture.pytorch.simulated import simulate
from tests.capture.pytorch.test_fused_npu import (
    BF16,
    KEPT,
    NPU,
    activation,
    alive_at_end,
    allocated_in_backward,
    mark,
)

BUILDER = """
import os
import torch_npu
class MindSpeedOpBuilder:
    def __init__(self, name):
        self.name = name
        self.headers = os.path.join(os.path.dirname(torch_npu.__file__), "include")
    def load(self, verbose=True):
        raise RuntimeError("no CANN here")
"""
ATB = """
from mindspeed.op_builder.builder import MindSpeedOpBuilder
class AtbOpBuilder(MindSpeedOpBuilder):
    def load(self, verbose=True):
        raise RuntimeError("no ATB here")
"""


@pytest.fixture
def load(tmp_path):
    """A function that a simulated program calls: builder class and extension name -> the extension."""
    folder = tmp_path / "mindspeed" / "op_builder"
    folder.mkdir(parents=True)
    (tmp_path / "mindspeed" / "__init__.py").write_text("HERE = True")
    (folder / "__init__.py").write_text("")
    (folder / "builder.py").write_text(BUILDER)
    (folder / "atb_builder.py").write_text(ATB)

    def load_extension(name: str, builder: str = "MindSpeedOpBuilder"):
        sys.path.insert(0, str(tmp_path))
        import mindspeed.op_builder.atb_builder as module

        return getattr(module, builder)(name).load()

    return load_extension


def test_the_installed_package_stays_and_its_builders_answer(load):
    def program():
        rope = load("npu_rotary_position_embedding")
        import mindspeed

        x = activation(64, 1, 4, 32)
        cos, sin = (torch.empty(64, 1, 1, 32, dtype=BF16, device="npu") for _ in range(2))
        KEPT.append(rope.npu_rotary_position_embedding(x, cos, sin, 0))
        return mindspeed.HERE, load("npu_rotary_position_embedding") is rope

    result = simulate(program, NPU)
    assert result.answer == (True, True)
    assert result.notices == [
        "MindSpeed's extensions were not compiled for CANN: their kernels were simulated"
    ]
    assert alive_at_end(result) == sorted([64 * 32 * 2] * 2 + [64 * 4 * 32 * 2])


def test_a_builder_with_its_own_load_answers_too_and_writes_in_place(load):
    def program():
        add = load("npu_matmul_add_fp32", "AtbOpBuilder")
        x, dy = torch.empty(8, 16, dtype=BF16, device="npu"), torch.empty(8, 32, dtype=BF16, device="npu")
        total = torch.zeros(16, 32, device="npu")
        mark()
        add.npu_matmul_add_fp32(x, dy, total)

    result = simulate(program, NPU)
    assert result.op_names[-1] == "mindspeed.npu_matmul_add_fp32.default"
    assert allocated_in_backward(result) == []


def test_an_extension_that_is_not_simulated_is_named(load):
    def program():
        load("lcal")

    result = simulate(program, NPU, is_ok=False)
    assert "MindSpeed's extension lcal is not simulated" in result.error


@pytest.mark.parametrize("as_tensor", [False, True])
@pytest.mark.parametrize("name", ["grouped_matmul", "grouped_matmul_v2"])
def test_gradients_of_a_grouped_product_are_two_more(load, name, as_tensor):
    def program():
        gmm = load(name)
        x, weight = torch.empty(32, 16, dtype=BF16).npu(), torch.empty(4, 16, 24, dtype=BF16).npu()
        groups = torch.tensor([8, 16, 24, 32])
        groups = groups.npu() if as_tensor else groups.tolist()
        (out,) = gmm.npu_gmm([x], [weight], [], groups, 0, 0)
        mark()
        d_x, d_weight, d_bias = gmm.npu_gmm_backward([out], [x], [weight], groups, 0)
        (fused,), none, _ = gmm.npu_gmm_backward_fusion([out], [weight], groups, 0)
        return [tuple(t.shape) for t in (out, *d_x, *d_weight, fused)], d_bias, none

    result = simulate(program, NPU)
    assert result.answer == ([(32, 24), (32, 16), (4, 16, 24), (32, 16)], [], [])
    assert allocated_in_backward(result) == [32 * 16 * 2, 4 * 16 * 24 * 2, 32 * 16 * 2]


def test_mindspeeds_permutation_keeps_the_sorted_indices_only(load):
    def program():
        permute = load("npu_moe_token_permute").npu_moe_token_permute
        unpermute = load("npu_moe_token_unpermute").npu_moe_token_unpermute
        tokens = activation(16, 64)
        rows, order = permute(tokens, torch.zeros(16, 2, dtype=torch.int64, device="npu"), 0, False)
        del tokens
        KEPT.append((rows, order))
        return tuple(unpermute(rows, order, torch.ones(16, 2, dtype=BF16).npu(), False, None).shape)

    result = simulate(program, NPU)
    assert result.answer == (16, 64)
    assert alive_at_end(result) == [32 * 4, 32 * 64 * 2]


def test_a_tensor_that_lies_in_another_gives_its_memory_back(load):
    def program():
        reuse = load("algorithm").reuse_data_ptr
        source = torch.zeros(1024, dtype=BF16, device="npu")
        target = torch.empty(512, dtype=torch.int32, device="npu")
        reuse(target, source, 0)
        KEPT.append((source, target))
        try:
            reuse(torch.empty(512, dtype=torch.int32, device="npu"), source, 1)
        except RuntimeError as error:
            return str(error)

    result = simulate(program, NPU)
    assert result.answer == "reuse_data_ptr: bytes 4 to 2,052 are not in a tensor of 2,048 bytes"
    assert alive_at_end(result) == [2048]


def test_ring_attention_and_adam_of_mindspeed(load):
    def program():
        out, rows = torch.empty(64, 1, 32, dtype=BF16, device="npu"), torch.empty(1, 4, 64, 8, device="npu")
        mark()
        found = load("npu_ring_attention_update").npu_ring_attention_update(out, rows, rows, out, rows, rows)
        param, grad, m, v = (torch.zeros(256, device="npu") for _ in range(4))
        step = torch.ones(1, device="npu")
        adam = load("npu_apply_fused_adamw_v2").npu_apply_fused_adamw_v2
        adam(param, grad, m, v, None, step, 1e-3, 0.9, 0.95, 0.1, 1e-8, False, False)
        return [tuple(t.shape) for t in found]

    result = simulate(program, NPU)
    assert result.answer == [(64, 1, 32), (1, 4, 64, 8), (1, 4, 64, 8)]
    assert allocated_in_backward(result) == [64 * 32 * 2, 8192, 8192, *[1024] * 4, 4, 4]
