"""Many ranks in few lines."""

from __future__ import annotations

import io
import json
import time
from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.runs import FITTING, LARGE, run_of
from windtunnel.cluster.matching import Mismatch
from windtunnel.report.json.run import read_report, report_text, write_report
from windtunnel.report.rank_spans import rank_ranges
from windtunnel.report.results.fit_verdict import verdict
from windtunnel.report.results.run import failed_rank, same_as
from windtunnel.report.terminal.run import show_run


def _shown(run, width=120):
    stream = io.StringIO()
    show_run(Console(file=stream, width=width), run)
    return stream.getvalue()


def _world(n_ranks, n_kinds):
    """Rank r does the work of rank r % n_kinds."""
    kinds = [replace(FITTING, rank=i, peak_bytes=FITTING.peak_bytes - i) for i in range(n_kinds)]
    return run_of(
        *(kinds[r] if r < n_kinds else same_as(r, kinds[r % n_kinds]) for r in range(n_ranks)),
        world_size=n_ranks,
    )


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([], ""),
        ([5], "5"),
        ([0, 1], "0-1"),
        ([3, 0, 1, 2], "0-3"),
        ([0, 8], "0, 8"),
        ([*range(8), *range(64, 72)], "0-7, 64-71"),
        (range(0, 1024, 8), "0-1016 by 8"),
        ([0, 1, 2, 3, 8, 10, 12, 14, 15], "0-3, 8-14 by 2, 15"),
        ([1, 5, 6, 7], "1, 5-7"),
    ],
)
def test_ranks_are_written_as_ranges(ranks, text):
    assert ", ".join(rank_ranges(ranks)) == text


def test_a_row_for_each_need_with_all_its_ranks():
    proof, tight = replace(FITTING, rank=4), replace(LARGE, rank=5)  # rank 4 was simulated, and is as rank 0
    text = _shown(run_of(FITTING, *(same_as(r, FITTING) for r in (1, 2, 3)), proof, tight))
    lines = text.splitlines()
    rows = [line.split() for line in lines[lines.index("All 6 ranks") + 3 :][:2]]
    assert rows[0][:9] == ["0-4", "5", "0,", "4", "60.00", "GiB", "66.00", "GiB", "ok"]
    assert rows[1][:9] == ["5", "1", "5", "90.00", "GiB", "96.00", "GiB", "oom", "activations"]


def test_the_facts_of_many_ranks_are_those_of_the_tightest_and_the_failed():
    few = _shown(replace(_world(8, 4), framework="mindspore"))
    assert few.count("Device MOC memory size") == 4
    kinds = [replace(FITTING, rank=i) for i in range(6)]
    kinds[3] = replace(LARGE, rank=3)
    kinds[4] = failed_rank(4, "no data")
    many = _shown(replace(run_of(*kinds), framework="mindspore"))
    assert many.count("Device MOC memory size") == 2
    assert "rank 3 of 6: oom" in many
    assert "rank 4 of 6: failed" in many


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_table_fits_the_terminal(width):
    lines = _shown(_world(1024, 6), width).splitlines()
    table = lines[lines.index("All 1024 ranks") + 1 :][:8]
    assert max(map(len, table)) <= max(width, 70)
    assert any(line.startswith("0-1020 by 6") for line in table)


def test_of_very_many_kinds_the_tightest_are_shown():
    kinds = [replace(FITTING, rank=i, peak_with_fragments_bytes=(i + 1) << 30) for i in range(50)]
    text = _shown(run_of(*kinds, same_as(50, kinds[0])))
    (others,) = (line.split() for line in text.splitlines() if "which need less" in line)
    assert others == ["(others,", "which", "need", "less)", "11", "10", "ranks"]
    assert "\n49 " in text


def test_a_world_of_16384_ranks_takes_a_moment(tmp_path):
    run = _world(16384, 64)
    started = time.process_time()
    text = _shown(run)
    write_report(tmp_path / "report.json", run)
    assert time.process_time() - started < 5  # about one second on a laptop
    assert "0-16320 by 64" in text
    assert len(text.splitlines()) < 150
    again = read_report(tmp_path / "report.json")
    assert [rank.same_as for rank in again.ranks] == [rank.same_as for rank in run.ranks]
    assert again.ranks[16383].peak_bytes == FITTING.peak_bytes - 63


def test_a_rank_shown_by_another_has_the_fixed_fields_only():
    document = json.loads(report_text(_world(2, 1)))
    shown_by, rank = document["ranks"]
    assert (rank["rank"], rank["status"], rank["same_as"]) == (1, "same_as", 0)
    assert rank["at_peak_bytes"] == shown_by["at_peak_bytes"]
    assert rank["peak_at"] == shown_by["peak_at"]
    assert list(rank)[:-1] == list(shown_by)[: list(shown_by).index("error") + 1]


def test_calls_that_do_not_meet_are_the_verdict_and_are_kept(tmp_path):
    wrong = [Mismatch((0, i), f"rank 0 waits in all_reduce, rank {i} in broadcast") for i in range(1, 13)]
    run = replace(_world(16, 2), mismatches=tuple(wrong))
    assert verdict(run) == (
        "Would hang: rank 0 waits in all_reduce, rank 1 in broadcast (and 11 more like it)."
    )
    text = _shown(run)
    assert "- rank 0 waits in all_reduce, rank 10 in broadcast" in text
    assert "- (and 2 more in report.json)" in text
    write_report(tmp_path / "report.json", run)
    assert read_report(tmp_path / "report.json").mismatches == tuple(wrong)
    assert run.fits  # memory is another question
