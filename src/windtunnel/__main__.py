"""`python -m windtunnel`: the same as the command `windtunnel`."""

from __future__ import annotations

import sys

from windtunnel.commands.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
