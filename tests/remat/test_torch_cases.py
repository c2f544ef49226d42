"""Programs that are hard to run a second time: each gives the same bits as without the runtime."""

from __future__ import annotations

import copy
import gc
import io
import os
import threading
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from tests.remat.training import MINIMUM, bits, check, live_bytes, run, runtime

ROWS, WIDTH = 64, 128  # 32 KiB a tensor


def _data(seed: int = 1) -> torch.Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(seed))


def _layers(depth: int = 6) -> nn.Sequential:
    return nn.Sequential(*[each for _ in range(depth) for each in (nn.Linear(WIDTH, WIDTH), nn.Tanh())])


def _linears(depth: int = 5) -> nn.Sequential:
    return nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(depth)])


def _trained(model: nn.Module, forward=None, steps: int = 2, optimizer=None):
    """Losses, gradients and weights after a few steps."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    found = []
    for step in range(steps):
        x = _data(step)
        loss = (forward(model, x) if forward else model(x)).square().mean()
        loss.backward()
        found.append(loss.detach())
        if step == steps - 1:
            found += [p.grad.clone() for p in model.parameters() if p.grad is not None]
        optimizer.step()
        optimizer.zero_grad()
    return [*found, *model.state_dict().values()]


# -- random numbers ---------------------------------------------------------------------------------------------


RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout_in_place": lambda x: F.dropout(x * 1.5, 0.3, inplace=True),
    "feature_dropout": lambda x: F.dropout2d(x.view(8, 8, 8, 16), 0.5).view(ROWS, WIDTH),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x + torch.randn(ROWS, WIDTH),
    "bernoulli_of_a_tensor": lambda x: x * torch.bernoulli(torch.sigmoid(x.detach())),
    "normal_of_a_tensor": lambda x: x * torch.normal(x.detach(), 1.0),
    "normal_in_place": lambda x: x * torch.empty_like(x).normal_(),
    "multinomial": lambda x: x[:, torch.multinomial(torch.ones(WIDTH), WIDTH)],
    "randperm": lambda x: x[torch.randperm(ROWS)],
    "poisson": lambda x: x * torch.poisson(x.detach().abs()),
    "own_generator": lambda x: x * torch.rand(x.shape, generator=torch.Generator().manual_seed(3)),
    "attention_dropout": lambda x: F.scaled_dot_product_attention(
        *[x.view(4, 16, 4, 32).transpose(1, 2)] * 3, dropout_p=0.2
    ).reshape(ROWS, WIDTH),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_drawn_as_before(name):
    def forward(model, x):
        for layer in model:
            x = torch.tanh(RANDOM[name](layer(x)))
        return x

    check(lambda: _trained(_linears(), forward))


def test_a_seed_set_amid_a_step_is_kept():
    def forward(model, x):
        for i, layer in enumerate(model):
            torch.manual_seed(i)
            x = F.dropout(layer(x), 0.2)
        return x

    check(lambda: _trained(_layers(), forward))


# -- writing in place, views, aliases ---------------------------------------------------------------------------


def _slice_assigned(x):
    y = torch.zeros_like(x)
    y[:, : WIDTH // 2] = x[:, WIDTH // 2 :]
    y[::2] += x[::2].sin()
    return y


def _view_written(x):
    y = x.clone()
    y[:, :40].mul_(2)
    y.t()[5:20].add_(1)
    return y.view(-1, 16).sin_().view(ROWS, WIDTH)


def _masked(x):
    y = x * 2
    y.masked_fill_(y > 1, 0.5)
    y[y < -1] = -0.5
    y.clamp_(-2, 2)
    return y


def _swish(x):
    y = x * 1.0
    return y.mul_(torch.sigmoid(y.detach()))


def _copied_into(x):
    y = torch.empty(ROWS, 2 * WIDTH)
    y[:, :WIDTH] = x
    y[:, WIDTH:].copy_(x.cos())
    return y[:, ::2] + y[:, 1::2]


def _out_given(x):
    buffer = torch.empty_like(x)
    with torch.no_grad():
        torch.sin(x, out=buffer)
    return x * buffer


def _as_strided(x):
    y = x.sin()
    windows = y.as_strided((ROWS - 4, 5, WIDTH), (WIDTH, WIDTH, 1))
    return torch.cat([windows.mean(1), y[:4]])


def _conjugate(x):
    z = torch.view_as_complex(x.reshape(ROWS, -1, 2))
    return torch.view_as_real(z * z.conj() + z.conj()).reshape(ROWS, WIDTH)


CHANGES = {
    "relu_": lambda x: F.relu(x, inplace=True),
    "sigmoid_": lambda x: x.sigmoid_(),
    "add_mul_": lambda x: (x * 2).add_(1).mul_(0.5),
    "iadd_of_an_older_value": lambda x: x.sin().add_(x),
    "swish_in_place": _swish,
    "masked": _masked,
    "slice_assigned": _slice_assigned,
    "view_written": _view_written,
    "copied_into": _copied_into,
    "out_given": _out_given,
    "index_put": lambda x: x.index_put((torch.arange(5),), x[5:10].sin()),
    "index_add": lambda x: (x * 1).index_add_(0, torch.arange(5), x[5:10]),
    "scatter": lambda x: x.scatter_add(0, torch.zeros(3, WIDTH, dtype=torch.long), x[:3]),
    "chunks": lambda x: torch.cat([each.sin() for each in x.chunk(4, 1)][::-1], 1),
    "unbind": lambda x: torch.stack([each * i for i, each in enumerate(x.unbind(0))]),
    "transposed": lambda x: (x.t().contiguous() @ x).sin().t()[:ROWS],
    "flip_roll": lambda x: x.flip(0).roll(3, 1).sin(),
    "expand": lambda x: x + x.mean(0, keepdim=True).expand(ROWS, WIDTH).sin(),
    "unfold": lambda x: x.unfold(0, 8, 8).sin().transpose(1, 2).reshape(ROWS, WIDTH),
    "as_strided": _as_strided,
    "topk": lambda x: torch.cat([*(each[0] for each in (x.topk(WIDTH // 2, 1), x.sort(1))), x], 1)[:, :WIDTH],
    "var_mean": lambda x: (
        (x - torch.var_mean(x, 1, keepdim=True)[1]) / torch.var_mean(x, 1, keepdim=True)[0].sqrt()
    ),
    "where": lambda x: torch.where(x > 0, x.sin(), x.cos()),
    "complex": _conjugate,
    "to_double_and_back": lambda x: x.double().sin().float(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x).softmax(1) @ x,
    "cumsum": lambda x: x.cumsum(1) / WIDTH,
    "norms": lambda x: F.group_norm(F.layer_norm(x, (WIDTH,)), 8),
    "max_pool": lambda x: F.max_pool1d(x[None], 2)[0].repeat(1, 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_writes_views_and_aliases(name):
    def forward(model, x):
        for layer in model:
            x = torch.tanh(CHANGES[name](layer(x)))
        return x

    check(lambda: _trained(_linears(), forward))


def test_a_chain_of_writes_into_one_tensor_between_saves():
    def forward(model, x):
        for layer in model:
            x = layer(x)
            y = x.sin()
            y.add_(x)
            y.mul_(2)
            y[:, ::2].neg_()
            y.exp_()
            x = torch.tanh(y)
        return x

    check(lambda: _trained(_linears(), forward))


# -- mutations autograd does not see, or allows -------------------------------------------------------------------


def test_batch_norm_updates_its_statistics_once():
    def program():
        layers = [
            each
            for _ in range(4)
            for each in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(True))
        ]
        return _trained(nn.Sequential(*layers), lambda model, x: model(x.view(4, 8, 16, 16)))

    check(program)


@pytest.mark.parametrize("has_gradients", [True, False])
def test_batch_norm_read_in_evaluation_then_updated_in_training(has_gradients):
    def program():
        layers = [
            each for _ in range(4) for each in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh())
        ]
        model = nn.Sequential(*layers)
        x = _data().view(4, 8, 16, 16)
        first = model.eval()(x)
        with torch.set_grad_enabled(has_gradients):
            second = model.train()(x.sin())
        loss = (first * second).square().mean()
        loss.backward()
        return [loss, *model.state_dict().values(), *(p.grad for p in model.parameters())]

    check(program, shares=(0.6, 0.4))


def test_a_bias_changed_between_forward_and_backward():
    def program():
        model = _layers()
        loss = model(_data()).square().mean()
        with torch.no_grad():
            for layer in model[::2]:
                layer.bias.add_(1)
        loss.backward()
        return [p.grad for p in model.parameters()]

    check(program)


def test_data_of_an_activation_changed_behind_autograd():
    def program():
        model = _layers()
        x = _data()
        kept = []
        for layer in model:
            x = layer(x)
            kept.append(x)
        y = (x.sin() * x.cos()).exp()
        loss = y.square().mean()
        kept[2].data.mul_(2)
        kept[7].data.add_(1)
        x.data.mul_(3)
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program, evicts=False)


def test_a_weight_given_other_data_between_forward_and_backward():
    def program():
        model = _layers()
        loss = model(_data()).square().mean()
        for layer in model[::2]:
            layer.bias.data = torch.full((WIDTH,), 3.0)
            layer.weight.data = layer.weight.data * 2
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


class _Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, x):
        return x * self.weight


def test_weights_that_are_gathered_and_freed_as_deepspeed_does():
    """Stage 3 gives each weight its full data for its layer only; no recipe may keep that data alive."""

    def program():
        model = nn.Sequential(*[each for _ in range(6) for each in (_Scale(), nn.Tanh())])
        shards, gathered = {}, []

        def free(layer, *_):
            shards[layer] = layer.weight.detach().numpy().copy()
            layer.weight.data = torch.empty(0)

        def gather(layer, *_):
            layer.weight.data = torch.zeros(ROWS, WIDTH)
            layer.weight.detach().numpy()[:] = shards[layer]
            gathered.append(weakref.ref(layer.weight.untyped_storage()))

        for i, layer in enumerate(model[::2]):
            layer.weight.ds_id = i
            free(layer)
            layer.register_forward_pre_hook(gather)
            layer.register_forward_hook(free)
            layer.register_full_backward_pre_hook(gather)
        loss = model(_data().requires_grad_()).square().mean()
        assert [each for each in gathered if each() is not None] == []
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program, evicts=False)


def test_inputs_changed_in_place_after_use():
    def program():
        model = _layers()
        x, noise = _data(), _data(5)
        loss = (model(x + noise) * noise.sin()).square().mean()
        x.zero_()
        noise.mul_(2)
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


def test_writes_after_writes_to_what_was_read():
    """The input is gone, so what was computed from it is kept; then that is overwritten too."""

    def forward(model, h):
        scale = torch.ones(WIDTH, requires_grad=True)
        for i, layer in enumerate(model):
            data = _data(i)
            x = data + scale
            data.zero_()
            y = x * 3
            z = y.sin()
            x.add_(1)
            h = torch.tanh(layer(h) * z + x)
        return h

    check(lambda: _trained(_linears(), forward))


def test_sparse_tensors_among_others():
    def program():
        table = nn.Embedding(100, WIDTH, sparse=True)
        model = _layers()
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for _ in range(2):
            x = model(table(torch.arange(ROWS)))
            loss = (x.to_sparse() * 2).to_dense().square().mean()
            loss.backward()
            optimizer.step()
        return [loss, table.weight, table.weight.grad.to_dense(), *(p.grad for p in model.parameters())]

    check(program)


@pytest.mark.parametrize("read", [lambda array: torch.from_numpy(array) * 2, torch.tensor])
def test_memory_of_numpy_is_read_once(read):
    """A buffer that is filled again before backward: what came from it is kept, not computed again."""

    def program():
        model = _linears(4)
        array = np.empty((ROWS, WIDTH), dtype=np.float32)
        x = _data()
        for i, layer in enumerate(model):
            array[:] = _data(i).numpy()
            x = torch.tanh(layer(x) * read(array))
        array[:] = 0
        loss = x.square().mean()
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


def test_set_and_resize_of_what_was_read():
    def program():
        model = _layers()
        x, y = _data(), _data(5)
        z = x + y
        loss = model(z).square().mean()
        x.set_(torch.zeros(4))
        y.resize_(3)
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


def test_an_embedding_that_renormalises_its_rows():
    def program():
        table = nn.Embedding(50, WIDTH, max_norm=1.0)
        model = _layers()
        ids = torch.randint(50, (ROWS,), generator=torch.Generator().manual_seed(2))
        loss = (model(table(ids)) + model(table(ids + 0))).square().mean()
        loss.backward()
        return [loss, table.weight, table.weight.grad, *(p.grad for p in model.parameters())]

    check(program)


def test_spectral_and_weight_norm():
    def program():
        layers = [
            nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh(),
            nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh(),
        ]  # fmt: skip
        return _trained(nn.Sequential(*layers, *_layers(3)))

    check(program)


def test_a_buffer_that_follows_activations():
    class Follower(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = _layers()
            self.register_buffer("mean", torch.zeros(ROWS, WIDTH))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
                with torch.no_grad():
                    self.mean.lerp_(x, 0.1)
                x = x + self.mean
            return x

    statistics = check(lambda: _trained(Follower()))
    assert (
        statistics.guarded_rounds == 0
    )  # what is had again for a write amid the forward does not end the round


# -- checkpoint, autocast, accumulation ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_checkpoint_inside(is_reentrant):
    def forward(model, x):
        x = model[:4](x.requires_grad_())
        x = checkpoint(lambda y: F.dropout(model[4:8](y), 0.2), x, use_reentrant=is_reentrant)
        x = checkpoint(model[8:12], x, use_reentrant=is_reentrant)
        return model[12:](x)

    check(lambda: _trained(_layers(10), forward))


def test_other_saved_tensor_hooks_inside():
    def forward(model, x):
        x = model[:4](x)
        with torch.autograd.graph.save_on_cpu():
            x = model[4:8](x)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            x = model[8:12](x)
        return model[12:](x)

    check(lambda: _trained(_layers(10), forward))


def test_gradient_accumulation():
    def program():
        model = _layers()
        for step in range(3):
            (model(_data(step)).square().mean() / 3).backward()
        return [p.grad for p in model.parameters()]

    check(program)


def test_two_losses_one_graph():
    def program():
        model = _layers()
        hidden = model[:6](_data())
        first, second = model[6:](hidden).square().mean(), hidden.sin().mean()
        second.backward(retain_graph=True)
        first.backward()
        return [first, second, *(p.grad for p in model.parameters() if p.grad is not None)]

    check(program)


def test_autocast():
    def forward(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float()

    check(lambda: _trained(_layers(8), forward))


def test_a_gradient_scaler():
    def program():
        model = _layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(_data(step)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return model.state_dict().values()

    check(program)


# -- hooks --------------------------------------------------------------------------------------------------------


def test_tensor_and_module_hooks():
    def program():
        model = _layers()
        seen = []
        model[2].register_forward_hook(lambda module, args, out: out * 1.01)
        model[4].register_full_backward_hook(lambda module, before, after: (before[0] * 0.5,))
        model[6].register_full_backward_pre_hook(lambda module, after: (after[0] * 2,))
        model[8].register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))
        x = model[:6](_data())
        x.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 3)
        x.retain_grad()
        loss = model[6:](x).square().mean()
        loss.grad_fn.register_hook(lambda before, after: seen.append(before[0].clone()))
        loss.backward()
        return [loss, x.grad, *seen, *(p.grad for p in model.parameters())]

    check(program)


def test_an_optimizer_step_inside_each_gradients_hook():
    def program():
        model = _layers()
        steppers = {p: torch.optim.Adam([p], lr=0.1) for p in model.parameters()}

        def update(parameter):
            steppers[parameter].step()
            steppers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        losses = []
        for step in range(3):
            loss = model(_data(step)).square().mean()
            loss.backward()
            losses.append(loss.detach())
        return [*losses, *model.state_dict().values()]

    check(program)


# -- custom functions ---------------------------------------------------------------------------------------------


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x * x
        ctx.save_for_backward(x, y)
        ctx.kept = x
        return y

    @staticmethod
    def backward(ctx, gradient):
        x, y = ctx.saved_tensors
        return gradient * (3 * x * ctx.kept + 0 * y)


class NumpySigmoid(torch.autograd.Function):
    """Writes its result into its input's memory, past torch's dispatcher, as a fused kernel does."""

    @staticmethod
    def forward(ctx, x):
        memory = x.detach().numpy()
        np.copyto(memory, 1 / (1 + np.exp(-memory)))
        ctx.save_for_backward(x)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * y * (1 - y)


class InPlaceNumpyRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        memory = x.detach().numpy()
        np.maximum(memory, 0, out=memory)
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, gradient):
        (y,) = ctx.saved_tensors
        return gradient * (y > 0)


@pytest.mark.parametrize("function", [Cube, NumpySigmoid, InPlaceNumpyRelu])
def test_custom_functions(function):
    def forward(model, x):
        for layer in model:
            x = torch.tanh(function.apply(layer(x)) + 0.1)
        return x

    check(lambda: _trained(_linears(), forward))


def test_a_custom_function_whose_input_others_read_too():
    """What was computed before it from the memory it overwrites must not be computed again from that memory."""

    def forward(model, x):
        for layer in model:
            before = layer(x)
            kept = (before * 2).sin()
            x = torch.tanh(NumpySigmoid.apply(before) * kept.exp())
        return x

    check(lambda: _trained(_linears(), forward))


# -- graphs used twice --------------------------------------------------------------------------------------------


def test_backward_twice_with_retain_graph():
    def program():
        model = _layers()
        loss = model(_data()).square().mean()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        return [p.grad for p in model.parameters()]

    check(program)


def test_double_backward():
    def program():
        model = _layers(4)
        x = _data().requires_grad_()
        out = model(x)
        (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        loss = out.square().mean() + (gradient.norm(dim=1) - 1).square().mean()
        loss.backward()
        return [loss, x.grad, *(p.grad for p in model.parameters())]

    check(program)


def test_a_gradient_taken_inside_the_forward_pass():
    def forward(model, x):
        x = x.requires_grad_()
        hidden = model[:6](x)
        (gradient,) = torch.autograd.grad(hidden.sum(), x, create_graph=True)
        return model[6:](hidden + gradient)

    check(lambda: _trained(_layers(), forward))


def test_gradients_by_functional_transforms():
    def program():
        model = _layers(4)
        parameters = dict(model.named_parameters())
        x = _data()

        def loss(parameters, x):
            return torch.func.functional_call(model, parameters, (x,)).square().mean()

        gradients = torch.func.grad(loss)(parameters, x)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x[:4])
        model(x).square().mean().backward()
        return [*gradients.values(), *each.values(), *(p.grad for p in model.parameters())]

    check(program, evicts=False)


# -- optimizers ---------------------------------------------------------------------------------------------------


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "sgd_foreach": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=True),
    "sgd_fused": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, foreach=False),
    "adam_foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "adamw_fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name):
    def program():
        model = _layers()
        return _trained(model, steps=3, optimizer=OPTIMIZERS[name](model.parameters()))

    check(program)


def test_an_optimizer_with_a_closure():
    def program():
        model = _layers(4)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

        def closure():
            optimizer.zero_grad()
            loss = model(_data()).square().mean()
            loss.backward()
            return loss

        return [optimizer.step(closure), *model.state_dict().values()]

    check(program, shares=(0.8, 0.6), evicts=False)


# -- data, evaluation, files --------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders(workers):
    rows = torch.utils.data.TensorDataset(torch.cat([_data(i) for i in range(3)]))

    def program():
        model = _layers()
        loader = torch.utils.data.DataLoader(rows, ROWS, shuffle=True, num_workers=workers)
        for (x,) in loader:
            model(x).square().mean().backward()
        return [p.grad for p in model.parameters()]

    check(program, shares=(0.3,))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_between_steps(mode):
    def program():
        model = _layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for step in range(3):
            loss = F.dropout(model(_data(step)), 0.1).square().mean()
            with mode():  # between forward and backward, too
                found.append(model(_data(7)).clone())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with mode():
                found.append(model(_data(9)).mean())
            model.train()
        return [each.clone() for each in found] + list(model.state_dict().values())

    check(program)


def test_files_written_amid_a_step_hold_the_same_bytes():
    def program():
        model = _layers()
        hidden = model[:6](_data())
        loss = model[6:](hidden).square().mean()
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "hidden": hidden.detach()}, file)
        clone = copy.deepcopy(model)
        loss.backward()
        file.seek(0)
        loaded = torch.load(file)
        return [
            loaded["hidden"],
            *loaded["model"].values(),
            *clone.parameters(),
            *(p.grad for p in model.parameters()),
        ]

    check(program)


# -- going wrong, and going on ------------------------------------------------------------------------------------


def test_an_exception_in_forward_and_in_backward():
    def program():
        model = _layers()
        found = []

        def fails(gradient):
            raise ZeroDivisionError

        for step in range(4):
            try:
                x = model[:6](_data(step))
                if step == 1:
                    raise ZeroDivisionError
                if step == 2:
                    x.register_hook(fails)
                loss = model[6:](x).square().mean()
                loss.backward()
                found.append(loss.detach())
            except ZeroDivisionError:
                model.zero_grad()
        return [*found, *(p.grad for p in model.parameters())]

    check(program)


def test_torch_still_refuses_what_was_changed_in_place():
    for share in (0.3, 4.0):
        model = _layers()
        x = _data()
        with runtime(live_bytes() + int(share * 6 * 2 * ROWS * WIDTH * 4)):
            for layer in model:
                x = layer(x)
            saved = x.exp()
            loss = saved.square().mean()
            with torch.no_grad():
                saved.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


def test_anomaly_mode():
    def program():
        with torch.autograd.detect_anomaly(check_nan=False):
            return _trained(_layers())

    check(_quietly(program))


def _quietly(program):
    def quiet():
        import warnings

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Anomaly Detection")
            return program()

    return quiet


def test_forwards_without_a_backward_leave_nothing_behind():
    model = _layers()
    with runtime(1 << 40, minimum_size=1) as live:
        for _ in range(600):
            model(_data())
        assert len(live._made) < 5000
        assert live.engine.candidates() == []


def test_other_modes_on_top():
    def program():
        model = _layers()
        with FlopCounterMode(display=False):
            loss = model(_data()).square().mean()
            loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


# -- threads, processes, on and off -------------------------------------------------------------------------------


def test_backward_in_another_thread():
    def program():
        model = _layers()
        loss = model(_data()).square().mean()
        thread = threading.Thread(target=loss.backward)
        thread.start()
        thread.join()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


def test_training_in_two_threads_at_once():
    def program():
        models = [_layers(), _layers()]

        def train(model):
            for step in range(3):
                model(_data(step)).square().mean().backward()

        threads = [threading.Thread(target=train, args=(model,)) for model in models]
        for thread in threads:
            thread.start()
        train(_layers())
        for thread in threads:
            thread.join()
        return [p.grad for model in models for p in model.parameters()]

    check(program, evicts=False)


def test_a_forked_process_trains_plainly():
    def train():
        return bits(_trained(_layers()))

    torch.manual_seed(0)
    expected = train()
    with runtime(live_bytes() + 200_000) as live:
        loss = _layers()(_data()).square().mean()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            torch.manual_seed(0)
            is_same = train() == expected and not live.is_on
            os.write(write, b"same" if is_same else b"other")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 5) == b"same"
        assert live.is_on
        loss.backward()


def test_what_was_evicted_comes_back_after_stop():
    def program():
        torch.manual_seed(0)
        model = _layers()
        with runtime(live_bytes() + 6 * ROWS * WIDTH * 4) as live:
            loss = model(_data()).square().mean()
        assert live.engine.statistics.evictions > 0
        loss.backward()
        assert live.engine.statistics.rematerialisations > 0
        return bits([loss, *(p.grad for p in model.parameters())])

    def plain():
        model = _layers()
        loss = model(_data()).square().mean()
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    assert program() == run(plain)[:-1]


def test_on_and_off_amid_forward_and_backward():
    def program(live=None):
        torch.manual_seed(0)
        model = _layers(8)
        x = _data()
        for i, layer in enumerate(model):
            if i == 3 and live:
                live.start()
            if i == 12 and live:
                live.stop()
            x = layer(x)
        loss = x.square().mean()
        if live:
            live.start()
        loss.backward()
        return bits([loss, *(p.grad for p in model.parameters())])

    expected = program()
    with runtime(live_bytes() + 700_000) as live:
        assert program(live) == expected
        assert live.engine.statistics.rematerialisations > 0


def test_kept_activations_are_never_touched():
    def program():
        model = _layers()
        x = _data()
        kept, arrays = [], []
        for layer in model:
            x = layer(x)
            kept.append(x)
            arrays.append(x.detach().numpy())
        loss = x.square().mean()
        middle = [torch.from_numpy(each.copy()) for each in arrays]
        loss.backward()
        return [
            *middle,
            *kept,
            *(torch.from_numpy(each) for each in arrays),
            *(p.grad for p in model.parameters()),
        ]

    check(program, evicts=False)


def test_graphs_in_cycles_and_a_busy_collector():
    def program():
        model = _layers()
        for step in range(6):
            loss = F.dropout(model(_data(step)), 0.1).square().mean()
            knot = [loss]
            knot.append(knot)  # only the collector can free this graph
            if step % 2:
                loss.backward()
            del loss, knot
        return [p.grad for p in model.parameters()]

    before = gc.get_threshold()
    gc.set_threshold(3, 2, 2)
    try:
        check(program)
    finally:
        gc.set_threshold(*before)


def test_a_long_chain_under_a_tiny_budget():
    def program():
        weight = torch.ones(WIDTH, requires_grad=True)
        x = _data() * weight
        for _ in range(1500):
            x = x.sin()
        x.sum().backward()
        return [weight.grad]

    statistics = check(program, shares=(0.1, 0.01))
    assert statistics.longest_chain > 100


# -- what is never run again --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted():
    """A custom operator that counts its calls."""
    calls = []

    @torch.library.custom_op("windtunnel_tests::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2 + len(calls)

    counted.register_autograd(lambda ctx, gradient: gradient * 2)
    return counted, calls


def test_custom_operators_run_once(counted):
    operator, calls = counted

    def program():
        calls.clear()
        model = _linears()
        x = _data()
        for layer in model:
            x = operator(layer(x)).sin()
        x.square().mean().backward()
        assert len(calls) == 5
        return [p.grad for p in model.parameters()]

    check(program)


NEVER_AGAIN = {
    "own_generator": lambda x: torch.rand(x.shape, generator=GENERATOR) * x,
    "dropout_by_own_generator": lambda x: x * torch.empty_like(x).bernoulli_(0.5, generator=GENERATOR),
    "data_dependent": lambda x: F.pad(x[x > 0], (0, int((x <= 0).sum()))).view(ROWS, WIDTH),
    "nonzero": lambda x: x * (x > 0).nonzero().float().mean(),
    "factories": lambda x: x * torch.linspace(0, 1, WIDTH) + torch.eye(ROWS, WIDTH) + torch.full_like(x, 2.0),
    "uninitialised": lambda x: torch.empty(ROWS, WIDTH).numpy() is not None and x + _filled_outside(),
    "item": lambda x: x * x.detach().sum().item() / 100,
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(ROWS, dtype=torch.long), 0),
}
GENERATOR = torch.Generator()


def _filled_outside():
    y = torch.empty(ROWS, WIDTH)
    y.numpy()[:] = 3
    return y * 2


@pytest.mark.parametrize("name", NEVER_AGAIN)
def test_what_cannot_be_computed_again_is_not(name):
    def forward(model, x):
        for layer in model:
            x = torch.tanh(NEVER_AGAIN[name](layer(x)))
        return x

    def program():
        GENERATOR.manual_seed(5)
        return _trained(_linears(), forward)

    check(program)


def test_values_below_the_minimum_size_are_left_alone():
    n_bytes = ROWS * WIDTH * 4
    for minimum, is_evicted in ((n_bytes, True), (n_bytes + 1, False)):
        with runtime(live_bytes() + 4 * n_bytes, minimum_size=minimum) as live:
            run(lambda: _trained(_layers()))
        assert (live.engine.statistics.evictions > 0) == is_evicted
    assert n_bytes > MINIMUM


# -- when the device has no room ----------------------------------------------------------------------------------


def _full_device(asked: str, fails: int):
    """An operator whose allocation fails so many times."""
    left = [fails]

    def call():
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity"
            )
        return "done"

    return call


def test_a_failed_allocation_evicts_what_it_asked_for_and_tries_again():
    n_bytes = ROWS * WIDTH * 4
    expected = run(lambda: _trained(_layers(), steps=1))
    with runtime(1 << 40) as live:
        torch.manual_seed(0)
        model = _layers()
        loss = model(_data(0)).square().mean()
        assert live._retrying(_full_device("96.00 KiB", 1)) == "done"
        assert live.engine.statistics.evictions == 3
        assert live.engine.statistics.evicted_bytes == 3 * n_bytes
        assert live._retrying(_full_device("1.00 GiB", 1)) == "done"  # all there is
        assert live.engine.candidates() == []
        assert live.engine.statistics.failed_allocations == 2
        with pytest.raises(
            torch.OutOfMemoryError, match=r"Tried to allocate 32.00 KiB.*in use, of which 0 B could be"
        ):
            live._retrying(_full_device("32.00 KiB", 1))
        loss.backward()
    assert bits([loss, *(p.grad for p in model.parameters())]) == expected[: 1 + 12]
