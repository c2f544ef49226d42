"""Which tensors a pack hook is given by a custom autograd function, and which by torch's own operators."""

from __future__ import annotations

import pytest
import torch

from windtunnel import torch_custom_saves


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        result = x.exp()
        ctx.save_for_backward(x, None, result)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[2]


class LateExp(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.exp()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[1]


class Outer(torch.autograd.Function):
    """Saves first, then runs other functions and operators that save."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        with torch.enable_grad():
            inner = x.detach().requires_grad_() * 2
            Exp.apply(inner).mul(inner)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


exp = Exp.apply  # bound before anybody watches


@pytest.fixture
def saved():
    """What is saved, in order: True where a custom function saves it."""
    found: list[bool] = []

    def pack(tensor):
        found.append(torch_custom_saves.is_custom(tensor))
        return tensor.detach()

    torch_custom_saves.watch()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        yield found
    torch_custom_saves.unwatch()


@pytest.fixture
def x():
    return torch.ones(3, requires_grad=True).clone()


def test_all_a_custom_function_saves(saved, x):
    Exp.apply(x)
    assert saved == [True, True]


@pytest.mark.parametrize("apply", [exp, LateExp.apply])
def test_a_name_bound_early_and_a_context_set_up_late(saved, x, apply):
    apply(x)
    assert saved == [True, True]


def test_what_operators_save_of_the_same_tensor_is_their_own(saved, x):
    x * x
    y = exp(x)
    y * x
    assert saved == [False, False, True, True, False, False]


def test_functions_in_functions(saved, x):
    Outer.apply(x)
    # by Exp: its input and its result; by mul: both factors; by Outer at last: x
    assert saved == [True, True, False, False, True]


def test_without_gradients_nothing_is_waited_for(saved, x):
    with torch.no_grad():
        y = exp(x)
    y.requires_grad_() * x
    assert saved == [False, False]


def test_what_hooks_of_the_program_take_is_forgotten(saved, x):
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.clone(), lambda tensor: tensor):
        y = exp(x)
    z = y.detach().requires_grad_().sin()
    z * z
    assert saved == [False, False, False]


def test_another_thread_has_its_own(saved, x):
    from threading import Thread

    class Slow(Exp):
        @staticmethod
        def forward(ctx, x):
            result = Exp.forward(ctx, x)
            thread = Thread(target=lambda: found.append(torch_custom_saves.is_custom(x)))
            thread.start()
            thread.join()
            return result

    found: list[bool] = []
    Slow.apply(x)
    assert found == [False]
    assert saved == [True, True]


def test_watching_leaves_nothing_behind():
    before = torch.autograd.function.FunctionCtx.save_for_backward
    torch_custom_saves.watch()
    assert torch.autograd.function.FunctionCtx.save_for_backward is not before
    torch_custom_saves.unwatch()
    assert torch.autograd.function.FunctionCtx.save_for_backward is before
