"""`torch_npu`, `acl` and `torchair` on a simulated NPU: their modules, and the parts that programs ask."""

from __future__ import annotations

import pytest
import torch

from tests.capture.pytorch.simulated import simulate

NPU = "ascend-910b-64gb-torch"
MODULES = [
    "torch_npu.npu",
    "torch_npu.npu.memory",
    "torch_npu.npu.random",
    "torch_npu.npu.streams",
    "torch_npu.npu.utils",
    "torch_npu.npu.amp",
    "torch_npu.npu.amp.autocast_mode",
    "torch_npu._C._distributed_c10d",
    "torch_npu.utils.collect_env",
    "torch_npu.utils.flops_count",
    "torch_npu.profiler",
    "torch_npu.contrib",
    "torch_npu.contrib.module",
    "torch_npu.contrib.transfer_to_npu",
    "torch_npu.distributed",
    "torch_npu.version",
    "acl",
    "acl.rt",
    "torchair",
    "torchair.ge",
    "torchair.core.utils",
    "torchair.configs.compiler_config",
    "torchair.ge_concrete_graph.fx2ge_converter",
]


@pytest.mark.parametrize("name", MODULES)
def test_every_submodule_is_importable_and_an_attribute_of_its_parent(name):
    def program():
        import importlib
        import sys

        module = importlib.import_module(name)
        parent, _, last = name.rpartition(".")
        return module.__name__, not parent or getattr(sys.modules[parent], last) is module

    assert simulate(program, NPU).answer == (name, True)


def test_torch_npu_looks_installed():
    def program():
        import importlib.metadata
        import importlib.util
        import os

        import torch_npu
        import torch_npu.npu

        return (
            os.path.isfile(torch_npu.__file__),
            importlib.util.find_spec("torch_npu") is not None,
            importlib.metadata.version("torch_npu") == torch_npu.__version__,
            torch_npu.npu is torch.npu,
        )

    assert simulate(program, NPU).answer == (True, True, True, True)


def test_torch_npu_is_not_there_on_another_device():
    def program():
        found = []
        for name in ("torch_npu", "acl", "torchair"):
            try:
                __import__(name)
            except ImportError:
                found.append(name)
        return found

    assert simulate(program).answer == ["torch_npu", "acl", "torchair"]


def test_the_device_is_asked_through_torch_npu_and_acl_alike():
    def program():
        import acl
        from torch_npu.npu import _lazy_call, device

        called = []
        _lazy_call(lambda: called.append(True))
        held = torch.empty(256 << 20, dtype=torch.uint8, device="npu")
        free, total, code = acl.rt.get_mem_info(1)
        with device(0):
            index = acl.rt.get_device()
        del held
        return (
            called,
            acl.get_soc_name(),
            (free, total) == torch.npu.mem_get_info(),
            code,
            index,
            total - free,
        )

    called, name, is_same, code, index, used = simulate(program, NPU).answer
    assert (called, name, code, index) == ([True], "Ascend910B2", 0, (0, 0))
    assert is_same  # the allocator keeps what was freed in between
    assert used >= 256 << 20


def test_options_of_a_group_keep_their_config():
    def program():
        import torch.distributed as dist
        import torch_npu

        Options = torch_npu._C._distributed_c10d.ProcessGroupHCCL.Options
        dist.init_process_group("hccl")
        options, other = Options(), Options()
        options.hccl_config = {"hccl_buffer_size": 200}
        group = dist.new_group([0, 1], pg_options=options)
        return (
            hasattr(Options, "hccl_config"),
            other.hccl_config,
            options.hccl_config,
            dist.get_backend(group),
        )

    found = simulate(program, NPU, world_size=2).answer
    assert found == (True, {}, {"hccl_buffer_size": 200}, "hccl")


def test_the_cann_version_is_the_installed_ones_or_the_simulated_one(tmp_path):
    folder = tmp_path / "x86_64-linux"
    folder.mkdir()
    (folder / "ascend_toolkit_install.info").write_text("package_name=Ascend-cann-toolkit\nversion=8.1.RC1\n")

    def program():
        import os

        from torch_npu.utils.collect_env import get_cann_version

        os.environ.pop("ASCEND_HOME_PATH", None)
        without = get_cann_version()
        os.environ["ASCEND_HOME_PATH"] = str(tmp_path)
        return without, get_cann_version()

    assert simulate(program, NPU).answer == ("8.3.RC1", "8.1.RC1")


def test_the_profiler_runs_without_a_trace_and_says_so():
    def program():
        import torch_npu

        config = torch_npu.profiler._ExperimentalConfig(
            profiler_level=torch_npu.profiler.ProfilerLevel.Level1,
            aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization,
        )
        with torch_npu.profiler.profile(
            activities=[torch_npu.profiler.ProfilerActivity.NPU],
            schedule=torch_npu.profiler.schedule(wait=0, warmup=0, active=1, repeat=1),
            on_trace_ready=torch_npu.profiler.tensorboard_trace_handler("trace"),
            experimental_config=config,
        ) as profiler:
            for _ in range(3):
                torch.ones(2, device="npu")
                profiler.step()
        return profiler.step_num

    result = simulate(program, NPU)
    assert result.answer == 3
    assert any("torch_npu.profiler recorded nothing" in notice for notice in result.notices)


def test_names_that_only_torch_npu_has():
    def program():
        torch.npu.set_compile_mode(jit_compile=True)
        compiled = torch.npu.is_jit_compile_false()
        torch.npu.set_compile_mode(jit_compile=False)
        x = torch.npu.FloatTensor([1.0, 2.0])
        return (
            compiled,
            torch.npu.is_jit_compile_false(),
            (str(x.dtype), x.device.type, x.tolist()),
            isinstance(x, torch.npu.FloatTensor),
            isinstance(x.half(), torch.npu.FloatTensor),
            torch.npu.get_npu_overflow_flag(),
        )

    assert simulate(program, NPU).answer == (
        False,
        True,
        ("torch.float32", "npu", [1.0, 2.0]),
        True,
        False,
        False,
    )


def test_amp_of_torch_npu_casts():
    def program():
        from torch_npu.npu.amp import GradScaler, autocast

        weight = torch.ones(4, 4, device="npu")
        with autocast(dtype=torch.bfloat16):
            product = weight @ weight
        return str(product.dtype), GradScaler("npu").is_enabled()

    assert simulate(program, NPU).answer == ("torch.bfloat16", True)


def test_a_script_that_says_nccl_gets_hccl_and_its_broadcast_asks_no_gpu():
    def program():
        import torch.distributed as dist
        from torch_npu.contrib import transfer_to_npu  # noqa: F401

        dist.init_process_group("nccl")
        torch.cuda.get_device_capability = lambda: (8, 3)  # as a script may have it: without an argument
        flags = torch.tensor([3, 4], device="cuda")
        dist.broadcast(flags, 0)
        work = dist.broadcast(flags, 0, async_op=True)
        work.wait()
        return dist.get_backend(), flags.tolist()

    assert simulate(program, NPU, world_size=2).answer == ("hccl", [3, 4])


def test_torchair_takes_converters_and_compiles_nothing():
    def program():
        import torchair
        from torchair.ge import DataType

        @torchair.register_fx_node_ge_converter(torch.ops.aten.relu.default)
        def convert(x):
            return torchair.ge.custom_op("Relu", inputs={"x": x}, outputs=["y"])

        config = torchair.CompilerConfig()
        config.experimental_config.frozen_parameter = True
        backend = torchair.get_npu_backend(compiler_config=config)
        compiled = torch.compile(torch.nn.Linear(4, 4).npu(), backend=backend)
        shape = tuple(compiled(torch.ones(2, 4, device="npu")).shape)
        try:
            convert(None)
        except RuntimeError as error:
            return int(DataType.DT_BF16), shape, str(error)

    number, shape, error = simulate(program, NPU).answer
    assert (number, shape) == (27, (2, 4))
    assert error.startswith("torchair.ge.custom_op builds a graph")
