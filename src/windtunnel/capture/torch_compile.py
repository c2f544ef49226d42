"""`torch.compile` in a dry run: the code runs eagerly, and the report says so.

A compiled graph fuses operators, so it keeps fewer temporaries than eager: the memory reported is an upper
bound for what the compiler would need. Nothing is dropped silently. Where the compiler makes a kernel of its own
out of a whole function, that kernel is simulated (torch_flex_attention). What was compiled is told at the end of the
recording: the compiler would make one kernel of several operators there, which matters for time.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.recorder import Recorder
from windtunnel.capture.torch_flex_attention import install_flex_attention
from windtunnel.capture.torch_program import compiled_paths, mark_compiled

__all__ = ["compiled_parts", "install_compile"]

_functions: dict[tuple[str, str], None] = {}  # file and name

_SENTENCE = "torch.compile ran eagerly: memory is eager's, usually an upper bound for the compiled program"


def install_compile(recorder: Recorder) -> None:
    """Replace torch.compile and Module.compile by the identity."""
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

    torch.compile = compile  # type: ignore[assignment]

    def compile_module(self: torch.nn.Module, *_: Any, **__: Any) -> None:
        note()
        _remember(self)

    torch.nn.Module.compile = compile_module  # type: ignore[assignment, method-assign]


def compiled_parts(recorder: Recorder) -> dict[str, Any]:
    """What the program compiled: functions by file and name, modules by path, with all below them."""
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
    """Torch compiles private functions of its own, which a program did not ask for."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
    return module.startswith("torch.") and name.startswith("_")
