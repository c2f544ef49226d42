"""remat.json: every figure, whole files only."""

from __future__ import annotations

import json
import os

import pytest

from tests.report.remat_results import result
from windtunnel.report.json.remat import remat_text, write_remat
from windtunnel.units import GIB, MIB


def test_the_document_has_every_figure():
    document = json.loads(remat_text(result(notes=("a note",))))
    points = document.pop("points")
    best = document.pop("best")
    assert document.pop("without")["threshold_bytes"] is None
    assert len(document.pop("assumptions")) == 3
    assert document.pop("answer").startswith("Best threshold: 8GB")
    assert document.pop("use") == [
        "import windtunnel.dtr as dtr",
        'dtr.eviction_threshold = "8GB"',
        'dtr.policy = "dtr"',
        "dtr.enable()",
    ]
    assert document == {
        "schema": 1,
        "windtunnel": "1.2.3",
        "subject": "train.py",
        "rank": 0,
        "world_size": 1,
        "steps": 3,
        "device": {"name": "2080ti-11gb", "memory_bytes": 11011 * MIB, "usable_bytes": 10 * GIB},
        "allocator": "cuda",
        "minimum_size_bytes": MIB,
        "sampling": False,
        "costs": {"path": None, "n_measured": 0, "n_kinds": 0},
        "margin": 0.05,
        "never_evicted_bytes": 2 * GIB,
        "fits": True,
        "cheaper": None,
        "notes": ["a note"],
    }
    assert [point["threshold_bytes"] // GIB for point in points] == [4, 6, 8, 10]
    assert [point["has_margin"] for point in points] == [True, True, True, False]
    assert best["threshold_bytes"] == 8 * GIB


def test_a_point_tells_time_work_and_memory():
    points = json.loads(remat_text(result()))["points"]
    assert points[1] == {
        "threshold_bytes": 6 * GIB,
        "policy": "dtr",
        "fits": True,
        "step_seconds": 1.25,
        "extra_seconds": 0.25,
        "slowdown": 1.25,
        "evictions": 26,
        "evicted_bytes": 26 * MIB,
        "rematerialisations": 25,
        "rematerialised_bytes": 25 * MIB,
        "longest_chain": 4,
        "peak_live_bytes": 7 * GIB,
        "peak_reserved_bytes": 8 * GIB,
        "allocation_retries": 0,
        "cache_flushes": 0,
        "guarded_rounds": 0,
        "raised_limit_bytes": 0,
        "out_of_memory": None,
        "has_margin": True,
    }


def test_a_step_that_did_not_end_has_no_time():
    point = json.loads(remat_text(result()))["points"][3]
    assert (point["fits"], point["step_seconds"], point["slowdown"]) == (False, None, None)
    assert point["out_of_memory"]["operator"] == "aten.mul.Tensor"


def test_no_best_is_null():
    document = json.loads(remat_text(result(result().curve.points[3:])))
    assert (document["best"], document["fits"]) == (None, False)


def test_a_file_is_whole_or_not_there(tmp_path, monkeypatch):
    write_remat(tmp_path / "remat.json", result())
    assert json.loads((tmp_path / "remat.json").read_text())["schema"] == 1

    def fail(*args):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk full"):
        write_remat(tmp_path / "other.json", result())
    assert [path.name for path in tmp_path.iterdir()] == ["remat.json"]
