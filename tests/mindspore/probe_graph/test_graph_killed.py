"""A process that is killed in the middle of a graph leaves what it has collected, in files that can be read."""

from __future__ import annotations

import signal

import numpy as np

from tests.commands.warm import run_warm_python
from tests.mindspore.probe_graph.networks import Dump
from windtunnel.probe.files.recover import recover_folder

PROGRAM = """
import os, signal, sys
import mindspore as ms, numpy as np
from mindspore import Tensor, nn, ops
from windtunnel.mindspore import PrecisionDebugger
ms.set_context(mode=ms.GRAPH_MODE)

def die(x):
    if x[0] > 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return x

class Fatal(nn.Cell):
    def __init__(self):
        super().__init__()
        self.die = ops.Custom(die, lambda x: x, lambda x: x, func_type="pyfunc")
    def construct(self, x):
        return self.die(x)

network = nn.SequentialCell(nn.ReLU(), nn.Tanh(), Fatal())
debugger = PrecisionDebugger(dump_path=sys.argv[1], task="tensor", level="L0")
for values in ((-1.0,), (-2.0, 1.0)):
    debugger.start(network)
    for value in values:
        network(Tensor([value], ms.float32))
    debugger.step()
"""


def test_what_ran_before_the_kill_is_there(tmp_path):
    program, dump_path = tmp_path / "program.py", tmp_path / "dump"
    program.write_text(PROGRAM, encoding="utf-8")  # MindSpore reads the source of what it compiles
    done = run_warm_python([program, dump_path], cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    assert len(Dump(dump_path, 0).entries) == 3
    recover_folder(Dump(dump_path, 1).path)
    dump = Dump(dump_path, 1)
    assert list(dump.entries)[:3] == [f"Cell.{name}.forward.0" for name in ("0.ReLU", "1.Tanh", "2.Fatal")]
    np.testing.assert_array_equal(dump.tensor("Cell.0.ReLU.forward.0.input.0"), [-2.0])
