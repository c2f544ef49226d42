"""The folder where windtunnel caches what later runs reuse: measured operators, compiled graphs, MindSpore's loader stubs."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]


def cache_folder() -> Path:
    """This user's cache folder. A relative XDG_CACHE_HOME is ignored, as the XDG specification says."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".cache") / "windtunnel"
