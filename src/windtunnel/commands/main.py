"""The program `windtunnel`. An interrupt at any moment prints one line and exits with code 130.

    sys.argv ──> command_line (imported once the signal handler is installed) ──> exit code

Only what the handler needs is imported before that: the other imports take seconds on a cold disk.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable

from windtunnel import interrupts
from windtunnel.exit_codes import INTERRUPTED

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Run one command line and return the exit code.

    0 fits or equal, 1 internal error, 2 usage, 3 the script failed or dumps differ, 4 does not fit, 130 interrupted.
    Without `argv` this is the whole program and handles signals. With `argv` the caller handles them.
    """
    if argv is not None:
        return _run(argv)
    try:
        is_ignored = signal.getsignal(signal.SIGINT) is not signal.default_int_handler  # a background job
        if is_ignored or threading.current_thread() is not threading.main_thread():
            return _run(sys.argv[1:])
        interrupts.resend_swallowed()
        # Until a verb starts there is nothing to clean up, so the process may exit at once. An exception would have
        # to pass through the package that is being imported, and some packages swallow it.
        signal.signal(signal.SIGINT, interrupts.exit_with_sentence)
        code = _run(sys.argv[1:], lambda: signal.signal(signal.SIGINT, signal.default_int_handler))
        # Everything is printed: only the interpreter still has to exit.
        signal.signal(signal.SIGINT, interrupts.exit_silently)
        return code
    except KeyboardInterrupt:  # between two of these lines
        sys.stderr.write(interrupts.SENTENCE)
        return INTERRUPTED


def _run(argv: list[str], on_ready: Callable[[], object] = lambda: None) -> int:
    from windtunnel.commands.command_line import run_command

    return run_command(argv, on_ready)


if __name__ == "__main__":
    sys.exit(main())
