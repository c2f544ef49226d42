"""MindSpore's graph files: what is read, and that no text makes the reader crash or hang."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.memory.mindspore_graph.graph_files import GRAPHS, HAND_MADE, unpack, write_graph
from windtunnel.errors import CorruptFile
from windtunnel.memory.mindspore_graph import program as graph_program
from windtunnel.memory.mindspore_graph.ir_file import read_graph_ir
from windtunnel.memory.mindspore_graph.ir_types import TensorType, parse_type
from windtunnel.memory.mindspore_graph.program import program_of


def test_operators_come_with_shapes_scope_and_group(tmp_path):
    graph = read_graph_ir(write_graph(tmp_path))
    nodes = graph.subgraphs["main"].nodes
    assert [node.op for node in nodes] == [
        "Load", "MatMul", "Reshape", "Cast", "MatMul", "AllReduce", "ApplyMomentum", "Depend", "Return",
    ]  # fmt: skip
    assert nodes[1].args == ("%para1_x", "%0", "Bool(0)", "Bool(1)")
    assert nodes[1].result == TensorType("Float64", (16, 64))
    assert (nodes[5].group, nodes[5].scope) == ("hccl_world_group", "Gradients/Default/AllReduce-op0")
    assert [node.is_in_place for node in nodes].index(True) == 6
    assert nodes[1].line == 13


def test_parameters_have_the_shape_of_this_ranks_slice(tmp_path):
    x, w = read_graph_ir(write_graph(tmp_path)).parameters.values()
    assert (x.name, x.type, x.is_weight) == ("x", TensorType("Float32", (16, 64)), False)
    assert (w.name, w.is_weight) == ("w", True)
    assert w.type == TensorType("Float32", (64, 64), "w")


@pytest.mark.parametrize(
    ("text", "type"),
    [
        ("<Tensor[BFloat16], (2, 3)>", TensorType("BFloat16", (2, 3))),
        ("<Tensor[Float32], ()>", TensorType("Float32", ())),
        ("<Tensor[Int32], (1), value=...>", TensorType("Int32", (1,))),
        ("<Int64, NoShape>", None),
        ("<Tuple[Int64*2], TupleShape(NoShape, NoShape), elements_use_flags={[const vector]{1, 1}}>", None),
        ("<Tuple[], TupleShape(), elements_use_flags={[const vector]{}}>", None),
        (
            "<Tuple[Int64,Tensor[Float16]*2,Func], TupleShape(NoShape, (4), (5, 6), NoShape)>",
            (None, TensorType("Float16", (4,)), TensorType("Float16", (5, 6)), None),
        ),
        (
            "<Tuple[Tuple[Tensor[Bool]],Tensor[Int8]], TupleShape(TupleShape((7)), (8))>",
            ((TensorType("Bool", (7,)),), TensorType("Int8", (8,))),
        ),
    ],
)
def test_types_are_read(text, type):
    assert parse_type(text) == type


def test_bytes_of_a_tensor():
    assert TensorType("Float32", (3, 5)).n_bytes == 60
    assert TensorType("Int4", (5,)).n_bytes == 3
    assert TensorType("Complex128", ()).n_bytes == 16
    assert TensorType("Float16", (0, 7)).n_bytes == 0


WRONG = {
    "no entry": ("# IR entry: @main", "# Something", "line 1: a graph file begins with"),
    "other entry": ("# IR entry: @main", "# IR entry: @other", "ends before its main subgraph"),
    "cut": ("  Return(%7)", "", "line 38: the subgraph ends without Return"),
    "unknown dtype": ("(<Tensor[Float64], (16, 64)>)", "(<Tensor[Float99], (16, 64)>)", "line 14: a tensor of 'Float99'"),
    "dynamic shape": ("-> (<Tensor[Float16], (1024)>)", "-> (<Tensor[Float16], (-1)>)", "only when the program runs"),
    "huge": ("-> (<Tensor[Float16], (1024)>)", "-> (<Tensor[Float16], (99999999, 99999999)>)", "a tensor of"),
    "bracket": ("(%2, I64(42))", "(%2, I64(42)", "line 20: an unbalanced bracket"),
    "unmade value": ("PrimFunc_Cast(%2", "PrimFunc_Cast(%99", "line 20: %99 is used but nothing makes it"),
    "unknown call": ("= PrimFunc_Cast(%2", "= call @nowhere(%2", "line 20: it calls a graph that is not in the file"),
    "no item": ("PrimFunc_Cast(%2, I64(42))", "TupleGetItem(%2, I64(4))", "takes an item"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_damage_is_refused_with_its_line(tmp_path, case):
    old, new, complaint = WRONG[case]
    assert old in HAND_MADE
    path = write_graph(tmp_path, HAND_MADE.replace(old, new, 1))
    with pytest.raises(CorruptFile, match=r"line|ends") as refused:
        program_of(read_graph_ir(path))
    assert complaint in refused.value.message
    assert "\n" not in str(refused.value)


def test_a_file_that_stops_inside_a_subgraph_is_called_cut(tmp_path):
    path = write_graph(tmp_path, HAND_MADE[: HAND_MADE.index("  %5(s)")])
    with pytest.raises(CorruptFile, match="ends inside the subgraph of line 9"):
        read_graph_ir(path)


def test_graphs_that_call_each_other_cannot_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(graph_program, "_MOST_NODES", 10_000)
    heads = [
        f"subgraph @g{i}() {{\n  %0(a) = call @g{i + 1}()\n  %1(b) = call @g{i + 1}()\n  Return(%1)\n}}\n"
        for i in range(60)
    ]
    text = "# IR entry: @g0\n" + "".join(heads) + "subgraph @g60() {\n  Return(I64(0))\n}\n"
    with pytest.raises(CorruptFile, match="more than 10,000 operators"):
        program_of(read_graph_ir(write_graph(tmp_path, text)))


@pytest.mark.parametrize(
    ("n_links", "complaint"), [(1000, "values inside tuples"), (10**9, "tuples inside each other")]
)
def test_tuples_of_tuples_cannot_grow_without_end(tmp_path, monkeypatch, n_links, complaint):
    monkeypatch.setattr(graph_program, "_MOST_LINKS", n_links)
    nodes = [f"  %{i}(t) = MakeTuple(%{i - 1}, %{i - 1}, %para{i}_x)\n" for i in range(1, 200)]
    params = [f"%para{i}_x: <Tensor[Int8], (1)>\n" for i in range(200)]
    text = "# IR entry: @m\n" + "".join(params) + "subgraph @m() {\n  %0(t) = MakeTuple(%para0_x)\n"
    with pytest.raises(CorruptFile, match=complaint):
        program_of(read_graph_ir(write_graph(tmp_path, text + "".join(nodes) + "  Return(%199)\n}\n")))


def test_a_loop_is_counted_once_and_said(tmp_path):
    loop = "# IR entry: @m\nsubgraph @m() {\n  %0(a) = call @m()\n      : () -> (<Tensor[Int8], (8)>)\n  Return(%0)\n}\n"
    program = program_of(read_graph_ir(write_graph(tmp_path, loop)))
    assert program.notes == ("a loop is counted once: the file does not say how often it runs",)
    assert [storage.n_bytes for storage in program.storages] == [8]


LINES = HAND_MADE.splitlines()


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, len(LINES) - 1),
            st.sampled_from(["drop", "double", "cut", "insert", "swap"]),
            st.text(st.sampled_from('%()<>[]{},:@"* -\t\0x019') | st.characters(codec="utf-8"), max_size=12),
            st.integers(0, 400),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_a_damaged_graph_is_read_or_refused_in_one_sentence(tmp_path_factory, damages):
    lines = list(LINES)
    for at, how, text, column in damages:
        at, line = at % len(lines), lines[at % len(lines)]
        replaced = {
            "drop": [],
            "double": [line, line],
            "cut": [line[:column]],
            "insert": [line[:column] + text + line[column:]],
            "swap": [text],
        }[how]
        lines[at : at + 1] = replaced or [""]
    path = write_graph(tmp_path_factory.mktemp("g"), "\n".join(lines))
    try:
        program_of(read_graph_ir(path))
    except CorruptFile as refused:
        assert "\n" not in refused.message


@pytest.mark.parametrize("name", GRAPHS)
def test_real_graphs_are_read_whole(tmp_path, name):
    graph = read_graph_ir(unpack(name, tmp_path))
    program = program_of(graph)
    assert sum(s.is_kept for s in program.storages) >= sum(p.is_weight for p in graph.parameters.values())
    assert any(step.group for step in program.steps)
    assert all(step.scope for step in program.steps)
    assert program.results
