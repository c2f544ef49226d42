"""Tell the user something without ever stopping the training: a logged line, not a warning that may be an error.

one sentence ──> logger "windtunnel.probe" (stderr unless the program set up logging)
"""

from __future__ import annotations

import logging

from windtunnel.terminal_text import plain_text

__all__ = ["tell"]

_LOGGER = logging.getLogger("windtunnel.probe")


def tell(sentence: str) -> None:
    """Log one sentence: the fact, the number, the next step."""
    # warnings.warn would raise under `-W error`, in the middle of somebody's forward pass.
    _LOGGER.warning("windtunnel: %s", plain_text(sentence))
