"""Our files are msProbe's: names, order, figures, parents, stacks, on the same programs.

golden/ has extracts of what real msProbe wrote; benchmarks/msprobe_mindspore_parity.py renews them.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.mindspore.probe.parity import differences
from tests.mindspore.probe.parity_cases import CASES, Case, extract, file_name, run_case
from tests.mindspore.probe.sample_program import SAMPLES, run_sample
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
    found = differences(CASES[name], golden, extract(tmp_path / "dump"), with_checksums=False)
    assert found.wrong == []
    assert found.n_compared > 20


@pytest.mark.parametrize("name", SAMPLES)
def test_the_samples_of_msprobe_are_reproduced(tmp_path, name):
    """With the weights MindSpore draws from the seed, bit by bit: the checksums are compared too."""
    run_sample(tmp_path, *SAMPLES[name], PrecisionDebugger, seed_all)
    PrecisionDebugger.current.close()
    theirs = json.loads((GOLDEN / f"{name}.json").read_text())
    case = Case("sample", {"level": SAMPLES[name][0]})
    ours = _without_stacks(extract(tmp_path / "dump"))
    found = differences(case, theirs, ours, with_checksums=True)
    assert found.wrong == []


@pytest.mark.parametrize("name", SAMPLES)
def test_the_golden_samples_are_those_of_msprobe(name):
    if not (SHARED / name).exists():
        pytest.skip("the dumps of msProbe are not beside the project")
    theirs = json.loads((GOLDEN / f"{name}.json").read_text())
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
