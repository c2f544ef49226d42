"""What changed between two runs: figures that add up, and sentences that say them."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from tests.report.runs import A100, FITTING, LARGE, run_of
from tests.report.timed import TIME, timed_run
from windtunnel.memory.attribution import ModuleShare, RoleBytes
from windtunnel.report.results.run import DeviceResult, failed_rank
from windtunnel.report.results.two_runs import FRAGMENTS, UNNAMED, run_difference, sentences
from windtunnel.report.terminal.two_runs import render_comparison
from windtunnel.units import GIB

SMALL = replace(
    FITTING,
    peak_bytes=50 * GIB,
    peak_with_fragments_bytes=54 * GIB,
    at_peak_bytes=RoleBytes(weights=14 * GIB, optimizer=28 * GIB, activations=6 * GIB, temporary=2 * GIB),
    at_peak_by_module=(
        *(ModuleShare(f"layers.{i}.mlp", "activations", 3 * GIB // 2) for i in range(4)),
        *(ModuleShare(f"layers.{i}.mlp", "weights", 3 * GIB) for i in range(4)),
        ModuleShare("embed", "weights", 2 * GIB),
        ModuleShare("", "temporary", 2 * GIB),
    ),
)


@pytest.mark.parametrize(("a", "b"), [(FITTING, SMALL), (SMALL, FITTING), (FITTING, LARGE), (SMALL, SMALL)])
def test_rows_by_kind_and_by_module_add_up_to_what_the_ranks_need(a, b):
    found = run_difference(run_of(a), run_of(b))
    needs = [rank.peak_with_fragments_bytes for rank in (a, b)]
    for rows in (found.roles, found.modules):
        assert [sum(c.a_bytes for c in rows), sum(c.b_bytes for c in rows)] == needs
        assert sum(c.difference for c in rows) == found.difference == needs[1] - needs[0]


def test_bytes_beside_the_tensors_have_rows_of_their_own():
    odd = replace(SMALL, peak_bytes=51 * GIB)
    found = {c.role: (c.a_bytes, c.b_bytes) for c in run_difference(run_of(FITTING), run_of(odd)).roles}
    assert found[FRAGMENTS] == (6 * GIB, 3 * GIB)
    assert found[UNNAMED] == (0, GIB)


def test_the_first_sentence_says_how_much_and_why():
    assert sentences(run_difference(run_of(FITTING), run_of(SMALL))) == [
        "B needs 12.00 GiB less on its tightest rank: activations -10.00 GiB, fragments -2.00 GiB;"
        " weights, optimizer state and temporary tensors unchanged.",
        "A needs 66.00 GiB of 79.00 GiB and fits; B needs 54.00 GiB of 79.00 GiB and fits.",
    ]
    assert sentences(run_difference(run_of(SMALL), run_of(LARGE)))[0].startswith(
        "B needs 42.00 GiB more on its tightest rank: activations +54.00 GiB"
    )
    assert sentences(run_difference(run_of(SMALL), run_of(SMALL)))[0] == (
        "B needs the same: 54.00 GiB on its tightest rank."
    )


def test_the_worst_rank_of_each_is_compared_and_other_questions_are_named():
    others = replace(
        run_of(replace(SMALL, rank=1), FITTING, device=DeviceResult("h100-80gb", 80 * GIB)), level=2
    )
    found = run_difference(run_of(SMALL, replace(SMALL, rank=1, peak_with_fragments_bytes=55 * GIB)), others)
    assert (found.a_rank.rank, found.b_rank.rank) == (1, 0)
    assert sentences(found)[-1] == (
        "Their settings differ: device a100-80gb in A and h100-80gb in B; level 1 in A and 2 in B."
    )


def test_steps_are_compared_where_both_have_times():
    slow = timed_run(time=replace(TIME, step_seconds=1.31))
    assert "A step of B takes 1.31 times as long." in sentences(run_difference(timed_run(), slow))
    assert "A step of B takes the same time, within 0.5%." in sentences(run_difference(slow, slow))
    assert not any("step of B" in sentence for sentence in sentences(run_difference(run_of(FITTING), slow)))
    found = run_difference(timed_run(), slow)
    matmul = found.classes[0]
    assert (matmul.name, matmul.a, matmul.b) == ("matmul", 0.5, 0.5)
    assert ("layers.0-5.mlp", pytest.approx(0.6)) in [(row.name, row.a) for row in found.module_times]


def test_runs_without_memory_say_so():
    found = run_difference(run_of(FITTING), run_of(failed_rank(0, "it raised")))
    assert sentences(found) == ["There is no memory to compare: B did not measure it."]


def test_the_terminal_has_the_sentences_and_a_row_for_each_kind():
    console = Console(file=StringIO(), width=100, highlight=False)
    console.print(
        render_comparison(run_difference(run_of(FITTING, device=A100), run_of(SMALL)), "one", "two")
    )
    lines = console.file.getvalue().splitlines()
    assert [line.rstrip() for line in lines[:2]] == ["A: one", "B: two"]
    rows = {" ".join(line.split()) for line in lines}
    assert {
        "activations 16.00 GiB 6.00 GiB -10.00 GiB", "weights 14.00 GiB 14.00 GiB", "fragments 6.00 GiB 4.00 GiB -2.00 GiB",
        "needs 66.00 GiB 54.00 GiB -12.00 GiB", "usable 79.00 GiB 79.00 GiB",
    } <= rows  # fmt: skip
