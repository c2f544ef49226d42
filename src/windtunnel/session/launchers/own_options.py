"""The options that an installed launcher's own parser knows, in a process of its own (internal).

name of a launcher ──> its parser, imported ──> one line of JSON: option -> number of values
"""

from __future__ import annotations

import json
import sys

from windtunnel.frameworks import load

__all__ = ["start"]


def start(launcher: str) -> None:
    """The program; prints one line."""
    if launcher == "msrun":
        found = load("windtunnel.session.launchers.mindspore.own_options", "mindspore").options_of_msrun()
    else:
        found = load("windtunnel.session.launchers.pytorch.own_options", "torch").options_of(launcher)
    sys.stdout.write("\n" + json.dumps(found) + "\n")
