"""Modules, compiled calls and kernels of torch.compile'd programs: what is collected, and that nothing else changes."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from tests.probe.probing import make_debugger
from windtunnel.probe.pytorch.compiled.hidden import hide_modes, show_modes
from windtunnel.probe.pytorch.compiled.inductor_kernels import argument_roles, source_comment
from windtunnel.probe.pytorch.compiled.note_values import pack, unpack

WAYS = ["torch.compile(model)", "model.compile()", "a function", "a submodule"]

needs_compiler = pytest.mark.skipif(
    not (shutil.which("g++") or shutil.which("clang++")), reason="inductor needs a C++ compiler"
)


class Inner(nn.Module):
    """Everything that is hard: in place, called twice, numbers and None for arguments, a dict for a result."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x, scale=1.0, n=2, mask=None):
        return {"a": self.act(self.fc(x)) * scale, "b": (x.sum(), n)}


class Net(nn.Module):
    def __init__(self, breaks: bool = False, checkpoints: bool = False) -> None:
        super().__init__()
        self.inner = Inner()
        self.act = self.inner.act
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 2)
        self.breaks, self.checkpoints = breaks, checkpoints

    def forward(self, x):
        found = (
            checkpoint(self.inner, x, use_reentrant=False) if self.checkpoints else self.inner(x, 0.5, n=3)
        )
        if self.breaks:
            torch._dynamo.graph_break()
        return self.out(self.norm(self.act(found["a"] + found["b"][0] - 1)))


def small() -> nn.Module:
    """Few kernels, for each takes seconds to compile."""
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))


class Program:
    """A model compiled in one of several ways, and steps of it that all start from the same state."""

    def __init__(self, way: str = WAYS[0], backend: str = "aot_eager", make=Net, **kinds: bool) -> None:
        torch.manual_seed(0)
        self.net = make(**kinds)
        self.model = self.call = self.net
        if way == "torch.compile(model)":
            self.model = self.call = torch.compile(self.net, backend=backend)
        elif way == "model.compile()":
            self.net.compile(backend=backend)
        elif way == "a function":
            self.call = torch.compile(lambda x: self.net(x), backend=backend)
        elif way == "a submodule":
            self.net.inner = torch.compile(self.net.inner, backend=backend)
        self.x = torch.randn(3, 4)
        self.buffers = [buffer.clone() for buffer in self.net.buffers()]

    def step(self, debugger=None, stop_early: bool = False) -> list[torch.Tensor]:
        """Two forwards, then their backwards; returns losses and gradients."""
        self.net.zero_grad()
        for buffer, value in zip(self.net.buffers(), self.buffers, strict=True):
            buffer.copy_(value)
        x = self.x.clone().requires_grad_()
        if debugger is not None:
            debugger.start(self.model)
        losses = [self.call(x).square().sum(), self.call(x * 2).sum()]
        if stop_early:
            debugger.stop()
        for loss in losses:
            loss.backward()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        return [*(loss.detach() for loss in losses), x.grad, *(p.grad.clone() for p in self.net.parameters())]


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()


def equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def entries(folder: Path, area: str = "", step: int = 0) -> dict[str, dict]:
    """The data of one step; of a folder without that step, nothing."""
    found: dict[str, dict] = {}
    for path in (folder / "dump" / area).glob(f"step{step}/*/dump.json"):
        found.update(json.loads(path.read_text())["data"])
    assert not list(folder.rglob("dump_error_info.log"))
    return found


def collected(folder: Path, level: str, program: Program, n_steps: int = 1, **options) -> list:
    debugger = make_debugger(folder, level=level, task="statistics")
    results = [program.step(debugger, **options) for _ in range(n_steps)]
    debugger.close()
    return results


def eager(folder: Path, level: str, make=Net, **kinds: bool) -> dict[str, dict]:
    collected(folder, level, Program("not at all", make=make, **kinds))
    return entries(folder)


@pytest.mark.parametrize(("way", "backend"), [*((way, "aot_eager") for way in WAYS), (WAYS[0], "eager")])
def test_modules_in_graphs_are_collected_as_in_eager_code(tmp_path, way, backend):
    program = Program(way, backend)
    plain = program.step()
    for found in collected(tmp_path / "compiled", "L0", program, n_steps=2):
        assert equal(found, plain)
    assert equal(program.step(), plain)

    wanted = eager(tmp_path / "eager", "L0")
    graph, rest = entries(tmp_path / "compiled", "graph"), entries(tmp_path / "compiled", "pynative")
    assert {**graph, **rest} == wanted
    assert "Module.inner.fc.Linear.backward.1" in graph
    assert bool(rest) == (way == "a submodule")
    assert entries(tmp_path / "compiled", "graph", step=1).keys() == graph.keys()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # by Dynamo, with or without us
def test_a_graph_break_changes_nothing_but_the_folder(tmp_path):
    program = Program(breaks=True)
    plain = program.step()
    assert equal(collected(tmp_path / "compiled", "L0", program)[0], plain)
    found = entries(tmp_path / "compiled", "graph") | entries(tmp_path / "compiled", "pynative")
    assert found == eager(tmp_path / "eager", "L0", breaks=True)


def test_forward_and_backward_are_in_the_order_they_ran(tmp_path):
    program = Program(way="model.compile()")
    collected(tmp_path / "compiled", "L0", program)
    names = [name for name in entries(tmp_path / "compiled", "graph") if "parameters" not in name]
    wanted = [name for name in eager(tmp_path / "eager", "L0") if "parameters" not in name]
    assert names == wanted


def test_stop_before_backward_still_collects_the_backward_of_graphs(tmp_path):
    program = Program()
    collected(tmp_path, "L0", program, stop_early=True)
    assert "Module.inner.fc.Linear.backward.1" in entries(tmp_path, "graph")
    assert "Module.out.Linear.parameters_grad.1" in entries(tmp_path, "graph")


@pytest.mark.parametrize("level", ["L1", "L2"])
@pytest.mark.parametrize("is_first", [True, False], ids=["compiled while collecting", "compiled before"])
def test_these_levels_run_the_very_code_of_the_program(tmp_path, level, is_first):
    program = Program()
    plain = None if is_first else program.step()
    found = collected(tmp_path, level, program, n_steps=2)
    with torch._dynamo.config.patch(error_on_recompile=True):  # what ran while collecting runs afterwards too
        after = program.step()
    assert equal(found[1], plain or after)
    assert equal(after, plain or after)


def test_a_compiled_call_is_one_entry_with_its_gradients(tmp_path):
    program = Program()
    *_, x_grad = collected(tmp_path, "L1", program)[0][:3]
    found = entries(tmp_path, "pynative")
    calls = {name: body for name, body in found.items() if name.startswith("Jit.")}
    assert list(calls) == [f"Jit.Net.{n}.{way}" for way in ("forward", "backward") for n in (0, 1)]
    assert calls["Jit.Net.0.forward"]["input_args"][0]["shape"] == [3, 4]
    assert calls["Jit.Net.0.forward"]["output"][0]["shape"] == [3, 2]
    # the gradient of x: that of the first call, and twice that of the second
    means = [calls[f"Jit.Net.{n}.backward"]["output"][0]["Mean"] for n in (0, 1)]
    assert means[0] + 2 * means[1] == pytest.approx(float(x_grad.mean()), rel=1e-5)
    apis = {name.split(".")[1] for name in found if not name.startswith("Jit.")}
    assert apis == {"__mul__", "square", "sum"}  # what the program called outside of compiled code
    assert not (tmp_path / "dump" / "graph").exists()


@needs_compiler
def test_modules_in_graphs_of_inductor_differ_by_rounding_at_most(tmp_path, caplog):
    program = Program(backend="inductor", make=small)
    plain = program.step()
    for found in collected(tmp_path / "compiled", "L0", program, n_steps=2):
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(found, plain, strict=True))
    assert equal(program.step(), plain)
    graph, wanted = entries(tmp_path / "compiled", "graph"), eager(tmp_path / "eager", "L0", small)
    assert graph.keys() == wanted.keys()
    for name in ("Module.0.Linear.forward.1", "Module.1.ReLU.forward.0", "Module.2.Linear.backward.0"):
        assert graph[name].keys() == wanted[name].keys()
        for side in ("input_args", "input", "output"):
            for mine, theirs in zip(graph[name].get(side, []), wanted[name].get(side, []), strict=True):
                assert mine["Norm"] == pytest.approx(theirs["Norm"], rel=1e-4, abs=1e-4)
    assert sum("may differ by rounding" in record.message for record in caplog.records) == 1


@needs_compiler
def test_kernels_of_inductor_are_collected_and_change_no_bit(tmp_path):
    program = Program(backend="inductor", make=small)
    plain = program.step()
    for found in collected(tmp_path, "L2", program, n_steps=2):
        assert equal(found, plain)
    first, second = entries(tmp_path, "graph"), entries(tmp_path, "graph", step=1)
    assert first == second  # no memory that nobody wrote is taken for an input
    assert all(name.startswith("Kernel.") for name in first)
    assert any(name.startswith("Kernel.cpp_fused_") and name.endswith(".forward") for name in first)
    assert any(name.startswith("Kernel.cpp_fused_") and name.endswith(".backward") for name in first)
    product = first["Kernel.extern.addmm.0.forward"]
    assert [value["shape"] for value in product["input_args"]] == [[4], [3, 4], [4, 4]]
    assert product["output"][0]["shape"] == [3, 4]
    assert product["output"][0]["Norm"] > 0
    stacks = json.loads(next(tmp_path.glob("dump/graph/step0/*/stack.json")).read_text())
    frames = next(frames for names, frames in stacks.values() if "Kernel.extern.addmm.0.forward" in names)
    assert "aten.addmm" in frames[0]
    # the rest of the program is in its own folder, without what compiled code calls inside
    assert not any("addmm" in name for name in entries(tmp_path, "pynative"))
    assert "Aten.sum.0.forward" in entries(tmp_path, "pynative")


@pytest.mark.parametrize("level", ["mix", "L2"])
def test_nothing_of_torch_stays_replaced(tmp_path, level):
    from torch._dynamo import eval_frame
    from torch._inductor.output_code import CompiledFxGraph

    owners = (
        torch,
        torch.Tensor,
        eval_frame,
        eval_frame._TorchDynamoContext,
        torch.autograd.function.BackwardCFunction,
        nn.modules.module,
        CompiledFxGraph,
    )
    program = Program()
    program.step()
    before = [dict(vars(owner)) for owner in owners]
    hooks = [dict(vars(module)) for module in program.net.modules()]
    debugger = make_debugger(tmp_path, level=level)
    debugger.start(program.model)
    assert vars(eval_frame)["_callback_from_stance"] is not before[2]["_callback_from_stance"]
    program.step()
    debugger.step()
    after = [dict(vars(owner)) for owner in owners]
    for was, now in zip(before, after, strict=True):
        assert {name for name in was.keys() | now.keys() if was.get(name) is not now.get(name)} <= {
            "_numbers"
        }
    assert [dict(vars(module)) for module in program.net.modules()] == hooks
    assert torch._C._len_torch_function_stack() == torch._C._len_torch_dispatch_stack() == 0
    debugger.close()


def test_a_backend_that_does_not_take_notes_runs_without_them(tmp_path, caplog):
    def picky(graph, inputs):
        if any("windtunnel" in str(node.target) for node in graph.graph.nodes):
            raise ValueError("I know only aten")
        return graph.forward

    program = Program(backend=picky)
    plain = program.step()
    assert equal(collected(tmp_path, "L0", program)[0], plain)
    assert entries(tmp_path, "graph") == {}
    (told,) = [
        record.message
        for record in caplog.records
        if "does not compile with recording operators" in record.message
    ]
    assert "forward" in told
    assert "I know only aten" in told


def test_what_cannot_be_collected_is_reported_with_its_name(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    collected(tmp_path / "checkpoint", "L0", Program(checkpoints=True))
    collected(tmp_path / "kernels", "L2", Program())
    told = " ".join(record.message for record in caplog.records)
    assert (
        "modules inside tag_activation_checkpoint in the compiled function forward are not collected" in told
    )
    assert "kernels inside the compiled region Net are not collected: its backend aot_eager" in told


@pytest.mark.parametrize("level", ["mix", "L2"])
def test_a_program_that_forbids_to_compile_again_runs(tmp_path, level):
    program = Program()
    plain = program.step()
    with torch._dynamo.config.patch(error_on_recompile=True):
        assert equal(collected(tmp_path / "config", level, program)[0], plain)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert equal(collected(tmp_path / "stance", level, program)[0], plain)


def test_an_exception_in_compiled_code_leaves_the_rest_of_the_step_collected(tmp_path):
    @torch.compile(backend="eager")
    def fails(x):
        if x.shape[0] == 3:
            raise ValueError("on purpose")
        return x + 1

    debugger = make_debugger(tmp_path, level="L1")
    debugger.start()
    with pytest.raises(ValueError, match="on purpose"):
        fails(torch.ones(3))
    torch.relu(fails(torch.ones(2)))
    debugger.step()
    debugger.close()
    assert {"Jit.fails.1.forward", "Torch.relu.0.forward"} <= entries(tmp_path).keys()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_a_compiled_optimizer_is_compiled_as_without_us(tmp_path, level):
    net = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    step = torch.compile(lambda: optimizer.step(), backend="eager")
    net(torch.ones(1, 2)).sum().backward()
    counters = torch._dynamo.utils.counters
    counters.clear()
    step()
    breaks = dict(counters["graph_break"])
    counters.clear()
    torch._dynamo.reset()
    debugger = make_debugger(tmp_path, level=level, task="statistics")
    debugger.start(net)
    step()
    debugger.step()
    debugger.close()
    assert dict(counters["graph_break"]) == breaks
    assert "Jit.lambda.0.forward" in entries(tmp_path)


@pytest.mark.parametrize("level", ["L0", "L1"])
def test_threads_that_run_compiled_code_are_distinguished(tmp_path, level):
    program = Program("model.compile()")
    program.step()
    debugger = make_debugger(tmp_path, level=level, task="statistics")
    debugger.start(program.model)

    def work():
        for _ in range(3):
            program.call(program.x.clone().requires_grad_()).sum().backward()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    debugger.step()
    debugger.close()
    found = entries(tmp_path, "graph" if level == "L0" else "pynative")
    name = "Module.out.Linear.{way}.{n}" if level == "L0" else "Jit.Net.{n}.{way}"
    wanted = {name.format(way=way, n=n) for way in ("forward", "backward") for n in range(9)}
    assert wanted <= found.keys()


def test_compiling_for_the_first_time_while_collecting(tmp_path):
    torch.manual_seed(0)
    net, x = Net(), torch.randn(3, 4)
    debugger = make_debugger(tmp_path, level="mix")
    debugger.start(net)
    torch.compile(net, backend="aot_eager")(x).sum().backward()
    debugger.step()
    debugger.close()
    assert "Module.inner.fc.Linear.backward.0" in entries(tmp_path, "graph")
    assert [name for name in entries(tmp_path) if name.startswith("Jit")] == [
        "Jit.Net.0.forward",
        "Jit.Net.0.backward",
    ]


def test_arguments_travel_through_a_graph():
    x, y = torch.ones(2), torch.zeros(1, requires_grad=True)
    value = ((x, 3, 'a "b"', [None, 0.5, True]), {"k": {"deep": y}, "odd": object()})
    tensors, integers, reals = [], [], []
    plan = pack(value, tensors, integers, reals)
    assert (integers, reals) == ([3], [0.5])
    (first, three, text, listed), kwargs = unpack(plan, [t.detach() for t in tensors], integers, reals)
    assert first.equal(x)
    assert (three, text, listed) == (3, "a 'b'", [None, 0.5, True])
    assert kwargs["k"]["deep"].requires_grad
    assert kwargs["odd"] is None


def test_modes_of_ours_are_hidden_from_between_those_of_the_user():
    class Theirs(TorchFunctionMode):
        pass

    class Ours(TorchFunctionMode):
        __module__ = "windtunnel.somewhere"

    def stack():
        n = torch._C._len_torch_function_stack()
        return [type(torch._C._get_function_stack_at(index)).__name__ for index in range(n)]

    with Theirs(), Ours(), Theirs():
        hidden = hide_modes()
        assert stack() == ["Theirs", "Theirs"]
        show_modes(hidden)
        assert stack() == ["Theirs", "Ours", "Theirs"]


def test_a_generated_file_says_what_a_kernel_reads_and_writes(tmp_path):
    path = tmp_path / "generated.py"
    path.write_text(
        "cpp_fused_add_0 = async_compile.cpp_pybinding(['const float*', 'float*', 'float*', 'const int64_t'], r'''\n"
        '#include "x.h"\n'
        'extern "C"  void  kernel(const float* in_ptr0,\n'
        "    float* in_out_ptr0, float* out_ptr1, const int64_t ks0)\n{\n}\n''')\n"
        "def call(args):\n"
        "    # Topologically Sorted Source Nodes: [y], Original ATen: [aten.add]\n"
        "    cpp_fused_add_0(a, b, c, 3)\n"
        "    cpp_fused_add_0(a, b, c, 4)\n"
    )
    assert argument_roles(str(path)) == {"cpp_fused_add_0": ("in", "both", "out", "in")}
    assert (
        source_comment(str(path), 10) == "Topologically Sorted Source Nodes: [y], Original ATen: [aten.add]"
    )
    assert source_comment(str(path), 11) is None
