"""Set up the compiler for the simulated device at the first `torch.compile`: programs that compile nothing do not pay.

devices of traced tensors ──> Dynamo ──> Inductor
"""

from __future__ import annotations

import torch

from windtunnel.capture.pytorch.compiler.dynamo import install_dynamo
from windtunnel.capture.pytorch.compiler.inductor import install_inductor
from windtunnel.capture.pytorch.compiler.traced_devices import install_traced_devices
from windtunnel.capture.pytorch.tensors.engine_threads import is_missing_threads, start_threads
from windtunnel.capture.pytorch.tensors.storage import world
from windtunnel.capture.pytorch.tensors.traced import compiling
from windtunnel.capture.recorder import Recorder

__all__ = ["install_compiler"]


def install_compiler(recorder: Recorder) -> None:
    """Once in a process, after everything else of torch was replaced."""
    _start_engine_threads()
    install_traced_devices()
    install_dynamo(recorder)
    install_inductor(recorder)


def _start_engine_threads() -> None:
    """Let autograd meet the device before a trace does: a backward that is refused inside one cannot be repeated."""
    with compiling, torch.enable_grad():
        result = torch.ones((), device=world.default_device, requires_grad=True) * 1
        try:
            torch.autograd.Variable._execution_engine.run_backward(
                (result,), (torch.ones_like(result),), False, False, (), True, True
            )
        except RuntimeError as error:
            if not is_missing_threads(error):
                raise
            start_threads()
