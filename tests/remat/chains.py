"""A program written by hand: a chain of operators whose results autograd saves, and backward along it."""

from __future__ import annotations

from pathlib import Path

from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import (
    Alloc,
    BackwardEnd,
    Call,
    CallFlag,
    Event,
    Free,
    Load,
    Op,
    Phase,
    Recording,
    Return,
    Save,
    Signature,
    Step,
    TensorSpec,
    Unsave,
)
from windtunnel.units import MIB

N_BYTES = 4 * MIB  # of every tensor
SPEC = TensorSpec((1024, 1024), (1024, 1), "float32")
EXP = Signature("aten.exp.default", (SPEC,), (SPEC,), "_")
MUL = Signature("aten.mul.Tensor", (SPEC, SPEC), (SPEC,), "_,_")
_EXP, _MUL = 0, 1


def write_chain(path: Path, n_values: int, n_steps: int = 2, is_training: bool = True) -> Recording:
    """The input is allocated once and kept; each step runs forward and, in training, backward."""
    events: list[Event] = [Alloc(0, N_BYTES, phase=Phase.BUILD)]
    for step in range(n_steps):
        events += _Step(step * 1000, n_values).events(is_training)
        events.append(Step(step + 1))
    record_events(path, events, signatures=(EXP, MUL))
    return read_recording(path)


class _Step:
    def __init__(self, first_id: int, n_values: int) -> None:
        self.values = [first_id + 1 + i for i in range(n_values)]  # storages
        self.n = n_values

    def events(self, is_training: bool) -> list[Event]:
        found: list[Event] = []
        before = 0
        for value in self.values:
            found += [
                Call(value, _EXP, (before,), CallFlag.GRAD),
                Alloc(value, N_BYTES, op=value),
                Op(value, _EXP, (before,), (value,)),
                Return(value, (), (value,)),
            ]
            if is_training:
                found.append(Save(value, value))
            if before:
                found.append(Free(before))
            before = value
        found.append(Free(before))
        return found + (self._backward() if is_training else [])

    def _backward(self) -> list[Event]:
        back = Phase.BACKWARD
        found: list[Event] = []
        gradient = -1
        for value in reversed(self.values):
            loaded, made = value + 300, value + 600
            read = (loaded,) if gradient < 0 else (gradient, loaded)
            found += [
                Alloc(loaded, N_BYTES, phase=back),
                Load(value, loaded, is_fresh=True),
                Alloc(made, N_BYTES, op=made, phase=back),
                Op(made, _MUL, read, (made,), phase=back),
                Free(loaded, phase=back),
                Unsave(value),
            ]
            if gradient >= 0:
                found.append(Free(gradient, phase=back))
            gradient = made
        return [*found, Free(gradient, phase=back), BackwardEnd()]
