"""What the probe reports: one logged sentence for the user, and its own errors in a file. Neither stops the training.

tell(sentence)             ──> logger "windtunnel.probe" (stderr unless the program set up logging)
record(message, exception) ──> dump_error_info.log, a block each ──> summary at the end
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
import traceback
from pathlib import Path

from windtunnel.terminal_text import plain_text

__all__ = ["ERROR_LOG_NAME", "ErrorLog", "tell"]

_LOGGER = logging.getLogger("windtunnel.probe")
ERROR_LOG_NAME = "dump_error_info.log"
_MOST_BLOCKS = 1000  # an error in every call of a long run must not fill the disk


def tell(sentence: str) -> None:
    """Log one sentence: the fact, the number, the next step."""
    # warnings.warn would raise under `-W error`, in the middle of a forward pass.
    _LOGGER.warning("windtunnel: %s", plain_text(sentence))


class ErrorLog:
    """The probe's own errors of one run, in one folder. The file is created on the first error. Never raises."""

    def __init__(self, folder: Path | str) -> None:
        self.path = Path(folder) / ERROR_LOG_NAME
        self.count = 0
        self._first = ""
        self._lock = threading.Lock()

    def record(self, message: str, exc: BaseException | None = None) -> None:
        """Append a block: time, message, traceback. Thread-safe."""
        with self._lock:
            self.count += 1
            if self.count == 1:
                self._first = message
            if self.count > _MOST_BLOCKS:
                return
        with contextlib.suppress(Exception):
            self._append(_block(message, exc).encode("utf-8", "backslashreplace"))

    def summary(self) -> str | None:
        """One sentence for the end of the run; None if there were no errors."""
        if not self.count:
            return None
        rest = f" (the first {_MOST_BLOCKS} in the file)" if self.count > _MOST_BLOCKS else ""
        return (
            f"{self.count} {'error' if self.count == 1 else 'errors'} while collecting, so some values are missing; "
            f"the first: {self._first}; see {self.path}{rest}"
        )

    def _append(self, block: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            os.write(fd, block)  # one write: blocks of other processes do not mix with it
        finally:
            os.close(fd)


def _block(message: str, exc: BaseException | None) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S %z")
    if exc is None:
        where = "".join(traceback.format_stack()[:-2])
    else:
        where = "".join(traceback.format_exception(type(exc), exc, exc.__traceback__))
    return f"[{stamp}] {message}\nCall stack (most recent call last):\n{where}\n"
