"""Let Dynamo trace programs on the simulated torch: what we replaced in torch is to it what it was before.

Dynamo knows functions of torch by identity. Its tables are built by name at first use, so they contain our replacements if
nothing was built before them; what was built earlier is built again.
"""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch._dynamo import mutation_guard, trace_rules, utils
from torch._dynamo.convert_frame import ConvertFrameAssert
from torch._dynamo.exc import BackendCompilerFailed, InternalTorchDynamoError, TorchRuntimeError
from torch._dynamo.types import ConvertFrameReturn
from torch._dynamo.variables import VariableTracker
from torch._dynamo.variables import torch as torch_variables
from torch._dynamo.variables.optimizer import OptimizerVariable
from torch._dynamo.variables.tensor import TensorVariable

import windtunnel
from windtunnel.capture.pytorch.compiler.compiled_steps import traced
from windtunnel.capture.pytorch.compiler.traced_devices import seen_by_program
from windtunnel.capture.pytorch.compiler.triton_package import triton_visible
from windtunnel.capture.pytorch.tensors.traced import compiling
from windtunnel.capture.recorder import Recorder, short_path
from windtunnel.frameworks import is_installed, load_door

__all__ = ["first_line", "install_dynamo"]

_LONG_S = 10
_FAILURES = (BackendCompilerFailed, InternalTorchDynamoError, TorchRuntimeError)


def install_dynamo(recorder: Recorder) -> None:
    """Once, before the first compilation and after everything of torch was replaced."""
    _give_each_name_a_function()
    _know_autocast()
    _forget_tables()
    if is_installed("triton") and not hasattr(utils, "triton"):
        utils.triton = load_door("triton")  # it looked before there was one
    _trace_through_ours()
    _show_devices()
    _call_tensor_methods()
    _follow_optimizers()
    _run_eagerly_what_fails(recorder)


def _give_each_name_a_function() -> None:
    """Dynamo refuses two handlers for one function; `torch.cuda` and `torch.accelerator` share some of ours."""
    seen: set[types.FunctionType] = set()
    for module in (torch.cuda, torch.accelerator, torch.xpu):
        for name, function in list(vars(module).items()):
            if isinstance(function, types.FunctionType):
                setattr(module, name, _copy(function) if function in seen else function)
                seen.add(function)


def _know_autocast() -> None:
    """Whether autocast is on is a constant of the trace. Dynamo's names for these functions are those of `torch._C`."""
    for name in ("is_autocast_enabled", "get_autocast_dtype", "get_autocast_gpu_dtype"):
        function: Any = getattr(torch, name)
        trace_rules.manual_torch_name_rule_map[f"torch.{name}"] = torch_variables.TorchInGraphFunctionVariable
        torch_variables.constant_fold_functions[function] = None


def _copy(function: types.FunctionType) -> types.FunctionType:
    copied = types.FunctionType(
        function.__code__,
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _forget_tables() -> None:
    trace_rules.clear_lru_cache()
    torch_variables.TorchInGraphFunctionVariable._get_handlers.cache_clear()
    for module, name, current in (
        (utils, "unpatched_nn_module_call", torch.nn.Module.__call__),
        (mutation_guard, "unpatched_nn_module_init", torch.nn.Module.__init__),
    ):
        _replace_everywhere(getattr(module, name), current)


def _replace_everywhere(old: Any, new: Any) -> None:
    """Modules of Dynamo imported it by name from one another."""
    if old is new:
        return
    for name, module in list(sys.modules.items()):
        if name.startswith("torch._dynamo"):
            for key, value in list(vars(module).items()):
                if value is old:
                    setattr(module, key, new)


def _trace_through_ours() -> None:
    """A frame of ours is not compiled, like one of `torch.nn.modules`, but inlined into what the program compiles."""
    ours = Path(windtunnel.__file__).parent.as_posix() + "/"
    trace_rules.SKIP_DIRS.append(ours)
    trace_rules._recompile_re()
    trace_rules.BUILTIN_INLINE_WHEN_CALLED.add(ours)


def _show_devices() -> None:
    """`x.device` and `x.is_cuda` inside compiled code: the device that the program named."""

    def method_attr_device(self: TensorVariable, tx: Any) -> VariableTracker | None:
        return None if self.device is None else VariableTracker.build(tx, seen_by_program(self.device))

    def method_attr_is_cuda(self: TensorVariable, tx: Any) -> VariableTracker | None:
        if self.device is None:
            return None
        return VariableTracker.build(tx, seen_by_program(self.device).type == "cuda")

    TensorVariable.method_attr_device = method_attr_device  # type: ignore[method-assign]
    TensorVariable.method_attr_is_cuda = method_attr_is_cuda  # type: ignore[method-assign, assignment]


def _call_tensor_methods() -> None:
    """`x.to(...)`: Dynamo would inline a method that is written in Python; it records a call of one in C."""
    original = TensorVariable.dynamic_getattr

    def dynamic_getattr(self: TensorVariable, tx: Any, name: str) -> VariableTracker:
        method = vars(torch.Tensor).get(name)
        if isinstance(method, types.FunctionType) and method.__module__.startswith("windtunnel."):
            raise NotImplementedError  # Dynamo's own way to say: look no further, record the call
        return original(self, tx, name)

    TensorVariable.dynamic_getattr = dynamic_getattr  # type: ignore[method-assign]


def _follow_optimizers() -> None:
    """Dynamo runs `_init_group` for real: the states it makes are the program's own."""
    call = OptimizerVariable.call_method

    def call_method(self: Any, tx: Any, name: str, *args: Any) -> Any:
        if name != "_init_group" or not hasattr(self.value, name):
            return call(self, tx, name, *args)
        traced(self.value)
        owner = type(self.value)
        original = owner._init_group

        def _init_group(*args: Any, **kwargs: Any) -> Any:
            with compiling.paused():
                return original(*args, **kwargs)

        owner._init_group = _init_group
        try:
            return call(self, tx, name, *args)
        finally:
            owner._init_group = original

    OptimizerVariable.call_method = call_method  # type: ignore[method-assign, assignment]


def _run_eagerly_what_fails(recorder: Recorder) -> None:
    """A frame that Dynamo fails on runs eagerly: if the program is wrong, the eager code says how.

    What Dynamo raises by intention passes: a graph break under `fullgraph`, a constraint of the program that does not hold.
    """
    convert = ConvertFrameAssert.__call__

    def __call__(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            with compiling, triton_visible(), _patience(frame.f_code):
                return convert(self, frame, *args, **kwargs)
        except _FAILURES as error:
            code = frame.f_code
            recorder.notice(
                f"torch.compile failed on {code.co_name} ({short_path(code.co_filename)}:{code.co_firstlineno}): it ran"
                f" eagerly, and its memory is eager's ({first_line(error)})"
            )
            return ConvertFrameReturn()

    ConvertFrameAssert.__call__ = __call__  # type: ignore[method-assign]


@contextmanager
def _patience(code: types.CodeType) -> Iterator[None]:
    """Tell a user who has waited long what for."""

    def say() -> None:
        where = f"{short_path(code.co_filename)}:{code.co_firstlineno}"
        sys.stderr.write(
            f"windtunnel: torch.compile has been at work on {code.co_name} ({where}) for {_LONG_S} s\n"
        )
        sys.stderr.flush()

    timer = threading.Timer(_LONG_S, say)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def first_line(error: BaseException) -> str:
    """What went wrong, without the advice that torch adds."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return text[:200].rstrip(".: ")
