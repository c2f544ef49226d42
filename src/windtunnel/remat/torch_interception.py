"""Being asked by torch: the recorder on its stack of modes, the hooks on autograd's, and the door to backward.

    start ──> mode + hooks + engine door        rest ──> hooks only        stop ──> nothing

Mode and hooks belong to a thread, the engine door to the process. Another thread gets them when it begins or calls a
module; there they are taken off when it ends, or when autograd next saves something in it.

During backward the mode is off: while any mode is active autograd adds gradients out of place, which costs memory
and breaks what relies on their identity.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

from windtunnel import torch_custom_saves
from windtunnel.remat.torch_threads import Threads

__all__ = ["Interception"]


class _Here(threading.local):
    """What is on in this thread."""

    has_hooks = False
    is_mode_on = False  # in backward it is set aside, and on all the same


class Interception:
    def __init__(
        self, mode: dispatch.TorchDispatchMode, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]
    ) -> None:
        self.is_on = False
        self.is_recording: Callable[[], bool] = lambda: True
        self.after_backward: Callable[[], None] = lambda: None
        self.who_holds: Callable[[], str] = str
        self.n_backwards = 0  # that are running, in all threads
        self._counting = threading.Lock()
        self._mode = mode
        self._hooks = (pack, unpack)
        self._here = _Here()
        self._threads = Threads(self._enter, self._leave)
        self._engine: Any = None
        self._disabling: Any = None
        os.register_at_fork(after_in_child=self._forget)

    def start(self) -> None:
        """Begin, or if another thread has begun, begin in this one too."""
        if not self.is_on:
            self._start()
        self._enter()
        self.resume()

    def _start(self) -> None:
        self.is_on = True
        torch_custom_saves.watch()
        self._threads.watch()
        self._engine = torch.autograd.Variable._execution_engine
        torch.autograd.Variable._execution_engine = _Door(self._engine, self)  # type: ignore[assignment]
        self._disabling = torch.autograd.graph.disable_saved_tensors_hooks
        torch.autograd.graph.disable_saved_tensors_hooks = self._without_ours

    def stop(self) -> None:
        if not self.is_on:
            return
        self.is_on = False
        self._leave()
        self._threads.unwatch()
        torch_custom_saves.unwatch()
        door = torch.autograd.Variable._execution_engine
        if isinstance(door, _Door) and door.interception is self:
            torch.autograd.Variable._execution_engine = self._engine
        if torch.autograd.graph.disable_saved_tensors_hooks == self._without_ours:
            torch.autograd.graph.disable_saved_tensors_hooks = self._disabling

    def _enter(self) -> None:
        """Begin in this thread, unless that is done or it refuses all hooks just now."""
        if not self._here.has_hooks and self.is_on and torch._C._autograd._saved_tensors_hooks_is_enabled():
            torch._C._autograd._push_saved_tensors_default_hooks(*self._hooks)
            self._here.has_hooks = True
            self.attend()

    def _leave(self) -> None:
        self.rest()
        if self._here.has_hooks:
            # Someone else's hooks on top of ours will be taken off by them; ours, below, then only pass through.
            self._pop_hooks()
            self._here.has_hooks = False

    def attend(self) -> None:
        """Put on in this thread, or take off, what has changed in others."""
        is_recording = self.is_recording()
        if self.is_on and self._here.is_mode_on == is_recording:
            return
        if torch._C._current_graph_task_id() != -1:
            return  # backward, perhaps in a thread of autograd's own, which has hooks without our doing
        if not self.is_on:
            self._leave()
        elif is_recording:
            self.resume()
        else:
            self.rest()

    @contextmanager
    def _without_ours(self, message: str) -> Iterator[None]:
        """Functional transforms (`torch.func`) refuse all hooks: ours step aside for them."""
        is_ours = self._pop_hooks()
        try:
            with self._disabling(message):
                yield
        finally:
            if is_ours:
                torch._C._autograd._push_saved_tensors_default_hooks(*self._hooks)

    def _pop_hooks(self) -> bool:
        top = torch._C._autograd._top_saved_tensors_default_hooks(True)
        is_ours = top is not None and top[0] == self._hooks[0]
        if is_ours:
            torch._C._autograd._pop_saved_tensors_default_hooks()
        return is_ours

    def resume(self) -> None:
        if not self._here.is_mode_on:
            self._here.is_mode_on = True
            dispatch._push_mode(self._mode)

    def rest(self) -> None:
        """Take the recorder off, unless another mode lies on top of it: then it passes everything through."""
        if self._here.is_mode_on and dispatch._get_current_dispatch_mode() is self._mode:
            self._here.is_mode_on = False
            dispatch._pop_mode()

    def run_backward(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        is_ours = self._here.is_mode_on and dispatch._get_current_dispatch_mode() is self._mode
        if is_ours:
            dispatch._pop_mode()
        self._count_backwards(1)
        try:
            return run(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            # Backward's own allocations cannot be tried again: at least say what fills the device, once.
            known = self.who_holds()
            if known.partition(":")[0] in str(error):
                raise
            raise torch.OutOfMemoryError(
                f"{error} {known} It happened in backward, where nothing can be tried again: lower dtr.eviction_threshold."
            ) from error
        finally:
            self._count_backwards(-1)
            if is_ours:
                dispatch._push_mode(self._mode)
            self.after_backward()

    def _count_backwards(self, more: int) -> None:
        with self._counting:
            self.n_backwards += more

    def _forget(self) -> None:
        """A forked worker (a data loader's) makes batches, it does not train."""
        self.n_backwards, self._counting = 0, threading.Lock()
        if self.is_on:
            self.stop()


class _Door:
    """torch's autograd engine, seen through `run_backward`."""

    def __init__(self, engine: Any, interception: Interception) -> None:
        self.interception = interception
        self._engine = engine

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        return self.interception.run_backward(self._engine.run_backward, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
