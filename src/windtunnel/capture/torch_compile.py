"""`torch.compile` in a dry run: the code runs eagerly, and the report says so.

A compiled graph fuses operators, so it keeps fewer temporaries than eager: the memory reported is an upper
bound for what the compiler would need. Nothing is dropped silently. Where the compiler makes a kernel of its own
out of a whole function, that kernel is simulated (torch_flex_attention).
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.recorder import Recorder
from windtunnel.capture.torch_flex_attention import install_flex_attention

__all__ = ["install_compile"]

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
        if isinstance(model, torch.nn.Module):
            model.__dict__.setdefault("_orig_mod", model)  # scripts unwrap compiled models through this name
        return model

    torch.compile = compile  # type: ignore[assignment]
    torch.nn.Module.compile = lambda self, *_, **__: note()  # type: ignore[assignment, method-assign]


def _is_internal(function: Any) -> bool:
    """Torch compiles private functions of its own, which a program did not ask for."""
    module, name = getattr(function, "__module__", None) or "", getattr(function, "__name__", "")
    return module.startswith("torch.") and name.startswith("_")
