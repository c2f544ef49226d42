"""Every run of something compiled: where it begins and ends, and that the compiler sees nothing of us.

    torch.compile'd call ──> our modes off ──> guards, compiled code ──> our modes on ──> entry "Jit.{name}.{n}"
    its backward         ──> our modes off ──> compiled backward     ──> our modes on

While modules are noted, compiled calls use a cache of compiled code of their own: the program's own code stays as it
is in its cache, and runs again after stop without being compiled anew.
"""

from __future__ import annotations

import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import nn

from windtunnel.probe.collector import Collector
from windtunnel.probe.notice import tell
from windtunnel.probe.torch_calls import CallWriter, OpenCall
from windtunnel.probe.torch_compiled_hooks import (
    hide_global_hooks,
    hide_module_hooks,
    hide_operators,
    is_ours,
)
from windtunnel.probe.torch_compiled_modes import hidden_modes, hide_modes, show_modes
from windtunnel.probe.torch_compiled_ops import trace_notes
from windtunnel.probe.torch_scopes import Scopes

__all__ = ["CompiledRegions"]

_HOOKS = "enter_exit_hooks"
_CACHE = "_isolate_recompiles_id"
_WRAPPER = "compile_wrapper"  # the function that runs compiled code
_OUR_FILES = str(Path(__file__).parents[1])
_caches = itertools.count(2**20)  # numbers that torch does not give to its own isolated caches


class CompiledRegions:
    """Watches compiled calls while collecting. `modules`: the hooks whose notes go into graphs, if any do."""

    def __init__(
        self,
        collector: Collector,
        writer: CallWriter,
        scopes: Scopes,
        modules: Any = None,
        has_jit: bool = True,
    ) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self.modules = modules
        self.has_jit = has_jit
        self.on_enter: list[Callable[[str, Any], None]] = []  # told the name and the context of each region
        self.on_exit: list[Callable[[str, Any], None]] = []
        self._thread = threading.local()
        self._undo: list[Callable[[], None]] = []
        self._cache_of: dict[tuple, int] = {}
        self._backends: dict[tuple, _BackendWithNotes] = {}
        self._told: set[str] = set()
        self._modules: list[nn.Module] = []

    def install(self, model: Any = None) -> None:
        """Be told of compiled calls from now on. Dynamo is loaded only if the program uses it."""
        if self._undo:
            return
        self._modules = _modules_of(model)
        if "torch._dynamo.eval_frame" in sys.modules:
            self._watch()
        else:
            self._replace(torch, "compile", self._compile_later(torch.compile))

    def _compile_later(self, original: Callable) -> Callable:
        """torch.compile for a program that has not compiled anything when collecting begins."""

        @functools.wraps(original)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            if self._undo:
                self.remove()
                self._watch()
            return original(*args, **kwargs)

        return compile_

    def _watch(self) -> None:
        from torch._dynamo import eval_frame

        context = eval_frame._TorchDynamoContext
        self._replace(context, _HOOKS, _Instead(_HOOKS, self._hooks))
        if self.modules is not None and hasattr(eval_frame, "set_eval_frame_isolate_recompiles_id"):
            self._replace(context, _CACHE, _Instead(_CACHE, self._cache))
        original = eval_frame._callback_from_stance
        self._replace(eval_frame, "_callback_from_stance", self._compiling(original))
        self._replace(eval_frame, "_maybe_set_eval_frame", self._left(eval_frame._maybe_set_eval_frame))
        hooks = nn.modules.module
        self._replace(hooks, "_has_any_global_hook", self._has_others_hook)
        node = torch.autograd.function.BackwardCFunction
        for name in ("apply", "apply_boxed"):
            if name in vars(node):
                self._replace(node, name, _quiet(vars(node)[name], self.scopes))

    def remove(self) -> None:
        undo, self._undo = self._undo, []
        for put_back in reversed(undo):
            put_back()

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def _replace(self, owner: Any, name: str, value: Any) -> None:
        missing = object()
        before = vars(owner).get(name, missing)
        self._undo.append(lambda: delattr(owner, name) if before is missing else setattr(owner, name, before))
        setattr(owner, name, value)

    @staticmethod
    def _has_others_hook() -> bool:
        """What torch asks before it warns that a compiled module and hooks on all modules do not go together."""
        module = nn.modules.module
        tables = (
            table
            for name, table in vars(module).items()
            if name.startswith("_global_") and name.endswith("_hooks")
        )
        return any(not is_ours(hook) for table in tables for hook in table.values())

    def _hooks(self, context: Any, hooks: list) -> Any:
        return _HooksAndOurs(hooks, lambda: self._enter(context))

    def _enter(self, context: Any) -> Callable[[], None]:
        """Called by torch before compiled code is looked up and run; returns what to call afterwards."""
        try:
            region = _Region(context, _wrapper_frame())
        except Exception as error:
            self.collector.guard("a compiled region", error)
            region = _Region(context, None)
        hidden = hide_modes()
        show_hooks = self._hide_hooks()
        self._thread.is_entering = self._wants_notes()
        depth = getattr(self._thread, "depth", 0)
        self._thread.depth = depth + 1
        if depth == 0:
            self._safely(region, lambda: self._begin(region))

        def leave() -> None:
            self._thread.depth = depth
            if depth == 0:
                self._safely(region, lambda: self._end(region))
            region.frame = None
            show_hooks()
            self._thread.hidden = hidden  # torch puts its dispatch keys back after this: see _left

        return leave

    def _left(self, original: Callable) -> Callable:
        """The last thing torch does after a compiled call; it is called at the beginning too."""

        def set_eval_frame(callback: Any) -> Any:
            result = original(callback)
            hidden, self._thread.hidden = getattr(self._thread, "hidden", None), None
            if hidden is not None:
                show_modes(hidden)
            return result

        return set_eval_frame

    def _safely(self, region: _Region, work: Callable[[], None]) -> None:
        try:
            with torch._C.DisableTorchFunction():
                work()
        except Exception as error:
            self.collector.guard(f"the compiled region {region.name}", error)

    def _begin(self, region: _Region) -> None:
        for listener in self.on_enter:
            listener(region.name, region.context)
        step = self.collector.step
        if not self.has_jit or step is None or self.scopes.is_quiet:
            return
        key = f"Jit.{region.name}"
        number = step.number(key)
        names = f"{key}.{number}.forward", f"{key}.{number}.backward"
        args, kwargs = region.arguments()
        region.call = self.writer.open(step, *names, self.scopes.names(), args, kwargs)

    def _end(self, region: _Region) -> None:
        for listener in self.on_exit:
            listener(region.name, region.context)
        has_result, result = region.result()
        if region.call is not None and has_result:
            # As a module without parameters of its own: its backward lists the gradients of what was given to it.
            self.writer.close(region.call, result, {})

    def _wants_notes(self) -> bool:
        from torch._dynamo import eval_frame

        # Other stances forbid to compile: then the program's own code runs, and the region is one black box.
        return self.modules is not None and eval_frame._stance.stance == "default"

    def _cache(self, context: Any, number: int) -> int:
        """Which cache of compiled code a call uses; asked by torch right after the hooks of entering ran."""
        if not getattr(self._thread, "is_entering", False):
            return number
        self._thread.is_entering = False
        key = (number, self.modules.names)
        if key not in self._cache_of:
            self._cache_of[key] = next(_caches)
        return self._cache_of[key]

    def _hide_hooks(self) -> Callable[[], None]:
        """What the guards of compiled code look at must be as it was when it was compiled."""
        show = [hide_global_hooks()]
        if not torch._dynamo.config.skip_nnmodule_hook_guards:
            show.append(hide_module_hooks(self._modules))
        return lambda: [undo() for undo in reversed(show)] and None

    def _compiling(self, original: Callable) -> Callable:
        def callback_from_stance(callback: Any) -> Any:
            found = original(callback)
            return _Compiler(found, self, self._identity(found)) if callable(found) else found

        return callback_from_stance

    def _identity(self, callback: Callable) -> Callable:
        """What Dynamo compares to know whose compiled code an entry of its cache is: with notes it is not the program's.

        A cache of its own (`_cache`) is not enough: torch looks into the common one too.
        """
        if not self._wants_notes():
            return callback
        backend = torch._dynamo.eval_frame.innermost_backend(callback)
        return self._backends.setdefault((self.modules.names, id(backend)), _BackendWithNotes(backend))

    def compile_frame(self, callback: Callable, frame: Any, args: tuple, kwargs: dict) -> Any:
        """Compile as if we were not there, but for the notes of modules; without those, where they make it fail."""
        if frame.f_code.co_filename.startswith(_OUR_FILES):
            return _leave_alone()  # a hook of ours that Python calls inside a region
        show = [hide_module_hooks(self._modules), hide_operators()]
        wants_notes = self._wants_notes()
        before = trace_notes(wants_notes)
        was_quiet, self.scopes.is_quiet = (
            self.scopes.is_quiet,
            True,
        )  # the compiler's own calls are not the program's
        try:
            if not wants_notes:
                return callback(frame, *args, **kwargs)
            try:
                # The backward too is compiled now: later, inside the user's backward, there is no second try.
                with (
                    torch._functorch.config.patch(force_non_lazy_backward_lowering=True),
                    _may_compile_again(),
                ):
                    return callback(frame, *args, **kwargs)
            except Exception as error:
                trace_notes(False)
                with _may_compile_again():
                    result = callback(frame, *args, **kwargs)
                self._tell_without_notes(frame.f_code.co_name, error)
                return result
        finally:
            trace_notes(before)
            self.scopes.is_quiet = was_quiet
            for undo in show:
                undo()

    def _tell_without_notes(self, code_name: str, error: Exception) -> None:
        reason = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        sentence = (
            f"modules inside the compiled function {code_name} are not collected, it does not compile with notes "
            f"({type(error).__name__}: {reason}); collect them once without torch.compile"
        )
        if sentence not in self._told:
            self._told.add(sentence)
            tell(sentence)


class _Region:
    """One run of something compiled, read from the frame of the wrapper that torch.compile made."""

    def __init__(self, context: Any, frame: FrameType | None) -> None:
        self.context = context
        self.frame = frame
        self.call: OpenCall | None = None
        self.name = "region" if frame is None else _name_of(frame.f_locals.get("fn"))

    def arguments(self) -> tuple[tuple, dict]:
        if self.frame is None:
            return (), {}
        found = self.frame.f_locals
        return found.get("args", ()), found.get("kwargs", {})

    def result(self) -> tuple[bool, Any]:
        """Whether it ended without an exception, and with what."""
        found = {} if self.frame is None else self.frame.f_locals
        return bool(found.get("call_succeeded", "result" in found)), found.get("result")


def _wrapper_frame() -> FrameType | None:
    frame: FrameType | None = sys._getframe(1)
    for _ in range(8):
        if frame is None or frame.f_code.co_name == _WRAPPER:
            return frame
        frame = frame.f_back
    return None


def _name_of(function: Any) -> str:
    """The class of a module, the name of a function."""
    owner = getattr(function, "__self__", None)
    if not isinstance(owner, nn.Module):
        function = getattr(function, "__wrapped__", function)
        owner = function if isinstance(function, nn.Module) else getattr(function, "__self__", None)
    if isinstance(owner, nn.Module):
        return type(owner).__name__
    return getattr(function, "__name__", type(function).__name__).strip("<>")


def _leave_alone() -> Any:
    """Dynamo's answer for a frame that runs as it is, with all that it calls."""
    from torch._dynamo.types import ConvertFrameReturn, FrameAction, FrameExecStrategy

    skip = FrameExecStrategy(FrameAction.SKIP, FrameAction.SKIP)
    return ConvertFrameReturn(frame_exec_strategy=skip, apply_to_code=True)


def _quiet(original: Callable, scopes: Scopes) -> Callable:
    """`apply` of autograd's Python nodes; those that run compiled code, or compile it now, see nothing of us."""

    def apply(self: Any, *args: Any) -> Any:
        if not hasattr(getattr(self, "_forward_cls", None), "_aot_id"):
            return original(self, *args)
        was_quiet, scopes.is_quiet = scopes.is_quiet, True
        try:
            with hidden_modes():
                return original(self, *args)
        finally:
            scopes.is_quiet = was_quiet

    return apply


class _Instead:
    """Stands for an attribute of every compile context, of those that exist and of those made meanwhile."""

    def __init__(self, name: str, read: Callable[[Any, Any], Any]) -> None:
        self.name = name
        self.read = read

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else self.read(instance, instance.__dict__[self.name])

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self.name] = value


class _HooksAndOurs:
    """The list of a context's own hooks, with one more to whoever walks over it."""

    def __init__(self, hooks: list, ours: Callable) -> None:
        self.hooks = hooks
        self.ours = ours

    def __iter__(self) -> Iterator[Callable]:
        yield from self.hooks
        yield self.ours

    def __getattr__(self, name: str) -> Any:
        return getattr(self.hooks, name)


class _Compiler:
    """Stands before Dynamo's callback, which compiles a frame. `identity` says whose compiled code it makes."""

    def __init__(self, callback: Callable, regions: CompiledRegions, identity: Callable) -> None:
        self._torchdynamo_orig_backend = identity
        self.callback = callback
        self.regions = regions

    def __call__(self, frame: Any, *args: Any, **kwargs: Any) -> Any:
        return self.regions.compile_frame(self.callback, frame, args, kwargs)


class _BackendWithNotes:
    def __init__(self, backend: Any) -> None:
        self.backend = backend

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.backend(*args, **kwargs)


def _may_compile_again() -> Any:
    """The code with notes is one more compilation; a program that forbids recompilations does not mean ours."""
    return torch._dynamo.config.patch(error_on_recompile=False)


def _modules_of(model: Any) -> list[nn.Module]:
    models = [] if model is None else [model] if isinstance(model, nn.Module) else list(model)
    return [module for root in models for module in root.modules()]
