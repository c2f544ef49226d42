"""The fused kernels of torch_npu: their results, what they keep for backward, what their gradients allocate."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.capture.pytorch.simulated import Simulated, simulate
from windtunnel.events.model import Alloc, Free

NPU = "ascend-910b-64gb-torch"
KEPT: list[Any] = []  # what a program leaves here is alive when its recording ends
BF16 = torch.bfloat16


def activation(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """A tensor in the graph whose own graph keeps no memory but two bytes."""
    return torch.ones(1, dtype=dtype, device="npu", requires_grad=True).expand(shape).contiguous()


def alive_at_end(result: Simulated) -> list[int]:
    """Bytes of what is still alive, without the two-byte leaves."""
    sizes: dict[int, int] = {}
    for event in result.events:
        if isinstance(event, Alloc):
            sizes[event.storage] = event.n_bytes
        elif isinstance(event, Free):
            del sizes[event.storage]
    return sorted(n for n in sizes.values() if n > 4)


def allocated_in_backward(result: Simulated) -> list[int]:
    """Bytes allocated after a marker of three bytes, in order."""
    sizes = result.alloc_sizes()
    return sizes[sizes.index(3) + 1 :]


def mark() -> None:
    torch.empty(3, dtype=torch.uint8, device="npu")


@pytest.mark.parametrize(
    ("layout", "q", "k", "out", "rows"),
    [
        ("SBH", (64, 2, 128), (64, 2, 64), (64, 2, 128), (2, 4, 64, 8)),
        ("BSH", (2, 64, 128), (2, 64, 64), (2, 64, 128), (2, 4, 64, 8)),
        ("BNSD", (2, 4, 64, 32), (2, 2, 64, 32), (2, 4, 64, 32), (2, 4, 64, 8)),
        ("BSND", (2, 64, 4, 32), (2, 64, 2, 32), (2, 64, 4, 32), (2, 4, 64, 8)),
        ("TND", (128, 4, 32), (128, 2, 32), (128, 4, 32), (128, 4, 8)),
    ],
)
def test_attention_answers_in_every_layout(layout, q, k, out, rows):
    def program():
        import torch_npu

        query, key = torch.empty(q, dtype=BF16, device="npu"), torch.empty(k, dtype=BF16, device="npu")
        results = torch_npu.npu_fusion_attention(query, key, key.clone(), 4, layout, scale=0.1)
        tensors = [(tuple(t.shape), t.dtype) for t in results[:4]]
        return tensors, list(results[4:])

    (attention, maxima, sums, softmax), numbers = simulate(program, NPU).answer
    assert attention == (out, BF16)
    assert maxima == sums == (rows, torch.float32)
    assert softmax == ((0,), BF16)
    n_batch = 1 if layout == "TND" else 2
    length = 128 if layout == "TND" else 64
    assert numbers == [0, 0, n_batch * 4 * length * length]


def test_attention_keeps_its_inputs_its_mask_its_output_and_two_numbers_per_row():
    def program():
        import torch_npu

        q, k, v = activation(64, 2, 128), activation(64, 2, 64), activation(64, 2, 64)
        mask = torch.zeros(64, 64, dtype=torch.bool, device="npu")
        KEPT.append(torch_npu.npu_fusion_attention(q, k, v, 4, "SBH", atten_mask=mask)[0])

    q_bytes, k_bytes, rows, mask = 64 * 2 * 128 * 2, 64 * 2 * 64 * 2, 2 * 4 * 64 * 8 * 4, 64 * 64
    kept = [q_bytes, k_bytes, k_bytes, mask, q_bytes, rows, rows]
    assert alive_at_end(simulate(program, NPU)) == sorted(kept)


def test_gradient_of_attention_allocates_like_its_inputs():
    def program():
        import torch_npu

        q, k, v = activation(64, 2, 128), activation(64, 2, 64), activation(64, 2, 64)
        out = torch_npu.npu_fusion_attention(q, k, v, 4, "SBH")[0]
        gradient = torch.empty_like(out)
        mark()
        torch.autograd.grad(out, (q, k, v), gradient)

    result = simulate(program, NPU)
    assert allocated_in_backward(result) == [32768, 16384, 16384]
    assert result.op_names[-1] == "npu.npu_fusion_attention_grad.default"


def test_dropout_makes_a_mask_of_one_bit_per_score_twice():
    def program():
        import torch_npu

        q = activation(2, 4, 64, 32)
        out = torch_npu.npu_fusion_attention(q, q, q, 4, "BNSD", keep_prob=0.9)[0]
        gradient = torch.empty_like(out)
        mark()
        torch.autograd.grad(out, q, gradient)

    result = simulate(program, NPU)
    mask = 2 * 4 * 64 * 64 // 8
    assert result.alloc_sizes().count(mask) == 2
    assert allocated_in_backward(result)[0] == mask
    lives = result.lives()
    assert lives.count(f"-{mask}") == 2  # and gives it back


def test_a_layout_that_does_not_fit_the_query_is_refused():
    def program():
        import torch_npu

        q = torch.empty(64, 2, 128, dtype=BF16, device="npu")
        torch_npu.npu_fusion_attention(q, q, q, 4, "BNSD")

    result = simulate(program, NPU, is_ok=False)
    assert "layout BNSD does not describe a query of shape (64, 2, 128)" in result.error


def test_rms_norm_keeps_its_input_its_weight_and_one_number_per_row():
    def program():
        import torch_npu

        x = activation(16, 2, 256)
        gamma = torch.ones(256, dtype=BF16, device="npu", requires_grad=True)
        KEPT.append(torch_npu.npu_rms_norm(x, gamma, epsilon=1e-6)[0])

    assert alive_at_end(simulate(program, NPU)) == sorted([16 * 2 * 256 * 2] * 2 + [256 * 2, 16 * 2 * 4])


def test_gradient_of_the_norms_weight_is_made_in_fp32_and_cast():
    def program():
        import torch_npu

        x = activation(16, 2, 256)
        gamma = torch.ones(256, dtype=BF16, device="npu", requires_grad=True)
        out = torch_npu.npu_rms_norm(x, gamma)[0]
        gradient = torch.empty_like(out)
        mark()
        found = torch.autograd.grad(out, (x, gamma), gradient)
        return [str(t.dtype) for t in found]

    result = simulate(program, NPU)
    assert allocated_in_backward(result) == [16 * 2 * 256 * 2, 256 * 4, 256 * 2]
    assert result.answer == ["torch.bfloat16"] * 2


def test_add_rms_norm_returns_the_sum_too():
    def program():
        import torch_npu

        x = torch.empty(16, 256, dtype=BF16, device="npu")
        results = torch_npu.npu_add_rms_norm(x, x, torch.ones(256, dtype=BF16, device="npu"))
        return [(tuple(t.shape), str(t.dtype)) for t in results]

    assert simulate(program, NPU).answer == [
        ((16, 256), "torch.bfloat16"),
        ((16, 1), "torch.float32"),
        ((16, 256), "torch.bfloat16"),
    ]


@pytest.mark.parametrize(("is_mindspeed", "keeps_x"), [(False, True), (True, False)])
def test_torch_npus_rotation_keeps_what_it_rotated_and_mindspeeds_does_not(is_mindspeed, keeps_x):
    def program():
        import torch_npu

        x = activation(64, 1, 4, 32)
        cos, sin = (torch.empty(64, 1, 1, 32, dtype=BF16, device="npu") for _ in range(2))
        if is_mindspeed:
            from mindspeed.ops.npu_rotary_position_embedding import npu_rotary_position_embedding

            KEPT.append(npu_rotary_position_embedding(x, cos, sin, 0))
        else:
            KEPT.append(torch_npu.npu_rotary_mul(x, cos, sin))

    result = simulate(program, NPU)
    x, angles = 64 * 4 * 32 * 2, 64 * 32 * 2
    assert alive_at_end(result) == sorted([angles, angles, x] + [x] * keeps_x)
    assert any("mindspeed is not installed" in notice for notice in result.notices) is is_mindspeed


def test_swiglu_keeps_its_input_and_its_gradient_is_as_large():
    def program():
        import torch_npu

        x = activation(16, 2, 512)
        out = torch_npu.npu_swiglu(x, dim=-1)
        gradient = torch.empty_like(out)
        mark()
        KEPT.append(torch.autograd.grad(out, x, gradient, retain_graph=True))
        KEPT.append(out)
        return tuple(out.shape)

    result = simulate(program, NPU)
    assert result.answer == (16, 2, 256)
    assert allocated_in_backward(result) == [16 * 2 * 512 * 2]
    assert alive_at_end(result) == [16 * 2 * 256 * 2, 16 * 2 * 512 * 2, 16 * 2 * 512 * 2]


def test_swiglu_of_an_odd_size_is_refused():
    def program():
        import torch_npu

        torch_npu.npu_swiglu(torch.empty(4, 5, device="npu"))

    assert "but its size is odd" in simulate(program, NPU, is_ok=False).error


def test_scripts_that_say_cuda_find_random_states_under_their_full_names():
    def program():
        from torch_npu.contrib import transfer_to_npu  # noqa: F401

        torch.cuda.random.set_rng_state(torch.full((16,), 7, dtype=torch.uint8))
        return torch.cuda.default_generators[0].get_state().tolist()

    assert simulate(program, NPU).answer == [7] * 16
