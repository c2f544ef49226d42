"""A command line in a fork of the warm interpreter, for shell scripts that start `python … -m windtunnel.commands.main`.

python warm_client.py ADDRESS -W ignore -m windtunnel.commands.main run … ──> its output and exit code
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[2])
    from tests.commands.warm import ask

    arguments = sys.argv[sys.argv.index("windtunnel.commands.main") + 1 :]
    order = {"kind": "command", "arguments": arguments, "cwd": os.getcwd(), "env": dict(os.environ)}
    sys.exit(ask(sys.argv[1], order, [0, 1, 2]).wait())
