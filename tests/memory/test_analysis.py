"""The memory of one rank, on a small training with numbers that can be added up by hand."""

from __future__ import annotations

import time

import numpy as np
import pytest

from tests.memory.allocators.rounding_allocator import LateAllocator, RoundingAllocator
from tests.memory.recorded import memory_of
from tests.memory.training_run import KIB, record_training
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, EmptyCache, Free, Phase, RecordStream, Role
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.analysis import Moment, thin_timeline
from windtunnel.memory.attribution import RoleBytes


@pytest.fixture
def training(tmp_path):
    return record_training(tmp_path / "r.arrows")


def test_the_peak_of_the_second_step_holds_weights_state_activations_and_one_gradient(training):
    memory = memory_of(training, RoundingAllocator)
    assert memory.peak_bytes == (16 + 16 + 16 + 32 + 8) * KIB
    assert memory.at_peak == RoleBytes(
        weights=16 * KIB, gradients=8 * KIB, optimizer=16 * KIB, activations=32 * KIB, inputs=16 * KIB
    )
    assert memory.at_peak.total() == memory.peak_bytes
    assert memory.peak_at == Moment(step=2, op="aten.mm", module="layers.1", phase="backward")
    assert memory.n_steps == 2


def test_modules_at_the_peak_name_parameters_by_their_own_path(training):
    memory = memory_of(training, RoundingAllocator)
    held = {(s.module, s.role): s.n_bytes for s in memory.by_module}
    assert held["layers.0", "weights"] == 8 * KIB
    assert held["layers.1", "gradients"] == 8 * KIB
    assert held["layers.0", "activations"] == 16 * KIB
    assert held["", "inputs"] == 16 * KIB
    assert sum(held.values()) == memory.peak_bytes


def test_the_largest_tensors_are_grouped_over_layers(training):
    first = memory_of(training, RoundingAllocator).largest[0]
    assert (first.op, first.module, first.count, first.n_bytes) == ("aten.linear", "layers.0-1", 2, 32 * KIB)
    assert (first.shape, first.dtype, first.where) == ((64, 64), "float32", "train.py:41")


def test_a_device_large_enough_fits_without_a_second_replay(training):
    built = []

    def make(device_bytes):
        built.append(device_bytes)
        return RoundingAllocator(device_bytes)

    memory = memory_of(training, make, usable_bytes=1 << 20)
    assert memory.fits
    assert built == [None]


def test_a_small_device_fails_at_the_first_allocation_that_does_not_fit(training):
    memory = memory_of(training, RoundingAllocator, usable_bytes=80 * KIB)
    assert not memory.fits
    assert memory.out_of_memory.at == Moment(step=2, op="aten.mm", module="layers.1", phase="backward")
    assert memory.out_of_memory.requested_bytes == 8 * KIB
    assert memory.peak_bytes == 88 * KIB  # what it needs does not depend on what there is


def test_a_killed_run_is_analysed_up_to_its_last_flush(tmp_path):
    memory = memory_of(record_training(tmp_path / "r.arrows", is_killed=True), RoundingAllocator)
    assert not memory.is_complete
    assert memory.n_steps == 1
    assert memory.peak_bytes == 80 * KIB
    assert memory.at_peak.total() == memory.peak_bytes


def test_a_program_that_only_empties_the_cache_needs_nothing(tmp_path):
    record_events(tmp_path / "r.arrows", [EmptyCache()])
    memory = memory_of(read_recording(tmp_path / "r.arrows"), RoundingAllocator)
    assert (memory.peak_bytes, memory.at_peak.total(), len(memory.timeline)) == (0, 0, 1)


def test_another_device_has_its_own_memory(tmp_path):
    record_events(tmp_path / "r.arrows", [Alloc(1, 512), Alloc(2, 1024, device=1)])
    recording = read_recording(tmp_path / "r.arrows")
    assert memory_of(recording, RoundingAllocator, device=1).peak_bytes == 1024


def test_an_empty_recording_needs_nothing(tmp_path):
    record_events(tmp_path / "r.arrows", [])
    memory = memory_of(read_recording(tmp_path / "r.arrows"), RoundingAllocator, usable_bytes=0)
    assert (memory.peak_bytes, memory.peak_at, memory.fits, len(memory.timeline)) == (0, None, True, 0)


def test_roles_add_up_even_when_the_allocator_counts_a_free_late(tmp_path):
    events = [Alloc(1, 512), RecordStream(1, 7), Alloc(2, 512), Free(1), Alloc(3, 2048, role=Role.WORKSPACE)]
    record_events(tmp_path / "r.arrows", events)
    memory = memory_of(read_recording(tmp_path / "r.arrows"), LateAllocator)
    assert memory.peak_bytes == 512 + 2048
    assert memory.at_peak == RoleBytes(temporary=512, workspace=2048)


def test_the_timeline_keeps_the_peak_when_thinned_and_its_roles_add_up(training):
    timeline = memory_of(training, RoundingAllocator).timeline
    assert timeline.allocated_bytes.max() == 88 * KIB
    assert (timeline.role_bytes.sum(axis=1) == timeline.allocated_bytes).all()
    thin = thin_timeline(timeline, 8)
    assert len(thin) <= 8
    assert thin.allocated_bytes.max() == 88 * KIB


def test_a_long_recording_is_analysed_quickly_and_drawn_with_few_points(tmp_path):
    n = 100_000
    events = [Alloc(0, 1 << 20, phase=Phase.BUILD)]
    for i in range(1, n):
        events += [Alloc(i, 700 + i % 7), Free(i)] if i % 2 else [Alloc(i, 512 * (i % 9 + 1))]
    record_events(tmp_path / "r.arrows", events)
    recording = read_recording(tmp_path / "r.arrows")
    start = time.process_time()
    memory = memory_of(recording, RoundingAllocator)
    assert time.process_time() - start < 5
    assert len(memory.timeline) <= 2000
    assert memory.timeline.allocated_bytes.max() == memory.peak_bytes == memory.at_peak.total()
    assert np.all(np.diff(memory.timeline.event) > 0)


def test_an_allocator_that_survives_by_releasing_its_cache_fits_with_retries(tmp_path):
    mib = 1 << 20
    events = [Alloc(1, 30 * mib), Free(1), Alloc(2, 40 * mib)]  # the cached 30 MiB cannot serve 40
    record_events(tmp_path / "r.arrows", events)
    memory = memory_of(
        read_recording(tmp_path / "r.arrows"),
        lambda device_bytes: Allocator.named("cuda", device_bytes=device_bytes),
        usable_bytes=50 * mib,
    )
    assert memory.peak_with_fragments_bytes == 70 * mib
    assert (memory.fits, memory.n_retries, memory.out_of_memory) == (True, 1, None)


@pytest.mark.parametrize("name", ["cuda", "cuda-expandable", "npu", "mindspore", "cpu"])
def test_roles_add_up_to_the_peak_of_every_allocator(tmp_path, name):
    if name not in Allocator.names():
        pytest.skip(f"there is no allocator {name} yet")
    memory = memory_of(
        record_training(tmp_path / "r.arrows"), lambda limit: Allocator.named(name, device_bytes=limit)
    )
    assert memory.at_peak.total() == memory.peak_bytes >= 88 * KIB
    assert memory.at_peak.temporary == 0
    assert sum(share.n_bytes for share in memory.by_module) == memory.peak_bytes
