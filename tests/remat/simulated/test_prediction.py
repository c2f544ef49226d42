"""One dry run predicts what the live runtime does: the same evictions, the same computing again, the same peak."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    "name", ["convolutions", "attention", pytest.param("accumulation", marks=pytest.mark.thorough)]
)
def test_a_dry_run_predicts_every_eviction(name):
    command = [sys.executable, "-m", "tests.remat.simulated.predicted_programs", name]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for both in json.loads(done.stdout.splitlines()[-1]):
        predicted, live = both["predicted"], both["live"]
        assert live["evictions"] == predicted["evictions"] > 0
        assert live["rematerialisations"] == predicted["rematerialisations"] > 0
        assert live["evictions_by_step"] == predicted["evictions_by_step"]
        assert live["longest_chain"] == predicted["longest_chain"]
        assert live["guarded_rounds"] == predicted["guarded_rounds"]
        assert live["least_reached_bytes"] == predicted["least_reached_bytes"]
        assert live["peak_live_bytes"] == pytest.approx(predicted["peak_live_bytes"], rel=0.001)
