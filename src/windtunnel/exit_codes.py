"""The exit codes of the commands; 0 is success.

An error carries its code (`errors.py`). What `run` returns after a simulation is chosen by `Simulation.exit_code`
(`session/simulation.py`).
"""

from __future__ import annotations

__all__ = ["BAD_USAGE", "DIFFERENT", "DOES_NOT_FIT", "INTERNAL_ERROR", "INTERRUPTED", "SCRIPT_FAILED"]

INTERNAL_ERROR = 1
BAD_USAGE = 2
SCRIPT_FAILED = 3
DIFFERENT = 3  # `windtunnel compare` found a difference
DOES_NOT_FIT = 4
INTERRUPTED = 130  # as a shell reports SIGINT
