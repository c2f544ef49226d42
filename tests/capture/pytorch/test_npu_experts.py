"""The operators of torch_npu for experts, and its smaller ones: results, what they keep, what their gradients allocate."""

from __future__ import annotations

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

TOKENS, HIDDEN, EXPERTS, TOP = 16, 64, 8, 2


def test_permuted_tokens_are_one_row_per_slot():
    def program():
        import torch_npu

        tokens = torch.empty(TOKENS, HIDDEN, dtype=BF16, device="npu")
        indices = torch.empty(TOKENS, TOP, dtype=torch.int64, device="npu")
        every = torch_npu.npu_moe_token_permute(tokens, indices)
        some = torch_npu.npu_moe_token_permute(tokens, indices, num_out_tokens=20)
        back = torch_npu.npu_moe_token_unpermute(
            every[0], every[1], torch.ones(TOKENS, TOP, dtype=BF16).npu()
        )
        return [tuple(t.shape) for t in (*every, *some, back)], str(every[1].dtype)

    shapes, dtype = simulate(program, NPU).answer
    assert shapes == [(32, HIDDEN), (32,), (20, HIDDEN), (32,), (TOKENS, HIDDEN)]
    assert dtype == "torch.int32"


def test_permutation_keeps_tokens_and_indices_in_torch_npu():
    def program():
        import torch_npu

        tokens = activation(TOKENS, HIDDEN)
        indices = torch.zeros(TOKENS, TOP, dtype=torch.int64, device="npu")
        KEPT.append(torch_npu.npu_moe_token_permute(tokens, indices)[0])

    rows, slots = TOKENS * TOP * HIDDEN * 2, TOKENS * TOP
    assert alive_at_end(simulate(program, NPU)) == sorted([TOKENS * HIDDEN * 2, slots * 8, rows, slots * 4])


def test_gradients_of_a_permutation_and_its_inverse():
    def program():
        import torch_npu

        tokens, probs = activation(TOKENS, HIDDEN), activation(TOKENS, TOP)
        indices = torch.zeros(TOKENS, TOP, dtype=torch.int64, device="npu")
        rows, order = torch_npu.npu_moe_token_permute(tokens, indices)
        out = torch_npu.npu_moe_token_unpermute(rows, order, probs)
        gradient = torch.empty_like(out)
        mark()
        torch.autograd.grad(out, (tokens, probs), gradient)

    found = allocated_in_backward(simulate(program, NPU))
    assert found == [TOKENS * TOP * HIDDEN * 2, TOKENS * TOP * 2, TOKENS * HIDDEN * 2]


@pytest.mark.parametrize("has_probs", [False, True])
def test_a_routing_map_gives_probabilities_only_where_it_gets_them(has_probs):
    def program():
        import torch_npu

        tokens = activation(TOKENS, HIDDEN)
        probs = activation(TOKENS, EXPERTS, dtype=torch.float32) if has_probs else None
        routing = torch.zeros(TOKENS, EXPERTS, dtype=torch.bool, device="npu")
        rows, of_rows, order = torch_npu.npu_moe_token_permute_with_routing_map(
            tokens, routing, probs=probs, num_out_tokens=TOKENS * TOP
        )
        loss = rows.float().sum() + (of_rows.sum() if of_rows is not None else 0)
        loss.backward()
        restored = torch_npu._npu_moe_token_unpermute_with_routing_map(
            rows, order, (TOKENS, HIDDEN), probs=probs, routing_map=routing
        )
        d_rows, d_probs = torch_npu.npu_moe_token_unpermute_with_routing_map_grad(
            restored[0],
            order,
            order,
            routing_map=routing,
            permuted_tokens=rows,
            probs=probs,
            drop_and_pad=False,
            restore_shape=(TOKENS, HIDDEN),
        )
        return [
            None if t is None else tuple(t.shape) for t in (rows, of_rows, order, *restored, d_rows, d_probs)
        ]

    slots = TOKENS * TOP
    assert simulate(program, NPU).answer == [
        (slots, HIDDEN),
        (slots,) if has_probs else None,
        (slots,),
        (TOKENS, HIDDEN),
        (slots,),
        (slots,),
        (slots,) if has_probs else None,
        (slots, HIDDEN),
        (TOKENS, EXPERTS) if has_probs else None,
    ]


def test_grouped_products_by_rows_and_by_groups():
    def program():
        import torch_npu

        x = torch.empty(TOKENS, HIDDEN, dtype=BF16, device="npu")
        weights = torch.empty(EXPERTS, HIDDEN, 32, dtype=BF16, device="npu")
        ends = torch.zeros(EXPERTS, dtype=torch.int64, device="npu")
        rows = torch_npu.npu_grouped_matmul([x], [weights], group_list=ends, split_item=2, group_type=0)
        groups = torch_npu.npu_grouped_matmul([x.t()], [rows[0]], group_list=ends, split_item=3, group_type=2)
        each = torch_npu.npu_grouped_matmul([x, x], [weights[0], weights[1]])
        listed = torch_npu.npu_grouped_matmul(
            [x], [weights], group_list=[TOKENS] * EXPERTS, split_item=3, group_type=0
        )
        return [[tuple(t.shape) for t in found] for found in (rows, groups, each, listed)]

    assert simulate(program, NPU).answer == [
        [(TOKENS, 32)],
        [(EXPERTS, HIDDEN, 32)],
        [(TOKENS, 32)] * 2,
        [(TOKENS, 32)],
    ]


def test_masked_softmax_keeps_its_result_and_its_mask():
    def program():
        import torch_npu

        x = activation(2, 4, 32, 32)
        mask = torch.zeros(2, 1, 32, 32, dtype=torch.bool, device="npu")
        KEPT.append(torch_npu.npu_scaled_masked_softmax(x, mask, 0.5))

    assert alive_at_end(simulate(program, NPU)) == [2 * 32 * 32, 2 * 4 * 32 * 32 * 2]


@pytest.mark.parametrize(
    ("name", "n_kept"),
    [("npu_gelu", 2), ("npu_fast_gelu", 2), ("npu_silu", 2), ("npu_confusion_transpose", 1)],
)
def test_activations_keep_their_input_and_a_transpose_keeps_nothing(name, n_kept):
    def program():
        import torch_npu

        x = activation(16, 64)
        more = ((1, 0), (64, 16), True) if "transpose" in name else ()
        return x, getattr(torch_npu, name)(x, *more)

    def forward():
        _, out = program()
        KEPT.append(out)
        return tuple(out.shape)

    def forward_and_backward():
        x, out = program()
        return tuple(torch.autograd.grad(out, x, torch.empty_like(out))[0].shape)

    # Apart: a thread of autograd frees what a backward needed, sometimes after the program has ended.
    result = simulate(forward, NPU)
    assert result.answer == ((64, 16) if "transpose" in name else (16, 64))
    assert alive_at_end(result) == [16 * 64 * 2] * n_kept
    assert simulate(forward_and_backward, NPU).answer == (16, 64)


def test_fused_adam_writes_in_place():
    def program():
        import torch_npu

        var, m, v, grad = (torch.zeros(1024, device="npu") for _ in range(4))
        mark()
        found = torch_npu.npu_apply_adam_w(
            0.9, 0.999, 1e-3, 0.1, 0.9, 0.999, 1e-8, grad, None, False, False, out=(var, m, v)
        )
        return found[0] is var

    result = simulate(program, NPU)
    assert result.answer is True
    assert result.op_names[-1] == "npu.npu_apply_adam_w_.default"
    assert allocated_in_backward(result) == []
