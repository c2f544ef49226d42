"""Errors of the program itself, which MindSpore raises late: the probe passes them on to the program.

operator fails in the background ──> the next read of a value raises: ours ──> ProgramError ──> guard ──> the program

Operators run in the background, so the error of one of them is raised when someone waits for it, and only once. If that
is the probe, it must not swallow the error.
"""

from __future__ import annotations

from mindspore.graph.api import _pynative_executor

from windtunnel.probe.collect.collector import Collector

__all__ = ["MindSporeCollector", "ProgramError", "wait"]


class ProgramError(Exception):
    """Carries an error of the program's own as `cause`."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def wait() -> None:
    """Wait for the program's operators; raises ProgramError if one of them has failed."""
    try:
        _pynative_executor.sync()
    except Exception as error:
        raise ProgramError(error) from error


class MindSporeCollector(Collector):
    """Keeps the probe's errors from the program, but raises the program's own."""

    def guard(self, what: str, error: Exception) -> None:
        if isinstance(error, ProgramError):
            raise error.cause
        super().guard(what, error)
