"""Which attention kernel each device takes, and what that does to memory."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from tests.capture.pytorch.simulated import run_plainly, simulate

KERNELS = {
    "aten._scaled_dot_product_flash_attention.default": "flash",
    "aten._scaled_dot_product_efficient_attention.default": "efficient",
    "aten._scaled_dot_product_cudnn_attention.default": "cudnn",
    "aten._scaled_dot_product_fused_attention_overrideable.default": "fused",
    "aten._scaled_dot_product_flash_attention_for_cpu.default": "cpu_flash",
}


def _kernels(run):
    return [KERNELS[name] for name in run.op_names if name in KERNELS] or ["math"]


# device, dtype, head, what is special, the kernel
CHOICES = [
    ("a100", "bfloat16", 64, "", "flash"),
    ("a100", "float16", 64, "causal", "flash"),
    ("a100", "float16", 128, "dropout", "flash"),
    ("a100", "float16", 256, "", "flash"),
    ("a100", "float16", 264, "", "efficient"),
    ("a100", "float16", 60, "", "flash"),  # padded to 64
    ("a100", "float32", 64, "", "efficient"),
    ("a100", "float32", 62, "", "math"),  # rows are not aligned
    ("a100", "float64", 64, "", "math"),
    ("a100", "bfloat16", 64, "mask", "efficient"),
    ("a100", "bfloat16", 64, "bool mask", "efficient"),
    ("a100", "bfloat16", 64, "grouped", "flash"),
    ("a100", "bfloat16", 64, "three dims", "math"),
    ("h100", "bfloat16", 64, "", "cudnn"),
    ("h100", "float32", 64, "", "efficient"),
    ("b200", "bfloat16", 128, "", "cudnn"),
    ("l40s", "bfloat16", 128, "", "flash"),
    (
        "l40s",
        "bfloat16",
        224,
        "",
        "efficient",
    ),  # no flash backward for such heads on sm_89 … unless inference
    ("t4", "float16", 64, "", "efficient"),
    ("t4", "bfloat16", 64, "", "math"),
    ("t4", "float32", 64, "", "efficient"),
    ("ascend-910b", "bfloat16", 64, "", "fused"),
    ("ascend-910b", "float32", 64, "", "math"),
]


@pytest.mark.parametrize(("device", "dtype", "head", "special", "kernel"), CHOICES)
def test_the_kernel_of_each_device(device, dtype, head, special, kernel):
    word = "npu" if device.startswith("ascend") else "cuda"

    def program():
        shape = (2, 32, head) if special == "three dims" else (2, 4, 32, head)
        q, k, v = (
            torch.randn(shape, device=word, dtype=getattr(torch, dtype), requires_grad=True) for _ in range(3)
        )
        options = {}
        if special == "mask":
            options["attn_mask"] = torch.zeros(32, 32, device=word, dtype=q.dtype)
        if special == "bool mask":
            options["attn_mask"] = torch.ones(2, 1, 32, 32, device=word, dtype=torch.bool)
        if special == "grouped":
            k, v, options["enable_gqa"] = k[:, :2], v[:, :2], True
        if special == "causal":
            options["is_causal"] = True
        if special == "dropout":
            options["dropout_p"] = 0.1
        out = F.scaled_dot_product_attention(q, k, v, **options)
        out.sum().backward()
        return tuple(out.shape), q.grad is not None

    run = simulate(program, device)
    assert run.answer == ((2, 32, head) if special == "three dims" else (2, 4, 32, head), True)
    assert _kernels(run) == [kernel]


@pytest.mark.parametrize(
    ("allowed", "kernel"),
    [
        ([SDPBackend.MATH], "math"),
        ([SDPBackend.EFFICIENT_ATTENTION], "efficient"),
        ([SDPBackend.FLASH_ATTENTION], "flash"),
        ([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH], "flash"),
        ([SDPBackend.CUDNN_ATTENTION, SDPBackend.MATH], "cudnn"),
    ],
)
def test_sdpa_kernel_is_respected(allowed, kernel):
    def program():
        q = torch.randn(1, 2, 32, 64, device="cuda", dtype=torch.float16)
        with sdpa_kernel(allowed):
            F.scaled_dot_product_attention(q, q, q)

    assert _kernels(simulate(program, "h100")) == [kernel]


def test_global_switches_are_respected():
    def program():
        torch.backends.cuda.enable_flash_sdp(False)
        torch.backends.cuda.enable_mem_efficient_sdp(False)
        torch.backends.cuda.enable_cudnn_sdp(False)
        q = torch.randn(1, 2, 32, 64, device="cuda", dtype=torch.float16)
        F.scaled_dot_product_attention(q, q, q)

    assert _kernels(simulate(program)) == ["math"]


def test_a_kernel_that_cannot_run_is_refused_as_torch_does():
    def program():
        q = torch.randn(1, 2, 32, 64, device="cuda")
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, q, q)

    run = simulate(program, is_ok=False)
    assert "No available kernel" in run.error


def _attend(dtype, backend, n):
    def program():
        q, k, v = (torch.randn(1, 2, n, 64, device="cuda", dtype=dtype, requires_grad=True) for _ in range(3))
        with sdpa_kernel(backend):
            F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    return program


def test_flash_makes_no_score_matrix_and_math_does():
    n = 1024
    scores = 2 * n * n * 2
    flash = simulate(_attend(torch.float16, SDPBackend.FLASH_ATTENTION, n))
    math = simulate(_attend(torch.float16, SDPBackend.MATH, n))
    assert max(flash.alloc_sizes()) < scores / 4
    assert scores in math.alloc_sizes()
    assert flash.peak_bytes < math.peak_bytes / 3


def test_attention_without_gradients_keeps_nothing():
    def program():
        q = torch.randn(1, 2, 512, 64, device="cuda", dtype=torch.float16)
        with torch.no_grad():
            out = F.scaled_dot_product_attention(q, q, q)
        return torch.cuda.memory_allocated(), out.numel()

    allocated, numel = simulate(program).answer
    assert allocated == 2 * numel * 2


def test_the_cpu_takes_its_own_flash():
    def program():
        q, k, v = (torch.randn(2, 4, 32, 64, requires_grad=True) for _ in range(3))
        F.scaled_dot_product_attention(q, k, v).sum().backward()
        with torch.no_grad():
            F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    run = simulate(program, "cpu")
    assert _kernels(run) == ["cpu_flash"]


def test_shapes_and_strides_match_torch():
    def on(device):
        found = []
        for b, h, s, d in ((2, 4, 32, 64), (1, 8, 7, 16)):
            q = torch.zeros(b, s, h, d, device=device).transpose(1, 2)
            out = F.scaled_dot_product_attention(q, q, q)
            found.append((tuple(out.shape), out.transpose(1, 2).is_contiguous()))
        return found

    assert simulate(lambda: on("cuda")).answer == run_plainly(lambda: on("cpu"))


def test_multihead_attention_and_transformer_layers():
    def program():
        from torch import nn

        attention = nn.MultiheadAttention(32, 4, batch_first=True).cuda().half()
        x = torch.randn(2, 16, 32, device="cuda", dtype=torch.float16)
        out, weights = attention(x, x, x)
        _, none = attention(x, x, x, need_weights=False)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True).cuda()
        encoder = nn.TransformerEncoder(layer, 2).cuda()
        y = encoder(x.float(), src_key_padding_mask=torch.zeros(2, 16, dtype=torch.bool, device="cuda"))
        encoder.eval()
        with torch.no_grad():
            z = encoder(x.float())
        y.sum().backward()
        decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(32, 4, 64, batch_first=True), 1).cuda()
        mask = nn.Transformer.generate_square_subsequent_mask(16, device="cuda")
        d = decoder(x.float(), y.detach(), tgt_mask=mask, tgt_is_causal=True)
        return tuple(out.shape), tuple(weights.shape), none, tuple(y.shape), tuple(z.shape), tuple(d.shape)

    assert simulate(program).answer == ((2, 16, 32), (2, 16, 16), None, (2, 16, 32), (2, 16, 32), (2, 16, 32))
