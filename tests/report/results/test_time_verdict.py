"""What bounds a step, in a sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.report.timed import PROFILE
from windtunnel.cluster.step_time import RankTime
from windtunnel.report.results.time_verdict import bound_by, slowest_why
from windtunnel.timing.operators.operator_classes import OpClass

COMPUTING = replace(
    PROFILE,
    by_class={"matmul": 3.0, "convolution": 1.0, "elementwise": 1.0},
    hardware_flops=PROFILE.model_flops,
)


def time(compute=0.0, **parts):
    spent = sum(sum(p.values()) if isinstance(p, dict) else p for p in parts.values())
    return RankTime(0, compute + spent, compute, **parts)


def test_arithmetic():
    assert bound_by(time(10.0), COMPUTING) == (
        "80 % of the step is matrix products, convolutions and attention; 20 % operators that move bytes rather than compute;"
        " faster arithmetic (lower precision, more devices) makes it shorter; fusing small operators (torch.compile, fused"
        " optimizers and norms) would make it shorter."
    )


def test_nothing_but_arithmetic():
    pure = replace(COMPUTING, by_class={"matmul": 95.0, "elementwise": 5.0}, model_flops=3, hardware_flops=4)
    assert bound_by(time(10.0), pure).endswith(
        "; only faster arithmetic (lower precision, less recomputation, more devices) makes it shorter."
    )


def test_a_bubble_beside_arithmetic_is_worth_advice():
    text = bound_by(time(6.0, bubble_seconds=4.0), replace(COMPUTING, by_class={"matmul": 1.0}))
    assert text.endswith(
        "; faster arithmetic (lower precision, more devices) makes it shorter;"
        " more micro-batches, or an interleaved or zero-bubble schedule, would make it shorter."
    )


@pytest.mark.parametrize(
    ("parts", "begins", "advice"),
    [
        ({"exposed_seconds": {"dp": 1.0, "tp": 6.0, "pp": 0.5, "ep": 0.0}},
         "75 % of the step is waiting for the network (tp, dp)", "overlapping it"),
        ({"bubble_seconds": 7.5}, "75 % of the step is waiting for other pipeline stages", "more micro-batches"),
        ({"peers_seconds": {"tp": 7.5}}, "75 % of the step is waiting for slower ranks", "balancing the ranks"),
        ({"streams_seconds": 7.5}, "75 % of the step is waiting for other streams", "off the critical path"),
        ({"host_seconds": 7.5}, "75 % of the step is the host program", "CUDA graphs"),
    ],
)  # fmt: skip
def test_the_largest_part_is_named_with_what_helps(parts, begins, advice):
    text = bound_by(time(2.5, **parts), COMPUTING)
    assert text.startswith(begins)
    assert "; 20 % matrix products, convolutions and attention" in text
    assert advice in text
    assert text.endswith("would make it shorter.")
    assert "5 % operators that move bytes" in text  # exactly one in twenty is worth naming


def test_copies_to_and_from_the_host_are_distinguished():
    offloading = replace(PROFILE, by_class={"transfer": 3.0, "matmul": 1.0})
    assert bound_by(time(4.0), offloading) == (
        "75 % of the step is copies between host and device; 25 % matrix products, convolutions and attention;"
        " keeping more data on the device, or copying on a separate stream, would make it shorter."
    )


def test_small_parts_are_not_named():
    text = bound_by(time(9.7, host_seconds=0.3), COMPUTING)
    assert "the program itself" not in text


def test_on_a_cpu_nobody_is_told_to_use_cuda():
    text = bound_by(time(1.0, host_seconds=9.0), COMPUTING, is_cpu=True)
    assert text.startswith("90 % of the step is the host program")
    assert "CUDA" not in text


def test_nothing_takes_time():
    assert bound_by(time(), replace(PROFILE, by_class={})) == "Nothing in the step takes time."
    assert bound_by(RankTime(0, 1.0, 0.0), PROFILE) == "Nothing in the step takes time."


@pytest.mark.parametrize(
    "op_class",
    [OpClass.MATMUL, OpClass.CONVOLUTION, OpClass.ATTENTION, OpClass.ATTENTION_BACKWARD, OpClass.RECURRENT],
)
def test_every_class_that_computes_is_arithmetic(op_class):
    text = bound_by(time(1.0), replace(PROFILE, by_class={op_class.value: 1.0}))
    assert text.startswith("100 % of the step is matrix products, convolutions and attention")


@pytest.mark.parametrize("op_class", [OpClass.NORM, OpClass.OPTIMIZER, OpClass.LOSS, OpClass.OTHER])
def test_every_other_class_moves_bytes(op_class):
    text = bound_by(time(1.0), replace(PROFILE, by_class={op_class.value: 1.0}))
    assert text.startswith("100 % of the step is operators that move bytes rather than compute")


def ranks(*times):
    return {i: replace(each, rank=i) for i, each in enumerate(times)}


def test_one_rank_has_nobody_to_be_slower_than():
    (only,) = ranks(time(1.0)).values()
    assert slowest_why({0: only}, only) == ""


def test_equal_ranks_are_grouped():
    found = ranks(time(1.0), time(1.01), time(1.0))
    assert slowest_why(found, found[1]) == "all ranks are busy for about the same time"


def test_a_stage_that_computes_longer():
    found = ranks(time(1.0, bubble_seconds=0.5), time(1.0, bubble_seconds=0.5), time(1.5))
    assert slowest_why(found, found[2]) == (
        "it computes 500.0 ms longer than rank 0, the fastest, 50 % longer busy"
    )


def test_half_of_the_ranks_are_slow():
    slow, fast = time(1.5), time(1.0, bubble_seconds=0.5)
    found = ranks(fast, fast, slow, slow)
    assert slowest_why(found, found[2]).startswith("it computes 500.0 ms longer than rank 0, the fastest")


def test_a_rank_with_work_among_idle_ones():
    idle = time(bubble_seconds=1.0)
    found = ranks(idle, time(1.0))
    assert slowest_why(found, found[1]) == "it computes 1.00 s longer than rank 0, the fastest"


def test_a_rank_whose_program_is_slower():
    waits = time(1.0, peers_seconds={"world": 0.25})
    found = ranks(time(1.0, host_seconds=0.25), waits, waits)
    assert slowest_why(found, found[0]) == (
        "it waits for its own host 250.0 ms longer than rank 1, the fastest, 25 % longer busy"
    )


def test_a_rank_with_more_to_send():
    waits = time(1.0, peers_seconds={"world": 0.25})
    found = ranks(waits, time(1.0, exposed_seconds={"dp": 0.25}), waits)
    assert slowest_why(found, found[1]).startswith("it waits for the network 250.0 ms longer")


def test_what_would_help_is_in_the_words_of_the_framework():
    waiting = time(1.0, host_seconds=9.0)
    assert bound_by(waiting, COMPUTING).endswith(
        "larger batches, torch.compile or CUDA graphs would make it shorter."
    )
    text = bound_by(waiting, COMPUTING, framework="mindspore")
    assert text.endswith(
        "larger batches, or compiling the step (mindspore.jit, GRAPH_MODE), would make it shorter."
    )
    text = bound_by(time(10.0), COMPUTING, framework="mindspore")
    assert text.endswith("(jit_level O1, fused optimizers, norms and losses) would make it shorter.")
