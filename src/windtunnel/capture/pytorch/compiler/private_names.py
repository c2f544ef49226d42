"""The private names of torch's compiler that this room uses: a torch that lacks one of them compiles nothing here.

    missing_names() ──> () or ("torch._dynamo.x.y", ...) ──> torch.compile runs eagerly, and the report says why

Dynamo and Inductor promise no names to anyone. What is replaced or called by the modules beside this one is listed here,
so that a version of torch without it is noticed before anything was replaced.
"""

from __future__ import annotations

from windtunnel.frameworks import load_door

__all__ = ["missing_names"]

_NAMES = {
    "torch._dynamo.convert_frame": "ConvertFrameAssert.__call__",
    "torch._dynamo.device_interface": "DeviceInterface get_interface_for_device register_interface_for_device",
    "torch._dynamo.exc": "BackendCompilerFailed InternalTorchDynamoError TorchRuntimeError",
    "torch._dynamo.mutation_guard": "GenerationTracker unpatched_nn_module_init",
    "torch._dynamo.output_graph": "graph_break_reasons",
    "torch._dynamo.trace_rules": "BUILTIN_INLINE_WHEN_CALLED SKIP_DIRS _recompile_re clear_lru_cache"
    " manual_torch_name_rule_map",
    "torch._dynamo.types": "ConvertFrameReturn",
    "torch._dynamo.utils": "counters get_compilation_metrics unpatched_nn_module_call",
    "torch._dynamo.variables.optimizer": "OptimizerVariable.call_method",
    "torch._dynamo.variables.tensor": "TensorVariable.dynamic_getattr TensorVariable.method_attr_device"
    " TensorVariable.method_attr_is_cuda",
    "torch._dynamo.variables.torch": "TorchInGraphFunctionVariable._get_handlers constant_fold_functions",
    "torch._functorch.config": "enable_autograd_cache force_non_lazy_backward_lowering",
    "torch._functorch.partitioners": "functionalize_rng_ops",
    "torch._inductor.codecache": "FxGraphCache._get_tmp_dir FxGraphCache.load_with_key FxGraphCache.prepare_key"
    " add_ephemeral_timeout_increase_for_distributed torch_key",
    "torch._inductor.codegen.common": "DeviceOpOverrides init_backend_registration register_device_op_overrides",
    "torch._inductor.codegen.wrapper": "PythonWrapperCodegen.enter_context",
    "torch._inductor.compile_fx": "compile_fx compile_fx_inner cudagraphify",
    "torch._inductor.config": "compile_threads fx_graph_cache fx_graph_remote_cache profile_bandwidth"
    " triton.cudagraphs cpp.vec_isa_ok",
    "torch._inductor.cpu_vec_isa": "VecISA.check_build",
    "torch._inductor.graph": "GraphLowering._compile_to_module GraphLowering.codegen",
    "torch._inductor.output_code": "CompiledFxGraph.after_deserialization",
    "torch.compiler.config": "cache_key_tag",
    "torch._subclasses.fake_tensor": "FakeTensor.__torch_dispatch__ _DISPATCH_META_HANDLERS",
}


def missing_names() -> tuple[str, ...]:
    """Names that this torch does not have. Imports the compiler."""
    missing = []
    for module, names in _NAMES.items():
        try:
            found = load_door(module)
        except ImportError:
            missing.append(module)
            continue
        missing += [f"{module}.{name}" for name in names.split() if not _has(found, name)]
    return tuple(missing)


def _has(owner: object, path: str) -> bool:
    for part in path.split("."):
        if not hasattr(owner, part):
            return False
        owner = getattr(owner, part)
    return True
