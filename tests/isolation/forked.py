"""Run a function in a forked process, since neither Landlock nor the shadow can be taken back."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

__all__ = ["in_fork"]


def in_fork(function: Callable[..., Any], *arguments: Any, **more: Any) -> Any:
    """What the function returns in a process of its own; an exception there is a failure here."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.close(read)
            try:
                answer = True, function(*arguments, **more)
            except BaseException:
                answer = False, traceback.format_exc()
            rest = pickle.dumps(answer)
            while rest:
                rest = rest[os.write(write, rest) :]
            code = 0
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the process ended with {os.waitstatus_to_exitcode(status)}"
    is_good, result = pickle.loads(answer)
    assert is_good, result
    return result
