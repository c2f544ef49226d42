"""Set up the compiler for the simulated device at the first `torch.compile`: programs that compile nothing do not pay.

devices of traced tensors ──> Dynamo ──> Inductor
"""

from __future__ import annotations

from windtunnel.capture.pytorch.compiler.dynamo import install_dynamo
from windtunnel.capture.pytorch.compiler.inductor import install_inductor
from windtunnel.capture.pytorch.compiler.traced_devices import install_traced_devices
from windtunnel.capture.recorder import Recorder

__all__ = ["install_compiler"]


def install_compiler(recorder: Recorder) -> None:
    """Once in a process, after everything else of torch was replaced."""
    install_traced_devices()
    install_dynamo(recorder)
    install_inductor(recorder)
