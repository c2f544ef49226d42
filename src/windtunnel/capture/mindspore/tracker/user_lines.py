"""Which lines are the user's own code, and those lines from the stacks that MindSpore's tracker writes.

"File:train.py;Line:12;Function:<module>|File:.../mindspore/nn/cell.py;..." ──> a frame of the recording
"""

from __future__ import annotations

import re

from windtunnel.events.file import RecordingWriter
from windtunnel.events.model import NO_NAME

__all__ = ["UserFrames", "is_users_file"]

_FRAME = re.compile(r"File:([^;|]*);Line:(\d+);Function:([^;|]*)")
_FOREIGN = re.compile(
    r"/site-packages/mindspore/|/windtunnel/capture/|<frozen |/lib/python[\d.]+/[^/]+\.py$|^<string>$"
)


def is_users_file(path: str) -> bool:
    """Whether this is not a file of MindSpore, of windtunnel's capture or of Python's library."""
    return not _FOREIGN.search(path)


class UserFrames:
    """Interns the innermost line of the user's code, or all of them if stacks were requested."""

    def __init__(self, writer: RecordingWriter, is_tracking_stacks: bool) -> None:
        self._writer, self._wants_all = writer, is_tracking_stacks
        self._known: dict[str, int] = {}

    def frame(self, stack: str) -> int:
        found = self._known.get(stack)
        if found is None:
            found = self._known[stack] = self._intern(stack)
        return found

    def _intern(self, stack: str) -> int:
        lines = [line for line in _FRAME.findall(stack) if is_users_file(line[0])]
        parent = NO_NAME
        for file, line, function in lines if self._wants_all else lines[-1:]:
            parent = self._writer.frame(file, int(line), function, parent)
        return parent
