"""Operators run in the background, unless tests forbid it: what fails there reaches the program, not the probe."""

from __future__ import annotations

from tests.commands.warm import run_warm_python

PROGRAM = """
import sys
from pathlib import Path
import mindspore as ms
from mindspore import Tensor, mint, nn, ops
from tests.mindspore.probe.models import build, train_step
from tests.mindspore.probe.probing import make_debugger, read_dump

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")

class Failing(nn.Cell):
    def construct(self, x):
        return mint.rand(2) + x  # no kernel on a CPU

def losses(debugger=None):
    program = build("mlp")
    step = train_step(program)
    if debugger is not None:
        debugger.start(program.network)
    found = step()
    if debugger is not None:
        debugger.step()
    return found, [value.asnumpy().tobytes() for value in program.network.get_parameters()]

bare = losses()
for level in ("L0", "L1", "mix", "L2"):
    folder = Path(sys.argv[1]) / level
    debugger = make_debugger(folder, level=level, task="statistics")
    assert losses(debugger) == bare, level
    assert read_dump(folder).data
    model = nn.CellList([Failing()])
    debugger.start(model)
    try:
        model[0](Tensor([1.0])).asnumpy()
    except RuntimeError as error:
        assert "InplaceUniform" in str(error), (level, error)
    else:
        raise SystemExit(f"{level}: the error of the program was lost")
    debugger.stop()
    debugger.step()
    debugger.close()
    assert debugger.collector.n_errors == 0, level
print("every error came through")
"""


def test_an_error_in_the_background_reaches_the_program(tmp_path):
    run = run_warm_python(["-c", PROGRAM, tmp_path])
    assert run.returncode == 0, run.stderr[-2000:]
    assert run.stdout.strip().endswith("every error came through")
