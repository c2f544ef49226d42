"""Registered functions among MindSpore's own APIs: inside one nothing else is recorded.

register(module, "fused_rope") ──> inside another API? ──> quiet ──> the call itself
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from windtunnel.probe.custom_apis import CustomApis as AnyCustomApis
from windtunnel.probe.mindspore_quiet import Quiet

__all__ = ["CustomApis"]


class CustomApis(AnyCustomApis):
    """What is registered in one process."""

    def __init__(self) -> None:
        super().__init__()
        self.quiet = Quiet()

    def is_inside(self) -> bool:
        return self.quiet.depth > 0

    def hidden(self) -> AbstractContextManager:
        return self.quiet

    def unseen(self) -> AbstractContextManager:
        return self.quiet
