"""Check that windtunnel supports the installed torch, before anything of it is used.

    frameworks.load(module, ...) ──> require(room): every private name of torch the room uses ──> nothing, or one sentence
    a dry run                    ──> unfamiliar() ──> a note in the report: an untested version that has every name

Private names change between versions without notice; a missing one would otherwise be a traceback from inside
windtunnel. Names that only compiled programs need are not checked here: looking for them would import the compiler.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from windtunnel.errors import UnsupportedFramework

__all__ = ["FIRST", "LAST", "NEEDED", "require", "unfamiliar"]

FIRST, LAST = (2, 12), (2, 15)  # tested by `make matrix`, with all versions between

# room -> names below `torch`; tests/test_torch_compatibility.py compares them with our sources
NEEDED: dict[str, str] = {
    "capture": """
        Tensor._make_wrapper_subclass UntypedStorage._new_with_weak_ptr _C.BufferDict
        _C.DisableTorchFunction _C.DisableTorchFunctionSubclass
        _C.DispatchKey.AutocastPrivateUse1 _C.DispatchKey.CPU _C.DispatchKey.PrivateUse1
        _C.DispatchKeySet _C.ModuleDict _C.ParameterDict _C.ScriptFunction _C.ScriptModule
        _C.TensorBase.data _C.TensorBase.device _C.TensorBase.to
        _C._AutoDispatchBelowADInplaceOrView _C._AutoDispatchBelowAutograd
        _C._ExcludeDispatchKeyGuard _C._acc.create_empty_tensor _C._autograd._disable_profiler
        _C._autograd._enable_profiler _C._autograd._get_sequence_nr
        _C._autograd._prepare_profiler _C._autograd._push_saved_tensors_default_hooks
        _C._current_autograd_node _C._dispatch_get_all_op_names
        _C._dispatch_has_kernel_for_dispatch_key _C._distributed_c10d.Backend.Options
        _C._distributed_c10d.ErrorType.SUCCESS _C._from_dlpack _C._get_accelerator
        _C._get_function_stack_at _C._group_tensors_by_device_and_dtype
        _C._len_torch_function_stack _C._profiler.ProfilerActivity.CPU
        _C._profiler.ProfilerConfig _C._profiler.ProfilerState.KINETO
        _C._profiler._EventType.Allocation _C._profiler._ExperimentalConfig
        _C._should_allow_numbers_as_tensors _C._storage_id _C._swap_tensor_impl _foreach_copy_
        _is_functional_tensor _ops.OpOverload _prims_common.suggest_memory_format
        _register_device_module _subclasses.fake_tensor.FakeTensor.fake_device
        _subclasses.fake_tensor._DISPATCH_META_HANDLERS
        _subclasses.functional_tensor.FunctionalTensor _utils._rebuild_tensor
        autograd.Variable._execution_engine.run_backward cuda.memory._dump_snapshot
        cuda.memory._record_memory_history distributed._Work
        distributed.distributed_c10d._NCCL_AVAILABLE
        distributed.distributed_c10d._find_pg_by_ranks_and_tag
        distributed.distributed_c10d._get_default_group
        distributed.distributed_c10d._get_object_coll_device
        distributed.distributed_c10d._object_to_tensor
        distributed.distributed_c10d._process_group_name
        distributed.distributed_c10d._rank_not_in_group
        distributed.distributed_c10d._register_process_group
        distributed.distributed_c10d._world.pg_backend_config
        distributed.distributed_c10d._world.pg_map jit._builtins._get_builtin_table
        jit._serialization.load nn.init._no_grad_trunc_normal_
        nn.parallel.DistributedDataParallel._ddp_init_helper
        nn.parallel.DistributedDataParallel._set_static_graph utils._device.DeviceContext
        utils._device._device_constructors utils._python_dispatch.TorchDispatchMode
        utils._python_dispatch._disable_current_modes
        utils._python_dispatch._get_current_dispatch_mode utils._python_dispatch._pop_mode
        utils._python_dispatch._push_mode utils._pytree.tree_leaves utils._pytree.tree_map_only
        utils._triton.get_triton_version utils._triton.has_triton_package
        utils.backend_registration._DummyBackendModule
        utils.backend_registration._setup_privateuseone_for_python_backend
        utils.checkpoint._checkpoint_hook utils.data._utils.collate.default_collate_fn_map
        utils.data.dataloader._BaseDataLoaderIter
    """,
    "probe": """
        _C.DisableTorchFunction _C.DispatchKey.AutogradFunctionality _C._AutoDispatchBelowAutograd
        _C._DisableFuncTorch _C._DisableTorchDispatch _C._autograd._get_sequence_nr _C._current_autograd_node
        _C._current_graph_task_id _C._disabled_torch_dispatch_impl
        _C._dispatch_tls_is_dispatch_key_excluded _C._functorch.get_unwrapped
        _C._functorch.is_batchedtensor _C._functorch.is_functorch_wrapped_tensor
        _C._functorch.is_gradtrackingtensor _C._functorch.maybe_current_level _C._functorch.maybe_get_bdim
        _C._get_dispatch_stack_at _C._get_function_stack_at _C._len_torch_dispatch_stack
        _C._len_torch_function_stack _C._pop_torch_dispatch_stack _C._pop_torch_function_stack
        _C._push_on_torch_dispatch_stack _C._push_on_torch_function_stack _is_functional_tensor
        _ops.OpOverload _ops.OpOverloadPacket autograd.Variable._execution_engine.queue_callback
        nn.modules.module._global_forward_hooks nn.modules.module._global_forward_pre_hooks
        optim.optimizer._global_optimizer_post_hooks optim.optimizer._global_optimizer_pre_hooks
        utils._python_dispatch.TorchDispatchMode
        """,
    "remat": """
        _C._AutoDispatchBelowAutograd _C._DisableAutocast _C._DisableTorchDispatch
        _C._autograd._pop_saved_tensors_default_hooks _C._autograd._push_saved_tensors_default_hooks
        _C._autograd._saved_tensors_hooks_is_enabled _C._autograd._top_saved_tensors_default_hooks
        _C._current_graph_task_id _C._set_grad_enabled _C._storage_Use_Count
        _ops.OpOverload autograd.Variable._execution_engine
        distributed._composable_state._module_state_mapping utils._python_dispatch.TorchDispatchMode
        utils._python_dispatch._get_current_dispatch_mode utils._python_dispatch._pop_mode
        utils._python_dispatch._push_mode
        """,
    "timing": """
        _C._AutoDispatchBelowAutograd _C._autograd._disable_profiler _C._autograd._enable_profiler
        _C._autograd._prepare_profiler _C._profiler.ProfilerActivity.CPU _C._profiler.ProfilerConfig
        _C._profiler.ProfilerState.KINETO _C._profiler._EventType.Allocation
        _C._profiler._ExperimentalConfig _C._profiler._RecordFunctionFast
        """,
}


def require(room: str, load: Callable[[str], object]) -> None:
    """Raise if a name that a room uses is missing; `load` imports modules that `import torch` does not import."""
    missing = [name for name in NEEDED.get(room, "").split() if not _is_there(name, load)]
    if missing:
        others = f" and {len(missing) - 1} more are" if len(missing) > 1 else " is"
        raise UnsupportedFramework(
            f"torch {torch.__version__} is installed; windtunnel was tested with {_range()};"
            f" torch.{missing[0]}{others} missing",
            hint=f"pip install 'torch>={_text(FIRST)},<{LAST[0]}.{LAST[1] + 1}'",
        )


def unfamiliar() -> str | None:
    """A sentence if this version has every name but was not tested."""
    found = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if FIRST <= found <= LAST:
        return None
    return (
        f"torch {torch.__version__} is installed; windtunnel was tested with {_range()}: everything it needs is present,"
        " but its numbers were not validated with this version"
    )


def _is_there(name: str, load: Callable[[str], object]) -> bool:
    found: object = torch
    path = "torch"
    for part in name.split("."):
        path = f"{path}.{part}"
        try:
            found = getattr(found, part) if hasattr(found, part) else load(path)
        except ImportError:
            return False
    return True


def _range() -> str:
    return f"{_text(FIRST)} to {_text(LAST)}"


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"
