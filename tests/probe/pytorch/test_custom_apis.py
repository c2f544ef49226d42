"""Functions the user registers, and the user's own autograd functions, are recorded as units."""

from __future__ import annotations

import types

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.probe.probing import make_debugger, probe, read_dump
from windtunnel.errors import UsageError
from windtunnel.probe.pytorch.eager.autograd_functions import method_swap
from windtunnel.pytorch import PrecisionDebugger


def _library() -> types.ModuleType:
    library = types.ModuleType("library")

    def fused(x, scale=2):
        return F.relu(x * scale)

    class Kernels:
        name = "kernels"

        def method(self, x):
            return x + 1

        @staticmethod
        def static(x):
            return x.exp()

        @classmethod
        def of_class(cls, x):
            return x.cos()

    library.fused, library.Kernels, library.Derived = fused, Kernels, type("Derived", (Kernels,), {})
    return library


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_registered_function_is_one_entry_each_way(tmp_path, level):
    library = _library()
    original = library.fused
    model = nn.Sequential(nn.Linear(2, 2))
    debugger = make_debugger(tmp_path, level=level)
    debugger.register_custom_api(library, "fused")
    debugger.start(model)
    library.fused(model(torch.ones(1, 2)), scale=3).sum().backward()
    debugger.step()
    debugger.restore_custom_api(library, "fused")
    assert library.fused is original
    dump = read_dump(tmp_path)
    assert dump.names("library.fused") == ["library.fused.0.forward", "library.fused.0.backward"]
    assert dump.names("relu") == dump.names("__mul__") == []
    assert dump["library.fused.0.forward"]["input_kwargs"] == {"scale": {"type": "int", "value": 3}}
    (given,), (result,) = (dump.tensors("library.fused.0.forward", side) for side in ("input_args", "output"))
    assert torch.equal(result, F.relu(given * 3))
    (gradient,) = dump.tensors("library.fused.0.backward", "output")
    assert torch.equal(gradient, 3.0 * (given > 0))
    assert ("Functional.linear.0.forward" in dump) is (level != "L0")


def test_methods_of_a_class_are_restored_as_they_were(tmp_path):
    library = _library()
    kinds = library.Kernels, library.Derived
    before = [dict(vars(kind)) for kind in kinds]
    debugger = make_debugger(tmp_path)
    for kind, api in (
        (kinds[0], "method"),
        (kinds[0], "static"),
        (kinds[0], "of_class"),
        (kinds[1], "method"),
    ):
        debugger.register_custom_api(kind, api, "Mine" if kind is kinds[0] else "Derived")
    debugger.start()
    x = torch.ones(2)
    assert torch.equal(kinds[0]().method(x), x + 1)
    assert torch.equal(kinds[0].static(x), x.exp())
    assert torch.equal(kinds[0].of_class(x), x.cos())
    assert torch.equal(kinds[1]().method(x), x + 1)
    debugger.step()
    debugger.close()  # restores whatever is registered
    assert [dict(vars(kind)) for kind in kinds] == before
    names = read_dump(tmp_path).data
    assert {"Mine.static.0.forward", "Mine.of_class.0.forward", "Derived.method.0.forward"} <= set(names)


def test_registering_while_collecting_and_calls_outside_of_it(tmp_path):
    library = _library()
    debugger = make_debugger(tmp_path)
    debugger.register_custom_api(library, "fused", "Custom")
    debugger.register_custom_api(library, "fused", "Custom")  # once more: nothing changes
    library.fused(torch.ones(2))
    debugger.start()
    debugger.register_custom_api(library.Kernels, "static", "Late")
    library.fused(torch.ones(2))
    library.Kernels.static(torch.ones(2))
    debugger.stop()
    library.fused(torch.ones(2))
    debugger.step()
    names = list(read_dump(tmp_path).data)
    assert [name for name in names if not name.startswith("T")] == [
        "Custom.fused.0.forward",
        "Late.static.0.forward",
    ]
    PrecisionDebugger.restore_custom_api(library, "fused")  # from any file, by the class
    assert library.fused.__name__ == "fused"


def test_only_the_outermost_is_recorded(tmp_path):
    library = _library()
    fused = library.fused
    library.outer = lambda x: cube(library.fused(x), 2)
    library.fused = lambda x: fused(x)
    debugger = make_debugger(tmp_path)
    debugger.register_custom_api(library, "outer")
    debugger.register_custom_api(library, "fused")
    debugger.start()
    library.outer(torch.ones(2))
    debugger.step()
    debugger.close()
    assert list(read_dump(tmp_path).data) == ["library.outer.0.forward"]


def test_an_operator_keeps_its_overloads(tmp_path):
    debugger = make_debugger(tmp_path)
    original = torch.ops.aten.gelu
    debugger.register_custom_api(torch.ops.aten, "gelu", "Ops")
    debugger.start()
    assert torch.ops.aten.gelu.default is original.default
    torch.ops.aten.gelu(torch.ones(2))
    debugger.step()
    debugger.restore_custom_api(torch.ops.aten, "gelu")
    assert torch.ops.aten.gelu is original
    assert "Ops.gelu.0.forward" in read_dump(tmp_path)


def test_an_exception_of_the_function_is_the_users(tmp_path):
    library = _library()

    def broken(x):
        raise ValueError("mine")

    library.broken = broken
    debugger = make_debugger(tmp_path)
    debugger.register_custom_api(library, "broken")
    debugger.start()
    with pytest.raises(ValueError, match="mine"):
        library.broken(torch.ones(2))
    torch.ones(2).exp()
    debugger.step()
    assert "Tensor.exp.0.forward" in read_dump(tmp_path)
    debugger.restore_custom_api(library, "broken")
    assert library.broken is broken


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((types.ModuleType("lib"), "fused"), "lib has no attribute 'fused' to register"),
        ((types.SimpleNamespace(fused=3), "fused"), "SimpleNamespace.fused is a int, not a function"),
        ((types.SimpleNamespace(fused=abs), "fused", 7), "register_custom_api was given 7 as a name"),
    ],
)
def test_mistakes_are_reported_in_a_sentence(tmp_path, arguments, said):
    debugger = make_debugger(tmp_path)
    with pytest.raises(UsageError, match=said):
        debugger.register_custom_api(*arguments)
    with pytest.raises(UsageError, match="lib has no attribute 'fused' to restore"):
        debugger.restore_custom_api(types.ModuleType("lib"), "fused")


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, scale):
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x.pow(3) * scale

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * x.square() * 3 * ctx.scale, None


cube = Cube.apply  # bound before there is a debugger


IS_C = not hasattr(torch.autograd.Function.apply, "__func__")


@pytest.mark.skipif(IS_C and method_swap is None, reason="apply is C, and the extension was not built")
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_an_autograd_function_is_a_unit_each_way(tmp_path, level):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    model = nn.Sequential(nn.Identity())
    dump = probe(tmp_path, lambda: cube(model(x), 2).sum().backward(), model=model, level=level)
    assert [name for name in dump.data if not name.startswith("Module")] == [
        "Function.Cube.0.forward",
        "Tensor.sum.0.forward",
        "Tensor.sum.0.backward",
        "Function.Cube.0.backward",
    ]
    assert dump.tensors("Function.Cube.0.forward", "output")[0].tolist() == [2, 16]
    assert dump["Function.Cube.0.forward"]["input_args"][1] == {"type": "int", "value": 2}
    assert dump.tensors("Function.Cube.0.backward", "output")[0].tolist() == [6, 24]


def test_functions_change_nothing_and_are_clean_afterwards(tmp_path):
    def gradient():
        x = torch.linspace(-1, 1, 7, requires_grad=True)
        (gradient,) = torch.autograd.grad(cube(x.sin(), 3).sum(), x)
        return gradient

    plain, before = gradient(), state_of_apply()
    debugger = make_debugger(tmp_path)
    debugger.start()
    assert torch.equal(gradient(), plain)
    assert state_of_apply() != before
    debugger.stop()
    assert state_of_apply() == before
    assert torch.equal(gradient(), plain)


def state_of_apply():
    """What collecting exchanges: the code of a function of Python, or what a method of C leads to."""
    apply = torch.autograd.Function.apply
    if hasattr(apply, "__func__"):
        return id(apply.__func__.__code__)
    return id(vars(torch.autograd.Function)["apply"]) if method_swap is None else method_swap.is_swapped()


@pytest.mark.skipif(
    hasattr(torch.autograd.Function.apply, "__func__"), reason="this torch has apply in Python"
)
def test_without_the_extension_functions_called_by_their_class_are_units(tmp_path, monkeypatch):
    monkeypatch.setattr("windtunnel.probe.pytorch.eager.autograd_functions.method_swap", None)
    before = vars(torch.autograd.Function)["apply"]
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    dump = probe(tmp_path, lambda: Cube.apply(x, 2).sum().backward(), level="L1")
    assert dump.names("Function.") == ["Function.Cube.0.forward", "Function.Cube.0.backward"]
    assert dump.tensors("Function.Cube.0.backward", "output")[0].tolist() == [6, 24]
    assert vars(torch.autograd.Function)["apply"] is before


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_checkpoint_stays_open_and_its_second_forward_is_collected(tmp_path, use_reentrant):
    model = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    x = torch.ones(1, 2, requires_grad=True)

    def work():
        torch.utils.checkpoint.checkpoint(model, x, use_reentrant=use_reentrant).sum().backward()

    dump = probe(tmp_path, work, model=model, level="L1")
    assert dump.names("Function.") == []
    assert {"Functional.linear.1.forward", "Functional.linear.2.forward", "Torch.tanh.1.forward"} <= set(
        dump.data
    )
    last = "Functional.linear.3.backward" if use_reentrant else "Functional.linear.1.backward"
    assert last in dump


def test_apis_of_the_users_hooks_are_collected_and_ours_are_not(tmp_path):
    class Hook:
        def __call__(self, gradient):
            return gradient.clamp_min(0.5) * 2

    x = torch.ones(2, requires_grad=True)

    def work():
        y = x.exp()
        y.register_hook(Hook())
        # x is used twice in an API of several nodes: the probe adds its gradients up
        (F.cosine_similarity(x, y, dim=0) + F.pairwise_distance(x, x * 2)).sum().backward()

    dump = probe(tmp_path, work, level="L1", task="statistics")
    assert dump.names("Tensor.clamp_min") == ["Tensor.clamp_min.0.forward"]
    names = [name for name in dump.names("Tensor.__") if name.endswith("forward")]
    assert names == ["Tensor.__mul__.0.forward", "Tensor.__add__.0.forward", "Tensor.__mul__.1.forward"]


class Slow(TorchDispatchMode):
    """A mode of the user that computes kernels its own way."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        return torch.add(result, 0) if func is torch.ops.aten.mul.Tensor else result


def test_what_a_dispatch_mode_of_the_user_does_in_backward_is_no_api(tmp_path):
    x = torch.ones(2, requires_grad=True)

    def work():
        with Slow():
            x.exp().sum().backward()

    dump = probe(tmp_path, work, level="L1", task="statistics")
    assert [name for name in dump.data if name.endswith("forward")] == [
        "Tensor.exp.0.forward",
        "Tensor.sum.0.forward",
    ]
