"""MegEngine's runtime on hand-made programs: a chain of eight results, counted by hand."""

from __future__ import annotations

import pytest

from benchmarks.dtr.reference.megengine import MegEngineCard, run_megengine
from benchmarks.dtr.reference.tensor_program import Apply, Delete, StepEnd, tensor_program
from tests.remat.chains import N_BYTES, write_chain
from windtunnel.remat.simulated.program import read_program
from windtunnel.units import MIB

FORWARD_S, BACKWARD_S = 1.0, 2.0
HOST_BYTES_S, RETRY_S = 5e9, 0.2


@pytest.fixture
def chain(tmp_path):
    program = read_program(write_chain(tmp_path / "chain.arrows", 8, n_steps=3))
    return tensor_program(program, [FORWARD_S, BACKWARD_S])


def test_without_a_threshold_everything_stays(chain):
    outcome = run_megengine(chain, 0)
    assert outcome.step_seconds == 8 * (FORWARD_S + BACKWARD_S)
    assert (outcome.n_evictions, outcome.n_computed_again, outcome.n_defragmentations) == (0, 0, 0)
    assert (
        outcome.peak_bytes == outcome.peak_reserved_bytes == 10 * N_BYTES
    )  # the input, eight results, a gradient


def test_a_threshold_below_everything_computes_the_chain_again_for_every_gradient(chain):
    outcome = run_megengine(chain, 1)
    assert outcome.n_computed_again == 7 + 6 + 5 + 4 + 3 + 2 + 1
    assert outcome.step_seconds == 8 * (FORWARD_S + BACKWARD_S) + 28 * FORWARD_S
    assert (
        outcome.peak_bytes == 4 * N_BYTES
    )  # the input, a gradient, what an operator reads and what it makes


@pytest.mark.parametrize(
    ("threshold", "n_again", "peak"), [(36, 0, 40), (32, 1, 36), (28, 2, 32), (24, 3, 28)]
)
def test_the_peak_is_the_threshold_and_what_the_running_operator_makes(chain, threshold, n_again, peak):
    outcome = run_megengine(chain, threshold * MIB)
    assert (outcome.n_computed_again, outcome.peak_bytes) == (n_again, peak * MIB)


def test_a_card_smaller_than_threshold_and_outputs_is_too_small(chain):
    assert run_megengine(chain, 24 * MIB, MegEngineCard(28 * MIB)).fits
    outcome = run_megengine(chain, 24 * MIB, MegEngineCard(24 * MIB))
    assert not outcome.fits
    assert "4.00 MiB requested" in outcome.failure


def _fragmented(request_mib: int, card_mib: int):
    """Four tensors of 4 MiB, every other one deleted: 8 MiB are free, in two pieces."""
    program = [Apply("", 0.0, (), ((0, 16 * MIB),)), Delete(0)]  # one chunk to lie in
    program += [Apply("", 0.0, (), ((i, 4 * MIB),)) for i in (1, 2, 3, 4)]
    program += [Delete(1), Delete(3), Apply("", 1.0, (), ((5, request_mib * MIB),)), StepEnd(1)]
    return run_megengine(program, 0, MegEngineCard(card_mib * MIB))


def test_holes_that_do_not_touch_are_joined_by_way_of_the_host():
    outcome = _fragmented(8, 16)
    assert outcome.fits
    assert outcome.n_defragmentations == 1
    assert outcome.step_seconds == pytest.approx(1.0 + RETRY_S + 2 * 8 * MIB / HOST_BYTES_S)
    assert outcome.peak_reserved_bytes == 16 * MIB


def test_holes_that_fit_are_used_as_they_are():
    outcome = _fragmented(4, 16)
    assert (outcome.n_defragmentations, outcome.step_seconds) == (0, 1.0)


def test_what_is_not_there_cannot_be_joined():
    assert not _fragmented(9, 16).fits


def test_what_the_running_operator_reads_does_not_move():
    program = [Apply("", 0.0, (), ((0, 16 * MIB),)), Delete(0)]
    program += [Apply("", 0.0, (), ((i, 4 * MIB),)) for i in (1, 2, 3, 4)]
    program += [Delete(1), Delete(3), Apply("aten.exp.default", 1.0, (2, 4), ((5, 8 * MIB),))]
    assert not run_megengine(program, 0, MegEngineCard(16 * MIB)).fits


def test_a_workspace_needs_room_while_the_operator_runs():
    program = [
        Apply("", 0.0, (), ((0, 4 * MIB),)),
        Apply("aten.convolution.default", 1.0, (0,), ((1, 4 * MIB),), has_workspace=True),
        StepEnd(1),
    ]
    assert run_megengine(program, 0, MegEngineCard(16 * MIB, 8 * MIB)).peak_bytes == 16 * MIB
    assert not run_megengine(program, 0, MegEngineCard(15 * MIB, 8 * MIB)).fits


def test_small_results_and_random_ones_are_never_evicted():
    program = [
        Apply("", 0.0, (), ((0, 4 * MIB),)),
        Apply("aten.randn.default", 0.0, (), ((1, 4 * MIB),)),
        Apply("aten.exp.default", 1.0, (0,), ((2, MIB),)),  # not above the minimum
        Apply("aten.exp.default", 1.0, (0,), ((3, 4 * MIB),)),
        Apply("aten.exp.default", 1.0, (0,), ((4, 4 * MIB),)),
        StepEnd(1),
    ]
    outcome = run_megengine(program, 1)
    assert outcome.n_evictions == 1  # the first result of 4 MiB, when the second one is made


def _small(id: int, *inputs: int) -> Apply:
    """An operator that reads, and makes what is too small to be evicted."""
    return Apply("aten.sum.default", 1.0, inputs, ((id, MIB),))


def _n_again_for(program: list, tensor: int, threshold: int) -> int:
    """What reading a tensor at the end makes necessary: 1 if it was evicted."""
    before = run_megengine([*program, StepEnd(1)], threshold)
    assert before.n_evictions == 1
    after = run_megengine([*program, _small(99, tensor), StepEnd(1)], threshold)
    return after.n_computed_again - before.n_computed_again


def _older_and_beside(*filled: int) -> list:
    """Tensor 2 is older, tensor 5 lies between two holes of 8 MiB, unless something fills them."""
    return [
        Apply("", 0.0, (), ((0, 32 * MIB),)),  # one chunk to lie in
        Delete(0),
        Apply("", 0.0, (), ((1, 4 * MIB),)),
        Apply("aten.exp.default", 1.0, (1,), ((2, 4 * MIB),)),
        Apply("", 0.0, (), ((3, 4 * MIB),)),
        Apply("", 0.0, (), ((4, 8 * MIB),)),
        Apply("aten.exp.default", 1.0, (1,), ((5, 4 * MIB),)),
        Delete(4),
        *(Apply("", 0.0, (), ((id, 8 * MIB),)) for id in filled),
        *(Apply("aten.view.default", 0.0, (3,)) for _ in range(10)),  # time goes by
        Apply("", 0.0, (), ((20, 9 * MIB),)),  # does not fit in a hole, and is one MiB too many
        _small(21, 3),
    ]


def test_a_tensor_beside_a_hole_goes_before_an_older_one():
    """What is freed joins the hole, which is what the next request wants."""
    program = _older_and_beside()
    assert [_n_again_for(program, tensor, 24 * MIB) for tensor in (2, 5)] == [0, 1]


def test_where_there_are_no_holes_the_older_one_goes():
    program = _older_and_beside(10, 11)
    assert [_n_again_for(program, tensor, 40 * MIB) for tensor in (2, 5)] == [1, 0]


def test_a_tensor_whose_parent_is_gone_stays_longer_than_a_newer_one():
    program = [
        Apply("", 0.0, (), ((1, 4 * MIB),)),
        Apply("aten.exp.default", 1.0, (1,), ((2, 4 * MIB),)),
        Apply("aten.exp.default", 1.0, (2,), ((3, 4 * MIB),)),  # costs two operators from now on
        Delete(2),
        Apply("", 0.0, (), ((4, 4 * MIB),)),
        Apply("aten.exp.default", 1.0, (1,), ((5, 4 * MIB),)),
        _small(6, 4),
        _small(7, 4),
    ]
    assert [_n_again_for(program, tensor, 16 * MIB) for tensor in (3, 5)] == [0, 1]
