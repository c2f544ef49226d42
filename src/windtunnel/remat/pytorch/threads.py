"""Notice every thread that trains: hooks and modes belong to a thread, but training may use several.

    Thread.start (new threads) ──────┐
    a module is called (any thread) ─┴──> enter(), in that thread        its run() has ended ──> leave()

A thread that began earlier and calls no module is not noticed: `dtr.enable()` must be called in it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

__all__ = ["Threads"]

_thread_class: Any = threading.Thread  # its `start` is replaced while we watch


class Threads:
    """Calls `enter` in threads that begin or call a module, and `leave` at the end of those it saw begin."""

    def __init__(self, enter: Callable[[], None], leave: Callable[[], None]) -> None:
        self._enter = enter
        self._leave = leave
        self._start: Any = None
        self._plain_start: Any = None
        self._module_hook: Any = None  # while we watch

    def watch(self) -> None:
        self._module_hook = register_module_forward_pre_hook(self._before_module)
        plain_start = self._plain_start = threading.Thread.start

        def start(thread: threading.Thread, *args: Any, **kwargs: Any) -> None:
            if self._module_hook is not None:
                self._wrap(thread)
            plain_start(thread, *args, **kwargs)

        self._start = _thread_class.start = start

    def unwatch(self) -> None:
        self._module_hook.remove()
        self._module_hook = None
        if (
            threading.Thread.start is self._start
        ):  # else it was wrapped by others, and ours now only passes the call on
            _thread_class.start = self._plain_start

    def _before_module(self, module: Any, args: Any) -> None:
        if not torch.compiler.is_compiling():
            self._enter()

    def _wrap(self, thread: threading.Thread) -> None:
        own = thread.__dict__.get("run")
        run = thread.run

        def run_inside() -> None:
            if own is None:  # first: a thread that refers to itself would have to wait for the collector
                thread.__dict__.pop("run", None)
            else:
                thread.run = own  # type: ignore[method-assign]
            self._enter()
            try:
                run()
            finally:
                self._leave()

        thread.run = run_inside  # type: ignore[method-assign]
