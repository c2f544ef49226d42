"""`--device cpu` against the real CPU, allocation by allocation, on the programs of the benchmark."""

from __future__ import annotations

import pytest

from benchmarks.cpu_exactness import compare_program, programs


@pytest.mark.parametrize("program", programs(), ids=lambda path: path.stem)
def test_predicts_every_allocation_of_a_real_run(program):
    found = compare_program(program)
    assert found.n_allocations > 300
    assert abs(found.peak_error) <= 0.001
    assert found.agreement >= 0.999, "\n".join(found.differences[:20])
