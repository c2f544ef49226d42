"""The verdict: one sentence with numbers, and remedies that follow from them."""

from __future__ import annotations

from dataclasses import replace

from tests.report.runs import ASCEND, FITTING, LARGE, run_of
from windtunnel.memory.attribution import RoleBytes
from windtunnel.report.result import DeviceResult, failed_rank
from windtunnel.report.verdict import verdict
from windtunnel.units import GIB


def test_a_run_that_fits_says_how_well():
    assert verdict(run_of(FITTING)) == (
        "Fits: needs 66.00 GiB of the 79.00 GiB usable on an a100-80gb (83%), 13.00 GiB to spare; "
        "optimizer state holds 28.00 GiB, activations 16.00 GiB, weights 14.00 GiB."
    )


def test_a_run_with_much_room_says_how_much_larger_the_batch_may_be():
    small = replace(
        FITTING,
        peak_with_fragments_bytes=20 * GIB,
        at_peak_bytes=RoleBytes(activations=8 * GIB, temporary=2 * GIB),
    )
    assert "room for about 6 times the micro-batch" in verdict(run_of(small))


def test_when_activations_dominate_checkpointing_and_the_needed_micro_batch_come_first():
    assert verdict(run_of(LARGE)) == (
        "Does not fit: needs 96.00 GiB, an a100-80gb has 79.00 GiB usable; activations hold 60.00 GiB, "
        "weights 14.00 GiB, gradients 14.00 GiB; try activation checkpointing on layers.0-3 (16.00 GiB), "
        "a micro-batch or sequence at least 1.4 times smaller or sharding weights, gradients and optimizer state over 3 "
        "ranks (FSDP or ZeRO)."
    )


def test_when_the_optimizer_dominates_sharding_and_eight_bits_come_first():
    heavy = replace(
        LARGE, at_peak_bytes=RoleBytes(weights=14 * GIB, optimizer=64 * GIB, activations=12 * GIB)
    )
    text = verdict(run_of(heavy))
    assert "try sharding weights, gradients and optimizer state over 2 ranks (FSDP or ZeRO), " in text
    assert "an 8-bit optimizer (saves about 48.00 GiB, enough on its own) or activation checkpointing" in text


def test_when_only_fragments_are_too_much_expandable_segments_come_first():
    fragmented = replace(LARGE, peak_bytes=78 * GIB, peak_with_fragments_bytes=82 * GIB)
    assert "try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True (4.00 GiB is only fragments" in verdict(
        run_of(fragmented)
    )
    assert "CUDA" not in verdict(run_of(fragmented, device=ASCEND))


def test_when_a_temporary_dominates_its_operator_and_line_are_named():
    spike = replace(LARGE, at_peak_bytes=RoleBytes(weights=5 * GIB, temporary=85 * GIB))
    assert "splitting aten.exp at train.py:88, which holds 2.00 GiB for a moment" in verdict(run_of(spike))


def test_a_run_that_fits_only_by_releasing_its_cache_says_so():
    tight = replace(FITTING, n_retries=2, peak_with_fragments_bytes=82 * GIB)
    assert "but only by releasing its cache 2 times, which stalls training" in verdict(run_of(tight))


def test_of_many_ranks_the_tightest_is_named():
    assert "rank 3 needs 96.00 GiB" in verdict(run_of(FITTING, replace(LARGE, rank=3), world_size=4))


def test_a_failed_rank_is_the_verdict():
    assert verdict(run_of(failed_rank(0, "no data"))) == "Failed: no data."
    assert verdict(run_of(FITTING, failed_rank(1, "no data"))) == "Failed: rank 1: no data."
    several = run_of(failed_rank(0, "no data"), failed_rank(2, "none"), failed_rank(3, "none"))
    assert verdict(several) == "Failed: rank 0: no data (ranks 2, 3 failed as well)."


def test_nothing_is_said_about_memory_that_was_not_measured():
    text = verdict(replace(run_of(FITTING), level=0))
    assert (
        text
        == "Runs: it builds and takes 3 optimizer steps; level 0 does not measure memory, --level 1 does."
    )


def test_on_the_cpu_there_is_no_question_of_fitting():
    cpu = run_of(FITTING, device=DeviceResult("cpu", 80 * GIB))
    assert verdict(cpu).startswith("Runs: needs 66.00 GiB; optimizer state holds 28.00 GiB")


def test_a_larger_micro_batch_is_promised_only_on_good_grounds():
    tiny = replace(
        FITTING, peak_with_fragments_bytes=GIB // 2, at_peak_bytes=RoleBytes(optimizer=GIB, activations=4)
    )
    assert "(under 1%)" in verdict(run_of(tiny))
    assert "micro-batch" not in verdict(run_of(tiny))
    roomy = replace(tiny, at_peak_bytes=RoleBytes(activations=GIB // 2))
    assert "room for more than 10 times the micro-batch" in verdict(run_of(roomy))


def test_a_device_that_was_never_used_is_said():
    idle = replace(FITTING, peak_bytes=0, peak_with_fragments_bytes=0, at_peak_bytes=RoleBytes())
    assert verdict(run_of(idle)).startswith("Runs, but allocated nothing on the a100-80gb")


def test_nothing_simulated_is_said():
    assert verdict(run_of()) == "Nothing was simulated."
