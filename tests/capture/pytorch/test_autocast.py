"""Autocast of the simulated device: torch's own lists, and the memory of cached casts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.capture.pytorch.simulated import run_plainly, simulate
from windtunnel.capture.pytorch.kernels import autocast as ours

LOW = ("bfloat16", "float16")
POLICIES = {"lower", "fp32", "fp32_set_dtype", "fp32_append_dtype", "promote", "banned"}


@pytest.mark.parametrize("device_type", ["cuda", "cpu"])
def test_every_operator_torch_lists_has_a_policy(device_type):
    listed = ours.listed_operators(device_type)
    assert len(listed) > 80
    assert {ours.policy_of(name, device_type) for name in listed} <= POLICIES


def test_every_operator_we_name_is_listed_by_torch():
    listed = set(ours.listed_operators("cuda"))
    named = ours.FP32 | ours.FP32_SET_DTYPE | ours.FP32_APPEND_DTYPE | ours.PROMOTE
    only_on_cpu = {"cat", "stack", "index_copy"}
    assert named - listed == only_on_cpu
    assert only_on_cpu <= set(ours.listed_operators("cpu"))
    lower = {n for n in listed if ours.policy_of(n, "cuda") == "lower"}
    assert lower == {n for n in listed if n not in named and n != "binary_cross_entropy"}
    assert lower >= {
        "matmul",
        "linear",
        "conv2d",
        "bmm",
        "addmm",
        "mm",
        "baddbmm",
        "einsum",
        "scaled_dot_product_attention",
    }


def _table(x, w, v):
    """Name -> what the operator returns for float32 inputs under autocast."""
    low = (x @ w).detach()
    row = torch.zeros(1, dtype=torch.long, device=x.device)
    image = x.reshape(1, 1, 8, 8)
    return {
        "linear": F.linear(x, w),
        "matmul": x @ w,
        "mm": torch.mm(x, w),
        "bmm": torch.bmm(x[None], w[None]),
        "addmm": torch.addmm(v, x, w),
        "einsum": torch.einsum("ij,jk->ik", x, w),
        "conv2d": F.conv2d(image, torch.ones_like(image)[..., :3, :3]),
        "conv_transpose2d": F.conv_transpose2d(image, torch.ones_like(image)[..., :3, :3]),
        "prelu": F.prelu(x, v[:1]),
        "sdpa": F.scaled_dot_product_attention(x[None, None], w[None, None], w[None, None]),
        "softmax": low.softmax(-1),
        "log_softmax": low.log_softmax(-1),
        "layer_norm": F.layer_norm(low, (8,)),
        "exp": low.exp(),
        "sum": low.sum(),
        "cumsum": low.cumsum(0),
        "pow": low.pow(2),
        "mse_loss": F.mse_loss(low, low),
        "nll_loss": F.nll_loss(low.log_softmax(-1), torch.zeros(8, dtype=torch.long, device=x.device)),
        "cross_entropy": F.cross_entropy(low, torch.zeros(8, dtype=torch.long, device=x.device)),
        "norm": low.norm(),
        "interpolate": F.interpolate(low[None, None], scale_factor=2),
        "add": low + x,
        "relu": low.relu(),
        "gelu": F.gelu(low),
        "cat": torch.cat([low, x]),
        "stack": torch.stack([low, low]),
        "mean": low.mean(),
        "mul": low * 2,
        "scatter_add": low.scatter_add(0, row[None].expand(1, 8), x[:1] if x.is_cuda else low[:1]),
        "dropout": F.dropout(low, 0.5),
        "float64": x.double() @ w.double(),
    }


EXPECTED = {
    "lower": {
        "linear",
        "matmul",
        "mm",
        "bmm",
        "addmm",
        "einsum",
        "conv2d",
        "conv_transpose2d",
        "prelu",
        "sdpa",
        "relu",
        "gelu",
        "stack",
        "mean",
        "mul",
        "dropout",
    },
    "float32": {
        "softmax",
        "log_softmax",
        "layer_norm",
        "exp",
        "sum",
        "cumsum",
        "pow",
        "mse_loss",
        "nll_loss",
        "cross_entropy",
        "norm",
        "interpolate",
        "add",
        "cat",
        "scatter_add",
    },
    "float64": {"float64"},
}


@pytest.mark.parametrize("low", LOW)
def test_results_have_the_types_of_the_policy(low):
    def program():
        dtype = getattr(torch, low)
        x, w, v = (torch.ones(*s, device="cuda", requires_grad=True) for s in ((8, 8), (8, 8), (8,)))
        with torch.autocast("cuda", dtype):
            found = {k: str(t.dtype)[6:] for k, t in _table(x, w, v).items()}
        return found

    expected = {name: low if kind == "lower" else kind for kind, names in EXPECTED.items() for name in names}
    assert simulate(program).answer == expected


def test_a_banned_loss_says_so():
    def program():
        with torch.autocast("cuda"):
            F.binary_cross_entropy(torch.rand(3, device="cuda"), torch.rand(3, device="cuda"))

    run = simulate(program, is_ok=False)
    assert "unsafe to autocast" in run.error


def test_casts_of_weights_live_until_autocast_ends():
    def program():
        layer = nn.Linear(1000, 1000, bias=False).cuda()
        x = torch.ones(1, 1000, device="cuda")
        before = torch.cuda.memory_allocated()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            layer(x)
            layer(x)
            inside = torch.cuda.memory_allocated() - before
        no_grad_casts = inside
        with torch.autocast("cuda", torch.bfloat16):
            y = layer(x)
            del y
            inside = torch.cuda.memory_allocated() - before
        return no_grad_casts, inside, torch.cuda.memory_allocated() - before

    run = simulate(program)
    weight = 2_000_000 // 512 * 512 + 512
    no_grad, with_grad, after = run.answer
    assert after == 0
    assert with_grad == weight
    assert no_grad == weight
    assert run.alloc_sizes().count(2_000_000) == 2  # one cast for each autocast, not for each call


def test_the_cache_can_be_switched_off():
    def program():
        layer = nn.Linear(1000, 1000, bias=False).cuda()
        x = torch.ones(1, 1000, device="cuda")
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            layer(x)
            layer(x)

    assert simulate(program).alloc_sizes().count(2_000_000) == 2


def test_nested_autocast_can_be_left():
    def program():
        x = torch.ones(2, 2, device="cuda")
        with torch.autocast("cuda", torch.bfloat16):
            a = x @ x
            with torch.autocast("cuda", enabled=False):
                b = x @ x
                inside = torch.is_autocast_enabled("cuda")
            with torch.autocast("cuda", torch.float16):
                c = x @ x
            d = x @ x
            state = (
                torch.is_autocast_enabled(),
                torch.get_autocast_dtype("cuda"),
                torch.get_autocast_gpu_dtype(),
            )
        outside = torch.is_autocast_enabled()
        return [str(t.dtype)[6:] for t in (a, b, c, d)], inside, [str(s) for s in state], outside

    assert simulate(program).answer == (
        ["bfloat16", "float32", "float16", "bfloat16"],
        False,
        ["True", "torch.bfloat16", "torch.bfloat16"],
        False,
    )


def test_gradients_of_weights_stay_float32():
    def program():
        layer = nn.Linear(4, 4).cuda()
        with torch.autocast("cuda", torch.bfloat16):
            out = layer(torch.ones(2, 4, device="cuda"))
            loss = F.cross_entropy(out, torch.zeros(2, dtype=torch.long, device="cuda"))
        loss.backward()
        return str(out.dtype), str(loss.dtype), str(layer.weight.grad.dtype), str(layer.bias.grad.dtype)

    assert simulate(program).answer == ("torch.bfloat16", "torch.float32", "torch.float32", "torch.float32")


def test_grad_scaler_steps():
    def program():
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        scaler = torch.amp.GradScaler("cuda")
        scales = []
        for _ in range(3):
            with torch.autocast("cuda", torch.float16):
                loss = model(torch.ones(2, 4, device="cuda")).float().pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            scales.append(scaler.get_scale())
        return [int(s["step"]) for s in optimizer.state.values()], scales, sorted(scaler.state_dict())

    run = simulate(program)
    steps, scales, keys = run.answer
    assert steps == [3, 3]
    assert scales == [65536.0] * 3
    assert "scale" in keys
    assert run.recording.footer["steps"] == 3


def test_autocast_is_restored_in_a_recomputation():
    def program():
        from torch.utils.checkpoint import checkpoint

        layer = nn.Linear(64, 64).cuda()
        seen = []
        layer.register_forward_hook(lambda m, a, o: seen.append(str(o.dtype)))
        for reentrant in (True, False):
            x = torch.ones(2, 64, device="cuda", requires_grad=True)
            with torch.autocast("cuda", torch.bfloat16):
                out = checkpoint(layer, x, use_reentrant=reentrant)
            out.float().sum().backward()
        return seen

    # reentrant runs twice; the other stops its recomputation before the hook, when all it needs is there
    assert simulate(program).answer == ["torch.bfloat16"] * 3


def test_decorators_and_custom_functions():
    def program():
        @torch.autocast("cuda", torch.bfloat16)
        def forward(x):
            return x @ x

        class Mine(torch.autograd.Function):
            @staticmethod
            @torch.amp.custom_fwd(device_type="cuda", cast_inputs=torch.float32)
            def forward(ctx, x):
                return x @ x

            @staticmethod
            @torch.amp.custom_bwd(device_type="cuda")
            def backward(ctx, g):
                return g

        x = torch.ones(2, 2, device="cuda", requires_grad=True)
        with torch.autocast("cuda", torch.bfloat16):
            mine = Mine.apply(x.bfloat16())
        mine.sum().backward()
        return str(forward(x).dtype), str(mine.dtype), str(x.grad.dtype)

    assert simulate(program).answer == ("torch.bfloat16", "torch.float32", "torch.float32")


def test_autocast_of_the_host_casts_real_tensors():
    def program():
        x = torch.ones(2, 2)
        with torch.autocast("cpu", torch.bfloat16):
            return str((x @ x).dtype), str(x.softmax(-1).dtype)

    assert simulate(program).answer == run_plainly(program)


def test_autocast_of_the_cpu_as_device_matches_torch():
    def program():
        x, w, v = torch.ones(8, 8), torch.ones(8, 8), torch.ones(8)
        with torch.autocast("cpu", torch.bfloat16):
            return {k: str(t.dtype)[6:] for k, t in _table(x, w, v).items() if k != "dropout"}

    assert simulate(program, "cpu").answer == run_plainly(program)
