"""Collect in every thread: torch's mode stacks are per thread, so the modes are turned on in each working thread.

    threading.Thread.start ──> the new thread begins with our modes, in the scope it was started in
    executor worker        ──> our modes are on while it runs a task
    any other old thread   ──> our modes are on while it runs a module

What is installed for this is removed at stop; a thread that is still running keeps a mode that does nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import thread as executor_thread
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.pytorch.eager.mode_stack import put_on, take_off

__all__ = ["ThreadModes"]


class ThreadModes:
    """Carries modes into the threads of a program while it is collected."""

    def __init__(self, modes: Sequence[Any], scopes: Scopes) -> None:
        self.modes = tuple(modes)
        self.scopes = scopes
        self.is_installed = False
        self._home = 0  # the thread start was called in: its modes are somebody else's business
        self._restore: list[Callable[[], None]] = []
        self._local = threading.local()

    def install(self, model: Any = None) -> None:
        if self.is_installed:
            return
        self.is_installed = True
        self._home = threading.get_ident()
        self._replace(threading.Thread, "start", self._starting)
        if hasattr(executor_thread, "_WorkItem"):
            self._replace(executor_thread._WorkItem, "run", self._running)
        before = register_module_forward_pre_hook(self._before_module)
        after = register_module_forward_hook(self._after_module, always_call=True)
        self._restore += [before.remove, after.remove]

    def remove(self) -> None:
        self.is_installed = False
        restore, self._restore = self._restore, []
        for undo in reversed(restore):
            undo()

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def _replace(self, owner: type, name: str, wrapped: Callable[[Callable], Callable]) -> None:
        original = vars(owner)[name]
        replacement = wrapped(original)
        setattr(owner, name, replacement)

        def undo() -> None:
            if vars(owner).get(name) is replacement:  # else someone has put theirs on top of ours
                setattr(owner, name, original)

        self._restore.append(undo)

    def _starting(self, original: Callable) -> Callable:
        def start(thread: threading.Thread) -> None:
            if self.is_installed:
                # On the object, not on the class: a subclass has a `run` of its own.
                thread.run = self._carried(thread, thread.run, list(self.scopes.stack))  # type: ignore[method-assign]
            original(thread)

        return start

    def _carried(
        self, thread: threading.Thread, run: Callable[[], None], scope: list[str]
    ) -> Callable[[], None]:
        def carried() -> None:
            thread.__dict__.pop("run", None)
            self.scopes.stack[:] = scope
            with self._on():
                run()

        return carried

    def _running(self, original: Callable) -> Callable:
        def run(item: Any) -> None:
            with self._on():
                original(item)

        return run

    @contextmanager
    def _on(self) -> Iterator[None]:
        is_mine = self._put()
        try:
            yield
        finally:
            if is_mine:
                self._take()

    def _put(self) -> bool:
        """Put our modes on in this thread; False if they are on already."""
        if (
            not self.is_installed
            or threading.get_ident() == self._home
            or getattr(self._local, "modes", None)
        ):
            return False
        self._local.modes = [
            mode.for_thread() if hasattr(mode, "for_thread") else mode for mode in self.modes
        ]
        for mode in self._local.modes:
            put_on(mode)
        return True

    def _take(self) -> None:
        modes, self._local.modes = self._local.modes, None
        for mode in modes:
            take_off(mode)

    def _before_module(self, module: nn.Module, args: tuple) -> None:
        if threading.get_ident() != self._home and self._put():
            self._local.module = module

    def _after_module(self, module: nn.Module, args: tuple, output: Any) -> None:
        if threading.get_ident() != self._home and getattr(self._local, "module", None) is module:
            self._local.module = None
            self._take()
