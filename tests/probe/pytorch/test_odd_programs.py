"""Modules, tensors and modes of every kind: nothing breaks, and what can be recorded of them is recorded."""

from __future__ import annotations

import dataclasses
import threading
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import fake_tensor
from torch.testing._internal import two_tensor

from tests.probe.probing import probe, tensor_elements

X = torch.linspace(-1, 1, 24).view(4, 6)


Pair = namedtuple("Pair", "left right")


@dataclasses.dataclass
class Result:
    value: torch.Tensor
    note: str


RESULTS = {
    "none": lambda x: None,
    "number": lambda x: 3,
    "dict": lambda x: {"a": x * 2, "n": 3},
    "tuple": lambda x: (x * 2, x * 3),
    "list": lambda x: [x * 2, x * 3],
    "named": lambda x: Pair(x * 2, x * 3),
    "dataclass": lambda x: Result(x * 2, "note"),
    "object": lambda x: object(),
    "nested": lambda x: (x * 2, [{"deep": (x * 3, None)}, "text"]),
}


@pytest.mark.parametrize("kind", RESULTS)
def test_modules_may_return_anything(tmp_path, kind):
    class Layer(nn.Module):
        def forward(self, x):
            return RESULTS[kind](x)

    net = nn.Sequential(Layer())
    x = X.clone().requires_grad_()

    def work() -> None:
        tensors = list(_tensors(net[0](x)))
        if tensors:
            sum(tensor.sum() for tensor in tensors).backward()

    dump = probe(tmp_path, work, net, level="L0")
    output = dump["Module.0.Layer.forward.0"]["output"]
    n = len(list(tensor_elements(output)))
    assert n == len(list(_tensors(RESULTS[kind](X))))
    if kind == "named":
        assert list(output) == ["left", "right"]  # as msProbe has it
    if n:
        backward = dump["Module.0.Layer.backward.0"]
        assert len(backward["input"]) == n
        (gradient,) = dump.tensors("Module.0.Layer.backward.0", "output")
        assert torch.equal(gradient, x.grad)
    assert not (dump.folder / "dump_error_info.log").exists()


def _tensors(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif dataclasses.is_dataclass(value):
        yield from _tensors(vars(value))


def _parametrized() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)))


def _spectral() -> nn.Module:
    return nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)))


def _scripted() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), torch.jit.script(nn.Sequential(nn.Linear(6, 6), nn.ReLU())))


class _Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.eye(6)) for _ in range(2)])
        self.named = nn.ParameterDict({"bias": nn.Parameter(torch.zeros(6))})
        self.layers = nn.ModuleDict({"act": nn.ReLU()})

    def forward(self, x):
        for weight in self.weights:
            x = x @ weight + self.named["bias"]
        return self.layers["act"](x)


def _half() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)).bfloat16()


NETS = {
    "lazy": lambda: nn.Sequential(nn.LazyLinear(6), nn.ReLU()),
    "weight norm": _parametrized,
    "spectral norm": _spectral,
    "scripted": _scripted,
    "lists": lambda: nn.Sequential(_Lists()),
    "bfloat16": _half,
    "attention": lambda: nn.Sequential(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)),
    "recurrent": lambda: nn.Sequential(nn.Linear(6, 6), nn.GRUCell(6, 6)),
}


@pytest.mark.filterwarnings("ignore")  # torch's own: lazy modules and scripts are told to be moving on
@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
def test_modules_of_every_kind_compute_what_they_did(tmp_path, name, level):
    results = []
    for folder in (None, tmp_path):
        torch.manual_seed(0)
        net = NETS[name]()
        x = X.unsqueeze(0) if name == "attention" else X
        x = x.to(torch.bfloat16) if name == "bfloat16" else x

        def work(net=net, x=x) -> None:
            net(x).float().square().sum().backward()

        if folder is None:
            work()
        else:
            dump = probe(folder, work, net, level=level, task="statistics")
            assert not (dump.folder / "dump_error_info.log").exists()
            assert dump.names("forward" if level != "L2" else "")
        results.append([parameter.grad for parameter in net.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*results, strict=True))


@pytest.mark.filterwarnings("ignore")
def test_scripted_modules_are_reported(tmp_path, caplog):
    net = _scripted()
    dump = probe(tmp_path, lambda: net(X), net, level="L0")
    assert dump.names() == ["Module.0.Linear.forward.0"]
    assert any("3 modules are scripted" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
def test_odd_tensors_are_no_error(tmp_path, level):
    class Mine(torch.Tensor):
        pass

    class Layer(nn.Module):
        def forward(self, *values):
            return [value + value if value.layout is torch.strided else value for value in values]

    net = nn.Sequential(Layer())
    values = [
        torch.empty(0, 3),
        torch.tensor(3.0),
        torch.ones(2, 2, dtype=torch.complex64),
        torch.ones(2, 2, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        torch.eye(3),
        torch.empty(4, device="meta"),
        torch.ones(4).as_subclass(Mine),
        torch.tensor([True, False]),
        torch.tensor([float("nan"), float("inf"), 1.0]),
        torch.ones(3, 4).T,
        torch.ones(1).expand(5),
        torch.arange(5, dtype=torch.uint8),
        torch.ones(3, dtype=torch.float16),
    ]
    dump = probe(tmp_path, lambda: net[0](*values), net, level=level, task="tensor", summary_mode="md5")
    assert not (dump.folder / "dump_error_info.log").exists()
    if level in ("L0", "mix"):
        element = dump["Module.0.Layer.forward.0"]["input_args"][9]
        assert (element["nan_count"], element["inf_count"]) == (1, 1)


@pytest.mark.filterwarnings("ignore")  # nested tensors are a prototype, says torch
@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
@pytest.mark.parametrize("kind", ["nested", "jagged", "wrapper", "fake", "quantised", "float8", "csr"])
def test_tensors_without_plain_memory_are_described_as_far_as_they_can_be(tmp_path, level, kind):
    def make() -> torch.Tensor:
        parts = [torch.ones(2, 3), torch.ones(4, 3)]
        if kind == "nested":
            return torch.nested.nested_tensor(parts)
        if kind == "jagged":
            return torch.nested.nested_tensor(parts, layout=torch.jagged)
        if kind == "wrapper":
            return two_tensor.TwoTensor(torch.ones(2, 3), torch.ones(2, 3))
        if kind == "fake":
            return fake_tensor.FakeTensorMode().from_tensor(torch.ones(2, 3))
        if kind == "quantised":
            return torch.quantize_per_tensor(torch.ones(2, 3), 0.1, 0, torch.qint8)
        return (
            torch.ones(2, 3).to(torch.float8_e4m3fn) if kind == "float8" else torch.ones(2, 3).to_sparse_csr()
        )

    class Layer(nn.Module):
        def forward(self, x):
            return x.clone()

    net = nn.Sequential(Layer())
    dump = probe(tmp_path, lambda: net[0](make()), net, level=level, summary_mode="md5", risk_level="ALL")
    assert not (dump.folder / "dump_error_info.log").exists()
    if level in ("L0", "mix"):
        (element,) = dump["Module.0.Layer.forward.0"]["input_args"]
        assert element["shape"] == ([2, -1, 3] if kind in ("nested", "jagged") else [2, 3])


def test_a_list_that_holds_itself_ends(tmp_path):
    class Layer(nn.Module):
        def forward(self, x, values):
            return x

    values: list = [1]
    values += [values, values]
    net = nn.Sequential(Layer())
    dump = probe(tmp_path, lambda: net[0](X, values), net, level="L0", task="statistics")
    assert dump["Module.0.Layer.forward.0"]["input_args"][1][0] == {"type": "int", "value": 1}


def test_modes_of_the_user_are_inside_and_outside(tmp_path):
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Kernels(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    def work() -> None:
        with Kernels(), torch.device("cpu"):
            F.relu(torch.ones(3, requires_grad=True)).sum().backward()

    dump = probe(tmp_path, work)
    assert {"Functional.relu.0.forward", "Functional.relu.0.backward"} <= set(dump.data)
    under_probe = seen[:]
    seen.clear()
    work()
    assert under_probe == seen  # statistics make no kernel that a mode of the user would see


def test_autocast_and_scaled_gradients(tmp_path):
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 2))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def work() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(X).float().sum()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    dump = probe(tmp_path, work, net, level="mix")
    assert dump["Module.0.Linear.forward.0"]["output"][0]["dtype"] == "torch.bfloat16"
    bias = dump.tensor(dump["Module.2.Linear.parameters_grad.0"]["bias"][0])
    assert torch.equal(bias, torch.full((2,), 16.0))  # four rows, scaled by four


def test_hooks_of_the_user_run_as_before(tmp_path):
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    order = []
    net[0].register_forward_pre_hook(lambda *_: order.append("before"))
    net[0].register_forward_hook(lambda _, __, output: order.append("after") or output * 2)
    net[0].register_full_backward_hook(lambda *_: order.append("backward"))
    net[0].weight.register_hook(lambda gradient: order.append("weight") or gradient * 3)
    net[0].weight.register_post_accumulate_grad_hook(lambda _: order.append("accumulated"))
    x = X.clone().requires_grad_()
    net(x).sum().backward()
    alone, wanted = order[:], net[0].weight.grad.clone()
    order.clear()
    net.zero_grad()
    dump = probe(tmp_path, lambda: net(x).sum().backward(), net, level="mix")
    assert order == alone
    assert torch.equal(net[0].weight.grad, wanted)
    # What the module hands on is what its hooks made of it, and so is the gradient that arrives.
    assert torch.equal(dump.tensors("Module.0.Linear.forward.0", "output")[0], net[0](X).detach())
    assert torch.equal(dump.tensor(dump["Module.0.Linear.parameters_grad.0"]["weight"][0]), wanted)


def test_modules_under_no_grad_have_no_backward(tmp_path):
    net = nn.Sequential(nn.Linear(6, 6))

    def work() -> None:
        with torch.no_grad():
            net(X)
        with torch.inference_mode():
            net(X)

    dump = probe(tmp_path, work, net, level="mix")
    assert len(dump.names("Module.0.Linear.forward")) == 2
    assert dump.names("backward") == []


def test_a_thread_of_the_user_is_not_disturbed(tmp_path):
    net = nn.Sequential(nn.Linear(6, 6))
    results = []

    def work() -> None:
        thread = threading.Thread(target=lambda: results.append(net(X).sum().item()))
        thread.start()
        thread.join()

    dump = probe(tmp_path, work, net, level="mix")
    assert results == [net(X).sum().item()]
    assert "Module.0.Linear.forward.0" in dump
