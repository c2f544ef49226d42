"""The seed's own import lines: `msprobe.mindspore`, and `MsprobeStep` from where the guide imports it."""

from __future__ import annotations

import json
import subprocess
import sys

from tests.commands.cli import PATIENCE_S, environment, windtunnel

_SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import nn
from mindspore.dataset import NumpySlicesDataset
from mindspore.train import Model
from msprobe.mindspore import PrecisionDebugger
from msprobe.mindspore.common.utils import MsprobeStep

ms.set_context(mode=ms.PYNATIVE_MODE)
net = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())
data = NumpySlicesDataset((np.ones((4, 4), np.float32), np.ones((4, 4), np.float32)), shuffle=False).batch(2)
debugger = PrecisionDebugger(dump_path="dumps", level="L0", task="statistics")
trainer = Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
trainer.train(1, data, callbacks=[MsprobeStep(debugger)], dataset_sink_mode=False)
"""


def _run(*arguments, folder):
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment(), capture_output=True, text=True,
        timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_the_guides_script_runs_with_its_own_imports(tmp_path):
    (tmp_path / "train.py").write_text(_SCRIPT)
    done = _run("-m", "windtunnel.msprobe", "train.py", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    dumps = sorted((tmp_path / "dumps").glob("step*/*/dump.json"))
    assert [dump.parts[-3] for dump in dumps] == ["step0", "step1"]
    assert "Cell.0.Dense.forward.0" in json.loads(dumps[0].read_text())["data"]


def test_the_guides_path_exists_with_our_name_in_front(tmp_path):
    program = (
        "import windtunnel.mindspore.common.utils\n"
        "from windtunnel.mindspore.common.utils import MsprobeInitStep, MsprobeStep\n"
        "from windtunnel import mindspore\n"
        "assert mindspore.common.utils.MsprobeStep is MsprobeStep is mindspore.MsprobeStep\n"
    )
    done = _run("-c", program, folder=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_dry_run_of_it_collects_nothing(tmp_path):
    (tmp_path / "train.py").write_text(_SCRIPT)
    done = windtunnel("run", "-v", "train.py", cwd=tmp_path, is_fresh=True)
    assert done.returncode == 0, done.stdout + done.stderr
    said = "windtunnel: PrecisionDebugger collects nothing in a dry run: simulated tensors have no values"
    assert said in (tmp_path / "windtunnel-out" / "rank0" / "run.log").read_text()
