"""Every test of this folder runs dynamic code on the CPU, with no debugger left over from another."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

if find_spec("mindspore") is not None:

    @pytest.fixture(autouse=True)
    def _dynamic_code():
        import mindspore as ms

        from windtunnel.mindspore import PrecisionDebugger

        ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
        ms.runtime.launch_blocking()  # before the first operator it spares what reading a value costs otherwise
        yield
        if PrecisionDebugger.current is not None:
            PrecisionDebugger.current.close()
            PrecisionDebugger.current = None
