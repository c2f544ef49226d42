"""torch.compile in a dry run: Dynamo, AOTAutograd and Inductor run, and their kernels are rows of the recording."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from tests.capture.pytorch.simulated import needs_compiler, simulate
from windtunnel.capture.pytorch.tensors.traced import compiling
from windtunnel.events.model import Kind, Op, Phase

pytestmark = needs_compiler
FACTOR = 2  # a global that compiled code reads


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def train(model, run, optimizer_step):
    """One step; the bytes that stay for backward."""
    x = torch.ones(32, 64, device="cuda")
    before = torch.cuda.memory_allocated()
    loss = run(x).sum()
    saved = torch.cuda.memory_allocated() - before
    loss.backward()
    optimizer_step()
    return saved


@pytest.fixture(scope="module")
def trained():
    """A compiled block and a compiled optimizer."""

    def program():
        model = Block().cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        return train(model, torch.compile(model), torch.compile(optimizer.step))

    return simulate(program)


@pytest.fixture(scope="module")
def interrupted():
    """Code that breaks, is compiled again, and cannot be compiled; without gradients."""

    def program():
        global FACTOR

        @torch.compile
        def breaks(x):
            y = x * 2
            print("here")
            return y + 1

        @torch.compile
        def scale(x):
            return x * FACTOR

        x = torch.ones(8, 8, device="cuda")
        breaks(x)
        scale(x)
        scale(x)
        FACTOR = 3
        scale(x)

        from torch._inductor.graph import GraphLowering

        plain, GraphLowering.codegen = GraphLowering.codegen, None
        try:
            return tuple(torch.compile(lambda x: x.exp() + 1)(x).shape)
        finally:
            GraphLowering.codegen = plain

    return simulate(program)


def signatures(done, phase):
    recording = done.recording
    return [recording.signatures[e.signature] for e in done.events if isinstance(e, Op) and e.phase == phase]


def test_a_fused_kernel_is_one_row_with_what_it_reads_and_writes(trained):
    forward = [s for s in signatures(trained, Phase.FORWARD) if s.name.startswith("inductor.")]
    assert [s.name for s in forward] == [
        "inductor.triton_per_fused_native_layer_norm_0",
        "inductor.triton_poi_fused_gelu_1",
        "inductor.triton_poi_fused_add_addmm_2",
    ]
    gelu = forward[1]
    assert [t.shape for t in (*gelu.inputs, *gelu.outputs)] == [(32, 256), (32, 256)]
    assert gelu.scalars == f"bytes={2 * 32 * 256 * 4} flops=0"


def test_matrix_products_of_compiled_code_are_library_kernels(trained):
    names = [s.name for s in signatures(trained, Phase.FORWARD)]
    assert [n for n in names if n.startswith("aten.") and "mm" in n] == ["aten.addmm.out", "aten.mm.out"]
    assert "aten.gelu.default" not in names


def test_forward_keeps_what_the_partitioner_saves(trained):
    # results of the norm, of `up` and of gelu; blocks for the norm's two statistics and the loss; nothing for the sum
    assert trained.answer == 4 * (32 * 64 + 2 * 32 * 256) + 3 * 512


def test_a_compiled_optimizer_makes_states_and_counts_a_step(trained):
    assert trained.count(Kind.STEP) == 1
    names = [s.name for s in signatures(trained, Phase.OPTIMIZER)]
    assert any(n.startswith("inductor.triton_for_fused") for n in names)
    n_weights = sum(p.numel() for p in Block().parameters())
    assert trained.memory.at_peak.optimizer >= 2 * 4 * n_weights


def test_nothing_of_the_compiler_itself_is_recorded(trained):
    assert not any(
        s.name.startswith("memcpy") and s.inputs[0].shape == () for s in signatures(trained, Phase.FORWARD)
    )
    assert not trained.notices


def test_graph_breaks_and_recompilations_are_counted_and_have_lines(interrupted):
    compiled = interrupted.recording.footer["compiled"]["compiler"]
    assert (compiled["n_graphs"], compiled["n_graph_breaks"], compiled["n_recompilations"]) == (5, 1, 1)
    (one,) = compiled["graph_breaks"]
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    line = 1 + next(i for i, text in enumerate(lines) if text.strip() == 'print("here")')
    assert one["where"] == f"test_compiled.py:{line}"
    (again,) = compiled["recompilations"]
    assert "FACTOR" in again["why"]
    assert again["where"].startswith("test_compiled.py:")


def test_what_the_compiler_fails_on_runs_eagerly_and_is_named(interrupted):
    assert interrupted.answer == (8, 8)
    assert "aten.exp.default" in interrupted.op_names
    (notice,) = interrupted.notices
    assert notice.startswith("torch.compile failed on a graph that test_compiled.py:")
    assert "it ran eagerly, and its memory is eager's" in notice


def test_fullgraph_fails_as_it_would_for_real():
    def program():
        @torch.compile(fullgraph=True)
        def f(x):
            torch._dynamo.graph_break()
            return x + 1

        f(torch.ones(2, device="cuda"))

    done = simulate(program, is_ok=False)
    assert "graph_break()" in done.error


def test_compiled_code_may_ask_whether_autocast_is_on():
    def program():
        @torch.compile(fullgraph=True)
        def cast(x):
            return x.to(torch.get_autocast_gpu_dtype()) if torch.is_autocast_enabled() else x + 1

        x = torch.ones(4, 4, device="cuda")
        outside = cast(x).dtype
        with torch.autocast("cuda", torch.bfloat16):
            return str(outside), str(cast(x).dtype)

    assert simulate(program).answer == ("torch.float32", "torch.bfloat16")


def test_a_cast_to_float8_is_fused():
    def program():
        return str(
            torch.compile(lambda x: (x * 2).to(torch.float8_e4m3fn))(torch.ones(64, 64, device="cuda")).dtype
        )

    done = simulate(program, "h100")
    assert (done.answer, done.notices) == ("torch.float8_e4m3fn", [])
    assert [name for name in done.op_names if name.startswith("inductor.")] == [
        "inductor.triton_poi_fused__to_copy_mul_0"
    ]


def test_without_a_simulated_compiler_code_runs_eagerly_and_the_line_is_named():
    def program():
        model = nn.Linear(4, 4).npu()
        torch.compile(model)(torch.ones(2, 4, device="npu"))

    (notice,) = simulate(program, "ascend-910b-64gb").notices
    assert notice.startswith("torch.compile at test_compiled.py:")
    assert "ran eagerly (the compiler is simulated for CUDA devices and the CPU, not for npu)" in notice


def test_a_program_that_compiles_nothing_does_not_load_the_compiler():
    def program():
        import sys

        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(2, 4, device="cuda")).sum().backward()
        optimizer.step()
        ours = "windtunnel.capture.pytorch.compiler."
        return sorted(name.removeprefix(ours) for name in sys.modules if name.startswith(ours))

    assert simulate(program).answer == ["compiled_steps", "torch_compile", "triton_package"]


def test_what_a_compiler_computes_with_is_real():
    """The partitioner solves a knapsack in a large host tensor."""

    def program():
        with compiling:
            table = torch.zeros(1 << 19, device="cpu")
            table[5] = 3.0
            return table.sum().item(), torch.tensor([2.0]).item()

    for device in ("cpu", "a100-80gb"):
        assert simulate(program, device).answer == (3.0, 2.0)
