"""The exception that ends a program after the requested number of optimizer steps."""

from __future__ import annotations

__all__ = ["EnoughSteps"]


class EnoughSteps(BaseException):
    """Raised after the last requested step. Not an Exception, so that `except Exception` in a script lets it pass."""
