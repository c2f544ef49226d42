"""Threads: each has its own stacks of modes in torch, and all of them are collected."""

from __future__ import annotations

import concurrent.futures.thread
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as torch_module

from tests.probe.probing import make_debugger, read_dump

N = 4


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x):
        return self.fc2(self.act(self.fc1(x)))


def _gradients(net: nn.Module, number: int) -> list[torch.Tensor]:
    """The loss of one batch and its gradients; asked for, not accumulated, so that threads do not share them."""
    torch.manual_seed(0)
    x = torch.arange(8.0).reshape(2, 4) / (number + 1)
    loss = F.cross_entropy(net(x), torch.tensor([0, 2]))
    return [loss.detach(), *torch.autograd.grad(loss, list(net.parameters()))]


def _in_new_threads(work, n: int = N) -> None:
    threads = [threading.Thread(target=work, args=(number,)) for number in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
def test_four_threads_run_one_model_and_nothing_is_missing(tmp_path, level):
    net = Net()
    expected = [_gradients(net, number) for number in range(N)]
    found: dict[int, list[torch.Tensor]] = {}

    def work(number: int) -> None:
        found[number] = _gradients(net, number)

    debugger = make_debugger(tmp_path, level=level, task="statistics")
    debugger.start(net)
    _in_new_threads(work)
    debugger.stop()
    debugger.step()
    for number in range(N):
        assert all(torch.equal(a, b) for a, b in zip(found[number], expected[number], strict=True))
    dump = read_dump(tmp_path)
    assert not (dump.folder / "dump_error_info.log").exists()
    calls = {
        "L0": ["Module.fc1.Linear.{}.%d", "Module.act.ReLU.{}.%d", "Module.fc2.Linear.{}.%d"],
        "L1": ["Functional.linear.%d.{}", "Functional.relu.%d.{}", "Functional.cross_entropy.%d.{}"],
        "L2": ["Aten.addmm.%d.forward", "Aten.threshold_backward.%d.backward", "Aten.mm.%d.backward"],
    }
    calls["mix"] = calls["L0"] + calls["L1"]
    for call in calls[level]:
        for direction in ("forward", "backward"):
            assert {call.format(direction) % n for n in range(N)} <= set(dump.data)
    if level == "L1":  # two linear layers a thread
        assert len(dump.names("Functional.linear")) == 2 * 2 * N


@pytest.mark.parametrize("level", ["L1", "L2"])
def test_workers_that_ran_before_start_are_collected_too(tmp_path, level):
    net = Net()
    go, done = threading.Event(), threading.Event()

    def old_thread() -> None:
        go.wait()
        net(torch.ones(2, 4))
        done.set()
        go.clear()

    thread = threading.Thread(target=old_thread)
    thread.start()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(abs, range(2)))
        debugger = make_debugger(tmp_path, level=level, task="statistics")
        debugger.start(net)
        go.set()
        done.wait()
        thread.join()
        assert pool.submit(lambda: torch.ones(3).exp().sum().item()).result() == pytest.approx(8.154845)
        debugger.stop()
        on = pool.submit(lambda: (torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()))
        assert on.result() == (0, 0)
        debugger.step()
    names = set(read_dump(tmp_path).data)
    if level == "L1":
        assert {"Functional.linear.0.forward", "Functional.linear.1.forward", "Tensor.exp.0.forward"} <= names
    else:
        assert {"Aten.addmm.0.forward", "Aten.addmm.1.forward", "Aten.exp.0.forward"} <= names


def test_a_thread_started_inside_a_module_belongs_to_it(tmp_path):
    class Parallel(nn.Module):
        def forward(self, x):
            thread = threading.Thread(target=lambda: x.exp())
            thread.start()
            thread.join()
            return x

    class Worker(threading.Thread):
        """A thread with a `run` of its own."""

        def run(self) -> None:
            torch.ones(2).cos()

    net = nn.Sequential(Parallel())
    debugger = make_debugger(tmp_path, level="mix", task="statistics")
    debugger.start(net)
    net(torch.ones(2))
    worker = Worker()
    worker.start()
    worker.join()
    assert "run" not in vars(worker)
    debugger.step()
    parents = read_dump(tmp_path).json("construct.json")
    assert parents["Tensor.exp.0.forward"] == "Module.0.Parallel.forward.0"
    assert parents["Tensor.cos.0.forward"] is None


def test_nothing_stays_behind(tmp_path):
    before = (
        vars(threading.Thread)["start"],
        vars(concurrent.futures.thread._WorkItem)["run"],
        dict(torch_module._global_forward_pre_hooks),
        dict(torch_module._global_forward_hooks),
    )
    debugger = make_debugger(tmp_path, level="L1", task="statistics")
    debugger.start()
    assert vars(threading.Thread)["start"] is not before[0]
    debugger.stop()
    assert before == (
        vars(threading.Thread)["start"],
        vars(concurrent.futures.thread._WorkItem)["run"],
        dict(torch_module._global_forward_pre_hooks),
        dict(torch_module._global_forward_hooks),
    )


def test_a_backward_that_ends_leaves_those_of_other_threads_alone(tmp_path):
    """Both threads are half through the backward of one call when the first ends its own."""
    is_half = [threading.Event(), threading.Event()]
    is_over = [threading.Event(), threading.Event()]

    class Two(nn.Module):
        def forward(self, a, b, number):
            waits = a.exp()
            waits.register_hook(lambda gradient: self.wait(number))  # after b's gradient, before a's
            return waits + b.cos()

        def wait(self, number):
            is_half[number].set()
            (is_half[1] if number == 0 else is_over[0]).wait(10)

    net = nn.Sequential(Two())
    found = {}

    def work(number: int) -> None:
        a, b = torch.full((2,), 1.0 + number, requires_grad=True), torch.ones(2, requires_grad=True)
        loss = net[0](a, b, number).sum()
        if number == 1:
            is_half[0].wait(10)
        loss.backward()
        found[number] = a.grad
        is_over[number].set()

    debugger = make_debugger(tmp_path, level="L0", task="statistics")
    debugger.start(net)
    _in_new_threads(work, 2)
    debugger.step()
    dump = read_dump(tmp_path)
    gradients = {}
    for number in range(2):
        first, second = dump[f"Module.0.Two.backward.{number}"]["output"]
        assert second["Max"] == pytest.approx(-torch.tensor(1.0).sin().item())
        gradients[number] = first and first["Max"]
    assert sorted(gradients.values()) == pytest.approx([found[0].max().item(), found[1].max().item()])
