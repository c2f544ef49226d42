"""Events into bytes: lifetimes, allocator models, peaks."""

from windtunnel.errors import PredictedOutOfMemory
from windtunnel.memory.allocators.interface import Allocator

__all__ = ["Allocator", "PredictedOutOfMemory"]
