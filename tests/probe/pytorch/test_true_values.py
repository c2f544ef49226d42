"""What msProbe gets wrong or does not see, and is right here; values and names of calls."""

from __future__ import annotations

import functools
import zlib

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.functional import gelu as gelu_imported_before

from tests.probe.probing import make_debugger, probe, read_dump
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tolerance import Tolerance

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


LOW = {torch.float16: 0.005, torch.bfloat16: 0.005, torch.float32: 1e-7, torch.float64: 1e-15}


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("precision", ["low", "high", None])
def test_precision_low_has_mean_and_norm_in_the_type_of_the_tensor(tmp_path, dtype, precision):
    values = torch.linspace(-1, 2, 999).to(dtype)
    keys = {} if precision is None else {"precision": precision}
    dump = probe(tmp_path, lambda: torch.relu(values), task="statistics", **keys)
    element = dump["Torch.relu.0.forward"]["output"][0]
    exact = values.relu().double()
    for key, true in (("Mean", exact.mean()), ("Norm", exact.norm())):
        got = torch.tensor(element[key], dtype=torch.float64)
        assert got == pytest.approx(float(true), rel=LOW[dtype])
        is_own = bool(got == got.to(dtype).double())
        assert is_own == (precision == "low" or dtype is torch.float64)
    if precision == "low":  # as torch itself has them
        assert element["Mean"] == pytest.approx(values.relu().mean().item(), rel=max(LOW[dtype], 1e-6))
        assert element["Norm"] == pytest.approx(values.relu().norm().item(), rel=max(LOW[dtype], 1e-6))
    assert (element["Max"], element["Min"]) == (2.0, 0.0)


def test_precision_low_overflows_as_the_type_does(tmp_path):
    half = torch.full((1000,), 20000.0, dtype=torch.float16)
    for precision, norm in (("low", float("inf")), ("high", 20000 * 1000**0.5)):
        dump = probe(tmp_path / precision, lambda: torch.relu(half), precision=precision, task="statistics")
        (element,) = dump["Torch.relu.0.forward"]["output"]
        assert (element["Mean"], element["Norm"]) == (20000.0, pytest.approx(norm))
        assert "inf_count" not in element  # of the elements, not of their norm
    findings = Findings()
    paths = (tmp_path / precision / "dump" for precision in ("low", "high"))
    for found in compare_dumps(*paths, Tolerance(None, False)):
        findings.add(found)
    assert findings.is_equal


def test_precision_low_leaves_integers_and_truths_as_they_are(tmp_path):
    dump = probe(
        tmp_path, lambda: (torch.arange(4) * 3, torch.tensor([True]) * 1), precision="low", task="statistics"
    )
    element = dump["Tensor.__mul__.0.forward"]["output"][0]
    assert (element["Mean"], element["Norm"]) == (4.5, pytest.approx(126**0.5))
    assert dump["Tensor.__mul__.1.forward"]["input_args"][0]["Mean"] is None


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
