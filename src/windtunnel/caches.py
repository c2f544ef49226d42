"""Where windtunnel keeps what later runs use again: measured operators, MindSpore's loader stubs."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """Of this user; as the XDG rules say, a relative XDG_CACHE_HOME counts as none."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "windtunnel"
