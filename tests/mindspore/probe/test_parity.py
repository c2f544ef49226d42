"""Our files are msProbe's: names, order, figures, parents, stacks, on the same programs.

golden/ has extracts of what real msProbe wrote; benchmarks/probe/msprobe_mindspore_parity.py renews them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from mindspore import Tensor

from tests.mindspore.probe.arithmetic import Nobody, fingerprint
from tests.mindspore.probe.parity import differences
from tests.mindspore.probe.parity_cases import CASES, Case, extract, file_name, run_case, run_program
from tests.mindspore.probe.sample_program import SAMPLES, run_sample, train_sample
from windtunnel.mindspore import PrecisionDebugger, seed_all

GOLDEN = Path(__file__).parent / "golden"
SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", Path(__file__).parents[4] / "shared")) / "data" / "msprobe"
KEPT = [name for name in CASES if (GOLDEN / file_name(name)).exists()]


def test_there_are_golden_files():
    assert len(KEPT) >= 5


@pytest.mark.parametrize("name", KEPT)
def test_the_files_are_those_of_msprobe(tmp_path, name):
    run_case(CASES[name], tmp_path, PrecisionDebugger)
    PrecisionDebugger.current.close()
    golden = json.loads((GOLDEN / file_name(name)).read_text())
    is_same = golden["made_with"]["arithmetic"] == fingerprint(run_program(CASES[name], Nobody()))
    ours = extract(tmp_path / "dump")
    found = differences(CASES[name], golden, ours, with_checksums=False, are_same_bits=is_same)
    assert found.wrong == []
    assert found.n_compared > 20


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_of_msprobe_are_reproduced(tmp_path, name):
    """With the weights MindSpore draws from the seed, bit by bit where the processor comes to the same gradients."""
    run_sample(tmp_path, *SAMPLES[name], PrecisionDebugger, seed_all)
    PrecisionDebugger.current.close()
    theirs = json.loads((GOLDEN / f"{name}.json").read_text())
    case = Case("sample", {"level": SAMPLES[name][0]})
    ours = _without_stacks(extract(tmp_path / "dump"))
    seed_all(1234)
    is_same = theirs["made_with"]["arithmetic"] == fingerprint(train_sample(Nobody()))
    found = differences(case, theirs, ours, are_same_bits=is_same)
    assert found.wrong == []


def test_they_are_those_of_msprobe_with_the_kernels_of_another_processor():
    """As much as one machine can be another: oneDNN keeps kernels for older processors, which round otherwise."""
    names = (
        test_the_files_are_those_of_msprobe.__name__,
        test_the_samples_of_msprobe_are_reproduced.__name__,
    )
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            *(f"{__file__}::{name}" for name in names),
        ],
        env=os.environ | {"ONEDNN_MAX_CPU_ISA": "AVX2"},
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(KEPT) + len(SAMPLES)} passed" in done.stdout


def test_the_fingerprint_tells_one_bit():
    value = Tensor(np.linspace(0, 1, 9, dtype=np.float32))
    other = value.asnumpy().copy()
    other[4] = np.nextafter(other[4], np.float32(1))
    assert fingerprint([value, value]) == fingerprint([value, Tensor(value.asnumpy())])
    assert fingerprint([value, value]) != fingerprint([value, Tensor(other)])


@pytest.mark.parametrize("name", SAMPLES)
def test_the_golden_samples_are_those_of_msprobe(name):
    if not (SHARED / name).exists():
        pytest.skip("the dumps of msProbe are not beside the project")
    theirs = json.loads((GOLDEN / f"{name}.json").read_text())
    del theirs["made_with"]  # the samples do not say
    assert json.loads(json.dumps(_without_stacks(extract(SHARED / name)))) == theirs


def test_every_stack_begins_in_the_program(tmp_path):
    """The lines of the program itself, as msProbe has them; its own frames and those of its hooks are not there."""
    run_sample(tmp_path, "mix", "statistics", "statistics", PrecisionDebugger, seed_all)
    PrecisionDebugger.current.close()
    (rank,) = (tmp_path / "dump" / "step0").iterdir()
    stacks = {
        name: frames
        for names, frames in json.loads((rank / "stack.json").read_text()).values()
        for name in names
    }
    first = [line for line in stacks["Functional.tanh.0.forward"] if "sample_program.py" in line]
    assert first[0].endswith("in construct, \n x = ops.tanh(x) + ms.mint.abs(x)")
    assert not any("/windtunnel/probe/" in line for frames in stacks.values() for line in frames)


def _without_stacks(extracted: dict) -> dict:
    """Stacks name the lines of another file, and saved tensors are not among the samples."""
    for step in extracted.values():
        step.pop("stack", None)
        step.pop("tensors", None)
    return extracted
