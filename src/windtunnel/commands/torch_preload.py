"""What the nursery imports before it forks: all that almost every rank would import by itself, a second or two each.

nothing ──> torch, our capture, and for many ranks torch._dynamo ──> children that need not import them
"""

from __future__ import annotations

import pyarrow

from windtunnel.capture import torch_rank

__all__ = ["preload"]


def preload(is_for_many: bool) -> None:
    """Import ahead of many ranks also what a single one may do without."""
    assert torch_rank  # imported for its imports
    pyarrow.array([0])  # its first conversion imports pandas if that is installed
    if is_for_many:
        import torch._dynamo  # noqa: F401  (every optimizer of torch imports it)
