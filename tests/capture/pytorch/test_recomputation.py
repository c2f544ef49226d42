"""Activation checkpointing: lower peaks, and recomputed operators under their own module paths."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from tests.capture.pytorch.simulated import simulate
from windtunnel.events.model import Op


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    def __init__(self, how, width=64, n_blocks=4):
        super().__init__()
        self.how = how
        self.blocks = nn.ModuleList(Block(width) for _ in range(n_blocks))
        self.head = nn.Linear(width, 8)

    def forward(self, x):
        if self.how == "sequential":
            x = checkpoint_sequential(nn.Sequential(*self.blocks), 2, x, use_reentrant=False)
        for block in self.blocks if self.how != "sequential" else ():
            x = self.call(block, x)
        return self.head(x)

    def call(self, block, x):
        if self.how in ("reentrant", "non-reentrant"):
            return checkpoint(block, x, use_reentrant=self.how == "reentrant")
        if self.how == "no rng":
            return checkpoint(block, x, use_reentrant=False, preserve_rng_state=False)
        if self.how == "selective":
            return checkpoint(block, x, use_reentrant=False, context_fn=_save_products)
        return block(x)


def _save_products():
    def policy(ctx, op, *args, **kwargs):
        is_product = op in (torch.ops.aten.mm.default, torch.ops.aten.addmm.default)
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)


def _train(how):
    def program():
        model = Net(how).cuda()
        x = torch.randn(2048, 64, device="cuda", requires_grad=True)
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        model(x).sum().backward()
        return torch.cuda.max_memory_allocated() - before, all(p.grad is not None for p in model.parameters())

    return program


@pytest.fixture(scope="module")
def plain():
    return simulate(_train("plain"))


@pytest.mark.parametrize(
    ("how", "n_products"),
    [("reentrant", 17), ("non-reentrant", 13), ("no rng", 13), ("selective", 9), ("sequential", None)],
)
def test_checkpoints_lower_the_peak(how, n_products, plain):
    run = simulate(_train(how))
    peak, has_grads = run.answer
    assert has_grads
    assert peak < plain.answer[0] * (0.95 if how == "selective" else 0.7)
    forward = [m for m in run.modules_of("aten.addmm.default") if m]
    if n_products is not None:
        assert len(forward) == n_products  # 9 in forward, and the recomputed ones


@pytest.mark.parametrize("how", ["reentrant", "non-reentrant", "selective"])
def test_recomputed_operators_have_full_module_paths(how):
    run = simulate(_train(how))
    modules = {run.recording.name(e.module) for e in run.events if isinstance(e, Op)}
    known = (
        {"Net", "head"}
        | {f"blocks.{i}" for i in range(4)}
        | {f"blocks.{i}.{n}" for i in range(4) for n in ("up", "act", "down")}
    )
    assert modules <= known | {""}
    assert set(run.modules_of("aten.gelu.default")) == {f"blocks.{i}.act" for i in range(4)}
    assert set(run.modules_of("aten.gelu_backward.default")) == {f"blocks.{i}.act" for i in range(4)}


def test_backward_operators_belong_to_the_module_of_their_forward(plain):
    assert plain.modules_of("aten.gelu_backward.default") == [f"blocks.{i}.act" for i in (3, 2, 1, 0)]
    products = plain.modules_of("aten.mm.default")
    assert set(products) == {"head"} | {f"blocks.{i}.{n}" for i in range(4) for n in ("up", "down")}


def test_checkpoint_of_a_bare_function():
    def program():
        w = torch.ones(1000, device="cuda", requires_grad=True)
        out = checkpoint(lambda t: t.exp().sin().exp(), w * 1, use_reentrant=False)
        kept = torch.cuda.memory_allocated()
        out.sum().backward()
        return kept, tuple(w.grad.shape)

    kept, shape = simulate(program).answer
    assert kept == 3 * 4096  # w, the input of the function, its result
    assert shape == (1000,)


def test_dropout_inside_a_checkpoint():
    def program():
        net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 8)).cuda()
        x = torch.ones(4, 8, device="cuda", requires_grad=True)
        for reentrant in (True, False):
            checkpoint(net, x, use_reentrant=reentrant, preserve_rng_state=True).sum().backward()
        return tuple(x.grad.shape)

    assert simulate(program).answer == (4, 8)
