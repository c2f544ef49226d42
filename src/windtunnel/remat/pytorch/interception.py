"""How torch calls us: the recorder on its mode stack, the saved-tensor hooks, and a wrapper around backward.

    start ──> mode + hooks + engine wrapper        rest ──> hooks only        stop ──> nothing

Mode and hooks belong to a thread, the engine wrapper to the process. Another thread gets them when it begins or calls a
module; they are removed when the thread ends, or when autograd next saves something in it.

During backward the mode is off: while any mode is active autograd accumulates gradients out of place, which costs
memory and breaks code that relies on their identity.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.utils import _python_dispatch as dispatch

from windtunnel import torch_custom_saves
from windtunnel.remat.pytorch.threads import Threads

__all__ = ["Interception"]

_graph: Any = torch.autograd.graph  # one of its functions is replaced while we are on


class _Here(threading.local):
    """What is installed in this thread."""

    has_hooks = False
    is_mode_on = False  # also while backward has it removed temporarily


class Interception:
    def __init__(
        self, mode: dispatch.TorchDispatchMode, pack: Callable[[Any], Any], unpack: Callable[[Any], Any]
    ) -> None:
        self.is_on = False
        self.is_recording: Callable[[], bool] = lambda: True
        self.after_backward: Callable[[], None] = lambda: None
        self.describe_usage: Callable[[], str] = str
        self.retrying: Callable[[Any], AbstractContextManager[None]] = lambda roots: nullcontext()
        self.n_backwards = 0  # that are running, in all threads
        self._counting = threading.Lock()
        self._mode = mode
        self._hooks = (pack, unpack)
        self._here = _Here()
        self._threads = Threads(self._enter, self._leave)
        self._engine: Any = None
        self._disabling: Any = None
        os.register_at_fork(after_in_child=self._reset)

    def start(self) -> None:
        """Install everything; if another thread has done so, install in this thread too."""
        if not self.is_on:
            self._start()
        self._enter()
        self.resume()

    def _start(self) -> None:
        self.is_on = True
        torch_custom_saves.watch()
        self._threads.watch()
        self._engine = torch.autograd.Variable._execution_engine
        torch.autograd.Variable._execution_engine = _EngineWrapper(self._engine, self)  # type: ignore[assignment]
        self._disabling = _graph.disable_saved_tensors_hooks
        _graph.disable_saved_tensors_hooks = self._without_ours

    def stop(self) -> None:
        if not self.is_on:
            return
        self.is_on = False
        self._leave()
        self._threads.unwatch()
        torch_custom_saves.unwatch()
        door = torch.autograd.Variable._execution_engine
        if isinstance(door, _EngineWrapper) and door.interception is self:
            torch.autograd.Variable._execution_engine = self._engine
        if _graph.disable_saved_tensors_hooks == self._without_ours:
            _graph.disable_saved_tensors_hooks = self._disabling

    def _enter(self) -> None:
        """Install in this thread, unless that is done or hooks are disabled at the moment."""
        is_enabled = torch._C._autograd._saved_tensors_hooks_is_enabled  # type: ignore[attr-defined]  # not in its stubs
        if not self._here.has_hooks and self.is_on and is_enabled():
            torch._C._autograd._push_saved_tensors_default_hooks(*self._hooks)
            self._here.has_hooks = True
            self.attend()

    def _leave(self) -> None:
        self.rest()
        if self._here.has_hooks:
            # Foreign hooks on top of ours are removed by their owner; ours below them then only pass tensors through.
            self._pop_hooks()
            self._here.has_hooks = False

    def attend(self) -> None:
        """Install or remove in this thread what has changed in other threads."""
        is_recording = self.is_recording()
        if self.is_on and self._here.is_mode_on == is_recording:
            return
        if torch._C._current_graph_task_id() != -1:
            return  # backward, perhaps in one of autograd's own threads, which inherit the hooks
        if not self.is_on:
            self._leave()
        elif is_recording:
            self.resume()
        else:
            self.rest()

    @contextmanager
    def _without_ours(self, message: str) -> Iterator[None]:
        """Functional transforms (`torch.func`) do not allow hooks: ours are removed for their duration."""
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
        """Remove the recorder, unless another mode is on top of it: then it passes everything through."""
        if self._here.is_mode_on and dispatch._get_current_dispatch_mode() is self._mode:
            self._here.is_mode_on = False
            dispatch._pop_mode()

    def run_backward(self, run: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        is_ours = self._here.is_mode_on and dispatch._get_current_dispatch_mode() is self._mode
        if is_ours:
            dispatch._pop_mode()
        self._count_backwards(1)
        try:
            with self.retrying(args[0] if args else ()):
                return run(*args, **kwargs)
        except torch.OutOfMemoryError as error:
            # With a threshold, backward's own allocations are not retried: at least report, once, what fills the device.
            known = self.describe_usage()
            if known.partition(":")[0] in str(error):
                raise
            raise torch.OutOfMemoryError(
                f"{error} {known} This happened in backward, where allocations are not retried under a threshold: lower"
                " dtr.eviction_threshold, or set it to 0."
            ) from error
        finally:
            self._count_backwards(-1)
            if is_ours:
                dispatch._push_mode(self._mode)
            self.after_backward()

    def _count_backwards(self, more: int) -> None:
        with self._counting:
            self.n_backwards += more

    def _reset(self) -> None:
        """A forked worker of a data loader makes batches and does not train."""
        self.n_backwards, self._counting = 0, threading.Lock()
        if self.is_on:
            self.stop()


class _EngineWrapper:
    """torch's autograd engine with a wrapped `run_backward`."""

    def __init__(self, engine: Any, interception: Interception) -> None:
        self.interception = interception
        self._engine = engine

    def run_backward(self, *args: Any, **kwargs: Any) -> Any:
        return self.interception.run_backward(self._engine.run_backward, args, kwargs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)
