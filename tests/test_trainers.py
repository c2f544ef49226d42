"""Lightning, Fabric and Hugging Face's Trainer run unmodified, with every strategy of the benchmark."""

from __future__ import annotations

import pytest

from benchmarks.cpu_exactness import missing_package
from benchmarks.trainers import CASES, program_of, run_case


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_trainer_runs(case):
    package = missing_package(program_of(case))
    if package is not None:
        pytest.skip(f"{package} is not installed")
    found = run_case(case)
    assert found.is_ok, found.output[-3000:]
    assert found.peak_bytes > 0
