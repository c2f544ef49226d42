"""Ctrl-C: one line and exit code 130, never lost in a destructor, never able to cut a write in half.

    SIGINT ──> KeyboardInterrupt, at once or when the last `held()` block has ended ──> SENTENCE, INTERRUPTED
           └─> before a verb starts and after it ended: exit_with_sentence, exit_silently

Python ignores exceptions in destructors and weak reference callbacks, and a simulated program spends much of its time in
them: an interrupt that falls there is sent again.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType, TracebackType

from windtunnel.exit_codes import INTERRUPTED

__all__ = ["SENTENCE", "exit_silently", "exit_with_sentence", "held", "listen", "resend_swallowed"]

SENTENCE = "windtunnel: interrupted\n"

_AGAIN_S = 0.05
_holders: list[object] = []  # a list, because append and pop are atomic across threads
_is_pending = False


def listen() -> None:
    """Raise KeyboardInterrupt on SIGINT, but not inside `held()`; call it in the main thread."""
    signal.signal(signal.SIGINT, _interrupt)
    resend_swallowed()


def exit_with_sentence(number: int, frame: FrameType | None) -> None:
    """End the process at once; a signal handler for when there is nothing to clean up."""
    os.write(2, SENTENCE.encode())
    os._exit(INTERRUPTED)


def exit_silently(number: int, frame: FrameType | None) -> None:
    """End the process at once; a signal handler for when everything is printed."""
    os._exit(INTERRUPTED)


def resend_swallowed() -> None:
    """Send an interrupt again that arrived in a destructor, where exceptions are ignored."""
    sys.unraisablehook = _report_unraisable


class held:
    """A block that an interrupt does not cut: it arrives when the block has ended (if `listen` was called)."""

    def __enter__(self) -> None:
        _holders.append(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _is_pending
        _holders.pop()
        if _is_pending and not _holders:
            _is_pending = False
            _send()


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _is_pending
    if _holders:
        _is_pending = True
    else:
        raise KeyboardInterrupt


def _report_unraisable(failure: sys.UnraisableHookArgs) -> None:
    if failure.exc_type is KeyboardInterrupt:
        timer = threading.Timer(_AGAIN_S, _send)
        timer.daemon = True  # a program that has ended does not wait for it
        timer.start()
    else:
        sys.__unraisablehook__(failure)


def _send() -> None:
    main = threading.main_thread().ident
    if main is not None:
        signal.pthread_kill(main, signal.SIGINT)
