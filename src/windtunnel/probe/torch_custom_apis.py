"""Registered functions among torch's own APIs: which modes record those, and how they are put aside.

register(module, "fused_rope") ──> is a mode on? ──> modes hidden ──> the call itself ──> modes back
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch

from windtunnel.probe.custom_apis import CustomApis as AnyCustomApis
from windtunnel.probe.torch_thread_stack import hidden, is_on

__all__ = ["CustomApis"]


class CustomApis(AnyCustomApis):
    """What is registered in one process."""

    modes: Sequence[Any] = ()  # those that record torch's APIs

    def is_inside(self) -> bool:
        return bool(self.modes) and not any(map(is_on, self.modes))

    def hidden(self) -> AbstractContextManager:
        return hidden(*self.modes)

    def unseen(self) -> AbstractContextManager:
        return torch._C.DisableTorchFunction()
