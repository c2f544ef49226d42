"""Scripts written for msProbe run unchanged: real processes, with and without an installed msProbe."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.commands.cli import PATIENCE_S, environment, windtunnel

_SCRIPT = """
import sys
import torch
from msprobe.pytorch import PrecisionDebugger, seed_all

seed_all(1)
debugger = PrecisionDebugger(dump_path=sys.argv[1], level="mix", task="statistics")
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU())
debugger.start(model)
model(torch.ones(2, 4)).sum().backward()
debugger.stop()
debugger.step()
"""


def _python(*arguments, folder, **variables):
    return subprocess.run(
        [sys.executable, *map(str, arguments)], cwd=folder, env=environment(**variables), capture_output=True,
        text=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip


def test_a_script_for_msprobe_leaves_its_dump(tmp_path):
    (tmp_path / "train.py").write_text(_SCRIPT)
    done = _python("-m", "windtunnel.msprobe", "train.py", "dumps", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    (dump,) = (tmp_path / "dumps" / "step0").glob("*/dump.json")
    assert "Module.0.Linear.forward.0" in json.loads(dump.read_text())["data"]


def test_a_module_for_msprobe_runs_too(tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "train.py").write_text(_SCRIPT)
    done = _python("-m", "windtunnel.msprobe", "-m", "package.train", "dumps", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "dumps" / "step0").glob("*/dump.json")) != []


def test_an_installed_msprobe_wins_and_a_line_says_so(tmp_path):
    folder = tmp_path / "site" / "msprobe" / "pytorch"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("PrecisionDebugger = seed_all = print\n")
    (tmp_path / "train.py").write_text(
        "from msprobe.pytorch import PrecisionDebugger\nPrecisionDebugger('theirs')\n"
    )
    path = str(tmp_path / "site")
    done = _python("-m", "windtunnel.msprobe", "train.py", folder=tmp_path, PYTHONPATH=path)
    assert (done.returncode, done.stdout) == (0, "theirs\n")
    assert done.stderr == "windtunnel: msProbe is installed in this Python, and the script gets that one\n"


def test_a_folder_that_is_only_called_msprobe_is_no_installation(tmp_path):
    (tmp_path / "msprobe").mkdir()
    (tmp_path / "train.py").write_text(_SCRIPT)
    done = _python("-m", "windtunnel.msprobe", "train.py", "dumps", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "installed" not in done.stderr


def test_a_name_that_windtunnel_lacks_is_one_sentence(tmp_path):
    (tmp_path / "train.py").write_text("from msprobe.pytorch import TrainerMon\n")
    done = _python("-m", "windtunnel.msprobe", "train.py", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "ImportError: windtunnel's probe has no TrainerMon; of msprobe.pytorch it has PrecisionDebugger, seed_all."
        " Install msProbe (pip install mindstudio-probe) to use its own"
    )


@pytest.mark.parametrize("arguments", [["missing.py"], [], ["-m"]])
def test_a_missing_script_is_wrong_usage(tmp_path, arguments):
    done = _python("-m", "windtunnel.msprobe", *arguments, folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.strip().endswith(
        "usage: python -m windtunnel.msprobe [-m MODULE | SCRIPT] [ARGUMENT ...]"
    )


def test_a_dry_run_answers_the_same_imports_and_collects_nothing(tmp_path):
    (tmp_path / "train.py").write_text(_SCRIPT)
    done = windtunnel("run", "-v", "--device", "cpu", "train.py", "dumps", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    said = "windtunnel: PrecisionDebugger collects nothing in a dry run: simulated tensors have no values"
    assert said in (tmp_path / "windtunnel-out" / "rank0" / "run.log").read_text()
    assert "dumps" not in done.stdout.replace("train.py dumps", "")  # among what it would have written
