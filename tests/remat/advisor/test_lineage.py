"""Which call made what, from what, and whether it can run again."""

from __future__ import annotations

from tests.remat.handmade import Tape
from windtunnel.remat.advisor.lineage import NEVER, trace_lineage


def _lineage(tape):
    program, seconds = tape.program()
    return trace_lineage(program, seconds)


def test_a_result_knows_its_call_and_a_call_what_it_reads():
    tape = Tape()
    x = tape.alloc(8)
    (a,) = tape.call([x], [10], 2.0)
    (b,) = tape.call([a, x], [20], 3.0, scratch=7)
    lineage = _lineage(tape)
    assert [lineage.results[r].storage for r in lineage.units[1].reads] == [a, x]
    assert [unit.seconds for unit in lineage.units] == [2.0, 3.0]
    assert lineage.units[1].extra_bytes == 7
    assert [lineage.results[r].storage for r in lineage.units[1].makes] == [b]
    assert lineage.results[x].unit == -1  # the program's own: no call made it


def test_writing_in_place_makes_a_new_result_of_the_old_one():
    tape = Tape()
    (a,) = tape.call([tape.alloc(8)], [10])
    tape.call([], [], 2.0, "aten.relu_.default", writes=a)
    tape.save(a)
    lineage = _lineage(tape)
    convolution, relu = lineage.units
    (old,), (new,) = convolution.makes, relu.makes
    assert (relu.reads, relu.replaces) == ((old,), old)
    assert lineage.results[old].is_overwritten
    assert lineage.results[new].handles == [0]
    assert lineage.results[old].handles == []


def test_a_call_that_fills_blank_memory_reads_nothing():
    tape = Tape()
    (mask,) = tape.call([], [10], 0.0, "aten.empty_like.default")
    tape.call([], [], 2.0, "aten.bernoulli_.float", writes=mask)
    lineage = _lineage(tape)
    assert [unit.name for unit in lineage.units] == ["aten.bernoulli_.float"]
    assert (lineage.units[0].reads, lineage.units[0].replaces) == ((), -1)


def test_what_cannot_run_again_has_no_unit():
    tape = Tape()
    (found,) = tape.call([tape.alloc(8)], [10], 1.0, "aten.nonzero.default")
    tape.call([], [], 1.0, "aten.add_.Tensor", writes=found)  # nor can a change of it
    lineage = _lineage(tape)
    assert lineage.units == []
    assert all(result.unit == -1 for result in lineage.results)


def test_a_result_is_wanted_at_its_first_load_and_done_with_after_its_last():
    tape = Tape()
    (a,) = tape.call([tape.alloc(8)], [10])
    handles = [tape.save(a), tape.save(a)]
    tape.free(a)
    tape.backward(handles[1:])
    tape.backward(handles[:1])
    program, seconds = tape.program()
    (result,) = (r for r in trace_lineage(program, seconds).results if r.handles)
    kinds = [type(action).__name__ for action in program.actions]
    loads = [i for i, kind in enumerate(kinds) if kind == "Load"]
    unsaves = [i for i, kind in enumerate(kinds) if kind == "Unsave"]
    assert (result.first_load, result.end) == (loads[0], unsaves[-1])


def test_what_is_never_wanted_is_never_loaded():
    tape = Tape()
    tape.save(tape.alloc(8))
    assert _lineage(tape).results[0].first_load == NEVER
