"""Rows of a recording out of hand-made tracker output: owners, sizes, phases, steps, calls."""

from __future__ import annotations

from pathlib import Path

from tests.capture.mindspore.tracker_output import KIB, block, communication, operator, spec, tasks
from windtunnel.capture.mindspore.tracker.files import Block, Task
from windtunnel.capture.mindspore.tracker.graph import TrackedOp
from windtunnel.capture.mindspore.tracker.marks import Mark
from windtunnel.capture.mindspore.tracker.model_names import ModelNames
from windtunnel.capture.mindspore.tracker.program import TrackedProgram, find_tracked
from windtunnel.capture.mindspore.tracker.recording import write_rows
from windtunnel.events.file import RecordingWriter, read_recording
from windtunnel.events.model import Alloc, Collective, Kind, Op, Phase, Recording, Role


def recorded(
    folder: Path, blocks: list[Block], operators: list[TrackedOp], marks: tuple[Mark, ...] = (), *,
    calls: tuple = (), names: ModelNames | None = None, task: str = "PyNative", others: dict[int, Task] | None = None,
) -> Recording:  # fmt: skip
    program = TrackedProgram(blocks, operators, tasks(operators, task) | (others or {}), list(calls))
    writer = RecordingWriter(folder / "recording.arrows", {"framework": "mindspore"})
    write_rows(program, marks, writer, names=names)
    writer.close({"status": "ok"})
    return read_recording(folder / "recording.arrows")


def kinds(recording: Recording) -> list[str]:
    return [Kind(kind).name for kind in recording.columns["kind"]]


def events(recording: Recording, kind: type) -> list:
    return [event for event in recording.events() if isinstance(event, kind)]


def names_of(recording: Recording) -> list[str]:
    return [recording.signatures[op.signature].name for op in events(recording, Op)]


def owner_of(recording: Recording, alloc: Alloc) -> str:
    signatures = {op.id: recording.signatures[op.signature].name for op in events(recording, Op)}
    return signatures.get(alloc.op, "")


# -- who made a block --------------------------------------------------------------------------------------


def test_a_block_belongs_to_the_operator_that_writes_it_not_to_the_last_one_in_the_log(tmp_path):
    """MindSpore books SwigluGrad's result, tick 6, to InplaceAddExt, tick 4: it announces itself only after."""
    blocks = [
        block(2, None, 1, node="Ones"),
        block(6, 9, 4, node="InplaceAddExt", task=4),
    ]
    operators = [
        operator(1, "Ones", (), (2,)),
        operator(4, "InplaceAddExt", (2,), (2,)),
        operator(6, "SwigluGrad", (2,), (6,), outputs=(spec(1024),)),
    ]
    found = recorded(tmp_path, blocks, operators)
    ones, grad = events(found, Alloc)
    assert (owner_of(found, ones), owner_of(found, grad)) == ("ms.Ones", "ms.SwigluGrad")
    assert (ones.n_bytes, grad.n_bytes) == (1 * KIB, 4 * KIB)
    assert kinds(found) == ["ALLOC", "OP", "OP", "ALLOC", "OP", "FREE"]


def test_a_copy_from_the_host_has_no_operator_and_a_workspace_has_the_one_it_is_booked_to(tmp_path):
    blocks = [
        block(2, None, 1, "PyNativeInput", task=1, node="Neg"),
        block(5, 6, 16, "", task=4, node="Topk"),
    ]
    operators = [operator(3, "Neg", (2,), (2,)), operator(4, "Topk", (2,), (2,))]
    found = recorded(tmp_path, blocks, operators)
    copied, space = events(found, Alloc)
    assert (copied.op, copied.role) == (-1, Role.INPUT)
    assert (owner_of(found, space), space.role) == ("ms.Topk", Role.WORKSPACE)


def test_bytes_are_what_was_asked_for(tmp_path):
    """3 int64 are 24 bytes; of the pool they take 512."""
    blocks = [Block(2, None, 1, 0, 512, "PyNativeOutput", -1, "", False, "")]
    found = recorded(tmp_path, blocks, [operator(2, "Arange", (), (2,), outputs=(spec(3, dtype="int64"),))])
    assert events(found, Alloc)[0].n_bytes == 24


def test_a_result_in_its_argument_s_block_is_a_view_if_its_shape_differs(tmp_path):
    blocks = [block(1, None, 1)]
    operators = [
        operator(1, "Ones", (), (1,)),
        operator(2, "Reshape", (1,), (1,), inputs=(spec(256),), outputs=(spec(16, 16),)),
        operator(3, "InplaceAddExt", (1, 1), (1,)),
    ]
    assert names_of(recorded(tmp_path, blocks, operators)) == [
        "ms.Ones",
        "ms.Reshape.view",
        "ms.InplaceAddExt",
    ]


# -- where and when ----------------------------------------------------------------------------------------


def a_step(tick: int, matmul: int, relu: int, dx: int) -> tuple[list[Block], list[TrackedOp], list[Mark]]:
    """Forward of one layer with weight 1 and batch 2, its backward and an optimizer that updates 1."""
    blocks = [block(matmul, dx + 3, 4), block(relu, dx + 2, 4), block(dx, dx + 1, 2)]
    operators = [
        operator(matmul, "MatMul", (2, 1), (matmul,)),
        operator(relu, "ReLU", (matmul,), (relu,)),
        operator(dx, "ReluGrad", (2, relu), (dx,)),
        operator(dx + 5, "AdamW", (1, dx), (1,)),
    ]
    marks = [
        Mark(tick, "enter", ("fc", 0)), Mark(relu - 1, "exit"), Mark(relu - 1, "enter", ("act", 0)), Mark(relu + 1, "exit"),
        Mark(relu + 1, "backward", (1,)), Mark(dx + 4, "backward", (0,)), Mark(dx + 4, "optimizer", (1,)),
        Mark(dx + 6, "optimizer", (0,)), Mark(dx + 6, "step"),
    ]  # fmt: skip
    return blocks, operators, marks


def test_phases_modules_and_steps_of_dynamic_code(tmp_path):
    weight = block(1, None, 8, "Weight", is_persistent=True)
    batch = block(2, None, 1, "PyNativeInput")
    blocks, operators, marks = a_step(3, 4, 6, 9)
    more = a_step(20, 21, 23, 26)
    found = recorded(
        tmp_path, [weight, batch, *blocks, *more[0]], [*operators, *more[1]], (*marks, *more[2]),
        names=ModelNames(),
    )  # fmt: skip
    ops = events(found, Op)
    assert [(found.signatures[op.signature].name, op.phase, found.name(op.module)) for op in ops] == [
        ("ms.MatMul", Phase.FORWARD, "fc"),
        ("ms.ReLU", Phase.FORWARD, "act"),
        ("ms.ReluGrad", Phase.BACKWARD, "act"),
        ("ms.AdamW", Phase.OPTIMIZER, ""),
    ] * 2
    steps = [i for i, kind in enumerate(kinds(found)) if kind == "STEP"]
    optimizers = [
        i for i, k in enumerate(found.columns["phase"]) if k == Phase.OPTIMIZER and kinds(found)[i] == "OP"
    ]
    assert len(steps) == 2
    assert optimizers[0] < steps[0] < optimizers[1] < steps[1]
    assert events(found, Alloc)[0].role == Role.WEIGHT


def test_a_recomputed_cell_is_entered_again_and_what_follows_belongs_to_it(tmp_path):
    """blocks.0 calls its child b last; the gradient of what blocks.0 itself computed again is of blocks.0."""
    blocks = [block(1, None, 1), block(3, 9, 1), block(5, 9, 1), block(8, None, 1)]
    operators = [
        operator(3, "Mul", (1,), (3,)),
        operator(5, "MatMul", (3,), (5,)),
        operator(8, "Mul", (3,), (8,)),
    ]
    marks = (
        Mark(2, "backward", (1,)), Mark(2, "enter", ("blocks.0", 1)), Mark(4, "enter", ("blocks.0.b", 1)),
        Mark(6, "exit"), Mark(6, "exit"), Mark(10, "backward", (0,)),
    )  # fmt: skip
    found = recorded(tmp_path, blocks, operators, marks)
    assert [found.name(op.module) for op in events(found, Op)] == ["blocks.0", "blocks.0.b", "blocks.0.b"]
    enters = [event for event in found.events() if type(event).__name__ == "ModuleEnter"]
    assert [event.is_again for event in enters] == [True, True]
    # made for backward by a forward computation: activations
    assert events(found, Alloc)[1].phase == Phase.FORWARD


def test_a_compiled_graph_takes_the_step_and_its_backward_belongs_to_the_layer_whose_data_it_reads(tmp_path):
    """Every gradient of a Dense carries the scope of the first Dense: storages know better."""
    scope, back = "Default/network-Net/", "Gradients/Default/network-Net/0-Dense/"
    blocks = [
        block(1, None, 8, "Weight", task=101, is_persistent=True),
        block(2, None, 8, "Weight", task=102, is_persistent=True),
        block(3, None, 1, node="kernel_graph_0_HostDSActor", is_persistent=True),
        *(block(tick, 40, 1, "Kernel") for tick in (10, 12, 14, 16, 18)),
    ]
    operators = [
        operator(10, scope + "0-Dense/MatMul-op0", (3, 1), (10,)),
        operator(12, scope + "1-Dense/MatMul-op0", (10, 2), (12,)),
        operator(14, back + "Grad_MatMul/MatMul-op0", (12, 2), (14,)),
        operator(16, back + "Grad_MatMul/MatMul-op1", (12, 10), (16,)),
        operator(18, back + "Grad_MatMul/MatMul-op2", (14, 3), (18,)),
        operator(20, "Default/optimizer-Adam/Adam-op0", (1, 18), (1,)),
        operator(22, "Default/optimizer-Adam/Adam-op1", (2, 16), (2,)),
        operator(24, "UpdateOutputDeviceAddress", (), ()),
        operator(26, scope + "0-Dense/MatMul-op0", (3, 1), ()),
    ]
    weights = {101: Task(101, "SyncTensorData", "0.weight"), 102: Task(102, "SyncTensorData", "1.weight")}
    found = recorded(tmp_path, blocks, operators, task="kernel_graph_0", others=weights)
    ops = events(found, Op)
    assert [(found.name(op.module), op.phase) for op in ops] == [
        ("0", Phase.FORWARD), ("1", Phase.FORWARD), ("1", Phase.BACKWARD), ("1", Phase.BACKWARD),
        ("0", Phase.BACKWARD), ("optimizer", Phase.OPTIMIZER), ("optimizer", Phase.OPTIMIZER), ("0", Phase.FORWARD),
    ]  # fmt: skip
    rows = kinds(found)
    assert rows.count("STEP") == 1
    assert rows.index("STEP") < len(rows) - 1 - rows[::-1].index("OP")
    marks = {found.name(m.name): m.role for m in found.events() if type(m).__name__ == "Mark"}
    assert marks == {"0.weight": Role.WEIGHT, "1.weight": Role.WEIGHT, "": Role.INPUT}


def test_what_backward_adds_into_and_the_optimizer_reads_is_a_gradient(tmp_path):
    blocks = [block(1, None, 8, "Weight", is_persistent=True), block(2, None, 4)]
    operators = [
        operator(2, "Zeros", (), (2,)),
        operator(4, "InplaceAddExt", (2,), (2,)),
        operator(6, "AdamW", (1, 2), (1,)),
    ]
    marks = (
        Mark(3, "backward", (1,)), Mark(5, "backward", (0,)), Mark(5, "optimizer", (1,)), Mark(7, "optimizer", (0,)),
        Mark(7, "step"),
    )  # fmt: skip
    found = recorded(tmp_path, blocks, operators, marks)
    roles = [(m.storage, m.role) for m in found.events() if type(m).__name__ == "Mark"]
    assert roles == [(1, Role.GRADIENT)]


def test_tensors_are_named_by_the_address_of_their_memory_while_they_live(tmp_path):
    blocks = [block(1, 5, 1, address=4096), block(6, None, 1, address=4096)]
    operators = [operator(1, "Ones", (), (1,)), operator(6, "Ones", (), (6,))]
    marks = (Mark(3, "tensor", (4096, "weight", "fc.w")), Mark(9, "tensor", (4096, "optimizer", "fc.w")),
             Mark(9, "tensor", (77, "weight", "nobody")))  # fmt: skip
    found = recorded(tmp_path, blocks, operators, marks)
    named = [(m.storage, m.role, found.name(m.name)) for m in found.events() if type(m).__name__ == "Mark"]
    assert named == [(0, Role.WEIGHT, "fc.w"), (1, Role.OPTIMIZER, "fc.w")]


def test_a_graph_s_recomputation_is_entered_again(tmp_path):
    again = operator(2, "recompute_Default/net-Net/0-Block/GeLU-op0", (1,), (2,))
    found = recorded(tmp_path, [block(1, None, 1), block(2, None, 1)], [again], task="kernel_graph_0")
    assert kinds(found) == ["ALLOC", "ALLOC", "MODULE_ENTER", "OP", "MODULE_EXIT"]
    (entered,) = [event for event in found.events() if type(event).__name__ == "ModuleEnter"]
    assert (found.name(entered.module), entered.is_again) == ("net.0", True)


# -- calls between ranks -----------------------------------------------------------------------------------


def call_of(found: Recording):
    (call,) = events(found, Collective)
    return found.signatures[call.signature]


def test_a_buffer_that_a_collective_only_fills_is_not_given(tmp_path):
    """DistCommReduceScatterTensor lists its result as first argument too; its group stands in a list of its own."""
    blocks = [block(1, None, 4), block(2, None, 1)]
    scatter = operator(
        3, "DistCommReduceScatterTensor", (2, 1), (2,), inputs=(spec(256), spec(1024)), outputs=(spec(256),)
    )
    calls = (communication("DistCommReduceScatterTensor", (0, 1, 2, 3)),)
    found = recorded(tmp_path, blocks, [scatter], calls=calls)
    signature = call_of(found)
    assert signature.name == "c10d.reduce_scatter"
    assert ([s.shape for s in signature.inputs], [s.shape for s in signature.outputs]) == (
        [(1024,)],
        [(256,)],
    )
    (group,) = [event for event in found.events() if type(event).__name__ == "Group"]
    assert tuple(group.ranks) == (0, 1, 2, 3)


def test_a_receive_in_a_graph_gives_nothing_whatever_orders_it(tmp_path):
    blocks = [block(1, None, 64), block(2, None, 1)]
    receive = operator(
        3, "Default/Receive-op0", (1,), (2,), inputs=(spec(512, 512),), outputs=(spec(64),),
        group="world", comm_rank="0 1 2 3", src_rank="1",
    )  # fmt: skip
    signature = call_of(recorded(tmp_path, blocks, [receive], task="0_Default/Receive-op0"))
    assert (signature.name, signature.inputs, signature.scalars) == ("c10d.recv", (), "peer=1")
    assert [s.shape for s in signature.outputs] == [(64,)]


def test_events_between_streams_are_kept(tmp_path):
    record = operator(1, "RecordEvent", event="7", stream_id="2")
    wait = operator(2, "WaitEvent", event="7", stream_id="0")
    strange = operator(3, "WaitEvent", event="x", stream_id="lots")
    found = recorded(tmp_path, [], [record, wait, strange])
    assert kinds(found) == ["EVENT_RECORD", "EVENT_WAIT"]
    assert found.columns["stream"].tolist() == [2, 0]


# -- files -------------------------------------------------------------------------------------------------


def test_a_folder_without_tracker_files_is_no_program(tmp_path):
    assert find_tracked(tmp_path) is None
