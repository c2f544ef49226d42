"""What a program can tell a dry run: values (`windtunnel.mock`), and parts of its step (`windtunnel.phase`).

n_tokens = windtunnel.mock(4096, lambda: lengths.sum().item())   # 4096 in a dry run, the real one otherwise
with windtunnel.phase("rollout"): ...                            # a row of the report's memory by phase
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["is_dry_run", "mock", "phase", "phase_listeners"]

phase_listeners: list[Callable[[str | None], None]] = []  # told each name, and None where a phase ends


def is_dry_run() -> bool:
    """True inside `windtunnel run`."""
    return os.environ.get("WINDTUNNEL_DRY_RUN") == "1"


def mock(value: Any, fn_or_value: Any, *args: Any) -> Any:
    """In a dry run: `value`. In a real run: `fn_or_value(*args)`, or `fn_or_value` itself if it is not callable."""
    if is_dry_run():
        return value
    return fn_or_value(*args) if callable(fn_or_value) else fn_or_value


@contextmanager
def phase(name: str) -> Iterator[None]:
    """Name a part of the step, such as "rollout": a dry run reports its memory. Nothing happens in a real run."""
    for tell in phase_listeners:
        tell(str(name))
    try:
        yield
    finally:
        for tell in phase_listeners:
            tell(None)
