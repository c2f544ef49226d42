"""What is inside a compiled region: the modules of its rows, the memory pool of its CUDA graphs, the cache of its graphs."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.capture.pytorch.simulated import needs_compiler, simulate
from windtunnel.events.model import Alloc, Free, Op, Phase
from windtunnel.memory import Allocator
from windtunnel.pool_streams import is_pool_stream, pool_stream

pytestmark = needs_compiler
ROWS, WIDTH = 128, 1024
X_BYTES = ROWS * WIDTH * 4


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = (
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH)) for _ in range(2)
        )

    def forward(self, x):
        return self.second(self.first(x).exp())


@pytest.fixture(scope="module")
def replayed():
    """Three steps of a model whose graphs are captured; live bytes of its pool after each."""

    def program():
        model = Two().cuda()
        run = torch.compile(model, mode="reduce-overhead")
        reserved = []
        for _ in range(3):
            run(torch.ones(ROWS, WIDTH, device="cuda")).sum().backward()
            for parameter in model.parameters():
                parameter.grad = None
            reserved.append(torch.cuda.memory_reserved())
        return reserved

    return simulate(program)


def in_pool(done, kind):
    events = [e for e in done.events if isinstance(e, kind)]
    return [e for e in events if is_pool_stream(e.stream)]


def test_operators_of_a_compiled_region_belong_to_the_modules_inside(replayed):
    recording = replayed.recording
    found = {
        (recording.name(e.module), e.phase)
        for e in replayed.events
        if isinstance(e, Op) and "mm" in recording.signatures[e.signature].name
    }
    inside = {f"_orig_mod.{each}.0" for each in ("first", "second")}
    assert {module for module, phase in found if phase == Phase.FORWARD} == inside
    assert {module for module, phase in found if phase == Phase.BACKWARD} == inside


def test_buffers_and_outputs_of_a_cuda_graph_are_in_its_pool_and_weights_are_not(replayed):
    sizes = {e.n_bytes for e in in_pool(replayed, Alloc)}
    assert X_BYTES in sizes
    weights = [e for e in replayed.events if isinstance(e, Alloc) and e.phase == Phase.BUILD]
    assert weights
    assert all(e.stream == 0 for e in weights)


def test_after_the_warm_up_a_graph_copies_the_inputs_that_may_move(replayed):
    """The batch in forward, the gradient of the result in backward; not weights, and not what forward saved."""
    copies = [name for name in replayed.op_names if name == "aten._foreach_copy_.default"]
    assert len(copies) == 2 * 2


def test_the_pool_grows_no_more_once_graphs_are_recorded(replayed):
    warm, recorded, again = replayed.answer
    assert warm <= recorded == again


def test_outputs_that_the_program_still_holds_are_taken_back_when_the_next_iteration_begins():
    def program():
        run = torch.compile(lambda x: x.exp() + 1, mode="reduce-overhead")
        held = [run(torch.ones(ROWS, WIDTH, device="cuda")) for _ in range(3)]
        return len(held)

    done = simulate(program)
    outputs = [e.storage for e in in_pool(done, Alloc) if e.n_bytes == X_BYTES]
    assert len(outputs) == 3 + 2  # and two copies of x
    freed_inside = [e for e in done.events if isinstance(e, Free) and e.storage in outputs]
    assert len(freed_inside) >= 4


def test_a_cache_release_leaves_the_pools_of_cuda_graphs_alone():
    allocator = Allocator.named("cuda")
    for stream in (0, pool_stream(0)):
        allocator.alloc(stream, 32 << 20, stream)
        allocator.free(stream)
    allocator.empty_cache()
    assert allocator.reserved_bytes == 32 << 20


def test_generated_code_says_only_where_the_module_changes():
    def program():
        from windtunnel.capture.pytorch.compiler.inner_modules import without_repetitions

        return without_repetitions(
            "def call(args):\n  _at_module('')\n  a()\n  _at_module('norm')\n  b()\n  _at_module('norm')\n  c()\ndef d():\n"
        )

    assert (
        simulate(program).answer == "def call(args):\n  a()\n  _at_module('norm')\n  b()\n  c()\ndef d():\n"
    )


def test_a_graph_is_compiled_once_for_all_ranks_and_runs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "windtunnel").mkdir()

    def program():
        from torch._dynamo.utils import counters

        model = Two().cuda()
        torch.compile(model)(torch.ones(ROWS, WIDTH, device="cuda")).sum().backward()
        return counters["inductor"]["fxgraph_cache_hit"]

    first, second = simulate(program), simulate(program)
    assert (first.answer, second.answer) == (0, 2)
    assert first.lives() == second.lives()
    assert first.op_names == second.op_names
