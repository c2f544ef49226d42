"""Packages of fused kernels on a simulated GPU: what they keep, who sees those that are not installed, what is refused."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import pytest
import torch

from tests.capture.pytorch.simulated import simulate
from tests.capture.pytorch.test_fused_npu import alive_at_end
from windtunnel.events.model import Op

KEPT: list[Any] = []
BF16 = torch.bfloat16
H100 = "h100-80gb"


def activation(*shape: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.ones(1, dtype=dtype, device="cuda", requires_grad=True).expand(shape).contiguous()


def needs(package: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(package) is None, reason=f"{package} is not installed")


# -- who sees what ------------------------------------------------------------------------------------------------

LIBRARY = """
import importlib.metadata, importlib.util

def seen():
    found = []
    for name in ("apex", "xformers", "flash_attn_interface", "selective_scan_cuda", "flash_attn"):
        if importlib.util.find_spec(name) is not None:
            found.append(name)
    try:
        import apex.normalization
        found.append("import apex")
    except ImportError:
        pass
    try:
        found.append(importlib.metadata.version("flash-attn-3"))
    except importlib.metadata.PackageNotFoundError:
        pass
    return found
"""


def look_as_a_library() -> list[str]:
    import library_that_looks

    found: list[str] = library_that_looks.seen()
    return found


@pytest.mark.parametrize(
    ("shown", "seen"),
    [
        ("", ["selective_scan_cuda", "flash_attn"]),
        ("apex", ["apex", "selective_scan_cuda", "flash_attn", "import apex"]),
        ("flash_attn_interface", ["flash_attn_interface", "selective_scan_cuda", "flash_attn", "3.0.0"]),
    ],
)
def test_a_library_sees_only_the_packages_it_is_shown(monkeypatch, tmp_path, shown, seen):
    place = tmp_path / "site-packages"
    place.mkdir()
    (place / "library_that_looks.py").write_text(LIBRARY, encoding="utf-8")
    monkeypatch.syspath_prepend(str(place))
    monkeypatch.setenv("WINDTUNNEL_WITH", shown)
    installed = {name for name in ("apex", "xformers") if find_spec(name) is not None}
    assert [name for name in simulate(look_as_a_library).answer if name not in installed] == seen


# -- Apex -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "is_efficient", "kept"),
    [
        ("FusedLayerNorm", False, [64 * 128 * 4] * 2 + [128 * 4] * 2 + [64 * 4] * 2),
        ("FusedLayerNorm", True, [64 * 128 * 4] + [128 * 4] * 2 + [64 * 4]),
        ("FusedRMSNorm", False, [64 * 128 * 4] * 2 + [128 * 4] + [64 * 4]),
    ],
)
def test_apex_norms_keep_input_weights_and_statistics(name, is_efficient, kept):
    def program():
        import apex.normalization

        norm = getattr(apex.normalization, name)(128, memory_efficient=is_efficient).cuda()
        x = activation(64, 128, dtype=torch.float32)
        y = norm(x)
        KEPT.append((norm, y))

    assert alive_at_end(simulate(program)) == sorted(kept)


def test_apex_norms_add_sixteen_partial_sums_of_each_weights_gradient():
    def program():
        from apex.normalization import FusedLayerNorm

        norm = FusedLayerNorm(128).cuda()
        x = activation(64, 128)
        gradient = torch.empty_like(x)
        y = norm(x.float())
        torch.empty(3, dtype=torch.uint8, device="cuda")
        torch.autograd.grad(y, (norm.weight, norm.bias), gradient.float())

    sizes = simulate(program).alloc_sizes()
    assert sizes[sizes.index(3) + 2 :] == [64 * 128 * 4, 512, 512, 16 * 512, 16 * 512]


def test_fused_adam_makes_two_moments_and_launches_once_for_each_type():
    def program():
        from apex.optimizers import FusedAdam

        model = torch.nn.Sequential(
            torch.nn.Linear(64, 64, bias=False), torch.nn.Linear(64, 64, bias=False).to(BF16)
        )
        model.cuda()
        optimizer = FusedAdam(model.parameters())
        for _ in range(2):
            for parameter in model.parameters():
                parameter.grad = torch.zeros_like(parameter)
            optimizer.step()
        KEPT.append((model, optimizer))

    result = simulate(program)
    assert result.op_names.count("amp_C.multi_tensor_adam") == 4
    assert alive_at_end(result).count(64 * 64 * 4) == 4 + 2  # four moments; the fp32 weight and its gradient


# -- FlashAttention-3, xFormers ---------------------------------------------------------------------------------------


def test_flash_attention_3_keeps_no_random_state():
    def program():
        from flash_attn_interface import flash_attn_func

        q, k, v = activation(2, 100, 4, 64), activation(2, 100, 2, 64), activation(2, 100, 2, 64)
        KEPT.append(flash_attn_func(q, k, v, causal=True))

    result = simulate(program, H100)
    q, k, lse = 2 * 100 * 4 * 64 * 2, 2 * 100 * 2 * 64 * 2, 2 * 4 * 100 * 4
    assert alive_at_end(result) == sorted([q, k, k, q, lse])
    assert "flash_attn_3._flash_attn_forward.default" in result.op_names


def test_its_gradient_takes_the_accumulators_of_its_blocks():
    def program():
        from flash_attn_interface import flash_attn_func

        q, k, v = activation(2, 100, 4, 64), activation(2, 100, 2, 64), activation(2, 100, 2, 64)
        out = flash_attn_func(q, k, v)
        gradient = torch.empty_like(out)
        torch.empty(3, dtype=torch.uint8, device="cuda")
        torch.autograd.grad(out, (q, k, v), gradient)

    sizes = simulate(program, H100).alloc_sizes()
    q, k, row_numbers, wide_keys = (
        2 * 100 * 4 * 64 * 2,
        2 * 100 * 2 * 64 * 2,
        2 * 4 * 128 * 4,
        2 * 2 * 128 * 64 * 4,
    )
    scratch = [row_numbers, row_numbers, row_numbers * 64, wide_keys, wide_keys, 2 * 4 * 4]
    assert sizes[sizes.index(3) + 1 :] == [*scratch, q, k, k]


@pytest.mark.skipif(find_spec("xformers") is not None, reason="the installed xFormers wins")
@pytest.mark.parametrize(
    ("dtype", "operator"),
    [
        (BF16, "flash_attn._flash_attn_forward.default"),
        (torch.float32, "aten._scaled_dot_product_efficient_attention.default"),
    ],
)
def test_xformers_hands_over_to_the_kernel_of_the_type(dtype, operator):
    def program():
        from xformers.ops import LowerTriangularMask, memory_efficient_attention

        q = activation(2, 64, 4, 32, dtype=dtype)
        out = memory_efficient_attention(q, q, q, attn_bias=LowerTriangularMask())
        out.sum().backward()
        return tuple(out.shape)

    result = simulate(program)
    assert result.answer == (2, 64, 4, 32)
    assert operator in result.op_names


# -- mamba-ssm --------------------------------------------------------------------------------------------------------


def test_the_scan_keeps_a_state_for_every_2048_positions():
    def program():
        import selective_scan_cuda

        u = torch.empty(2, 8, 5000, device="cuda", dtype=BF16)
        A, B = torch.empty(8, 16, device="cuda"), torch.empty(2, 1, 16, 5000, device="cuda", dtype=BF16)
        out, states = selective_scan_cuda.fwd(u, u, A, B, B, None, None, None, True)
        found = selective_scan_cuda.bwd(u, u, A, B, B, None, None, None, out, states, out, None, True, False)
        return (
            tuple(states.shape),
            states.dtype is torch.float32,
            [None if t is None else t.dtype for t in found],
        )

    result = simulate(program)
    shape, is_wide, types = result.answer
    assert (shape, is_wide) == ((2, 8, 3, 32), True)
    assert types == [BF16, BF16, torch.float32, BF16, BF16, None, None]
    assert result.alloc_sizes().count(2 * 16 * 5000 * 4) == 2  # the gradients of B and C, summed in fp32


# -- kernels past torch -----------------------------------------------------------------------------------------------


def test_a_kernel_compiled_with_nvrtc_is_recorded():
    def program():
        kernel = torch.cuda._compile_kernel('extern "C" __global__ void add() {}', "add")
        x, y = torch.zeros(1024, device="cuda"), torch.zeros(1024, device="cuda")
        kernel(grid=(4, 1, 1), block=(256, 1, 1), args=[x, y, 1024])
        return y[0].item()

    result = simulate(program)
    assert "nvrtc.add" in result.op_names
    assert result.answer == 1.0  # it may have been written


@pytest.mark.parametrize(
    "share",
    [
        lambda x: x.__dlpack__(),
        lambda x: x.__cuda_array_interface__,
        lambda x: torch.utils.dlpack.to_dlpack(x),
        lambda x: torch.from_dlpack(x),
    ],
)
def test_the_memory_of_a_simulated_tensor_cannot_be_shared(share):
    def program():
        share(torch.zeros(8, device="cuda"))

    error = simulate(program, is_ok=False).error
    assert error.startswith("a library outside torch asked for the memory of a simulated tensor")
    assert "is_dry_run" in error


def test_the_hosts_memory_is_shared_as_ever():
    assert simulate(lambda: torch.from_dlpack(torch.arange(3)).tolist()).answer == [0, 1, 2]


# -- installed packages -----------------------------------------------------------------------------------------------


@needs("liger_kernel")
@needs("triton")
def test_ligers_fused_loss_keeps_gradients_in_place_of_logits():
    rows, width, words = 512, 128, 4096

    def program():
        from liger_kernel.ops.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyFunction

        x, weight = activation(rows, width), activation(words, width)
        labels = torch.zeros(rows, dtype=torch.int64, device="cuda")
        torch.empty(3, dtype=torch.uint8, device="cuda")
        loss, *_ = LigerFusedLinearCrossEntropyFunction.apply(x, weight, labels)
        KEPT.append((x, weight, labels, loss))

    result = simulate(program)
    signatures = [result.recording.signatures[e.signature] for e in result.events if isinstance(e, Op)]
    parts = [
        each.inputs[0].shape[0] for each in signatures if each.name == "triton.liger_cross_entropy_kernel"
    ]
    assert sum(parts) == rows
    assert (
        max(result.alloc_sizes()) == words * width * 2
    )  # the logits of all rows, four times as large, are never there
    inputs = [rows * width * 2, words * width * 2, rows * 8]
    assert alive_at_end(result) == sorted([*inputs, rows * width * 2, words * width * 2])


@needs("bitsandbytes")
def test_eight_bit_adam_has_a_byte_for_each_moment_and_four_for_each_block():
    def program():
        import bitsandbytes

        weight = torch.nn.Parameter(torch.zeros(256, 256, device="cuda"))
        optimizer = bitsandbytes.optim.AdamW8bit([weight])
        weight.grad = torch.zeros_like(weight)
        optimizer.step()
        KEPT.append((weight, optimizer))

    result = simulate(program)
    assert result.op_names.count("bitsandbytes.optimizer_update_8bit_blockwise") == 1
    n = 256 * 256
    expected = [n * 4, n * 4, n, n, n // 256 * 4, n // 256 * 4, 256 * 4, 256 * 4]
    assert alive_at_end(result) == sorted(expected)
