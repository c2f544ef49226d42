"""How code is compiled while we collect: as without the probe, or with operators that record modules ("notes").

    Dynamo compiles a frame ──> our hooks and operators are hidden ──> compiled (L0, mix: with notes) ──> cache

Code with notes is cached separately from the program's own: it is used only while modules are recorded, and the
program's own code stays in its cache and runs again after stop without being recompiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.files.notices import tell
from windtunnel.probe.pytorch.compiled.hidden import hide_module_hooks, hide_operators
from windtunnel.probe.pytorch.compiled.note_ops import take_trace_notes, trace_notes

__all__ = ["Tracing"]

_OUR_FILES = str(Path(__file__).parents[3])
_caches = itertools.count(2**20)  # numbers that torch does not give to its own isolated caches

_ROUNDING = (
    "modules inside compiled code are recorded by compiling it again with recording operators: its results may differ by "
    "rounding from those without the probe; levels L1 and L2 keep them bit-identical"
)


class Tracing:
    """`hooks`: those that put notes of modules into graphs, or None."""

    def __init__(self, scopes: Scopes, hooks: Any) -> None:
        self.scopes = scopes
        self.hooks = hooks
        self.modules: list[nn.Module] = []  # that may have hooks of ours
        self._cache_of: dict[tuple, int] = {}
        self._backends: dict[tuple, _BackendWithNotes] = {}
        self._told: set[str] = set()

    def wants_notes(self) -> bool:
        """Not while the user's stance forbids compiling: then a region is a black box."""
        return self.hooks is not None and torch._dynamo.eval_frame._stance.stance == "default"

    def cache_number(self, number: int) -> int:
        """The number of torch's cache for code with notes; it does not count as a recompilation of the other code."""
        key = (number, self.hooks.names)
        if key not in self._cache_of:
            self._cache_of[key] = next(_caches)
        return self._cache_of[key]

    def callback_from_stance(self, original: Callable) -> Callable:
        """Wrap the callback that compiles a frame."""

        def from_stance(callback: Any) -> Any:
            found = original(callback)
            return _Compiler(found, self, self._identity(found)) if callable(found) else found

        return from_stance

    def compile(self, callback: Callable, frame: Any, args: tuple, kwargs: dict) -> Any:
        """Compile one frame; where it fails with notes, without them."""
        if frame.f_code.co_filename.startswith(_OUR_FILES):
            return _leave_alone()  # a hook of ours that Python calls inside a region
        wants_notes = self.wants_notes()
        show = hide_module_hooks(self.modules), hide_operators()
        had_notes = trace_notes(wants_notes)
        was_quiet = self.scopes.is_quiet
        self.scopes.is_quiet = True  # what the compiler calls is not the program
        try:
            if wants_notes:
                return self._compile_with_notes(callback, frame, args, kwargs)
            return callback(frame, *args, **kwargs)
        finally:
            trace_notes(had_notes)
            self.scopes.is_quiet = was_quiet
            for undo in show:
                undo()

    def _compile_with_notes(self, callback: Callable, frame: Any, args: tuple, kwargs: dict) -> Any:
        name = frame.f_code.co_name
        take_trace_notes()
        # This compilation is ours: a program that forbids recompilations does not mean it.
        with torch._dynamo.config.patch(error_on_recompile=False):
            try:
                # The backward too is compiled now: later, inside the user's backward, there is no second try. Graphs
                # that are cut at DDP's buckets do not compile with notes; uncut they compute the same, only later.
                eager_backward = torch._functorch.config.patch(force_non_lazy_backward_lowering=True)
                with eager_backward, torch._dynamo.config.patch(optimize_ddp=False):
                    result = callback(frame, *args, **kwargs)
            except Exception as error:
                trace_notes(False)
                result = callback(frame, *args, **kwargs)
                reason = " ".join(str(error).split("\n\n")[0].split())[:200]
                self._tell(
                    f"modules inside the compiled function {name} are not collected: it does not compile with recording "
                    f"operators ({type(error).__name__}: {reason}); collect them once without torch.compile"
                )
                return result
        n_notes, without = take_trace_notes()
        if n_notes:
            self._tell(_ROUNDING)
            if torch._dynamo.config.compiled_autograd:
                self._tell(
                    f"gradients of modules inside the compiled function {name} are not collected: compiled autograd "
                    "computes them in a separate graph; set torch._dynamo.config.compiled_autograd = False"
                )
        for kind in without:
            self._tell(
                f"modules inside {kind} in the compiled function {name} are not collected: torch may run it more "
                "than once; collect them once without torch.compile"
            )
        return result

    def _identity(self, callback: Callable) -> Callable:
        """What Dynamo compares to decide which backend a cache entry belongs to.

        A separate cache is not enough: torch also looks into the common one.
        """
        if not self.wants_notes():
            return callback
        backend = torch._dynamo.eval_frame.innermost_backend(callback)
        return self._backends.setdefault((self.hooks.names, id(backend)), _BackendWithNotes(backend))

    def _tell(self, sentence: str) -> None:
        if sentence not in self._told:
            self._told.add(sentence)
            tell(sentence)


class _Compiler:
    """Dynamo's callback, which compiles a frame. `identity` says whose compiled code it makes."""

    def __init__(self, callback: Callable, tracing: Tracing, identity: Callable) -> None:
        self._torchdynamo_orig_backend = identity
        self.callback = callback
        self.tracing = tracing

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        return self.tracing.compile(self.callback, frame, args, kwargs)


class _BackendWithNotes:
    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.backend(*args, **kwargs)


def _leave_alone() -> Any:
    """Dynamo's answer for a frame that runs as it is, with all that it calls."""
    from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

    skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    return ConvertFrameReturn(frame_exec_strategy=skip, apply_to_code=True)
