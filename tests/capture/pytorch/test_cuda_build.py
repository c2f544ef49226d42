"""The names that a CUDA build of torch has and the CPU build of these tests lacks."""

from __future__ import annotations

import ast
import os
from pathlib import Path

import torch
import torch.distributed as dist

from tests.capture.pytorch.simulated import simulate

# Collectives of one process over several devices, kernels compiled from text, and raw memory: no trainer calls them.
_NOT_ANSWERED = {
    "_cuda_cudaCachingAllocator_raw_alloc", "_cuda_cudaCachingAllocator_raw_delete", "_cuda_cudaHostAllocator",
    "_cuda_jiterator_compile_and_launch_kernel", "_nccl_init_rank", "_nccl_reduce", "_nccl_all_reduce",
    "_nccl_broadcast", "_nccl_all_gather", "_nccl_reduce_scatter",
}  # fmt: skip
_PREFIXES = ("_cuda_", "_nccl_", "_Cuda", "_CUDAGraph", "_MemPool", "_graph_pool")


def _stub_names() -> set[str]:
    """What torch's own stub says a CUDA build has."""
    tree = ast.parse((Path(torch._C.__file__).parent / "_C" / "__init__.pyi").read_text(encoding="utf-8"))
    named = (node for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef)))
    return {node.name for node in named if node.name.startswith(_PREFIXES)}


def test_torch_c_has_the_names_of_its_stubs():
    names = _stub_names()
    assert len(names) > 80
    missing = simulate(lambda: [name for name in names if not hasattr(torch._C, name)]).answer
    assert set(missing) <= _NOT_ANSWERED


def test_functions_of_torch_cuda_answer():
    def program():
        failed = {}
        for name in torch.cuda.__all__:
            function = getattr(torch.cuda, name, None)
            if isinstance(function, type) or not callable(function):
                continue
            try:
                function()
            except TypeError:
                pass  # it has arguments
            except Exception as error:
                failed[name] = str(error)
        torch.cuda.check_error(torch.cuda.cudart().cudaProfilerStart())
        torch.cuda.profiler.stop()
        torch.cuda.set_sync_debug_mode("warn")
        with torch.cuda.use_mem_pool(torch.cuda.MemPool()), torch.cuda.device(0):
            x = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        free, total = torch.cuda.cudart().cudaMemGetInfo(0)
        return failed, torch.cuda.get_sync_debug_mode(), total - free >= x.numel()

    ran = simulate(program)
    assert ran.answer == ({}, 1, True)
    assert any("torch.cuda.MemPool" in notice for notice in ran.notices)


def test_process_group_nccl_and_its_options():
    def program():
        dist.init_process_group("nccl")
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options.config.max_ctas = 8
        options._timeout = dist.constants.default_pg_nccl_timeout
        group = dist.new_group([0, 1], pg_options=options)
        library = group._get_backend(torch.device("cuda"))
        dist.distributed_c10d._set_pg_timeout(options._timeout, group)
        dist.distributed_c10d._get_process_group_uid(group)
        return (
            isinstance(library, dist.ProcessGroupNCCL),
            isinstance(options, torch._C._distributed_c10d.Backend.Options),
            library.options.config.max_ctas,
            library.name(),
            dist.get_backend(group),
        )

    assert simulate(program, world_size=2).answer == (True, True, 8, "nccl", "nccl")


def test_a_device_mesh_sets_the_device_from_local_rank_unless_the_program_did():
    def program():
        model = torch.nn.Linear(4, 4)  # a model on the host initialises no device
        before = torch.cuda.is_initialized()
        dist.init_process_group("nccl")
        dist.init_device_mesh("cuda", (4,))
        model.to("cuda")
        return before, os.environ["LOCAL_RANK"], str(model.weight.device), torch.cuda.is_initialized()

    def program_that_sets_it():
        torch.cuda.set_device(1)
        dist.init_device_mesh("cuda", (4,))
        return torch.cuda.current_device()

    assert simulate(program, world_size=4, rank=3).answer == (False, "3", "cuda:3", True)
    assert simulate(program_that_sets_it, world_size=4, rank=3).answer == 1
