"""A graph that is kept can run backward again, whole or in part: each pass is an entry of its own, nothing is mixed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.probe.probing import make_debugger, probe, read_dump
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tolerance import Tolerance
from windtunnel.probe.files.entry_name import EntryName, of_pass, parse_entry_name

X = torch.linspace(-1, 1, 24).view(4, 6)


def test_two_losses_over_one_graph_have_an_entry_each(tmp_path):
    x = X.clone().requires_grad_()

    def work() -> None:
        y = x.exp()
        y.sum().backward(retain_graph=True)
        (y * 2).sum().backward()

    dump = probe(tmp_path, work)
    (first,) = dump.tensors("Tensor.exp.0.backward", "output")
    (second,) = dump.tensors("Tensor.exp.0.pass2.backward", "output")
    assert torch.equal(first, X.exp())
    assert torch.equal(second, 2 * X.exp())
    assert torch.equal(x.grad, 3 * X.exp())
    assert dump["Tensor.exp.0.pass2.backward"]["output"][0]["data_name"] == (
        "Tensor.exp.0.pass2.backward.output.0.pt"
    )


def _penalty(net: nn.Module) -> torch.Tensor:
    """A gradient penalty: the loss is made of a gradient, so autograd goes through the network twice."""
    x = X.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
    slope.square().sum().backward()
    return slope


def _net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 1))


def test_a_backward_of_a_backward_is_a_second_pass(tmp_path):
    net = _net()
    dump = probe(tmp_path, lambda: _penalty(net), net, level="mix")
    # First the gradient of the input, for which the weights get none; then that of the penalty, which reaches the
    # second weight only through the first pass.
    last = "Functional.linear.1"
    (ones,) = dump.tensors(f"{last}.backward", "input")
    assert torch.equal(ones, torch.ones(4, 1))
    got, weight, bias = dump.tensors(f"{last}.backward", "output")
    assert torch.equal(got, net[2].weight.detach().expand(4, 3))
    assert weight is None
    assert bias is None
    assert dump[f"{last}.pass2.backward"]["input"] == [None]
    got, weight, bias = dump.tensors(f"{last}.pass2.backward", "output")
    assert torch.equal(weight, net[2].weight.grad)
    assert got is None
    assert bias is None
    assert net[2].bias.grad is None

    names = [name for name in dump.data if "backward" in name and "Module" in name]
    assert names == [
        *(f"Module.{name}.backward.0" for name in ("2.Linear", "1.Tanh", "0.Linear")),
        *(f"Module.{name}.pass2.backward.0" for name in ("1.Tanh", "0.Linear")),
    ]
    assert dump.json("construct.json")["Torch.tanh.0.pass2.backward"] == "Module.1.Tanh.backward.0"


def test_the_gradients_of_every_pass_are_those_of_autograd(tmp_path):
    net, seen = _net(), []

    def watch(_: nn.Module, __: tuple, output: torch.Tensor) -> None:
        output.grad_fn.register_hook(lambda grads, outs: seen.append((grads[0], outs[0])))

    net[1].register_forward_hook(watch)
    _penalty(net)
    wanted = [tuple(value.detach().clone() for value in pair) for pair in seen]
    assert len(wanted) == 2
    net = _net()
    dump = probe(tmp_path, lambda: _penalty(net), net, level="L0")
    for entry, (grad_input, grad_output) in zip(
        ("Module.1.Tanh.backward.0", "Module.1.Tanh.pass2.backward.0"), wanted, strict=True
    ):
        torch.testing.assert_close(dump.tensors(entry, "input"), [grad_output])
        torch.testing.assert_close(dump.tensors(entry, "output"), [grad_input])


def test_a_pass_that_ended_by_an_exception_is_not_mixed_with_the_next(tmp_path):
    x, w = X.clone().requires_grad_(), torch.ones(5, 6, requires_grad=True)
    calls = []

    def fail_once(gradient: torch.Tensor) -> None:
        calls.append(gradient)
        if len(calls) == 1:
            raise ValueError("the user's own")

    def work() -> None:
        # The gradient of the weight goes through a node of its own, after that of the product.
        y = F.linear(x.clone(), w, None)
        w_hook = w.register_hook(fail_once)
        with pytest.raises(ValueError, match="the user's own"):
            y.sum().backward(retain_graph=True)
        w_hook.remove()
        (y * 2).sum().backward(retain_graph=True)

    dump = probe(tmp_path, work)
    passes = dump.names("Functional.linear.0", "backward")
    assert passes[0] == "Functional.linear.0.backward"
    whole = dump.tensors(passes[-1], "output")
    assert torch.equal(whole[0], torch.full((4, 6), 10.0))
    assert torch.equal(whole[1], 2 * X.sum(0).expand(5, 6))
    assert torch.equal(dump.tensors(passes[-1], "input")[0], torch.full((4, 5), 2.0))


def test_gradients_of_parameters_that_come_in_two_passes_are_two_entries(tmp_path):
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(6)), nn.Parameter(torch.ones(6))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.a, x * self.b

    net = nn.Sequential(Two())

    def work() -> None:
        one, other = net(X)
        one.sum().backward()
        other.sum().backward()

    dump = probe(tmp_path, work, net, level="L0")
    assert [list(dump[name]) for name in dump.names("parameters_grad")] == [["a"], ["b"]]


def test_points_saved_by_hand_have_the_gradients_of_each_pass(tmp_path):
    debugger = make_debugger(tmp_path, level="debug")
    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    debugger.start()
    debugger.save({"x": x, "y": y}, "pair")
    (x * 2).sum().backward()
    (y * 3).sum().backward()
    debugger.stop()
    debugger.step()
    dump = read_dump(tmp_path)
    assert list(dump.data) == ["pair.0.debug", "pair_grad.0.debug", "pair_grad.0.pass2.debug"]
    assert (dump["pair_grad.0.debug"]["x"]["Max"], dump["pair_grad.0.debug"]["y"]) == (2.0, None)
    assert (dump["pair_grad.0.pass2.debug"]["x"], dump["pair_grad.0.pass2.debug"]["y"]["Max"]) == (None, 3.0)


def test_two_dumps_with_second_passes_are_compared_pass_by_pass(tmp_path):
    for name, factor in (("a", 1.0), ("b", 1.0), ("c", 2.0)):
        net = _net()

        def work(net: nn.Module = net, factor: float = factor) -> None:
            y = net(X)
            y.sum().backward(retain_graph=True)
            (factor * y).sum().backward()

        probe(tmp_path / name, work, net, level="mix", task="statistics")
    same, other = Findings(), Findings()
    for findings, name in ((same, "b"), (other, "c")):
        paths = (tmp_path / side / "dump" for side in ("a", name))
        for found in compare_dumps(*paths, Tolerance(None, False)):
            findings.add(found)
    assert same.is_equal
    assert (same.only_a, same.only_b, same.n_different) == (0, 0, 0)
    assert other.first is not None
    assert other.first.item == "Tensor.__rmul__.0.forward.input.1"


@pytest.mark.parametrize(
    ("entry", "third"),
    [
        ("Functional.linear.7.backward", "Functional.linear.7.pass3.backward"),
        ("Module.layers.0.fc.Linear.backward.2", "Module.layers.0.fc.Linear.pass3.backward.2"),
        ("hidden_grad.0.debug", "hidden_grad.0.pass3.debug"),
    ],
)
def test_the_name_of_a_pass(entry, third):
    assert of_pass(entry, 1) == entry
    assert of_pass(entry, 3) == third
    one, other = parse_entry_name(entry), parse_entry_name(third)
    assert (one.nth, other.nth) == (1, 3)
    assert one == EntryName(other.prefix, other.path, other.class_name, other.direction, other.call)
    assert one.without_call != other.without_call
    # msProbe looks for the direction among the last two words.
    assert "backward" in third.split(".")[-2:] or third.endswith(".debug")
