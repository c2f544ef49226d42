"""From rows to actions: hand-made recordings, exact actions."""

from __future__ import annotations

import pytest

from windtunnel.errors import UsageError
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import (
    Alloc,
    BackwardEnd,
    Call,
    CallFlag,
    Collective,
    Event,
    Free,
    Load,
    Op,
    Phase,
    Return,
    Save,
    Signature,
    Step,
    TensorSpec,
    Unsave,
)
from windtunnel.remat.simulated import program as p

SPEC = TensorSpec((1024,), (1,), "float32")
EXP = Signature("aten.exp.default", (SPEC,), (SPEC,), "_")
CLONE = Signature("aten.clone.default", (SPEC,), (), "_")
COPY = Signature("aten.copy_.default", (SPEC, SPEC), (), "_,_")
MUL = Signature("aten.mul.Tensor", (SPEC, SPEC), (SPEC,), "_,_")
ADD_ = Signature("aten.add_.Tensor", (SPEC, SPEC), (), "_,_")
SIGNATURES = (EXP, CLONE, COPY, MUL, ADD_)
BACK = Phase.BACKWARD


def _read(tmp_path, events: list[Event], names: tuple[str, ...] = ()) -> p.Program:
    record_events(tmp_path / "r.arrows", events, names=names, signatures=SIGNATURES)
    return p.read_program(read_recording(tmp_path / "r.arrows"))


def test_a_call_knows_its_end_from_its_beginning(tmp_path):
    program = _read(
        tmp_path,
        [
            Alloc(1, 4096),
            Call(1, 1, (1,), CallFlag.GRAD),
            Alloc(2, 4096, op=-1),
            Op(0, 2, (2, 1)),
            Return(1, (), (2,)),
            Free(1),
            Step(1),
        ],
    )
    assert program.actions == (
        p.Alloc(0, 1, 4096),
        p.Call(1, "aten.clone.default", 1, (1,), (), (2,), 1, (2,)),
        p.Alloc(2, 2, 4096),
        p.Op(3, 2),
        p.Return(4),
        p.Free(5, 1),
        p.Step(6, 1),
    )
    assert program.n_steps == 1


def test_what_was_made_for_a_load_is_not_an_allocation_of_the_program(tmp_path):
    program = _read(
        tmp_path,
        [
            Call(1, 0, (), CallFlag.GRAD),
            Alloc(2, 4096),
            Return(1, (), (2,)),
            Save(7, 2, is_result=True),
            Free(2),
            Alloc(3, 4096, phase=BACK),
            Load(7, 3, is_fresh=True),
            Load(7, 3),
            Free(3, phase=BACK),
            Unsave(7),
            BackwardEnd(),
        ],
    )
    assert program.actions[2:] == (
        p.Return(2),
        p.Save(3, 7, 2),
        p.Free(4, 2),
        p.Load(6, 7, 3, True),
        p.Load(7, 7, 3, False),
        p.Free(8, 3),
        p.Unsave(9, 7),
        p.BackwardEnd(10),
    )


def test_a_weight_that_was_emptied_and_filled_again_is_not_saved(tmp_path):
    """Sharded training: autograd saved the storage, which had another number when backward asked for it."""
    program = _read(
        tmp_path,
        [
            Call(1, 0),
            Return(1),
            Alloc(2, 64),
            Save(7, 2),
            Free(2),
            Alloc(9, 64),
            Load(7, 9),
            Unsave(7),
            Free(9),
        ],
    )
    assert [type(a) for a in program.actions[2:]] == [p.Alloc, p.Free, p.Alloc, p.Free]


def test_a_collective_is_a_call_that_writes(tmp_path):
    program = _read(
        tmp_path,
        [Call(1, 0), Return(1), Collective(5, 3, 0, (1,), (2,)), Collective(6, 3, 0, (1,), (2,), phase=BACK)],
    )
    assert program.actions[2:] == (p.Call(2, "aten.mul.Tensor", 3, (1,), (2,), (), 0, ()), p.Return(2))


def test_memory_of_another_device_does_not_count(tmp_path):
    program = _read(
        tmp_path, [Call(1, 0), Return(1), Alloc(2, 4096), Alloc(3, 64, device=1), Free(3, device=1), Free(2)]
    )
    assert [a.storage for a in program.actions if isinstance(a, (p.Alloc, p.Free))] == [2, 2]


def test_the_place_of_a_row_is_its_module_and_phase(tmp_path):
    program = _read(tmp_path, [Alloc(1, 4096, module=0, phase=BACK), Alloc(2, 64)], names=("layers.3",))
    assert program.place(0) == "layers.3, backward"
    assert program.place(1) == "forward"


def test_an_ordinary_recording_is_refused_with_the_command_that_records_what_is_needed(tmp_path):
    """What the program holds itself cannot be evicted, and an ordinary recording does not tell it from the rest."""
    with pytest.raises(UsageError) as refused:
        _read(tmp_path, [Alloc(1, 4096), Alloc(2, 4096), Op(0, 4, (1, 2), phase=BACK)])
    assert "does not record what autograd saves" in refused.value.message
    assert refused.value.hint.startswith("record it again with: windtunnel remat ")


def test_an_empty_recording_is_an_empty_program(tmp_path):
    assert _read(tmp_path, []).actions == ()
