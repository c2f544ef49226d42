"""The table of `windtunnel remat`."""

from __future__ import annotations

import io

from rich.console import Console

from tests.remat.points import point
from tests.report.remat_results import result
from windtunnel.report.terminal.remat import render_remat


def _lines(found, width=160) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    console.print(render_remat(found))
    return [" ".join(line.split()) for line in console.file.getvalue().splitlines()]


def test_every_threshold_is_a_row():
    lines = _lines(result(), width=80)
    assert lines[0] == "train.py: 3 steps on 2080ti-11gb (10.00 GiB usable)"
    assert lines[1] == "threshold time extra evicted again peak live reserved stalls fits?"
    assert lines[3:8] == [
        "off 1.00 s +0.0% 1 0 17.00 GiB 18.00 GiB 0 no",
        "4GB 1.50 s +50.0% 51 50 5.00 GiB 6.00 GiB 0 yes",
        "6GB 1.25 s +25.0% 26 25 7.00 GiB 8.00 GiB 0 yes",
        "8GB 1.10 s +10.0% 11 10 8.00 GiB 9.00 GiB 0 best",
        "10GB - - 1 0 9.00 GiB 10.00 GiB 5 no",
    ]


def test_below_it_stand_what_failed_the_answer_and_what_is_assumed():
    lines = _lines(result(notes=("a note",)))
    assert "never evicted: 2.00 GiB (weights, gradients, inputs and outputs of a kernel)" in lines
    assert (
        "out of memory in step 1 at aten.mul.Tensor (layers.3, backward), asking for 64.00 MiB: 10GB" in lines
    )
    assert "note: a note" in lines
    assert any(line.startswith("stalls:") for line in lines)
    assert any(line.startswith("Best threshold: 8GB") for line in lines)
    assert sum(line.startswith("assumed:") for line in lines) == 3


def test_policies_get_a_column_when_there_are_several():
    lines = _lines(result((point(4, 1.5, 6), point(4, 1.2, 6, policy="lru", fits=False))))
    assert lines[1].startswith("threshold policy time")
    assert lines[4].startswith("4GB dtr 1.50 s")
    assert lines[5].startswith("4GB lru - -")
    assert any(line.endswith(": 4GB lru") for line in lines)


def test_a_rank_of_a_world_is_named():
    assert _lines(result(rank=3, world_size=8))[0].startswith("train.py, rank 3 of 8: 3 steps")


def test_thresholds_too_low_to_hold_and_tight_fits_are_marked():
    lines = _lines(result((point(4, 1.5, 6, guarded_rounds=2), point(8, 1.1, 9.8))))
    assert any(line.startswith("too low to keep: 4GB") for line in lines)
    assert lines[5].endswith("just")


def test_a_narrow_terminal_gets_whole_numbers_and_no_counts():
    policies = ("dtr", "contiguous")
    lines = _lines(result(tuple(point(4, 1.5, 6, policy=policy) for policy in policies)), width=80)
    assert lines[1] == "threshold policy time extra peak live reserved fits?"
    assert lines[5] == "4GB contiguous 1.50 s +50.0% 5.00 GiB 6.00 GiB yes"
    assert max(map(len, lines)) <= 80
