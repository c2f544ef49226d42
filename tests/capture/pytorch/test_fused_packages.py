"""Packages of fused kernels that are simulated where they are not installed: flash_attn, Apex's softmax."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch

from tests.capture.pytorch.simulated import simulate
from tests.capture.pytorch.test_fused_npu import alive_at_end

KEPT: list[Any] = []
BF16 = torch.bfloat16


def activation(*shape: int) -> torch.Tensor:
    return torch.ones(1, dtype=BF16, device="cuda", requires_grad=True).expand(shape).contiguous()


def backward_allocations(program: Any) -> list[int]:
    sizes = simulate(program).alloc_sizes()
    return sizes[sizes.index(3) + 1 :]


def test_flash_attention_keeps_inputs_output_row_sums_and_random_state():
    def program():
        from flash_attn import flash_attn_func

        q, k, v = activation(2, 100, 4, 32), activation(2, 100, 2, 32), activation(2, 100, 2, 32)
        KEPT.append(flash_attn_func(q, k, v, causal=True))

    result = simulate(program)
    q, k, lse, state = 2 * 100 * 4 * 32 * 2, 2 * 100 * 2 * 32 * 2, 2 * 4 * 100 * 4, 16
    assert alive_at_end(result) == sorted([q, k, k, q, lse, state])
    assert "flash_attn._flash_attn_forward.default" in result.op_names
    assert "flash_attn is not installed here: its kernels were simulated" in result.notices


def test_its_gradient_takes_accumulators_while_it_runs():
    def program():
        from flash_attn import flash_attn_func

        q, k, v = activation(2, 100, 4, 40), activation(2, 100, 2, 40), activation(2, 100, 2, 40)
        out = flash_attn_func(q, k, v)
        gradient = torch.empty_like(out)
        torch.empty(3, dtype=torch.uint8, device="cuda")
        torch.autograd.grad(out, (q, k, v), gradient)

    q, k = 2 * 100 * 4 * 40 * 2, 2 * 100 * 2 * 40 * 2
    row_dots, wide_dq = 2 * 4 * 128 * 4, 2 * 128 * 4 * 64 * 4  # rows padded to 128, heads to 64
    per_query_head = 2 * 100 * 4 * 40 * 2  # dk and dv before they are summed over the heads of a group
    assert backward_allocations(program) == [row_dots, wide_dq, per_query_head, per_query_head, q, k, k]


def test_heads_are_padded_to_eight_and_cut_again():
    def program():
        from flash_attn import flash_attn_func

        q = activation(1, 16, 2, 20)
        out = flash_attn_func(q, q, q)
        return tuple(out.shape), out.stride()

    shape, stride = simulate(program).answer
    assert shape == (1, 16, 2, 20)
    assert stride[-2] == 24


def test_packed_sequences_have_one_row_sum_per_token_and_head():
    def program():
        from flash_attn import flash_attn_varlen_func

        q = activation(96, 4, 32)
        starts = torch.tensor([0, 32, 96], dtype=torch.int32, device="cuda")
        out = flash_attn_varlen_func(q, q, q, starts, starts, 64, 64)
        out.sum().backward()
        _, lse, _ = flash_attn_varlen_func(q, q, q, starts, starts, 64, 64, return_attn_probs=True)
        return tuple(out.shape), tuple(lse.shape)

    assert simulate(program).answer == ((96, 4, 32), (4, 96))


def test_fp32_is_refused_as_the_package_refuses_it():
    def program():
        from flash_attn import flash_attn_func

        q = torch.empty(1, 16, 2, 32, device="cuda")
        flash_attn_func(q, q, q)

    assert "only support fp16 and bf16" in simulate(program, is_ok=False).error


def test_transformers_trains_with_flash_attention_2():
    def program():
        for name in [n for n in sys.modules if n.partition(".")[0] == "transformers"]:
            del sys.modules[name]  # it looks for flash_attn when it is imported
        import transformers

        config = transformers.LlamaConfig(
            hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            vocab_size=100,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM._from_config(
            config, attn_implementation="flash_attention_2", dtype=BF16
        ).cuda()
        tokens = torch.zeros(2, 16, dtype=torch.int64, device="cuda")
        model(input_ids=tokens, labels=tokens).loss.backward()

    names = simulate(program).op_names
    assert names.count("flash_attn._flash_attn_forward.default") == 2
    assert names.count("flash_attn._flash_attn_backward.default") == 2


def test_padding_is_taken_out_and_put_back():
    def program():
        from flash_attn.bert_padding import pad_input, unpad_input

        mask = torch.tensor([[1, 1, 0], [1, 0, 0]], device="cuda")
        x = activation(2, 3, 8)
        rows, places, starts, longest, used = unpad_input(x, mask)
        back = pad_input(rows, places, 2, 3)
        return tuple(rows.shape), starts.tolist(), longest, used.tolist(), tuple(back.shape)

    assert simulate(program).answer == ((3, 8), [0, 2, 3], 2, [2, 1], (2, 3, 8))


def importable() -> bool:
    try:
        import flash_attn  # noqa: F401
    except ImportError:
        return False
    return True


@pytest.mark.parametrize(
    ("device", "is_there"), [("a100-80gb", True), ("ascend-910b-64gb-torch", False), ("cpu", False)]
)
def test_a_package_is_there_only_on_the_device_that_has_it(device, is_there):
    result = simulate(importable, device)
    assert result.answer is is_there
    assert result.notices == []  # imported is not used


def test_a_package_the_cluster_lacks_can_be_hidden(monkeypatch):
    monkeypatch.setenv("WINDTUNNEL_WITHOUT", "flash_attn")
    assert simulate(importable).answer is False


def test_hiding_apex_hides_the_modules_it_builds_beside_itself(monkeypatch):
    monkeypatch.setenv("WINDTUNNEL_WITHOUT", "flash_attn, apex")

    def program():
        import scaled_softmax_cuda  # noqa: F401

    assert "scaled_softmax_cuda" in simulate(program, is_ok=False).error


def test_an_installed_package_wins(monkeypatch, tmp_path):
    (tmp_path / "flash_attn.py").write_text("who = 'the real one'\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))

    def program():
        import flash_attn

        return flash_attn.who

    assert simulate(program).answer == "the real one"


def test_what_a_package_is_not_simulated_for_cannot_be_imported():
    def program():
        from flash_attn.layers.rotary import apply_rotary_emb  # noqa: F401

    assert "flash_attn.layers" in simulate(program, is_ok=False).error


def test_apex_softmax_keeps_its_result_and_writes_the_gradient_over_its_input():
    def program():
        import scaled_upper_triang_masked_softmax_cuda as kernel

        scores = torch.empty(8, 64, 64, dtype=BF16, device="cuda")
        probabilities = kernel.forward(scores, torch.tensor([1.0])[0])
        gradient = torch.empty_like(probabilities)
        found = kernel.backward(gradient, probabilities, 1.0)
        return found.data_ptr() == gradient.data_ptr()

    result = simulate(program)
    assert result.answer is True
    assert result.alloc_sizes() == [8 * 64 * 64 * 2] * 3


def test_generators_and_states_are_one():
    def program():
        generator = torch.cuda.default_generators[0]
        before = torch.cuda.get_rng_state()
        generator.set_state(torch.full_like(before, 5))
        clone = generator.clone_state()
        generator.set_state(before)
        generator.graphsafe_set_state(clone)
        return torch.cuda.get_rng_state().tolist() == [5] * 16, isinstance(generator, torch.Generator)

    assert simulate(program).answer == (True, True)
