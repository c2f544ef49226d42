"""What `accelerate launch` would set for its workers, in a process of its own (internal).

size of a machine, words ──> accelerate's own code ──> one line of JSON
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from windtunnel.frameworks import load

__all__ = ["start"]


def start(node_size: int, words: Sequence[str]) -> None:
    """The program; prints one line."""
    module = load("windtunnel.session.launchers.pytorch.accelerate_settings", "torch")
    sys.stdout.write("\n" + json.dumps(module.settings_of(node_size, list(words))) + "\n")
