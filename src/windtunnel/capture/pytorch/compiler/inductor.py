"""Inductor for the simulated device: it lowers, fuses, schedules and generates code; kernels are not compiled.

graph of AOTAutograd ──> Inductor, which reads the program's device ──> source of a wrapper ──> generated_code.py
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from types import ModuleType
from typing import Any

import torch
import torch._dynamo.config
import torch._functorch.config
from torch._dynamo.device_interface import (
    DeviceInterface,
    get_interface_for_device,
    register_interface_for_device,
)
from torch._functorch import partitioners
from torch._inductor import compile_fx as entrance
from torch._inductor import config
from torch._inductor.codegen.common import (
    DeviceOpOverrides,
    init_backend_registration,
    register_device_op_overrides,
)
from torch._inductor.codegen.cuda import device_op_overrides
from torch._inductor.cpu_vec_isa import VecISA
from torch._inductor.graph import GraphLowering

from windtunnel.capture.pytorch.compiler.compiled_steps import framed
from windtunnel.capture.pytorch.compiler.dynamo import first_line
from windtunnel.capture.pytorch.compiler.generated_code import load_generated, rehearse
from windtunnel.capture.pytorch.compiler.graph_cache import install_graph_cache, tag_graph
from windtunnel.capture.pytorch.compiler.inner_modules import install_places, without_repetitions
from windtunnel.capture.pytorch.compiler.traced_devices import lowering, seen_by_program
from windtunnel.capture.pytorch.compiler.triton_package import triton_visible
from windtunnel.capture.pytorch.tensors.storage import world
from windtunnel.capture.recorder import Recorder
from windtunnel.frameworks import load

__all__ = ["install_inductor"]

# Options that need a device, and what the report says of them; the others change no memory.
_NEEDS_DEVICE = {
    "max_autotune": "compiled code was not autotuned: library kernels were simulated where a tuned Triton kernel may win",
    "max_autotune_gemm": "compiled code was not autotuned: library kernels were simulated where a tuned Triton kernel may"
    " win",
    "max_autotune_pointwise": "",
    "coordinate_descent_tuning": "",
}

_OF_A_CUDA_BUILD = {  # what Inductor imports or asks there
    "_cuda_CUDAAllocator_AllocatorState": type("AllocatorState", (), {}),
    "_set_cached_tensors_enabled": lambda enabled: None,
    "_cuda_cudaCachingAllocator_is_enabled": lambda: True,
}


def install_inductor(recorder: Recorder) -> None:
    """Once, before the first compilation."""
    # A graph that a real run has cached has other kernels, and its profile other shapes: the cache is our own.
    config.fx_graph_cache = install_graph_cache(load_generated)
    config.fx_graph_remote_cache = False
    torch._dynamo.config.automatic_dynamic_local_pgo = False
    torch._functorch.config.enable_autograd_cache = False
    torch._functorch.config.force_non_lazy_backward_lowering = (
        True  # in backward, nothing tells whose graph it is
    )
    config.compile_threads = 1
    config.cpp.vec_isa_ok = True  # asked by compiling a program for it
    VecISA.check_build = lambda self, code: True  # type: ignore[method-assign]  # and so is this
    init_backend_registration()
    if world.device_type == "cuda":
        _register_card()  # then the module of CUDA graphs can be imported
        load("windtunnel.capture.pytorch.compiler.cuda_graphs", "torch").install_cuda_graphs()
    install_places()
    GraphLowering._compile_to_module = _compile_to_module  # type: ignore[method-assign]
    entrance.compile_fx = _lowering_for_device(entrance.compile_fx, recorder)
    partitioners.functionalize_rng_ops = lambda joint, forward, backward, n: (forward, backward)  # type: ignore[assignment]


def _compile_to_module(self: GraphLowering) -> ModuleType:
    with config.patch(
        profile_bandwidth=world.device_type == "cuda"
    ):  # then a kernel says how many bytes it moves
        code, _ = self.codegen()
    source = without_repetitions(code.value)
    module = load_generated(source, {**self.constants, **self.torchbind_constants})
    rehearse(module, self.example_inputs, source)
    self.windtunnel_source = source  # type: ignore[attr-defined]  # for the cache
    return module


def _lowering_for_device(compile_fx: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    inner = entrance.compile_fx_inner

    @wraps(compile_fx)
    def compile(
        model: Any, inputs: Any, inner_compile: Callable[..., Any] = inner, *args: Any, **kwargs: Any
    ) -> Any:
        if lowering.depth:
            return compile_fx(model, inputs, inner_compile, *args, **kwargs)
        with triton_visible(), _without_devices_work(kwargs, recorder):
            try:
                return framed(compile_fx(model, inputs, _labelled(inner_compile), *args, **kwargs))
            except Exception as error:
                recorder.notice(
                    f"torch.compile failed on a graph that {recorder.user_line()} called: it ran eagerly, and its memory is"
                    f" eager's ({first_line(error)})"
                )
                return framed(model.forward)

    return compile


def _without_devices_work(options: dict[str, Any], recorder: Recorder) -> Any:
    """Without what needs a device: running kernels to choose among them."""
    patches = options.get("config_patches") or {}
    off: dict[str, Any] = {}
    for name, sentence in _NEEDS_DEVICE.items():
        owner: Any = config
        for part in name.split("."):
            owner = getattr(owner, part, False)
        if patches.get(name, owner):
            if sentence and world.device_type == "cuda":
                recorder.notice(sentence)
            off[name] = False
    if off and options.get("config_patches"):
        options["config_patches"] = {**patches, **off}
    return config.patch(off)


def _labelled(inner_compile: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(inner_compile)
    def compile(graph: torch.fx.GraphModule, inputs: Sequence[Any], **kwargs: Any) -> Any:
        _name_devices(graph)
        tag_graph(graph, _device_in_keys())
        with lowering:
            return inner_compile(graph, inputs, **kwargs)

    return compile


@cache
def _device_in_keys() -> str:
    """What Inductor's choices depend on."""
    if world.device_type == "cpu":
        return "cpu"
    return repr(sorted(vars(torch.cuda.get_device_properties(0)).items()))


def _name_devices(graph: torch.fx.GraphModule) -> None:
    """Device arguments of the graph: as the program names them."""

    def seen(value: Any) -> Any:
        return seen_by_program(value) if isinstance(value, torch.device) else value

    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                node.args = torch.fx.node.map_aggregate(node.args, seen)
                node.kwargs = torch.fx.node.map_aggregate(node.kwargs, seen)
            module.recompile()


class _Guard:
    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None: ...


def _zero(*_: Any) -> int:
    return 0


def _nothing(*_: Any) -> None:
    pass


def _register_card() -> None:
    base: Any = DeviceInterface

    class Card(base):
        """What Inductor asks of a CUDA device: the device's profile answers, through the simulated `torch.cuda`."""

        class Worker:
            set_device = staticmethod(_nothing)
            current_device = staticmethod(_zero)
            get_device_properties = staticmethod(lambda device=None: torch.cuda.get_device_properties(0))

        device = _Guard
        Event = torch.cuda.Event
        Stream = torch.cuda.Stream
        current_device = staticmethod(lambda: torch.cuda.current_device())
        set_device = staticmethod(_nothing)
        device_count = staticmethod(lambda: torch.cuda.device_count())
        stream = staticmethod(lambda stream: torch.cuda.stream(stream))
        current_stream = staticmethod(lambda *args: torch.cuda.current_stream(*args))
        set_stream = staticmethod(_nothing)
        synchronize = staticmethod(_nothing)
        get_raw_stream = staticmethod(_zero)
        exchange_device = staticmethod(_zero)
        maybe_exchange_device = staticmethod(_zero)
        is_available = staticmethod(lambda: True)
        is_bf16_supported = staticmethod(lambda *args, **kwargs: torch.cuda.is_bf16_supported())
        is_dtype_supported = staticmethod(lambda *args, **kwargs: True)
        get_device_properties = staticmethod(lambda device=None: torch.cuda.get_device_properties(0))
        memory_allocated = staticmethod(lambda device=None: torch.cuda.memory_allocated())
        is_triton_capable = staticmethod(lambda device=None: True)
        raise_if_triton_unavailable = staticmethod(_nothing)

        @staticmethod
        def get_compute_capability(device: Any = None) -> int:
            major, minor = torch.cuda.get_device_capability()
            return major * 10 + minor

    class Lines(DeviceOpOverrides):
        """Lines of the generated wrapper that a device needs: none here."""

        def import_get_raw_stream_as(self, name: str) -> str:
            return f"{name} = lambda index: 0"

        def set_device(self, device_idx: int) -> str:
            return "pass"

        def synchronize(self) -> str:
            return "pass"

        def device_guard(self, device_idx: int) -> str:
            return "nullcontext()"

        def current_stream(self) -> str:
            return "None"

    for name, answer in _OF_A_CUDA_BUILD.items():
        if not hasattr(torch._C, name):
            setattr(torch._C, name, answer)
    assert device_op_overrides  # imported first: it registers its own
    get_interface_for_device("cpu")  # and so does this
    for name in ("cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))):
        register_interface_for_device(name, Card)
    register_device_op_overrides("cuda", Lines())
