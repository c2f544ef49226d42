"""What a person reads about time."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from rich.console import Console

from tests.report.runs import FITTING, run_of
from tests.report.timed import FAST, PROFILE, SLOW, TIME, timed_rank, timed_run
from windtunnel.report.results.run import same_as
from windtunnel.report.terminal.time import time_parts


def lines(result, width=120):
    console = Console(file=io.StringIO(), width=width, highlight=False)
    for part in time_parts(result):
        console.print(part)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def row(result, first, **more):
    """The columns of the line that begins with this."""
    (line,) = [line for line in lines(result, **more) if line.startswith(f"{first} ")]
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


def test_below_level_3_nothing_is_reported():
    assert time_parts(run_of(FITTING)) == []


def test_the_step_comes_first_and_then_what_it_means():
    assert lines(timed_run())[:8] == [
        "",
        "One step takes 1.00 s (the first, with one-time work, 1.25 s)",
        "Operator times: model of a100-80gb",
        "Tokens: 8,192 per second (4,096 looked up in the largest embedding x 2 data-parallel shards)",
        "Model flops utilisation: 50.0 % of the bf16 peak; with recomputation 66.7 %",
        "Pipeline bubble: 10.0 % of the step",
        "Exposed communication: tp 125.0 ms (mean over the ranks; NVLink 300 GB/s inside a node of 8)",
        "Slowest: rank 1; it computes 250.0 ms longer than the median rank",
    ]


def test_what_is_not_known_is_not_said():
    bare = replace(
        TIME, warm_up_seconds=None, tokens_per_second=None, peak_flops=0.0, bubble_share=0.0, exposed_seconds={"tp": 0.0},
        slowest_why="", notes=(),
    )  # fmt: skip
    said = lines(timed_run(timed_rank(FAST), time=replace(bare, slowest_rank=0)))
    assert said[1:4] == ["One step takes 1.00 s", "Operator times: model of a100-80gb", ""]
    assert not any("by rank" in line for line in said)


def test_a_model_without_recomputation_has_one_utilisation():
    same = replace(TIME, hardware_flops=TIME.model_flops)
    assert "Model flops utilisation: 50.0 % of the bf16 peak" in lines(timed_run(time=same))


def test_a_program_without_steps_is_reported_as_a_whole():
    assert lines(timed_run(time=replace(TIME, n_steps=0)))[1] == (
        "Everything after the model is built takes 1.00 s"
    )


def test_every_part_of_every_rank_is_a_share_of_its_step():
    assert row(timed_run(), 0) == ["0", "50.0%", "12.5%", "5.0%", "20.0%", "2.5%", "10.0%"]
    assert row(timed_run(), 1) == ["1", "75.0%", "12.5%", "2.5%", "10.0%"]  # no peers, no bubble


def test_of_many_ranks_those_that_work_longest_are_shown():
    ranks = [timed_rank(replace(SLOW, rank=i, bubble_seconds=i / 100)) for i in range(20)]
    said = lines(timed_run(*ranks))
    start = said.index("Time of a step by rank") + 3
    assert [line.split()[0] for line in said[start : start + 12]] == [str(i) for i in range(12)]
    assert said[start + 12] == "(and 8 more)"


def test_operators_say_what_they_reach():
    run = timed_run()
    assert row(run, "aten.mm") == [
        "aten.mm", "500.0 ms", "66.7%", "64", "312.2 Tflop/s", "4096x4096 bf16, 4096x11008 bf16",
    ]  # fmt: skip
    assert row(run, "aten.cat")[4] == "1234 GB/s"
    assert row(run, "(kernels of the compiler)")[1:] == ["100.0 ms", "13.3%", "3"]  # not known of those


@pytest.mark.parametrize("width", [60, 80, 100, 120, 200])
def test_tables_fit_the_terminal(width):
    said = lines(timed_run(), width)
    assert max(map(len, said)) <= width
    assert not any(line.endswith(" and") for line in said)


def test_shapes_are_shortened_where_there_is_no_room():
    assert row(timed_run(), "aten.cat", width=90)[-1] in ("2x3 · 2x3 · 2x3", "2x3 · 2x3", "2x3")


@pytest.mark.parametrize(
    ("tflops", "gbs", "reached"),
    [
        (312.25, 9.0, "312.2 Tflop/s"),
        (0.1, 9.0, "0.1 Tflop/s"),
        (0.0512, 9.0, "51.2 Gflop/s"),
        (0.0, 9.0, "9 GB/s"),
    ],
)
def test_what_computes_is_reported_by_arithmetic_however_slow(tflops, gbs, reached):
    op = replace(PROFILE.operators[0], tflops=tflops, gbs=gbs)
    assert row(timed_run(timed_rank(SLOW, replace(PROFILE, operators=(op,)))), "aten.mm")[4] == reached


def test_a_bias_is_left_out_first():
    addmm = replace(PROFILE.operators[0], op="aten.addmm", shapes="1024 bf16, 8192x4096 bf16, 4096x1024 bf16")
    run = timed_run(timed_rank(SLOW, replace(PROFILE, operators=(addmm,))))
    assert row(run, "aten.addmm", width=120)[-1] == addmm.shapes
    assert row(run, "aten.addmm", width=75)[-1] == "8192x4096 · 4096x1024"


def test_ten_operators_are_enough():
    ops = tuple(replace(PROFILE.operators[0], op=f"aten.op{i}") for i in range(30))
    said = lines(timed_run(timed_rank(SLOW, replace(PROFILE, operators=ops)), time=TIME))
    assert sum(line.startswith("aten.op") for line in said) == 10


def test_layers_are_folded_and_small_ones_left_out():
    run = timed_run()
    assert row(run, "layers.0-5.mlp") == ["layers.0-5.mlp", "600.0 ms", "80.0%"]
    assert row(run, "(outside modules)") == ["(outside modules)", "148.0 ms", "19.7%"]
    assert not any(line.startswith("tiny") for line in lines(run))


def test_where_there_are_many_modules_their_parents_are_reported():
    many = {f"part{i % 3}.sub{i}x{'y' * i}": 1.0 for i in range(12)}
    run = timed_run(timed_rank(SLOW, replace(PROFILE, by_module=many)))
    assert row(run, "part0") == ["part0", "4.00 s", "33.3%"]


def test_the_operators_are_those_of_the_slowest_rank():
    said = lines(timed_run())
    assert "The 10 most expensive operators of rank 1" in said
    assert "Time by module of rank 1" in said


def test_a_slowest_rank_that_another_stands_for_is_shown_by_it():
    """Rank 1 was played with the program of rank 0."""
    rank = timed_rank(FAST)
    said = lines(timed_run(rank, same_as(1, rank)))
    assert "The 10 most expensive operators" in said


def test_the_verdict_and_the_notes_come_last():
    assert lines(timed_run())[-2:] == ["50 % of the step is matrix products.", "Note: only a test."]
