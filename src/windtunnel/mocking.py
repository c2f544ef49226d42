"""Values a program can set for a dry run: `windtunnel.mock`.

n_tokens = windtunnel.mock(4096, lambda: lengths.sum().item())   # 4096 in a dry run, the real one otherwise
"""

from __future__ import annotations

import os
from typing import Any

__all__ = ["is_dry_run", "mock"]


def is_dry_run() -> bool:
    """True inside `windtunnel run`."""
    return os.environ.get("WINDTUNNEL_DRY_RUN") == "1"


def mock(value: Any, fn_or_value: Any, *args: Any) -> Any:
    """In a dry run: `value`. In a real run: `fn_or_value(*args)`, or `fn_or_value` itself if it is not callable."""
    if is_dry_run():
        return value
    return fn_or_value(*args) if callable(fn_or_value) else fn_or_value
