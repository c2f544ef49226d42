"""`torch.compile` in a dry run: the code runs eagerly, and the report says so.

A compiled graph fuses operators, so it keeps fewer temporaries than eager mode: the reported memory is an upper
bound for the compiled program. Nothing is dropped silently. Where the compiler turns a whole function into one kernel,
that kernel is simulated (kernels/flex_attention.py). The end of the recording lists what was compiled: the compiler
would fuse operators there, which matters for time.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.flex_attention import install_flex_attention
from windtunnel.capture.pytorch.phases_and_roles import compiled_paths, mark_compiled
from windtunnel.capture.recorder import Recorder

__all__ = ["compiled_parts", "install_compile"]

_functions: dict[tuple[str, str], None] = {}  # file and name

_SENTENCE = "torch.compile ran eagerly: memory is eager's, usually an upper bound for the compiled program"


def install_compile(recorder: Recorder) -> None:
    """Replace torch.compile and Module.compile with the identity."""
    fuse_flex_attention = install_flex_attention()

    def note() -> None:
        fuse_flex_attention()
        recorder.notice(_SENTENCE)

    def compile(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compile
        if not _is_internal(model):
            note()
            _remember(model)
        if isinstance(model, torch.nn.Module):
            model.__dict__.setdefault("_orig_mod", model)  # scripts unwrap compiled models through this name
        return model

    torch.compile = compile

    def compile_module(self: torch.nn.Module, *_: Any, **__: Any) -> None:
        note()
        _remember(self)

    torch.nn.Module.compile = compile_module  # type: ignore[method-assign]


def compiled_parts(recorder: Recorder) -> dict[str, Any]:
    """What the program compiled: functions by file and name, modules by path, with their submodules."""
    names = list(recorder.writer.names)
    return {
        "functions": [list(each) for each in _functions],
        "modules": [names[path] for path in compiled_paths],
    }


def _remember(what: Any) -> None:
    if isinstance(what, torch.nn.Module):
        mark_compiled(what)
        return
    code = getattr(getattr(what, "__func__", what), "__code__", None)
    if code is not None:
        _functions[code.co_filename, code.co_name] = None


def _is_internal(function: Any) -> bool:
    """Whether torch compiles a private function of its own, which the program did not ask for."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
    return module.startswith("torch.") and name.startswith("_")
