"""Small parts of torch that parallel programs use: moves between devices, wrappers of simulated tensors."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

from tests.capture.pytorch.simulated import needs_compiler, simulate


def test_data_of_a_real_host_tensor_may_move_to_the_card():
    """FSDP moves buffers and parameters in place, by their `.data`."""

    def program():
        buffer, weight = torch.arange(4.0), nn.Parameter(torch.tensor([1.0, 2.0]))
        buffer.data = buffer.to("cuda")
        weight.data = weight.data.to("cuda")
        (weight * 2).sum().backward()
        host = weight.detach().cpu()
        weight.data = host
        return (
            buffer.device.type,
            buffer.tolist(),
            type(weight).__name__,
            weight.grad.device.type,
            str(weight.device),
        )

    assert simulate(program).answer == ("cuda", [0.0, 1.0, 2.0, 3.0], "Parameter", "cuda", "cpu")


def test_attention_of_dtensors_takes_the_kernel_of_the_card():
    def program():
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Shard

        dist.init_process_group("nccl")
        mesh = init_device_mesh("cuda", (dist.get_world_size(),))
        local = [torch.zeros(1, 2, 64, 32, device="cuda", dtype=torch.bfloat16) for _ in range(3)]
        q, k, v = (DTensor.from_local(t, mesh, [Shard(1)]) for t in local)
        return tuple(F.scaled_dot_product_attention(q, k, v, is_causal=True).shape)

    run = simulate(program, world_size=4)
    assert run.answer == (1, 8, 64, 32)
    assert "aten._scaled_dot_product_flash_attention.default" in run.op_names
    assert "aten.bmm.default" not in run.op_names


def test_an_overflow_check_of_sharded_gradients_finds_none():
    """DeepSpeed reduces first and tests the extremes; a step it skips would hide the optimizer's memory."""

    def program():
        x = torch.randn(1000, 1000, device="cuda")
        overflow = torch.isfinite(x.amax()).logical_and(torch.isfinite(x.amin())).logical_not()
        count = torch.zeros(1, device="cuda")
        count += overflow
        flag, norm = count.bool().byte(), x.norm()
        nan = torch.tensor([1.0, float("nan")], device="cuda")
        return (
            flag[0].item(),
            bool((~torch.isfinite(norm) | (norm < 0)).any()),
            bool(norm != norm),
            nan.isnan().tolist(),
        )

    run = simulate(program)
    assert run.answer == (0, False, False, [False, True])
    assert [u["count"] for u in run.unknown_values] == [
        1
    ]  # `norm < 0` is answered as for 1; the rest is certain


def test_a_number_without_dimensions_travels_between_ranks():
    def program():
        dist.init_process_group("nccl")
        step = torch.tensor(7, device="cuda")
        dist.broadcast(step, 0)
        return step.item()

    assert simulate(program, world_size=4).answer == 7


def _attend_flexibly(is_compiled):
    from torch.nn.attention.flex_attention import flex_attention

    attend = torch.compile(flex_attention) if is_compiled else flex_attention
    q, k, v = (
        torch.zeros(2, heads, 256, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        for heads in (8, 4, 4)
    )
    out = attend(q, k, v, score_mod=lambda score, b, h, i, j: score + (i - j), enable_gqa=True)
    out.sum().backward()
    return tuple(out.shape), tuple(q.grad.shape), tuple(k.grad.shape), tuple(v.grad.shape)


@needs_compiler
def test_compiled_flex_attention_is_one_kernel_without_scores():
    run = simulate(lambda: _attend_flexibly(True))
    assert run.answer == ((2, 8, 256, 64), (2, 8, 256, 64), (2, 4, 256, 64), (2, 4, 256, 64))
    rows = 2 * 8 * 256
    out, lse = rows * 64 * 2, rows * 4
    sizes = [n for n in run.alloc_sizes() if n > 64]  # the mask of no blocks is a few numbers
    # after q, k and v: a log-sum-exp and a maximum per row, and the result
    assert sorted(sizes[3:6]) == [lse, lse, out]
    assert max(sizes) == out  # scores would take 256 numbers a row
    kernels = [name for name in run.op_names if "triton_tem_fused" in name]
    assert len(kernels) == 2, run.notices
    assert "flex_attention_backward" in kernels[1]


def test_uncompiled_flex_attention_makes_every_score():
    run = simulate(lambda: _attend_flexibly(False))
    assert max(run.alloc_sizes()) >= 2 * 8 * 256 * 256 * 4
    assert not any("compile" in notice for notice in run.notices)


def test_fsdp_takes_a_device_by_its_number():
    def program():
        dist.init_process_group("nccl")
        with torch.device("meta"):
            model = nn.Linear(8, 8)
        sharded = FSDP(
            model,
            device_id=torch.cuda.current_device(),
            param_init_fn=lambda m: m.to_empty(device="cuda", recurse=False),
        )
        return str(sharded.compute_device)

    assert simulate(program, world_size=2).answer == "cuda:0"


def test_ddp_finds_unused_parameters():
    """The default of Hugging Face's Trainer; torch's reducer wants pinned host memory for it."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.sometimes = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x, is_second):
            return self.sometimes(self.always(x)) if is_second else self.always(x)

    def program():
        dist.init_process_group("nccl")
        found = []
        model = nn.parallel.DistributedDataParallel(Two().cuda(), find_unused_parameters=True)
        for is_second in (False, True, False):
            model(torch.randn(2, 8, device="cuda"), is_second).sum().backward()
            found.append(model.module.sometimes.weight.grad is not None)
            model.zero_grad()
        still = nn.parallel.DistributedDataParallel(nn.Linear(8, 8).cuda(), static_graph=True)
        still(torch.randn(2, 8, device="cuda")).sum().backward()
        return found, still.module.weight.grad is not None

    assert simulate(program, world_size=2).answer == ([False, True, False], True)


def test_fsdp_by_device_number_knows_the_optimizer_state_of_other_ranks():
    def program():
        dist.init_process_group("nccl")
        torch.cuda.set_device(dist.get_rank())
        layers = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 4))
        model = FSDP(layers, device_id=torch.cuda.current_device(), use_orig_params=True)
        optimizer = torch.optim.Adam(model.parameters())
        model(torch.randn(2, 64, device="cuda")).sum().backward()
        optimizer.step()
        FSDP.optim_state_dict(model, optimizer)
        return str(torch.nn.utils.parameters_to_vector(model.parameters()).device)

    assert simulate(program, world_size=2, rank=1).answer == "cuda:1"


def test_trunc_normal_ends_on_a_dtensor():
    def program():
        from torch.distributed.fsdp import fully_shard

        dist.init_process_group("nccl")
        layer = nn.Linear(2048, 2048, device="cuda")
        fully_shard(layer, mesh=dist.init_device_mesh("cuda", (2,)))
        for std, limit in ((0.02, 2.0), (1.0, 2.0), (0.02, 0.001)):
            nn.init.trunc_normal_(layer.weight, std=std, a=-limit, b=limit)
        return type(layer.weight).__name__

    run = simulate(program, world_size=2)
    assert run.answer == "DTensor"
    assert len(run.op_names) < 100


def test_a_number_alone_is_a_device_of_the_run():
    def program():
        return [str(torch.zeros(1).to(torch.device(i)).device) for i in (0, 1)]

    assert simulate(program, n_devices=2).answer == ["cuda:0", "cuda:1"]
