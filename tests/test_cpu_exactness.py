"""`--device cpu` against the real CPU, allocation by allocation, on the programs of the benchmark."""

from __future__ import annotations

import pytest

from benchmarks import cpu_exactness
from benchmarks.cpu_exactness import compare_program, missing_package, programs
from tests.commands.warm import WARM_SUBPROCESS

# One program by default; `make thorough` and `make bench` run them all.
_ALWAYS = {"gpt"}
_PROGRAMS = [
    pytest.param(path, marks=[] if path.stem in _ALWAYS else pytest.mark.thorough, id=path.stem)
    for path in programs()
]


@pytest.mark.parametrize("program", _PROGRAMS)
def test_predicts_every_allocation_of_a_real_run(program, monkeypatch):
    package = missing_package(program)
    if package is not None:
        pytest.skip(f"{package} is not installed")
    monkeypatch.setattr(cpu_exactness, "subprocess", WARM_SUBPROCESS)
    found = compare_program(program)
    assert found.n_allocations > 300
    assert abs(found.peak_error) <= 0.001
    assert found.agreement >= 0.999, "\n".join(found.differences[:20])
