"""Hard cases of the live runtime: checkpoints, accumulation, hooks, custom functions, graphs used twice, optimizers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from tests.remat.pytorch.training import check
from tests.remat.small_programs import linear_layers, rows_of, tanh_layers, train_briefly

# -- checkpoint, autocast, accumulation ---------------------------------------------------------------------------


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_checkpoint_inside(is_reentrant):
    def forward(model, x):
        x = model[:4](x.requires_grad_())
        x = checkpoint(lambda y: F.dropout(model[4:8](y), 0.2), x, use_reentrant=is_reentrant)
        x = checkpoint(model[8:12], x, use_reentrant=is_reentrant)
        return model[12:](x)

    check(lambda: train_briefly(tanh_layers(10), forward))


def test_other_saved_tensor_hooks_inside():
    def forward(model, x):
        x = model[:4](x)
        with torch.autograd.graph.save_on_cpu():
            x = model[4:8](x)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):
            x = model[8:12](x)
        return model[12:](x)

    check(lambda: train_briefly(tanh_layers(10), forward))


def test_gradient_accumulation():
    def program():
        model = tanh_layers()
        for step in range(3):
            (model(rows_of(step)).square().mean() / 3).backward()
        return [p.grad for p in model.parameters()]

    check(program)


def test_two_losses_one_graph():
    def program():
        model = tanh_layers()
        hidden = model[:6](rows_of())
        first, second = model[6:](hidden).square().mean(), hidden.sin().mean()
        second.backward(retain_graph=True)
        first.backward()
        return [first, second, *(p.grad for p in model.parameters() if p.grad is not None)]

    check(program)


def test_autocast():
    def forward(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float()

    check(lambda: train_briefly(tanh_layers(8), forward))


def test_a_gradient_scaler():
    def program():
        model = tanh_layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        for step in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(rows_of(step)).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return model.state_dict().values()

    check(program)


# -- hooks --------------------------------------------------------------------------------------------------------


def test_tensor_and_module_hooks():
    def program():
        model = tanh_layers()
        seen = []
        model[2].register_forward_hook(lambda module, args, out: out * 1.01)
        model[4].register_full_backward_hook(lambda module, before, after: (before[0] * 0.5,))
        model[6].register_full_backward_pre_hook(lambda module, after: (after[0] * 2,))
        model[8].register_forward_pre_hook(lambda module, args: (args[0] + 0.1,))
        x = model[:6](rows_of())
        x.register_hook(lambda gradient: seen.append(gradient.clone()) or gradient * 3)
        x.retain_grad()
        loss = model[6:](x).square().mean()
        loss.grad_fn.register_hook(lambda before, after: seen.append(before[0].clone()))
        loss.backward()
        return [loss, x.grad, *seen, *(p.grad for p in model.parameters())]

    check(program)


def test_an_optimizer_step_inside_each_gradients_hook():
    def program():
        model = tanh_layers()
        steppers = {p: torch.optim.Adam([p], lr=0.1) for p in model.parameters()}

        def update(parameter):
            steppers[parameter].step()
            steppers[parameter].zero_grad()

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(update)
        losses = []
        for step in range(3):
            loss = model(rows_of(step)).square().mean()
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

    check(lambda: train_briefly(linear_layers(), forward))


def test_a_custom_function_whose_input_others_read_too():
    """What was computed before it from the memory it overwrites must not be computed again from that memory."""

    def forward(model, x):
        for layer in model:
            before = layer(x)
            kept = (before * 2).sin()
            x = torch.tanh(NumpySigmoid.apply(before) * kept.exp())
        return x

    check(lambda: train_briefly(linear_layers(), forward))


# -- graphs used twice --------------------------------------------------------------------------------------------


def test_backward_twice_with_retain_graph():
    def program():
        model = tanh_layers()
        loss = model(rows_of()).square().mean()
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        return [p.grad for p in model.parameters()]

    check(program)


def test_double_backward():
    def program():
        model = tanh_layers(4)
        x = rows_of().requires_grad_()
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

    check(lambda: train_briefly(tanh_layers(), forward))


@pytest.mark.filterwarnings("ignore:windtunnel.dtr. .*no tensor saved by autograd")  # transforms refuse hooks
def test_gradients_by_functional_transforms():
    def program():
        model = tanh_layers(4)
        parameters = dict(model.named_parameters())
        x = rows_of()

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
        model = tanh_layers()
        return train_briefly(model, steps=3, optimizer=OPTIMIZERS[name](model.parameters()))

    check(program)


def test_an_optimizer_with_a_closure():
    def program():
        model = tanh_layers(4)
        optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)

        def closure():
            optimizer.zero_grad()
            loss = model(rows_of()).square().mean()
            loss.backward()
            return loss

        return [optimizer.step(closure), *model.state_dict().values()]

    check(program, shares=(0.8, 0.6), evicts=False)
