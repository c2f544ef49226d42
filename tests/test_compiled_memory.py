"""Compiled programs with `--device cpu` against real runs of Inductor, by torch's profiler."""

from __future__ import annotations

import shutil

import pytest

from benchmarks.compiled_memory import PROGRAMS, compare


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
@pytest.mark.parametrize("program", PROGRAMS)
def test_compiled_code_takes_what_inductor_takes(program):
    found = compare(program)
    assert abs(found.error) <= 0.01
    assert found.are_counts_equal


@pytest.mark.thorough
@pytest.mark.skipif(shutil.which("g++") is None, reason="Inductor needs a C++ compiler")
def test_a_budget_for_activations_saves_the_same():
    assert abs(compare("gpt", "--budget", "0.5").error) <= 0.01
