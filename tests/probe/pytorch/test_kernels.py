"""Level L2: every kernel, forward and backward, with the API and the module it ran in."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack
from torch.utils.checkpoint import checkpoint

from tests.probe.probing import Dump, make_debugger, probe, read_dump


def _values(dump: Dump, entry: str, side: str) -> list:
    """The values of the first tensor."""
    return dump.tensor(dump[entry][side][0]).tolist()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)
        self.act = nn.ReLU(inplace=True)
        self.fc = nn.Linear(8, 3)

    def forward(self, x):
        return self.fc(self.act(self.bn(self.conv(x))).flatten(1))


def _train(debugger=None, n_steps=2):
    """Losses, gradients and weights of a short training, to the bit."""
    torch.manual_seed(0)
    net = Net()
    optimizer = torch.optim.AdamW(net.parameters())
    found = []
    for _ in range(n_steps):
        x = torch.randn(2, 1, 4, 4)
        if debugger is not None:
            debugger.start(net)
        loss = F.cross_entropy(net(x), torch.tensor([0, 2]))
        loss.backward()
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        found += [loss.detach(), *(value.grad.clone() for value in net.parameters())]
        optimizer.zero_grad()
    return found + [value.detach() for value in net.parameters()]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_kernels_of_a_training_step_are_recorded_and_change_nothing(tmp_path, task):
    plain = _train()
    probed = _train(make_debugger(tmp_path, level="L2", task=task))
    assert all(torch.equal(a, b) for a, b in zip(plain, probed, strict=True))
    assert _get_current_dispatch_mode_stack() == []
    dump = read_dump(tmp_path)
    assert not (dump.folder / "dump_error_info.log").exists()
    parents = dump.json("construct.json")
    assert {
        "Aten.convolution.0.forward": "Functional.conv2d.0.forward",
        "Aten.native_batch_norm.0.forward": "Functional.batch_norm.0.forward",
        "Aten.relu_.0.forward": "Functional.relu.0.forward",
        "Aten.addmm.0.forward": "Functional.linear.0.forward",
        "Aten.nll_loss_forward.0.forward": "Functional.cross_entropy.0.forward",
        "Aten.nll_loss_backward.0.backward": "Functional.cross_entropy.0.backward",
        "Aten.mm.0.backward": "Functional.linear.0.backward",
        "Aten.mm.1.backward": "Functional.linear.0.backward",
        "Aten.threshold_backward.0.backward": "Functional.relu.0.backward",
        "Aten.native_batch_norm_backward.0.backward": "Functional.batch_norm.0.backward",
        "Aten.convolution_backward.0.backward": "Functional.conv2d.0.backward",
    }.items() <= {name: parents[name] for name in dump.data}.items()
    assert parents["Functional.conv2d.0.forward"] == "Module.conv.Conv2d.forward.0"
    assert parents["Functional.conv2d.0.backward"] == "Module.conv.Conv2d.backward.0"
    assert parents["Module.conv.Conv2d.forward.0"] is None
    assert all(parents[parents[name]] == "optimizer" for name in dump.names("Aten.addcdiv_"))
    assert dump["Aten.addmm.0.forward"].keys() == {"input_args", "input_kwargs", "output"}
    assert dump["Aten.mm.0.backward"].keys() == {"input", "output"}


def test_a_kernel_in_place_shows_its_input_before_and_its_output_after(tmp_path):
    x = torch.tensor([1.0, -2.0])
    dump = probe(tmp_path, lambda: x.mul_(3), level="L2")
    assert _values(dump, "Aten.mul_.0.forward", "input_args") == [1, -2]
    assert _values(dump, "Aten.mul_.0.forward", "output") == [3, -6]


def test_views_and_empty_memory_are_left_out_unless_everything_is_asked_for(tmp_path):
    def work():
        torch.empty(2, 3).zero_().t().reshape(6).detach().view(2, 3).exp()

    assert list(probe(tmp_path / "a", work, level="L2").data) == [
        "Aten.zero_.0.forward",
        "Aten.clone.0.forward",
        "Aten.exp.0.forward",
    ]
    everything = probe(tmp_path / "b", work, level="L2", risk_level="ALL")
    assert {
        "Aten.empty.0.forward",
        "Aten.t.0.forward",
        "Aten.view.0.forward",
        "Aten.detach.0.forward",
    } <= set(everything.data)


def test_memory_that_is_only_written_into_is_no_input(tmp_path):
    out = torch.full((2, 2), float("nan"))
    dump = probe(tmp_path, lambda: torch.mm(torch.ones(2, 2), torch.ones(2, 2), out=out), level="L2")
    assert dump["Aten.mm.0.forward"]["input_kwargs"] == {"out": None}
    assert _values(dump, "Aten.mm.0.forward", "output") == [[2, 2], [2, 2]]


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["Functional.linear.1.forward"], ["Aten.addmm.1.forward"]),
        (
            ["Functional.linear.1.backward"],
            ["Aten.mm.0.backward", "Aten.mm.1.backward", "Aten.sum.0.backward"],
        ),
        (["Module.0.Linear.forward.0"], ["Aten.addmm.0.forward"]),
        (["Aten.tanh"], ["Aten.tanh.0.forward", "Aten.tanh_backward.0.backward"]),
    ],
)
def test_a_list_names_kernels_apis_or_modules(tmp_path, names, expected):
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    dump = probe(tmp_path, lambda: net(torch.ones(2, 3)).sum().backward(), model=net, level="L2", list=names)
    assert list(dump.data) == expected


def test_a_scope_goes_from_one_api_to_another(tmp_path):
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Sigmoid(), nn.Linear(3, 3))
    scope = ["Torch.tanh.0.forward", "Torch.sigmoid.0.forward"]
    dump = probe(tmp_path, lambda: net(torch.ones(2, 3)), model=net, level="L2", scope=scope)
    assert list(dump.data) == ["Aten.tanh.0.forward", "Aten.sigmoid.0.forward"]


def test_a_model_is_not_needed_and_data_mode_is_kept(tmp_path):
    x = torch.ones(2, requires_grad=True)

    def work():
        (x * x).exp().sum().backward()

    forward = probe(tmp_path / "a", work, level="L2", data_mode=["forward", "output"])
    assert [name for name in forward.data if name.endswith("backward")] == []
    assert forward["Aten.exp.0.forward"].keys() == {"output"}
    backward = probe(tmp_path / "b", work, level="L2", data_mode=["backward"])
    assert {name.rpartition(".")[2] for name in backward.data} == {"backward"}


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_forward_that_is_computed_again_in_backward_is_a_forward(tmp_path, use_reentrant):
    net = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.ones(2, 3, requires_grad=True)

    def work():
        checkpoint(net, x, use_reentrant=use_reentrant).sum().backward()

    dump = probe(tmp_path, work, model=net, level="L2")
    assert dump.names("Aten.tanh.", "forward") == ["Aten.tanh.0.forward", "Aten.tanh.1.forward"]
    assert dump.names("Aten.tanh.", "backward") == []
    parents = dump.json("construct.json")
    assert parents["Torch.tanh.1.forward"] == "Module.1.Tanh.forward.1"


class Counting(TorchDispatchMode):
    n = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.n += 1
        return func(*args, **(kwargs or {}))


def test_modes_of_the_user_may_lie_crosswise(tmp_path):
    # torch's flag is one for all threads: those of an earlier test may have left it set.
    before = torch.utils._python_dispatch.is_in_torch_dispatch_mode()
    debugger = make_debugger(tmp_path, level="L2", task="statistics")
    outer, inner = Counting(), Counting()
    with outer:
        debugger.start()
        inner.__enter__()
        torch.ones(2).exp()
        debugger.stop()
        assert _get_current_dispatch_mode_stack() == [outer, inner]
        torch.ones(2).exp()
        inner.__exit__(None, None, None)
    debugger.step()
    assert (outer.n, inner.n) == (4, 4)
    assert list(read_dump(tmp_path).data) == ["Aten.ones.0.forward", "Aten.exp.0.forward"]
    assert torch.utils._python_dispatch.is_in_torch_dispatch_mode() == before


def test_an_error_in_a_kernel_is_the_users_and_leaves_the_rest_recorded(tmp_path):
    def work():
        with pytest.raises(RuntimeError):
            torch.ones(2, 3) @ torch.ones(2, 3)
        torch.ones(2).exp()

    dump = probe(tmp_path, work, level="L2")
    assert "Aten.exp.0.forward" in dump
    assert dump.json("construct.json")["Aten.exp.0.forward"] == "Tensor.exp.0.forward"


def test_kernels_of_a_wrapped_tensor_are_those_that_run_on_its_parts(tmp_path):
    from torch.testing._internal.two_tensor import TwoTensor

    two = TwoTensor(torch.ones(2), torch.full((2,), 2.0))
    dump = probe(tmp_path, lambda: two.exp(), level="L2")
    assert dump.names("Aten.exp") == ["Aten.exp.0.forward", "Aten.exp.1.forward"]
    assert _values(dump, "Aten.exp.1.forward", "input_args") == [2, 2]


def test_an_operator_called_as_torch_ops_has_it_is_its_own_kernel(tmp_path):
    with torch.library._scoped_library("windtunnel_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: x * 2, "CPU")
        dump = probe(tmp_path, lambda: torch.ops.windtunnel_test.twice(torch.ones(2)), level="L2")
    assert dump.names("twice") == ["windtunnel_test.twice.0.forward"]
    assert dump.json("construct.json")["windtunnel_test.twice.0.forward"] is None


def test_overflow_is_found_kernel_by_kernel(tmp_path):
    x = torch.tensor([1.0, 100.0])
    dump = probe(tmp_path, lambda: (x.exp() * 2).log(), level="L2", task="overflow_check")
    assert list(dump.data) == ["Aten.exp.0.forward"]
    assert _values(dump, "Aten.exp.0.forward", "input_args") == [1, 100]
