"""The process that runs a shell script inside the protection of files, and keeps that protection alive (internal).

    words ──> the program, to its end ──> its exit code to the parent ──> wait until the parent is done

Ranks join the view of this process, also for what is tried after the script has ended.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

__all__ = ["start"]

_NOT_FOUND = 127


def start() -> None:
    """The program: FD_FOR_THE_CODE FD_TO_WAIT_FOR words...; file protection is entered already."""
    result, until, words = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the script; the parent ends this process
    try:
        script = subprocess.Popen(words, close_fds=True, preexec_fn=_listen)
    except OSError as error:
        sys.stderr.write(f"{words[0]}: {error.strerror}\n")
        code = _NOT_FOUND
    else:
        _let_go_of_output()
        code = script.wait()
    os.write(result, b"%d\n" % code)
    os.close(result)
    os.read(until, 1)


def _listen() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)


def _let_go_of_output() -> None:
    """The parent reads the output until everyone has closed it."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nothing, descriptor)
