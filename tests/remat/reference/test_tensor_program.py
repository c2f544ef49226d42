"""A program as the sequence of calls that a runtime with its own tensors receives."""

from __future__ import annotations

from benchmarks.dtr.reference.tensor_program import Apply, Delete, StepEnd, tensor_program
from tests.remat.chains import N_BYTES, write_chain
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, Free, Op, Phase, Signature, Step, TensorSpec
from windtunnel.remat.simulated.program import read_program

SPEC = TensorSpec((8,), (1,), "float32")
EXP = Signature("aten.exp.default", (SPEC,), (SPEC,), "_")
ADD_ = Signature("aten.add_.Tensor", (SPEC, SPEC), (), "_,_")
FOREACH = Signature("aten._foreach_add_.List", (SPEC, SPEC), (), "[_],[_]")


def _instructions(tmp_path, events, signatures):
    record_events(tmp_path / "r.arrows", events, signatures=signatures)
    program = read_program(read_recording(tmp_path / "r.arrows"))
    return tensor_program(program, [float(i) for i in range(len(signatures))])


def test_what_autograd_loads_is_the_tensor_it_saved(tmp_path):
    program = read_program(write_chain(tmp_path / "chain.arrows", 2, n_steps=1))
    x, a, b, db, da = range(5)
    assert tensor_program(program, [1.0, 2.0]) == (
        Apply("", 0.0, (), ((x, N_BYTES),)),
        Apply("aten.exp.default", 1.0, (x,), ((a, N_BYTES),)),
        Apply("aten.exp.default", 1.0, (a,), ((b, N_BYTES),)),
        Apply("aten.mul.Tensor", 2.0, (b,), ((db, N_BYTES),)),
        Delete(b),
        Apply("aten.mul.Tensor", 2.0, (db, a), ((da, N_BYTES),)),
        Delete(a),
        Delete(db),
        Delete(da),
        StepEnd(1),
    )


def test_writing_into_a_result_makes_a_new_tensor(tmp_path):
    events = [Alloc(1, 32), Alloc(2, 32, op=0), Op(0, 0, (1,), (2,)), Op(1, 1, (2, 1)), Free(2), Step(1)]
    assert _instructions(tmp_path, events, (EXP, ADD_)) == (
        Apply("", 0.0, (), ((0, 32),)),
        Apply("aten.exp.default", 0.0, (0,), ((1, 32),)),
        Apply("aten.add_.Tensor", 1.0, (1, 0), ((2, 32),)),
        Delete(1),
        Delete(2),
        StepEnd(1),
    )


def test_weights_are_written_where_they_lie(tmp_path):
    optimizer = Phase.OPTIMIZER
    events = [
        Alloc(1, 32),
        Alloc(2, 32),
        Op(0, 0, (1, 2), phase=optimizer),
        Op(1, 1, (1, 2), phase=optimizer),
    ]
    assert _instructions(tmp_path, events, (FOREACH, ADD_))[2:] == (
        Apply("aten._foreach_add_.List", 0.0, (0, 1), (), (0, 1)),
        Apply("aten.add_.Tensor", 1.0, (0, 1), (), (0, 1)),
    )


def test_every_convolution_needs_a_workspace(tmp_path):
    def convolution(size):
        image = TensorSpec((1, 1, 8, 8), (64, 64, 8, 1), "float32")
        weight = TensorSpec((1, 1, size, size), (size * size, size * size, size, 1), "float32")
        return Signature("aten.convolution.default", (image, weight), (image,), "_,_")

    events = [
        Alloc(1, 256),
        Alloc(2, 256, op=0),
        Op(0, 0, (1,), (2,)),
        Alloc(3, 256, op=1),
        Op(1, 1, (1,), (3,)),
    ]
    found = _instructions(tmp_path, events, (convolution(1), convolution(3)))
    assert [call.has_workspace for call in found] == [False, True, True]
