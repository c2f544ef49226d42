"""What ours writes against what real msProbe wrote of the same programs: names, shapes, statistics, checksums, files.

The extracts in golden/ were made by benchmarks/probe/msprobe_parity.py. Differences that are meant are named in parity.py and
explained in docs/probe-msprobe.md; a difference of any other kind fails here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.probe.msprobe_parity import run_compare
from tests.probe.parity.arithmetic import fingerprint
from tests.probe.parity.cases import CASES, Case, extract, file_name, run_case
from tests.probe.parity.side import Differences, differences
from windtunnel.pytorch import PrecisionDebugger, seed_all

GOLDEN = Path(__file__).parents[1] / "golden"
SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "msprobe"
MSPROBE_PYTHON = os.environ.get("WINDTUNNEL_MSPROBE_PYTHON")


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    for name in ("PYTHONHASHSEED", "CUBLAS_WORKSPACE_CONFIG"):  # seed_all sets them
        monkeypatch.setenv(name, os.environ.get(name, ""))
        monkeypatch.delenv(name)
    n, is_deterministic = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    yield
    torch.set_num_threads(n)
    torch.use_deterministic_algorithms(is_deterministic)
    torch.backends.cudnn.deterministic = False


def _fresh(config_path: str) -> PrecisionDebugger:
    if PrecisionDebugger.current is not None:
        PrecisionDebugger.current.close()
        PrecisionDebugger.current = None
    return PrecisionDebugger(config_path=config_path)


def _against_golden(case: Case, golden: dict, ours: dict) -> Differences:
    """Bits are compared where the program comes to those of the recording with nobody watching, statistics elsewhere."""
    is_same = golden["made_with"]["arithmetic"] == fingerprint(case)
    return differences(case, golden, ours, are_same_bits=is_same)


@pytest.mark.parametrize("name", CASES)
def test_the_files_are_those_of_msprobe(tmp_path, name):
    golden = json.loads((GOLDEN / file_name(name)).read_text())
    run_case(CASES[name], tmp_path, _fresh)
    found = _against_golden(CASES[name], golden, extract(tmp_path / "dump", CASES[name].keeps))
    assert found.n_compared > 0
    assert found.wrong == []


def test_a_difference_is_found(tmp_path):
    """The comparison itself can fail: a value, a name, a parent and a checksum that were changed are reported."""
    golden = json.loads((GOLDEN / file_name("mix md5 mlp")).read_text())
    case = CASES["mix md5 mlp"]
    ours = json.loads(json.dumps({key: value for key, value in golden.items() if key != "made_with"}))
    assert differences(case, golden, ours).wrong == []
    step = ours["step0"]
    step["data"]["Functional.relu.0.forward"]["output.0"][2]["Mean"] *= 1.00001
    step["data"]["Module.1.ReLU.forward.0"]["output.0"][2]["md5"] = "00000000"
    step["construct"]["Functional.relu.0.forward"] = None
    del step["data"]["Functional.relu.1.forward"]
    wrong = differences(case, golden, ours).wrong
    assert len(wrong) == 4, wrong


def test_of_another_arithmetic_statistics_are_compared():
    """Other bits and a last digit that differs are no mistake there; a value, a count, a type and a file still are."""
    case = CASES["mix md5 transformer"]
    golden = json.loads((GOLDEN / file_name("mix md5 transformer")).read_text())
    golden["made_with"]["arithmetic"] = "that of another machine"
    ours = json.loads(json.dumps({key: value for key, value in golden.items() if key != "made_with"}))
    data = ours["step0"]["data"]
    rounded, tokens = data["Functional.gelu.0.forward"]["output.0"], data["Module.emb.Embedding.forward.0"]
    rounded[2]["md5"] = "00000000"
    rounded[2]["Mean"] *= 1.000001
    assert _against_golden(case, golden, ours).wrong == []
    rounded[2]["Norm"] *= 1.0001
    rounded[0] = "float16"
    tokens["input_args.0"][2]["Max"] += 1
    ours["step0"]["files"].remove("stack.json")
    wrong = _against_golden(case, golden, ours).wrong
    assert len(wrong) == 4, wrong


@pytest.mark.parametrize(
    "variables",
    [
        {"MKL_ENABLE_INSTRUCTIONS": "AVX2"},
        pytest.param({"ONEDNN_MAX_CPU_ISA": "AVX2"}, marks=pytest.mark.thorough),
        pytest.param({"ATEN_CPU_CAPABILITY": "default"}, marks=pytest.mark.thorough),
    ],
    ids="=".join,
)
def test_the_files_are_those_of_msprobe_with_the_kernels_of_another_processor(variables):
    """As much as one machine can be another: its libraries keep kernels for older processors, which round otherwise."""
    names = [name for name in CASES if "md5" in name]
    tests = [f"{__file__}::{test_the_files_are_those_of_msprobe.__name__}[{name}]" for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "no:xdist", *tests],
        env=os.environ | variables,
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(names)} passed" in done.stdout


# ------------------------------------------------------------------ the sample dumps, made by another person


class _Net(nn.Module):
    """The model of the samples' generator."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(2 * 4 * 4, 3)
        self.debugger = None

    def forward(self, x, scale=1.0):
        x = self.relu(self.conv1(x))
        x = x.flatten(1) * scale
        self.debugger.save({"h": x, "n": 3}, "hidden")
        return self.fc(x)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample dumps of msProbe are not here")
@pytest.mark.parametrize(
    "sample",
    [
        "L0_statistics_md5",
        "L1_statistics_statistics",
        "mix_statistics_md5",
        "mix_tensor_statistics",
        "debug_tensor_statistics",
    ],
)
def test_the_samples_are_written_again(tmp_path, sample):
    level, task, summary = sample.split("_")
    keys = {"level": level, "task": task, "summary_mode": summary}
    config = {"task": task, "level": level, "rank": [], "step": [0, 1], "dump_path": str(tmp_path / "dump")}
    config[task] = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": summary}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    torch.set_num_threads(1)
    seed_all(1234, mode=True)
    debugger = _fresh(str(path))
    net = _Net()
    net.debugger = debugger
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        x, y = torch.randn(2, 1, 4, 4), torch.tensor([0, 2])
        debugger.start(model=net)
        F.cross_entropy(net(x, scale=2.0), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    theirs, ours = extract(SAMPLES / f"torch_{sample}", "figures"), extract(tmp_path / "dump", "figures")
    for step in ours.values():
        step.pop("tensors", None)  # the samples came without their tensor files
    case = Case("sample", keys, "figures")
    found = differences(case, theirs, ours, are_same_bits=False)  # made on another processor
    assert found.n_compared > 40
    assert found.wrong == []


# ------------------------------------------------------------------ msProbe reads what ours wrote


@pytest.mark.thorough
@pytest.mark.skipif(not MSPROBE_PYTHON, reason="WINDTUNNEL_MSPROBE_PYTHON names no Python with msProbe")
@pytest.mark.parametrize("name", ["L0 mlp", "L1 mlp", "mix md5 mlp", "mix tensor transformer"])
def test_the_compare_tool_of_msprobe_accepts_our_dumps(tmp_path, name):
    folders = []
    for side in ("one", "other"):
        run_case(CASES[name], tmp_path / side, _fresh)
        folders.append(next((tmp_path / side / "dump" / "step0").iterdir()))
    (tmp_path / "out").mkdir()
    results = run_compare(MSPROBE_PYTHON, *folders, tmp_path / "out")
    assert set(results) == {"pass"}
    assert results["pass"] > 20
