"""Rows of what to checkpoint first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.runs import FITTING, LARGE, run_of
from tests.report.timed import FAST, timed_rank, timed_run
from windtunnel.memory.attribution import LiveTensors, ModuleShare
from windtunnel.report.page.checkpoint_advice import checkpoint_first
from windtunnel.report.results.run import failed_rank
from windtunnel.units import GIB


def test_blocks_come_first_with_what_they_hold_of_the_need():
    head = ModuleShare("<script>alert(1)</script>", "activations", 3 * GIB)
    (first, second) = checkpoint_first(
        run_of(replace(LARGE, at_peak_by_module=(*LARGE.at_peak_by_module, head)))
    )
    assert first == {
        "module": "layers.0-3",
        "count": 4,
        "bytes": 16 * GIB,
        "share": 16 / 96,
        "is_repeated": True,
        "forward_us": None,
    }
    assert (second["module"], second["bytes"]) == ("<script>alert(1)</script>", 3 * GIB)


def test_the_tightest_rank_is_the_one_that_is_reported():
    other = replace(LARGE, rank=1, at_peak_by_module=(ModuleShare("head", "activations", GIB),))
    assert [row["module"] for row in checkpoint_first(run_of(FITTING, other))] == ["head"]


def test_at_level_3_computing_them_again_has_a_time():
    # layers.0-3.mlp take 0.1 s each in a step whose forward takes a third of forward and backward.
    (row,) = checkpoint_first(timed_run(timed_rank(FAST)))
    assert row["forward_us"] == pytest.approx(4 * 0.1e6 / 3)


def test_small_change_is_not_worth_a_row():
    crumbs = (ModuleShare("layers.0.mlp", "activations", GIB // 100),)
    assert checkpoint_first(run_of(replace(FITTING, at_peak_by_module=crumbs))) == []


def test_nothing_measured_is_nothing_to_checkpoint():
    assert checkpoint_first(run_of()) == []
    assert checkpoint_first(run_of(failed_rank(0, "no data"))) == []


def test_neither_the_root_nor_the_loss_is_named():
    shares = (
        ModuleShare("", "activations", 30 * GIB),
        ModuleShare("model.layers.0.mlp", "activations", 8 * GIB),
        ModuleShare("model.layers.1.mlp", "activations", 8 * GIB),
        ModuleShare("model", "activations", 20 * GIB),
        ModuleShare("CrossEntropyLoss", "activations", 12 * GIB),
    )
    loss = LiveTensors("", "aten._log_softmax", "CrossEntropyLoss", "activations", None, "", "", 1, 12 * GIB)
    rank = replace(LARGE, at_peak_by_module=shares, largest_at_peak=(loss,))
    assert [row["module"] for row in checkpoint_first(run_of(rank))] == ["model.layers.0-1"]
