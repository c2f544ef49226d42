"""One dry run predicts what the live runtime does: the same evictions, the same computing again, the same peak."""

from __future__ import annotations

import json

import pytest

from tests.commands.warm import run_warm_python


@pytest.mark.parametrize(
    "name", ["convolutions", "attention", pytest.param("accumulation", marks=pytest.mark.thorough)]
)
def test_a_dry_run_predicts_every_eviction(name):
    done = run_warm_python(["-m", "tests.remat.simulated.predicted_programs", name])
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
