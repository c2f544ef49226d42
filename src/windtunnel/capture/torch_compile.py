"""`torch.compile` in a dry run: the code runs eagerly, and the report says so.

A compiled graph fuses operators, so it keeps fewer temporaries than eager: the memory reported is an upper
bound for what the compiler would need. Nothing is dropped silently.
"""

from __future__ import annotations

from typing import Any

import torch

from windtunnel.capture.recorder import Recorder

__all__ = ["install_compile"]

_SENTENCE = "torch.compile ran eagerly: memory is eager's, which is an upper bound for the compiled program"


def install_compile(recorder: Recorder) -> None:
    """Replace torch.compile and Module.compile by the identity."""

    def compile(model: Any = None, **_: Any) -> Any:
        recorder.notice(_SENTENCE)
        if model is None:
            return compile
        if isinstance(model, torch.nn.Module):
            model.__dict__.setdefault("_orig_mod", model)  # scripts unwrap compiled models through this name
        return model

    torch.compile = compile  # type: ignore[assignment]
    torch.nn.Module.compile = lambda self, *_, **__: recorder.notice(_SENTENCE)  # type: ignore[assignment, method-assign]
