"""A static graph as allocations: counted by hand, and against MindSpore's own dry run of the same graphs."""

from __future__ import annotations

import csv
import gzip
import io

import pytest

from tests.memory.mindspore_graph.graph_files import (
    DATA,
    GRAPHS,
    HAND_MADE,
    KIB,
    order_of,
    unpack,
    write_graph,
)
from windtunnel.errors import CorruptFile
from windtunnel.memory.allocators.interface import Allocator
from windtunnel.memory.mindspore_graph.execute_order import order_steps, read_execute_order
from windtunnel.memory.mindspore_graph.ir_file import read_graph_ir
from windtunnel.memory.mindspore_graph.liveness import tape_of_program
from windtunnel.memory.mindspore_graph.program import Step, program_of
from windtunnel.memory.tape import TapeKind, play
from windtunnel.memory.what_if.recorded_file import open_source


def _requests(tape):
    """Sizes in KiB: + is asked for, - goes back."""
    size = {
        id: n for kind, id, n in zip(tape.kind, tape.id, tape.n_bytes, strict=True) if kind == TapeKind.ALLOC
    }
    signs = [1 if kind == TapeKind.ALLOC else -1 for kind in tape.kind]
    return [sign * int(size[id]) // KIB for sign, id in zip(signs, tape.id.tolist(), strict=True)]


def _peaks(tape):
    allocator = Allocator.named("mindspore")
    play(tape, allocator)
    return allocator.peak_allocated_bytes, allocator.peak_reserved_bytes


def test_what_is_made_goes_back_after_its_last_reader(tmp_path):
    program = program_of(read_graph_ir(write_graph(tmp_path)))
    tape = tape_of_program(program, program.steps)
    # w and x; h; y, the result, which stays (its reshape is free); g, after which h goes back; s, the sum of g;
    # g waits for the stream of the collective until s is read, by the optimizer, which makes nothing.
    assert _requests(tape) == [16, 4, 8, 2, 16, -8, 16, -16, -16]
    assert tape.persistent.tolist() == [True, True] + [False] * 7


def test_the_order_of_execution_decides(tmp_path):
    scopes = ["MatMul-op0", "Cast-op0", "AllReduce-op0", "ApplyMomentum-op0"]
    order = order_of(
        "Default/MatMul-op0", "Gradients/Default/MatMul-op0", *(f"Default/{s}" for s in scopes[1:2])
    )
    source = open_source(write_graph(tmp_path, order=order))
    # The cast runs last of the three; the collective and the optimizer are not named, so they run as late as they can.
    assert _requests(source.tape) == [16, 4, 8, 16, 2, -8, 16, -16, -16]
    assert any("names 3 of 5" in note for note in source.notes)


def test_an_order_of_another_graph_is_not_used(tmp_path):
    source = open_source(write_graph(tmp_path, order=order_of("Default/Conv2D-op0", "Default/MatMul-op0")))
    assert _requests(source.tape) == [16, 4, 8, 2, 16, -8, 16, -16, -16]
    assert any("names 1 of 5 operators: it belongs to another graph" in note for note in source.notes)


def test_without_an_order_the_note_says_what_that_costs(tmp_path):
    source = open_source(write_graph(tmp_path / "rank_5"))
    assert source.rank == 5
    assert any("no execute_order" in note for note in source.notes)
    assert source.describe(13) == "line 13 of the file (MatMul in Default/MatMul-op0)"


def test_a_reshape_of_an_input_is_a_copy(tmp_path):
    text = HAND_MADE.replace("PrimFunc_Reshape(%1,", "PrimFunc_Reshape(%para1_x,")
    program = program_of(read_graph_ir(write_graph(tmp_path, text)))
    assert [step.op for step in program.steps][:3] == ["MatMul", "Reshape", "Cast"]


def test_a_constant_whose_value_is_not_shown_may_be_any(tmp_path):
    shown, hidden = (
        "Tensor(shape=[256], dtype=Float32, value=0)",
        "Tensor(shape=[256], dtype=Float32, value=[...])",
    )
    for constant, n_kept in ((shown, 2), (hidden, 3)):
        text = HAND_MADE.replace("Bool(0), Bool(1)) {", f"{constant}) {{").replace(
            "Bool(1), Bool(0))", f"{constant})"
        )
        program = program_of(read_graph_ir(write_graph(tmp_path, text)))
        assert sum(storage.is_kept for storage in program.storages) == n_kept


def test_of_two_branches_the_longer_counts(tmp_path):
    text = (
        "# IR entry: @m\n%para1_c: <Tensor[Bool], ()>\n%para2_x: <Tensor[Float32], (256)>\n"
        "subgraph @m() {\n  %0(a) = Partial(@yes, %para2_x)\n  %1(b) = Partial(@no, %para2_x)\n"
        "  %2(s) = Switch(%para1_c, %0, %1)\n  %3(r) = %2[@FuncUnion(@yes, @no)]()\n  Return(%3)\n}\n"
        "subgraph @yes(%para3_x) {\n  %0(y) = PrimFunc_ReLU(%para3_x)\n"
        "      : (<Tensor[Float32], (256)>) -> (<Tensor[Float32], (256)>)\n  Return(%0)\n}\n"
        "subgraph @no(%para4_x) {\n  Return(%para4_x)\n}\n"
    )
    program = program_of(read_graph_ir(write_graph(tmp_path, text)))
    assert [step.op for step in program.steps] == ["ReLU"]
    assert "the longer one is counted" in program.notes[0]


def _step(i, scope, call=0):
    return Step(i, "Add", scope, None, (i,), (i - 1,) if i else (), call)


def test_calls_of_one_subgraph_are_matched_turn_by_turn():
    steps = [
        _step(0, "b/Add-op0", 1),
        _step(1, "b/Add-op1", 1),
        _step(2, "b/Add-op0", 2),
        _step(3, "b/Add-op1", 2),
    ]
    names = ["b/Add-op0", "b/Add-op1", "StreamSend-op0", "b/Add-op2", "b/Add-op3"]
    ordered, n_named = order_steps(steps, names)
    assert (ordered, n_named) == (steps, 4)


def test_no_order_makes_a_step_run_before_what_it_reads():
    steps = [_step(0, "a/Add-op0"), _step(1, "a/Add-op1"), _step(2, "a/Add-op2")]
    assert order_steps(steps, ["a/Add-op2", "a/Add-op1", "a/Add-op0"])[0] == steps


@pytest.mark.parametrize("text", ["", "a,b\n1,2\n", 'index,other\n"1'])
def test_an_order_file_that_is_none_is_refused(tmp_path, text):
    path = write_graph(tmp_path, order=text)
    with pytest.raises(CorruptFile, match="is not an execute_order"):
        open_source(path)
    with pytest.raises(CorruptFile, match="cannot read"):
        read_execute_order(tmp_path / "nothing.csv")


def _blocks(name):
    return list(
        csv.DictReader(
            io.StringIO(gzip.decompress((DATA / f"{name}.memory_block.csv.gz").read_bytes()).decode())
        )
    )


@pytest.mark.parametrize("name", GRAPHS)
def test_the_used_peak_is_that_of_mindspores_own_dry_run(tmp_path, name):
    tape = open_source(unpack(name, tmp_path)).tape
    used, with_fragments = _peaks(tape)
    rows = _blocks(name)
    # Scalars, of 512 bytes each, are the one thing left out.
    scalars = sum(512 for row in rows if row["type"] == "ConstantValue" and row["size"] == "512")
    real = max(int(row["actual_used_memory"]) for row in rows)
    assert abs(used - real) <= max(scalars, 0.002 * real)
    real_with_fragments = max(int(row["actual_peak_memory"]) for row in rows)
    assert with_fragments == pytest.approx(real_with_fragments, rel=0.02)


@pytest.mark.parametrize("name", ["transformer_recompute", "pipeline"])
def test_every_operator_makes_as_many_bytes_as_mindspore_gave_it(tmp_path, name):
    program = program_of(read_graph_ir(unpack(name, tmp_path)))
    ours, theirs = {}, {}
    for step in program.steps:
        for id in step.makes:
            size = (program.storages[id].n_bytes + 512 + 31) // 512 * 512
            ours[step.scope] = ours.get(step.scope, 0) + size
    for row in _blocks(name):
        if row["type"] == "Kernel" and row["is_persistent"] == "0":
            theirs[row["node_name"]] = theirs.get(row["node_name"], 0) + int(row["size"])
    assert ours == theirs
