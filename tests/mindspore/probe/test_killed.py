"""A MindSpore training that is killed: readers take its journal in memory, `windtunnel recover` completes its files."""

from __future__ import annotations

import json

import pytest

from tests.commands.warm import run_warm_python
from tests.mindspore.probe.probing import make_debugger
from windtunnel.commands.main import main

PROGRAM = """
import os, signal, sys
import mindspore as ms, numpy as np
from mindspore import Tensor, nn, ops
from windtunnel.mindspore import PrecisionDebugger
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_seed(0)

network = nn.SequentialCell(nn.ReLU(), nn.Tanh())
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix")
gradient = ms.grad(lambda x: network(x).sum())
for step in range(2):
    debugger.start(network)
    network(Tensor([1.0, -2.0], ms.float32))
    if step == 1 and len(sys.argv) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    gradient(Tensor([1.0, -2.0], ms.float32))
    debugger.stop()
    debugger.step()
"""


@pytest.fixture(scope="module")
def trainings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("trainings")
    program = folder / "program.py"
    program.write_text(PROGRAM, encoding="utf-8")
    for name, more, code in (("killed", [], -9), ("whole", ["on"], 0)):
        done = run_warm_python([program, folder / name, *more])
        assert done.returncode == code, done.stderr[-2000:]
    return folder / "killed", folder / "whole"


def test_a_killed_training_is_compared_and_then_recovered(trainings, capsys):
    killed, whole = trainings
    (folder,) = (killed / "step1").iterdir()
    (folder / "dump.json").unlink()
    assert main(["compare", str(whole), str(killed)]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "entries of B were read from the journals of 1 interrupted steps" in out
    assert not (folder / "dump.json").exists()

    assert main(["recover", str(killed)]) == 0
    assert capsys.readouterr().out.startswith("Recovered: ")
    (other,) = (whole / "step1").iterdir()
    found, wanted = (json.loads((path / "dump.json").read_text()) for path in (folder, other))
    assert found["framework"] == "mindspore"
    names = list(found["data"])
    assert names[-1] == "Cell.1.Tanh.forward.0"
    assert found["data"] == {name: wanted["data"][name] for name in names}
    assert set(json.loads((folder / "construct.json").read_text())) == set(names)
    assert main(["compare", str(whole), str(killed)]) == 0


def test_empty_dumps_are_nothing_to_compare(tmp_path, capsys):
    for name in ("a", "b"):
        debugger = make_debugger(tmp_path / name, task="statistics")
        debugger.start()
        debugger.stop()
        debugger.step()
        debugger.close()
    assert main(["compare", str(tmp_path / "a" / "dump"), str(tmp_path / "b" / "dump")]) == 2
    assert "there is nothing to compare: " in capsys.readouterr().err
