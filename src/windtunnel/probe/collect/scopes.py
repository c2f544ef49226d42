"""Which module each thread is currently in: the parents of construct.json.

enter("Module.fc.Linear.forward.0") ──> current() ──> leave
"""

from __future__ import annotations

import threading

__all__ = ["Scopes", "backward_of"]


class Scopes(threading.local):
    """One stack of names per thread; `is_quiet` while our own work must not be recorded."""

    def __init__(self) -> None:
        self.stack: list[str] = []
        self.is_quiet = False

    def names(self) -> list[str]:
        """From the outermost to the innermost."""
        return self.stack


def backward_of(name: str | None) -> str | None:
    """`Module.fc.Linear.forward.0` ──> `Module.fc.Linear.backward.0`; "optimizer" has none."""
    if name is None or ".forward." not in name:
        return None
    head, _, number = name.rpartition(".forward.")
    return f"{head}.backward.{number}"
