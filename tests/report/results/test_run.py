"""From the memory of a rank to its result."""

from __future__ import annotations

from tests.memory.allocators.rounding_allocator import RoundingAllocator
from tests.memory.recorded import memory_of
from tests.memory.training_run import KIB, record_training
from tests.report.runs import FITTING, LARGE, run_of
from windtunnel.report.results.run import build_times, failed_rank, rank_result, same_as


def test_a_rank_takes_its_numbers_from_its_memory(tmp_path):
    memory = memory_of(record_training(tmp_path / "r.arrows"), RoundingAllocator, usable_bytes=1 << 20)
    rank = rank_result(3, memory, device_memory_bytes=2 << 20)
    assert (rank.rank, rank.status, rank.steps, rank.fits) == (3, "ok", 2, True)
    assert (rank.peak_bytes, rank.peak_with_fragments_bytes) == (88 * KIB, 88 * KIB)
    assert (rank.device_memory_bytes, rank.usable_memory_bytes) == (2 << 20, 1 << 20)
    assert rank.base_address == "0x1000"
    assert rank.at_peak_bytes.total() == rank.peak_bytes


def test_a_rank_that_does_not_fit_is_oom(tmp_path):
    memory = memory_of(record_training(tmp_path / "r.arrows"), RoundingAllocator, usable_bytes=80 * KIB)
    rank = rank_result(0, memory, device_memory_bytes=100 * KIB)
    assert (rank.status, rank.fits) == ("oom", False)


def test_a_killed_recording_leaves_a_note(tmp_path):
    recording = record_training(tmp_path / "r.arrows", is_killed=True)
    assert rank_result(0, memory_of(recording, RoundingAllocator), 0).notes


def test_build_times_are_added_up_by_module_longest_first(tmp_path):
    assert build_times(record_training(tmp_path / "r.arrows")) == {"layers.1": 3000, "layers.0": 1500}


def test_a_rank_like_another_keeps_the_numbers_and_drops_the_details():
    twin = same_as(5, FITTING)
    assert (twin.rank, twin.status, twin.same_as, twin.peak_bytes) == (5, "same_as", 0, FITTING.peak_bytes)
    assert (twin.timeline, twin.at_peak_by_module, twin.unknown_values) == (None, (), ())


def test_a_run_fits_only_if_every_rank_ran_and_fits():
    assert run_of(FITTING).fits
    assert not run_of(FITTING, LARGE).fits
    assert not run_of(FITTING, failed_rank(1, "ValueError: no")).fits
    assert run_of(FITTING, LARGE).tightest is LARGE
