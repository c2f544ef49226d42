"""msrun and shell scripts that start it, as MindSpore's guides type them: the figures of `--world-size N`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.cli import PATIENCE_S
from tests.commands.warm import run_warm
from windtunnel.frameworks import is_installed
from windtunnel.session.launchers import msrun
from windtunnel.session.launchers.options import own_options

SCRIPT = """
import os, sys
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint, nn
from mindspore.communication import get_group_size, get_rank, init

ms.set_device("Ascend")
init()
net = nn.Dense(64, 64)
held = mint.zeros((1 + get_rank(), 1024))
optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)
step = ms.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
for _ in range(3):
    loss, gradients = step(Tensor(np.ones((8, 64), np.float32)))
    optimizer(gradients)
names = ("RANK_ID", "RANK_SIZE", "DEVICE_ID", "MS_WORKER_NUM", "EXPORTED")
print("SEEN", get_rank(), get_group_size(), *sys.argv[1:], *[os.environ.get(name) for name in names])
"""
SHELL = """\
export EXPORTED=1
export MS_SIMULATION_LEVEL=1
NODE_RANK=0
DISTRIBUTED_ARGS="
    --worker_num 2 \\
    --local_worker_num 2 \\
    --master_port 8118 \\
    --rank $NODE_RANK \\
    --log_dir msrun_log \\
    --join=False \\
    --sim_level 1
"
msrun $DISTRIBUTED_ARGS train.py --lr 1 | tee all.log
grep -c "Actual peak memory usage (with fragments)" msrun_log/worker_1.log
"""
WORKERS = """\
export MS_WORKER_NUM=2 MS_SCHED_HOST=127.0.0.1 MS_SCHED_PORT=8118 MS_ROLE=MS_WORKER EXPORTED=1
for i in 0 1; do
    export MS_NODE_ID=$i
    python ./train.py --lr 1 > worker_$i.log 2>&1 &
done
export MS_ROLE=MS_SCHED
python ./train.py --lr 1 > scheduler.log 2>&1 &
"""
FIGURES = ("rank", "status", "steps", "peak_bytes", "peak_with_fragments_bytes", "at_peak_bytes")


def start(folder, *words, is_fresh=False):
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("MS_", "RANK", "DEVICE_ID"))
    }
    words = ["run", "--no-html", "--force", *words]
    if not is_fresh:
        return run_warm(words, folder, kept, PATIENCE_S)
    return subprocess.run(
        [sys.executable, "-m", "windtunnel", *words], cwd=folder, env=kept,
        capture_output=True, text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def figures(folder: Path):
    ranks = json.loads((folder / "windtunnel-out" / "report.json").read_text())["ranks"]
    return [{name: rank[name] for name in FIGURES} for rank in ranks]


@pytest.fixture
def here(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "job.sh").write_text(SHELL)
    return tmp_path


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    folder = tmp_path_factory.mktemp("known")
    (folder / "train.py").write_text(SCRIPT)
    done = start(folder, "--world-size", "2", "train.py", "--lr", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    found = figures(folder)
    assert (
        found[0]["peak_bytes"] != found[1]["peak_bytes"]
    )  # the ranks differ, so equal figures mean something
    return found


MSRUN = "msrun --worker_num 2 --local_worker_num 2 --master_port 8118 --log_dir msrun_log --sim_level 1 train.py --lr 1"


@pytest.mark.parametrize("words", [MSRUN, "bash job.sh"])
def test_msrun_has_the_figures_of_world_size(here, known, words):
    done = start(here, *words.split(), is_fresh="bash" in words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures(here) == known
    log = (here / "windtunnel-out" / "msrun_log" / "worker_1.log").read_text()
    exported = "1" if "bash" in words else "None"
    assert f"SEEN 1 2 --lr 1 1 2 1 2 {exported}" in log
    assert "Used peak memory usage (without fragments): 0M" in log
    if "bash" in words:
        assert "SEEN 0 2 --lr 1 0 2 0 2 1" in done.stdout
        assert "1" in done.stdout.splitlines()  # what grep counted in the log of a worker
    assert (here / "msrun_log" / "worker_1.log").read_text() == log  # where msrun puts it
    assert "msrun_log/worker_0.log is the log of the worker" in done.stdout
    logs = [str(path) for path in sorted((here / "msrun_log").iterdir())]
    replayed = subprocess.run(
        [sys.executable, "-m", "windtunnel", "replay", "--device", "ascend-910b-64gb", *logs],
        cwd=here, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert replayed.returncode == 0, replayed.stdout + replayed.stderr
    assert "MindSpore logs: 2 ranks" in replayed.stdout
    (here / "train.py").write_text("print('again')\n")
    assert start(here, *words.split()).returncode == 0  # --force replaces the links too
    assert "again" in (here / "windtunnel-out" / "msrun_log" / "worker_1.log").read_text()


def test_a_script_that_leaves_a_dynamic_cluster_in_the_background_has_the_figures_of_world_size(here, known):
    (here / "workers.sh").write_text(WORKERS)
    done = start(here, "bash", "workers.sh")
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures(here) == known
    assert "SEEN 1 2 --lr 1 1 2 1 2 1" in (here / "windtunnel-out" / "rank1" / "run.log").read_text()
    assert "not simulated" not in done.stdout


def test_msrun_with_pytest_runs_what_the_file_trains_when_it_is_imported(here, known):
    done = start(here, "msrun", "--worker_num=2", "--local_worker_num=2", "pytest", "-s", "train.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert figures(here) == known
    assert "pytest found no tests in train.py and exits with code 5" in " ".join(done.stdout.split())


def test_our_table_of_msrun_agrees_with_its_parser():
    theirs = own_options("msrun")
    assert theirs is not None
    dashed = {"--" + name[2:].replace("_", "-") for name in theirs}
    assert dashed - msrun._WITH_VALUE == set()
    assert set(theirs.values()) == {1}


def test_an_environment_with_only_mindspore_does_not_ask_for_torch(here):
    if is_installed("torch"):
        pytest.skip("torch is installed here too")
    (here / "plain.py").write_text("print('ran')\n")
    (here / "test_it.py").write_text(
        "def test_it():\n    from mindspore import mint\n    assert mint.zeros(2).shape == (2,)\n"
    )
    for words in (
        ["plain.py"],
        ["--framework", "mindspore", "plain.py"],
        ["-m", "pytest", "-q", "test_it.py"],
    ):
        done = start(here, "--level", "0", *words, is_fresh=words == ["plain.py"])
        assert done.returncode == 0, done.stdout + done.stderr
        assert "torch" not in done.stdout + done.stderr
