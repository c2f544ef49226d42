"""Programs that compile nothing have eager hooks only; those that compile something later are collected from then on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.probe.probing import make_debugger
from windtunnel.probe.pytorch import compile_watch

UNCOMPILED = """
import sys, torch
from torch import nn
from windtunnel.pytorch import PrecisionDebugger

model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
assert "torch._dynamo.eval_frame" in sys.modules  # loaded by the optimizer, though nothing is compiled
debugger = PrecisionDebugger(dump_path=sys.argv[1], level=sys.argv[2], task="statistics")
for _ in range(2):
    debugger.start(model)
    hooks = [
        hook
        for module in model.modules()
        for table in (module._forward_pre_hooks, module._forward_hooks)
        for hook in table.values()
    ]
    print(len(hooks), *sorted({hook.__module__ for hook in hooks}))
    model(torch.ones(3, 4)).sum().backward()
    debugger.stop()
    optimizer.step()
    debugger.step()
print(*sorted(name for name in sys.modules if name.startswith("windtunnel.probe.pytorch.compiled")))
"""


@pytest.mark.parametrize("level", ["L0", "mix", "L2"])
def test_an_uncompiled_model_has_eager_hooks_and_compiled_is_not_imported(tmp_path, level):
    ran = subprocess.run(
        [sys.executable, "-c", UNCOMPILED, tmp_path, level], capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.splitlines() == ["6 windtunnel.probe.collect.layer_hooks"] * 2 + [""]
    assert json.loads(next(tmp_path.glob("step1/*/dump.json")).read_text())["data"]


class Late(nn.Module):
    """Compiles a module of it when it is called for the first time, while it is running itself."""

    def __init__(self, compiles: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.compiles = compiles

    def forward(self, x):
        if self.compiles:
            self.body.compile(backend="aot_eager")
            self.compiles = False
        return self.body(x) * 2


class Net(nn.Module):
    def __init__(self, compiles: bool) -> None:
        super().__init__()
        self.late = Late(compiles)
        self.out = nn.Linear(4, 2)

    def forward(self, x):
        return self.out(self.late(x))


def collected(folder: Path, compiles: bool, monkeypatch) -> tuple[list[torch.Tensor], dict[str, dict]]:
    """Losses and gradients of two steps, and all entries of the first."""
    monkeypatch.setattr(compile_watch, "_has_compiled_before", lambda: False)  # other tests have
    torch.manual_seed(0)
    net = Net(compiles)
    debugger = make_debugger(folder, level="L0", task="statistics")
    results = []
    for _ in range(2):
        net.zero_grad()
        debugger.start(net)
        assert (debugger.compiled.code is None) == ((compiles and not results) or not compiles)
        loss = net(torch.linspace(-1, 1, 12).reshape(3, 4)).sum()
        loss.backward()
        debugger.stop()
        debugger.step()
        results += [loss.detach(), *(parameter.grad.clone() for parameter in net.parameters())]
    debugger.close()
    assert not list(folder.rglob("dump_error_info.log"))
    found: dict[str, dict] = {}
    for path in folder.rglob("step0/*/dump.json"):
        data = json.loads(path.read_text())["data"]
        assert not found.keys() & data.keys()
        found |= data
    return results, found


def test_modules_are_collected_when_the_first_compilation_is_inside_a_running_module(tmp_path, monkeypatch):
    torch._dynamo.reset()
    plain, wanted = collected(tmp_path / "eager", False, monkeypatch)
    results, found = collected(tmp_path / "compiled", True, monkeypatch)
    assert all(torch.equal(a, b) for a, b in zip(results, plain, strict=True))
    # The module that was compiled runs its own hooks inside the graph; the one that was running ends as it began.
    assert "Module.late.Late.forward.0" in wanted
    assert "Module.late.body.1.ReLU.backward.0" in wanted
    assert found == wanted
    assert list((tmp_path / "compiled" / "dump" / "graph").glob("step0/*/dump.json"))


def test_hooks_keep_their_place_among_the_hooks_of_the_program(tmp_path, monkeypatch):
    monkeypatch.setattr(compile_watch, "_has_compiled_before", lambda: False)
    order = []
    net = Net(False)
    debugger = make_debugger(tmp_path, level="L0", task="statistics")
    net.out.register_forward_hook(lambda *_: order.append("before start"))
    debugger.start(net)
    net.out.register_forward_hook(lambda *_: order.append("after start"))
    before = list(net.out._forward_hooks)
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(1))
    assert debugger.compiled.code is not None
    assert list(net.out._forward_hooks) == before
    hook = list(net.out._forward_hooks.values())[1]
    assert hook.__module__ == "windtunnel.probe.pytorch.compiled.modules"
    net(torch.ones(3, 4))
    assert order == ["before start", "after start"]
    debugger.stop()
    assert list(net.out._forward_hooks) == [before[0], before[2]]
    debugger.close()
