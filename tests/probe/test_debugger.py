"""PrecisionDebugger as a user meets it: odd programs, odd tensors, mistakes of the user and of the probe itself."""

from __future__ import annotations

import dataclasses
import functools
import json
import threading
import zlib
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses import fake_tensor
from torch.nn.functional import gelu as gelu_imported_before
from torch.testing._internal import two_tensor

from tests.probe.probing import make_debugger, probe, read_dump, tensor_elements
from windtunnel.errors import UsageError, WindtunnelError
from windtunnel.pytorch import PrecisionDebugger

X = torch.linspace(-1, 1, 24).view(4, 6)


def _crc(tensor: torch.Tensor) -> str:
    return f"{zlib.crc32(tensor.detach().contiguous().numpy().tobytes()):08x}"


# ------------------------------------------------------------------ where msProbe is wrong


def test_the_checksum_is_of_the_value_at_that_moment(tmp_path):
    net = nn.Sequential(nn.Linear(6, 512))
    with torch.no_grad():
        wanted = _crc(net(X))

        def work() -> None:
            net(X).mul_(0).add_(7)  # at once after the module

        dump = probe(tmp_path, work, net, level="mix", task="statistics", summary_mode="md5")
    assert dump["Module.0.Linear.forward.0"]["output"][0]["md5"] == wanted
    assert dump["Functional.linear.0.forward"]["output"][0]["md5"] == wanted
    assert dump["Tensor.mul_.0.forward"]["input_args"][0]["md5"] == wanted
    assert dump["Tensor.add_.0.forward"]["output"][0]["Max"] == 7


def test_a_call_in_place_has_the_value_before_as_its_input(tmp_path):
    x = X.clone()
    dump = probe(tmp_path, lambda: x.add_(1).relu_())
    assert torch.equal(dump.tensor(dump["Tensor.add_.0.forward"]["input_args"][0]), X)
    assert torch.equal(dump.tensors("Tensor.add_.0.forward", "output")[0], X + 1)


@pytest.mark.parametrize("level", ["L1", "mix"])
@pytest.mark.parametrize(
    "write",
    [
        lambda y: y.data[3].__setitem__(3, 100.0),
        lambda y: y.detach().numpy()[3].__setitem__(3, 100.0),
        lambda y: y.detach()[3].fill_(100.0),
    ],
    ids=["data", "numpy", "detach"],
)
def test_a_few_elements_written_behind_autograd_are_seen(tmp_path, level, write):
    """Nothing raises the version of the tensor, and a glance at some elements would not see it."""
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU())
    checksums = []

    def work() -> None:
        hidden = net[0](torch.ones(64, 64))
        memory = hidden.data
        for _ in range(2):
            write(hidden)
            checksums.append(_crc(hidden))
            net[1](hidden)
            memory[0, 7] += 1.0

    dump = probe(tmp_path, work, net, level=level, summary_mode="md5")
    for number, checksum in enumerate(checksums):
        element = dump[f"Functional.relu.{number}.forward"]["input_args"][0]
        assert element["md5"] == checksum
        assert _crc(dump.tensor(element)) == checksum


def test_a_caught_exception_silences_nothing(tmp_path):
    net = nn.Sequential(nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6)))

    def work() -> None:
        with pytest.raises(RuntimeError):
            torch.matmul(X, X)
        with pytest.raises(RuntimeError):
            net[1](torch.ones(2, 5))
        net(X)

    dump = probe(tmp_path, work, net, level="mix")
    construct = dump.json("construct.json")
    assert "Functional.linear.2.forward" in dump
    assert construct["Module.0.Linear.forward.0"] is None
    assert construct["Module.1.0.Linear.forward.1"] == "Module.1.Sequential.forward.1"
    assert construct["Functional.linear.2.forward"] == "Module.1.0.Linear.forward.1"


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_sparse_tensors_and_gradients_are_no_error(tmp_path, task):
    net = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 2))
    dump = probe(
        tmp_path,
        lambda: net(torch.tensor([1, 3])).sum().backward(),
        net,
        level="mix",
        task=task,
        risk_level="ALL",
    )
    assert net[0].weight.grad.is_sparse
    assert "Module.0.Embedding.parameters_grad.0" in dump
    assert not (dump.folder / "dump_error_info.log").exists()


def test_names_longer_than_a_file_name_may_be(tmp_path):
    inner: nn.Module = nn.Linear(6, 6)
    for _ in range(12):
        inner = nn.ModuleDict({"a_rather_long_name_of_a_layer": inner})
    net = nn.Sequential(inner)

    def work() -> None:
        layer = net[0]
        while isinstance(layer, nn.ModuleDict):
            layer = layer["a_rather_long_name_of_a_layer"]
        layer(X).sum().backward()

    dump = probe(tmp_path, work, net, level="L0")
    (entry,) = dump.names("forward")
    assert len(entry) > 255
    assert torch.equal(dump.tensors(entry, "input_args")[0], X)
    assert (dump.folder / "dump_tensor_data" / "mapping.csv").exists()


def test_doubles_and_integers_have_mean_and_norm(tmp_path):
    dump = probe(tmp_path, lambda: (X.double() * 2, torch.arange(4) * 3))
    for name, norm in (
        ("Tensor.__mul__.0.forward", (X.double() * 2).norm()),
        ("Tensor.__mul__.1.forward", 126**0.5),
    ):
        element = dump[name]["output"][0]
        assert element["Norm"] == pytest.approx(float(norm), rel=1e-12)
        assert element["Mean"] is not None


def test_precision_high_has_mean_and_norm(tmp_path):
    half = torch.full((1000,), 200.0, dtype=torch.float16)
    dump = probe(tmp_path, lambda: half * 100, precision="high", task="statistics")
    element = dump["Tensor.__mul__.0.forward"]["output"][0]
    assert element["Mean"] == pytest.approx(20000)
    assert element["Norm"] == pytest.approx(20000 * 1000**0.5)


def test_what_msprobe_does_not_see_is_seen(tmp_path):
    x = X.clone().requires_grad_()
    lstm = nn.LSTM(6, 3)

    def work() -> None:
        x[0], -x, x.T, torch.special.erf(x), torch.fft.fft(x).real, x.new_zeros(3)
        gelu_imported_before(x)
        lstm(x)
        torch.linalg.norm(x)
        x.clone()[1] = 0.0

    dump = probe(tmp_path, work, task="statistics", risk_level="ALL")
    wanted = "Tensor.__getitem__ Tensor.neg Tensor.T Torch.erf Torch.fft Tensor.real Tensor.new_zeros Functional.gelu"
    wanted += " VF.lstm Torch.norm Tensor.__setitem__"
    assert [name for name in wanted.split() if f"{name}.0.forward" not in dump] == []


def test_linear_is_core(tmp_path):
    dump = probe(tmp_path, lambda: F.relu(F.linear(X, X)), risk_level="CORE", task="statistics")
    assert dump.names() == ["Functional.linear.0.forward"]


class _Calling(nn.Module):
    """Calls something in the middle of its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(6, 6), nn.ReLU()
        self.call = lambda: None

    def forward(self, x):
        hidden = self.linear(x)
        self.call()
        return self.act(hidden)


def _interrupt() -> None:
    raise KeyboardInterrupt


def test_modules_that_did_not_end_are_no_parents_later(tmp_path):
    net = nn.Sequential(_Calling(), _Calling())
    debugger = make_debugger(tmp_path, level="mix", task="statistics")
    net[0].call = _interrupt
    debugger.start(net)
    with pytest.raises(KeyboardInterrupt):
        net(X)
    debugger.step()
    net[0].call = debugger.stop
    debugger.start(net)
    net(X).sum().backward()
    debugger.step()
    net[0].call = lambda: debugger.start(net)
    net(X).sum().backward()
    debugger.step()
    net[0].call = lambda: None
    debugger.start(net)
    net(X).sum().backward()
    debugger.step()
    construct = read_dump(tmp_path, 3).json("construct.json")
    assert construct["Module.0._Calling.forward.0"] is None
    assert construct["Module.0.linear.Linear.forward.0"] == "Module.0._Calling.forward.0"
    assert construct["Module.1._Calling.backward.0"] is None
    assert construct["Tensor.sum.0.forward"] is None


def test_a_backward_that_fails_is_followed_by_one_that_does_not(tmp_path):
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    debugger = make_debugger(tmp_path, level="mix", task="statistics")
    x = X.clone().requires_grad_()

    def fail(_):
        raise ValueError("of the user")

    handle = x.register_hook(fail)
    debugger.start(net)
    loss = net(x).sum()
    with pytest.raises(ValueError, match="of the user"):
        loss.backward()
    debugger.step()
    handle.remove()
    debugger.start(net)
    net(x).sum().backward()
    debugger.step()
    assert "Module.1.ReLU.backward.0" in read_dump(tmp_path, 0)
    assert {"Module.0.Linear.backward.0", "Functional.linear.0.backward"} <= set(read_dump(tmp_path, 1).data)
    assert debugger.collector.n_errors == 0


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("level", ["mix", "L2"])
def test_tools_of_autograd_go_on_working(tmp_path, level):
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    seen = []

    def work() -> None:
        with (
            torch.autograd.set_detect_anomaly(True),
            torch.autograd.graph.saved_tensors_hooks(lambda t: seen.append(t.shape) or t, lambda t: t),
        ):
            net(X).square().sum().backward()

    work()
    alone = seen[:]
    seen.clear()
    dump = probe(tmp_path, work, net, level=level, task="statistics")
    assert seen == alone
    assert not (dump.folder / "dump_error_info.log").exists()


@pytest.mark.parametrize("is_async", [False, True])
def test_saved_values_are_those_of_that_moment(tmp_path, is_async):
    net = nn.Sequential(nn.Linear(6, 200))
    with torch.no_grad():
        wanted = net(X)

        def work() -> None:
            for _ in range(20):
                net(X).zero_()

        dump = probe(tmp_path, work, net, level="mix", async_dump=is_async, list=["Linear"])
    for number in range(20):
        assert torch.equal(dump.tensors(f"Module.0.Linear.forward.{number}", "output")[0], wanted)


# ------------------------------------------------------------------ names


OPERATIONS = {
    "__add__": lambda a, b: a + b,
    "__radd__": lambda a, b: 2 + a,
    "__sub__": lambda a, b: a - b,
    "__rsub__": lambda a, b: 2 - a,
    "__mul__": lambda a, b: a * b,
    "__rmul__": lambda a, b: 2 * a,
    "__truediv__": lambda a, b: a / b,
    "__floordiv__": lambda a, b: a // b,
    "__mod__": lambda a, b: a % b,
    "__pow__": lambda a, b: a**2,
    "__rpow__": lambda a, b: 2**a,
    "__matmul__": lambda a, b: a @ b.T,
    "__eq__": lambda a, b: a == b,
    "__ne__": lambda a, b: a != b,
    "__lt__": lambda a, b: a < b,
    "__le__": lambda a, b: a <= b,
    "__gt__": lambda a, b: a > b,
    "__ge__": lambda a, b: a >= b,
    "__and__": lambda a, b: (a > 0).logical_not() & (b > 0).logical_not(),
    "__or__": lambda a, b: (a > 0).logical_not() | (b > 0).logical_not(),
    "__xor__": lambda a, b: (a > 0).logical_not() ^ (b > 0).logical_not(),
    "__invert__": lambda a, b: ~(a > 0).logical_not(),
    "__lshift__": lambda a, b: torch.arange(3) << 1,
    "__rshift__": lambda a, b: torch.arange(3) >> 1,
    "__getitem__": lambda a, b: a[0],
}


def test_operators_have_their_names_in_every_step_and_every_debugger(tmp_path):
    for number in range(2):
        debugger = make_debugger(tmp_path / str(number), task="statistics", risk_level="ALL")
        for _ in range(2):
            debugger.start()
            for operation in OPERATIONS.values():
                operation(X, X)
            debugger.step()
        debugger.close()
        for step in range(2):
            dump = read_dump(tmp_path / str(number), step)
            assert [name for name in OPERATIONS if f"Tensor.{name}.0.forward" not in dump] == []
            assert dump.names("Tensor.add.") == dump.names("Tensor.mul.") == []


def test_methods_and_functions_of_one_operation_have_names_of_their_own(tmp_path):
    dump = probe(tmp_path, lambda: (X + 1, X.add(1), torch.add(X, 1), X.clone().add_(1)), task="statistics")
    assert dump.names() == [
        f"{name}.0.forward" for name in ("Tensor.__add__", "Tensor.add", "Torch.add", "Tensor.add_")
    ]


def test_arguments_are_as_they_were_written(tmp_path):
    def work() -> None:
        F.softmax(X, 1)
        F.softmax(X, dim=1)
        F.softmax(input=X, dim=1)
        F.layer_norm(X, (6,), eps=0.1)
        X.sum(dim=0, keepdim=True)
        functools.partial(F.softmax, dim=0)(X)
        list(map(F.softmax, [X], [1]))

    dump = probe(tmp_path, work, task="statistics")
    shapes = [
        (len(body["input_args"]), sorted(body["input_kwargs"]))
        for name, body in dump.data.items()
        if name.endswith("forward")
    ]
    assert shapes == [
        (2, []),
        (1, ["dim"]),
        (0, ["dim", "input"]),
        (2, ["eps"]),
        (1, ["dim", "keepdim"]),
    ] + 2 * [(1, ["dim"])]


def test_shared_modules_keep_their_first_name(tmp_path):
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Linear(6, 6)
            self.two = self.one

        def forward(self, x):
            return self.two(self.one(x))

    dump = probe(tmp_path, lambda: nn.Sequential(net)(X).sum().backward(), net := Net(), level="L0")
    assert dump.names("forward") == [f"Module.one.Linear.forward.{n}" for n in (0, 1)]
    assert dump.names("backward") == [f"Module.one.Linear.backward.{n}" for n in (1, 0)]
    assert dump.names("parameters_grad") == ["Module.one.Linear.parameters_grad.0"]


def test_only_what_is_below_the_given_module_is_collected(tmp_path):
    net = nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.ReLU()), nn.Linear(6, 2))
    dump = probe(tmp_path, lambda: net(X), net[0], level="L0")
    assert dump.names() == ["Module.0.Linear.forward.0", "Module.1.ReLU.forward.0"]


def test_several_models_are_numbered(tmp_path):
    one, two = nn.Sequential(nn.Linear(6, 6)), nn.Sequential(nn.ReLU())
    dump = probe(tmp_path, lambda: two(one(X)), (one, two), level="L0")
    assert dump.names() == ["Module.0.0.Linear.forward.0", "Module.1.0.ReLU.forward.0"]


# ------------------------------------------------------------------ modules of every kind


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
def test_scripted_modules_are_told(tmp_path, caplog):
    net = _scripted()
    dump = probe(tmp_path, lambda: net(X), net, level="L0")
    assert dump.names() == ["Module.0.Linear.forward.0"]
    assert any("3 modules are scripted" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
def test_transforms_of_functions_go_on_working(tmp_path, level):
    net = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
    parameters = dict(net.named_parameters())

    def loss(values, x):
        return torch.func.functional_call(net, values, (x,)).sum()

    def compute():
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, X)
        hessian = torch.func.hessian(lambda x: (x**3).sum())(X[0])
        slope = torch.func.jvp(torch.sin, (X,), (X,))[1]
        return [*each.values(), hessian, slope]

    wanted = compute()
    results = []
    dump = probe(
        tmp_path, lambda: results.extend(compute()), net, level=level, task="statistics", risk_level="ALL"
    )
    assert all(torch.equal(one, other) for one, other in zip(results, wanted, strict=True))
    assert not (dump.folder / "dump_error_info.log").exists()


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


# ------------------------------------------------------------------ the probe's own errors


@pytest.mark.parametrize(
    ("place", "level"),
    [
        ("windtunnel.probe.torch_calls.CallWriter.open", "mix"),
        ("windtunnel.probe.torch_calls.CallWriter.close", "mix"),
        ("windtunnel.probe.torch_elements.Elements.tensor", "mix"),
        ("windtunnel.probe.torch_elements.Elements.tensor", "L0"),
        ("windtunnel.probe.torch_elements.Elements.tensor", "L2"),
        ("windtunnel.probe.torch_gradients.Call.ran", "L1"),
        ("windtunnel.probe.torch_gradients.Call.finish", "mix"),
        ("windtunnel.probe.torch_statistics.TorchMeter.measure", "mix"),
        ("windtunnel.probe.collector.Collector.put", "mix"),
        ("windtunnel.probe.step_folder.StepFolder.add_call", "L1"),
        ("windtunnel.probe.collector.Collector.flush", "L0"),
        ("windtunnel.probe.step_folder.StepFolder.close", "L0"),
        ("windtunnel.probe.tensor_store.TensorStore.save", "mix"),
        ("windtunnel.probe.call_stack.CallStacks.here", "mix"),
        ("windtunnel.probe.callsite.CallSites.as_written", "L1"),
        ("windtunnel.probe.torch_modules.ModuleHooks._begin", "L0"),
        ("windtunnel.probe.torch_modules.ModuleHooks._end", "mix"),
        ("windtunnel.probe.torch_modules._ModuleGradients._take", "L0"),
        ("windtunnel.probe.selection.Selection.leave", "mix"),
        ("windtunnel.probe.selection.Selection.wants_api", "L1"),
        ("windtunnel.probe.torch_modules.ModuleHooks.remove", "L0"),
        ("windtunnel.probe.torch_apis.OperatorNames.install", "L1"),
        ("windtunnel.probe.torch_apis.OperatorNames.take", "L1"),
    ],
)
def test_an_error_of_the_probe_never_reaches_the_program(tmp_path, monkeypatch, caplog, place, level):
    def broken(*args, **kwargs):
        raise RuntimeError("a mistake in the probe")

    def work() -> None:
        net(X).sum().backward()

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
    work()
    wanted = net[0].weight.grad.clone()
    net.zero_grad()
    debugger = make_debugger(tmp_path, level=level, step=[0])
    monkeypatch.setattr(place, broken)
    debugger.start(net)
    work()
    debugger.stop()
    debugger.step()
    monkeypatch.undo()
    debugger.stop()
    debugger.close()
    assert torch.equal(net[0].weight.grad, wanted)
    (log,) = tmp_path.rglob("dump_error_info.log")
    assert log.parent.parent.name == "step0"
    text = log.read_text()
    assert "a mistake in the probe" in text
    assert debugger.collector.n_errors == text.count("a mistake in the probe\n")
    told = [record.getMessage() for record in caplog.records]
    assert any("error" in line and "dump_error_info.log" in line for line in told), told
    json.loads(next(tmp_path.rglob("dump.json")).read_text())


def test_an_error_while_a_step_is_opened_leaves_the_program_alone(tmp_path, monkeypatch, caplog):
    def broken(*args, **kwargs):
        raise RuntimeError("a mistake in the probe")

    debugger = make_debugger(tmp_path, level="L1")
    monkeypatch.setattr("windtunnel.probe.torch_debugger.StepOutput", broken)
    debugger.start()
    (X + 1).sum()
    debugger.stop()
    debugger.step()
    monkeypatch.undo()
    debugger.start()
    (X + 1).sum()
    debugger.step()
    assert "Tensor.__add__.0.forward" in read_dump(tmp_path, 1)
    assert debugger.collector.n_errors == 1


# ------------------------------------------------------------------ mistakes of the user


def _message(call) -> str:
    with pytest.raises(WindtunnelError) as caught:
        call()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_start_needs_a_model_at_levels_of_modules(tmp_path):
    for level in ("L0", "mix"):
        debugger = make_debugger(tmp_path, level=level)
        assert level in _message(debugger.start)


@pytest.mark.parametrize("model", [3, "net", [], [3], {"a": nn.ReLU()}, lambda x: x])
def test_start_is_given_something_that_is_no_model(tmp_path, model):
    debugger = make_debugger(tmp_path, level="L0")
    _message(lambda: debugger.start(model))


@pytest.mark.parametrize("rank", [-1, "0", 1.5])
def test_a_rank_that_is_none(tmp_path, rank):
    debugger = make_debugger(tmp_path, level="L1")
    assert repr(rank) in _message(lambda: debugger.start(rank_id=rank))


@pytest.mark.parametrize("step", [-1, "3", 1.5, None, True])
def test_a_first_step_that_is_none(tmp_path, step):
    debugger = make_debugger(tmp_path)
    assert repr(step) in _message(lambda: debugger.set_init_step(step))


def test_a_method_before_there_is_a_debugger():
    if PrecisionDebugger.current is not None:
        PrecisionDebugger.current.close()
    PrecisionDebugger.current = None
    for name in ("start", "stop", "step"):
        with pytest.raises(UsageError, match=f"{name} was called before"):
            getattr(PrecisionDebugger, name)()


@pytest.mark.parametrize(
    ("keys", "word"),
    [
        ({"level": "L9"}, "L9"),
        ({"task": "tensors"}, "tensors"),
        ({"step": [1.5]}, "1.5"),
        ({"summary_mode": "md6"}, "md6"),
        ({"data_mode": ["forwards"]}, "forwards"),
        ({"risk_level": "SOME"}, "SOME"),
    ],
)
def test_a_wrong_value_is_named(tmp_path, keys, word):
    assert word in _message(lambda: make_debugger(tmp_path, **keys))


def test_a_filter_that_matches_nothing_is_told(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="L1", task="statistics", list=["no_such_api"])
    debugger.start()
    F.relu(X)
    debugger.step()
    debugger.close()
    assert any("no_such_api" in record.getMessage() for record in caplog.records)


@pytest.mark.parametrize(("name", "is_told"), [("no_such_api", True), ("relu", False)])
def test_a_list_of_tensors_that_matches_nothing_is_told(tmp_path, caplog, name, is_told):
    probe(tmp_path, lambda: F.relu(X), task="statistics", tensor_list=[name])
    assert any("no tensor was saved" in record.getMessage() for record in caplog.records) == is_told


def test_steps_that_never_come_are_told(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="L1", step=[7])
    debugger.start()
    debugger.step()
    debugger.close()
    assert any("7" in record.getMessage() for record in caplog.records)
    assert not (tmp_path / "dump").exists() or not list((tmp_path / "dump").iterdir())


def test_a_rank_without_a_group_is_told(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="L1", rank=[3])
    debugger.start(rank_id=0)
    F.relu(X)
    debugger.step()
    debugger.close()
    assert any("rank" in record.getMessage() for record in caplog.records)


def test_save_at_another_level_is_told(tmp_path, caplog):
    debugger = make_debugger(tmp_path, level="L1")
    debugger.save(X, "x")
    assert any("debug" in record.getMessage() for record in caplog.records)
