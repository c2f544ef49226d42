"""Runs of operators that a compiler makes one kernel of: on a hand-made recording."""

from __future__ import annotations

import numpy as np

from tests.timing.signatures import spec
from windtunnel.events.model import COLUMNS, Frame, Kind, Phase, Recording, Signature
from windtunnel.timing.roofline.fusion import fused_kernels

K = 1 << 10
WIDE = spec(K)
SIGNATURES = (
    Signature("aten.mul.Tensor", (WIDE, WIDE), (WIDE,), "_,_"),
    Signature("aten.mm.default", (spec(32, 32), spec(32, 32)), (spec(32, 32),), "_,_"),
    Signature("aten.add_.Tensor", (WIDE, WIDE), (), "_,_"),
)
MUL, MM, ADD_IN_PLACE = range(3)
FRAMES = (Frame("a.py", 1, "plain"), Frame("a.py", 9, "gelu"))
FUNCTIONS = {"functions": [["a.py", "gelu"]], "modules": []}


def _recording(rows, compiled, names=()) -> Recording:
    """Rows of (signature, inputs, outputs, frame, module, phase)."""
    columns = {name: np.zeros(len(rows), kind) for name, kind in COLUMNS.items()}
    ragged = ([0], []), ([0], [])
    for i, (signature, inputs, outputs, frame, module, phase) in enumerate(rows):
        columns["kind"][i], columns["value"][i] = Kind.OP, signature
        columns["frame"][i], columns["module"][i], columns["phase"][i] = frame, module, phase
        for (offsets, ids), storages in zip(ragged, (inputs, outputs), strict=True):
            ids += storages
            offsets.append(len(ids))
    both = [tuple(np.array(part, np.int64) for part in each) for each in ragged]
    footer = {"compiled": compiled} if compiled else {}
    return Recording({}, tuple(names), SIGNATURES, FRAMES, columns, both[0], both[1], True, footer)


def _op(signature, inputs, outputs, frame=1, module=-1, phase=Phase.FORWARD):
    return signature, list(inputs), list(outputs), frame, module, phase


def _found(rows, compiled=FUNCTIONS, names=()):
    return [(kernel.rows, kernel.n_bytes) for kernel in fused_kernels(_recording(rows, compiled, names))]


CHAIN = [
    _op(MUL, (1, 2), (3,)),
    _op(MUL, (3, 2), (4,)),
    _op(MUL, (4, 3), (5,)),
    _op(MM, (5, 6), (7,), frame=0),
]


def test_neighbours_become_one_kernel_that_keeps_what_is_read_later():
    assert _found(CHAIN) == [((0, 1, 2), 3 * 2 * K)]  # reads 1 and 2, writes 5


def test_nothing_is_fused_in_a_program_that_compiles_nothing():
    assert _found(CHAIN, None) == []


def test_a_product_ends_a_run():
    rows = [CHAIN[0], CHAIN[1], _op(MM, (4, 6), (7,)), _op(MUL, (7, 4), (8,)), _op(MM, (8, 6), (9,))]
    assert _found(rows) == [((0, 1), 3 * 2 * K)]  # a run of one is an operator like others


def test_what_only_backward_reads_is_computed_again():
    rows = [*CHAIN, _op(MUL, (7, 3), (10,), frame=0, phase=Phase.BACKWARD)]
    assert _found(rows) == [((0, 1, 2), 3 * 2 * K)]
    rows = [*CHAIN, _op(MUL, (7, 3), (10,), frame=0)]
    assert _found(rows) == [((0, 1, 2), 4 * 2 * K)]


def test_a_write_in_place_to_what_was_there_reaches_memory():
    rows = [_op(MUL, (1, 2), (3,)), _op(ADD_IN_PLACE, (9, 3), ())]
    assert _found(rows) == [((0, 1), 4 * 2 * K)]  # reads 1, 2 and 9, writes 9


def test_modules_are_compiled_with_what_is_inside_them():
    names = ("net", "net.a", "net.b", "nets")
    rows = [
        _op(MUL, (1, 2), (3,), 0, 1),
        _op(MUL, (3, 2), (4,), 0, 2),
        _op(MUL, (4, 2), (5,), 0, 3),
        _op(MM, (5, 6), (7,), 0, 0),
    ]
    for paths in (["net"], ["net", "net.a", "net.b"], ["net.b", "net.a", "net"]):
        assert _found(rows, {"functions": [], "modules": paths}, names) == [((0, 1), 3 * 2 * K)]
    assert _found(rows, {"functions": [], "modules": ["net.a"]}, names) == []


def test_runs_of_forward_and_backward_stay_apart():
    rows = [
        *CHAIN[:2],
        _op(MUL, (4, 2), (5,), phase=Phase.BACKWARD),
        _op(MUL, (5, 2), (6,), phase=Phase.BACKWARD),
    ]
    assert [kernel[0] for kernel in _found(rows)] == [(0, 1), (2, 3)]
