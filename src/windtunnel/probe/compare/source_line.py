"""Which line of the user's code a diverging call is shown with.

stack.json's frames, innermost first ──> own_line ──> "train.py:33 in forward: q = self.q(x)"
"""

from __future__ import annotations

import re

__all__ = ["own_line"]

_FRAMEWORK = re.compile(r"/(?:torch|mindspore|windtunnel|msprobe)/|<frozen")
_FRAME = re.compile(r"File (.+?), line (\d+), in (.+?), (.*)")


def own_line(frames: tuple[str, ...]) -> str:
    """The innermost frame outside the frameworks and the probe; if it is a library's, also the user's innermost one."""
    model = [frame for frame in frames if not _FRAMEWORK.search(frame)]
    own = [frame for frame in model if "site-packages" not in frame and "dist-packages" not in frame]
    chosen = dict.fromkeys([*(model or frames)[:1], *own[:1]])
    return ", called from ".join(map(_place, chosen))


def _place(frame: str) -> str:
    text = " ".join(frame.split())
    match = _FRAME.fullmatch(text)
    return "{}:{} in {}: {}".format(*match.groups()) if match else text
