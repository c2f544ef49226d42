"""The verdict: one sentence with numbers, and remedies that follow from them."""

from __future__ import annotations

from dataclasses import replace

from tests.report.runs import ASCEND, FITTING, LARGE, run_of
from windtunnel.memory.attribution import RoleBytes
from windtunnel.report.results.fit_verdict import verdict
from windtunnel.report.results.run import DeviceResult, Remedy, failed_rank
from windtunnel.units import GIB


def test_a_run_that_fits_says_how_well():
    assert verdict(run_of(FITTING)) == (
        "Fits: needs 66.00 GiB of the 79.00 GiB usable on an a100-80gb (83%), 13.00 GiB to spare; "
        "optimizer state holds 28.00 GiB, activations 16.00 GiB, weights 14.00 GiB."
    )


def test_a_larger_batch_is_named_only_if_it_was_simulated():
    small = replace(FITTING, peak_with_fragments_bytes=20 * GIB, at_peak_bytes=RoleBytes(activations=8 * GIB))
    assert "batch" not in verdict(run_of(small))
    larger = Remedy("a batch of 24 instead of 8", "--batch-size 24", 71 * GIB, True, grows=True)
    assert verdict(replace(run_of(small), advice=(larger,))).endswith(
        "; a batch of 24 instead of 8 would fit too (71.00 GiB)."
    )


def test_what_was_not_simulated_is_advised_without_a_promise():
    assert verdict(run_of(LARGE)) == (
        "Does not fit: needs 96.00 GiB, an a100-80gb has 79.00 GiB usable; activations hold 60.00 GiB, "
        "weights 14.00 GiB, gradients 14.00 GiB; try activation checkpointing on layers.0-3 (its activations hold "
        "16.00 GiB), a smaller micro-batch or sequence or sharding weights, gradients and optimizer state (28.00 GiB) "
        "over more devices (FSDP or ZeRO)."
    )


def test_what_was_simulated_is_named_with_its_figure_and_what_does_not_fit_is_not():
    tried = (
        Remedy("activation checkpointing on layers.0-27", "", 41 * GIB, True),
        Remedy("a batch of 3 instead of 4", "--batch-size 3", 77 * GIB, True),
        Remedy("expandable segments", "", 90 * GIB, False),
    )
    text = verdict(replace(run_of(LARGE), advice=tried))
    assert text.endswith(
        "; it fits with activation checkpointing on layers.0-27 (41.00 GiB) or a batch of 3 instead of 4 (77.00 GiB)."
    )


def test_when_nothing_that_was_tried_is_enough_the_best_of_it_is_named_as_that():
    tried = (
        Remedy("activation checkpointing on layers.0-3", "", 85 * GIB, False),
        Remedy("expandable segments", "", 90 * GIB, False),
    )
    assert verdict(replace(run_of(LARGE), advice=tried)).endswith(
        "; activation checkpointing on layers.0-3 is not enough (85.00 GiB): sharding weights, gradients and optimizer "
        "state (28.00 GiB) over more devices (FSDP or ZeRO) or splitting aten.exp at train.py:88, which temporarily "
        "holds 2.00 GiB."
    )


def test_when_the_optimizer_dominates_sharding_and_eight_bits_come_first():
    heavy = replace(
        LARGE, at_peak_bytes=RoleBytes(weights=14 * GIB, optimizer=64 * GIB, activations=12 * GIB)
    )
    text = verdict(run_of(heavy))
    assert "try sharding weights, gradients and optimizer state (78.00 GiB) over more devices" in text
    assert "an 8-bit optimizer (its state holds 64.00 GiB) or activation checkpointing" in text


def test_when_only_fragments_are_too_much_expandable_segments_come_first():
    fragmented = replace(LARGE, peak_bytes=78 * GIB, peak_with_fragments_bytes=82 * GIB)
    assert "try expandable segments (fragments take 4.00 GiB)" in verdict(run_of(fragmented))
    assert "expandable" not in verdict(run_of(fragmented, device=ASCEND))


def test_when_a_temporary_dominates_its_operator_and_line_are_named():
    spike = replace(LARGE, at_peak_bytes=RoleBytes(weights=5 * GIB, temporary=85 * GIB))
    assert "splitting aten.exp at train.py:88, which temporarily holds 2.00 GiB" in verdict(run_of(spike))


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
        text == "Runs: it builds and takes 3 optimizer steps; level 0 does not measure memory, use --level 1."
    )


def test_on_the_cpu_there_is_no_question_of_fitting():
    cpu = run_of(FITTING, device=DeviceResult("cpu", 80 * GIB))
    assert verdict(cpu).startswith("Runs: needs 66.00 GiB; optimizer state holds 28.00 GiB")


def test_a_small_share_is_called_that():
    tiny = replace(FITTING, peak_with_fragments_bytes=GIB // 2)
    assert "(under 1%)" in verdict(run_of(tiny))


def test_a_device_that_was_never_used_is_reported():
    idle = replace(FITTING, peak_bytes=0, peak_with_fragments_bytes=0, at_peak_bytes=RoleBytes())
    assert verdict(run_of(idle)).startswith("Runs, but allocated nothing on the a100-80gb")


def test_nothing_simulated_is_reported():
    assert verdict(run_of()) == "Nothing was simulated."
