"""Models that no laptop could hold run at level 1 in little memory."""

from __future__ import annotations

import pytest

from benchmarks import large_models
from benchmarks.large_models import run_large
from tests.commands.warm import WARM_SUBPROCESS


@pytest.mark.parametrize(
    ("name", "billions", "least_gib"),
    [pytest.param("70b", 70.6, 8 * 70, marks=pytest.mark.thorough), ("405b", 405.9, 8 * 378)],
)
def test_large_model_runs_in_under_two_gigabytes(name, billions, least_gib, monkeypatch):
    monkeypatch.setattr(large_models, "subprocess", WARM_SUBPROCESS)
    found = run_large(name)
    assert found.parameters / 1e9 == pytest.approx(billions, abs=0.1)
    assert found.peak_gib > least_gib  # bf16 weights, gradients and two Adam moments: eight bytes a parameter
    assert found.rss_mb < 2000
