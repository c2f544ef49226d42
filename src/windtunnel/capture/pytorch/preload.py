"""Import in the fork server what almost every rank would import itself, which takes a second or two each.

nothing ──> torch, our capture, and for many ranks torch._dynamo ──> children that do not have to import them
"""

from __future__ import annotations

import pyarrow

from windtunnel.capture.pytorch import rank

__all__ = ["preload"]


def preload(is_for_many: bool) -> None:
    """Import torch and our capture; for many ranks, also what a single rank may not need."""
    assert rank  # imported for its imports
    pyarrow.array([0])  # its first conversion imports pandas if that is installed
    if is_for_many:
        import torch._dynamo  # noqa: F401  (every optimizer of torch imports it)
