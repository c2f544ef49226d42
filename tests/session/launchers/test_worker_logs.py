"""Workers' logs where msrun's --log_dir puts them."""

from __future__ import annotations

import os

import pytest

from windtunnel.session.launchers.worker_logs import show_worker_logs


@pytest.fixture
def out(tmp_path):
    for rank in (0, 3):
        (tmp_path / "out" / f"rank{rank}").mkdir(parents=True)
        (tmp_path / "out" / f"rank{rank}" / "run.log").write_text(f"rank {rank}\n")
    return tmp_path / "out"


def test_each_simulated_worker_has_its_log(out, tmp_path):
    place = tmp_path / "deep" / "msrun_log"
    (told,) = show_worker_logs(out, place, [0, 3, 7])
    assert (
        told
        == f"{place}/worker_0.log is the log of the worker, where msrun puts it (and those of 1 other ranks beside it)"
    )
    assert sorted(os.listdir(place)) == ["worker_0.log", "worker_3.log"]
    assert (place / "worker_3.log").read_text() == "rank 3\n"
    assert show_worker_logs(out, place, [0, 3]) == [told]  # a second run with the same output folder


def test_the_log_of_a_real_run_is_left_alone(out, tmp_path):
    place = tmp_path / "msrun_log"
    place.mkdir()
    (place / "worker_0.log").write_text("of a real run")
    (told,) = show_worker_logs(out, place, [0])
    assert told.startswith(f"{place}/worker_0.log could not be written, or was there before and is unchanged")
    assert (place / "worker_0.log").read_text() == "of a real run"


def test_a_place_that_cannot_be_made_is_said(out, tmp_path):
    (tmp_path / "msrun_log").write_text("a file")
    (told,) = show_worker_logs(out, tmp_path / "msrun_log", [0, 3])
    assert "could not be written" in told
