"""Simulated ranks against real processes that communicate through gloo: the peak of every rank."""

from __future__ import annotations

import pytest

from benchmarks.gloo_truth import Case, compare_case

# `make bench` has the others.
CASES = (
    Case("fsdp2", 2, ("--bf16",)),
    Case("tensor_parallel"),
    pytest.param(Case("pipeline"), marks=pytest.mark.thorough, id="pipeline"),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.program)
def test_predicts_the_peak_of_every_rank_of_a_real_job(case):
    found = compare_case(case)
    assert [each.rank for each in found] == list(range(case.world_size))
    assert max(abs(each.error) for each in found) < 0.01, found
