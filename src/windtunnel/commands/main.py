"""The program `windtunnel`. An interrupt, whenever it comes, is one line and exit code 130.

    sys.argv ──> command_line (imported with the handler in place) ──> exit code

Nothing but what an interrupt needs is imported before that: the other imports take seconds on a cold disk.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from types import FrameType

__all__ = ["main"]

_INTERRUPTED = 130
_AGAIN_S = 0.05
_SENTENCE = "windtunnel: interrupted\n"


def main(argv: list[str] | None = None) -> int:
    """Run one command line; returns the exit code.

    0 fits or equal, 1 a bug of ours, 2 usage, 3 the script failed or dumps differ, 4 does not fit, 130 interrupted.
    Without `argv` this is the whole program, and takes care of signals. With it, they are the caller's.
    """
    if argv is not None:
        return _run(argv)
    try:
        is_deaf = signal.getsignal(signal.SIGINT) is not signal.default_int_handler  # a job in the background
        if is_deaf or threading.current_thread() is not threading.main_thread():
            return _run(sys.argv[1:])
        sys.unraisablehook = _report_unraisable
        # Until a verb begins there is nothing to tidy up, so the process may end at once. An exception would have
        # to pass through whatever package is being imported, and not all of them let it.
        signal.signal(signal.SIGINT, _leave_saying_so)
        code = _run(sys.argv[1:], lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        signal.signal(signal.SIGINT, _leave)  # all is said: only the interpreter is still to end
        return code
    except KeyboardInterrupt:  # between two of these lines
        sys.stderr.write(_SENTENCE)
        return _INTERRUPTED


def _run(argv: list[str], on_ready: Callable[[], object] = lambda: None) -> int:
    from windtunnel.commands.command_line import run_command

    return run_command(argv, on_ready)


def _leave_saying_so(number: int, frame: FrameType | None) -> None:
    os.write(2, _SENTENCE.encode())
    os._exit(_INTERRUPTED)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(_INTERRUPTED)


def _report_unraisable(failure: sys.UnraisableHookArgs) -> None:
    """An interrupt that fell into a destructor, where no exception gets out: it is sent again when that has ended."""
    if failure.exc_type is KeyboardInterrupt:
        threading.Timer(_AGAIN_S, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(failure)


if __name__ == "__main__":
    sys.exit(main())
