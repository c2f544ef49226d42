"""Levels L1 and mix: a function or cell with mindspore.jit is one API, "Jit.{name}.{n}", because inside it is a graph.

jit function called ──> inputs ──> compiled without our stand-ins, run ──> outputs, nodes of autograd hooked
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from mindspore import nn
from mindspore.graph.api import _JitExecutor

from windtunnel.probe.mindspore.graph.compilers import BytecodeOff, CompileWatch

if TYPE_CHECKING:
    from windtunnel.probe.mindspore.pynative.apis import ApiStandIns

__all__ = ["JitCalls"]


class JitCalls:
    """Records calls of compiled functions while it is installed."""

    def __init__(self, apis: ApiStandIns) -> None:
        self.apis = apis
        self._records_cells = apis.collector.config.level != "mix"  # there they are recorded as cells
        self._call: Callable | None = None
        self._compiling = CompileWatch(apis.aside, lambda error: apis.collector.guard("a compilation", error))
        self._bytecode = BytecodeOff()

    def install(self, model: Any = None) -> None:
        if self._call is not None:
            return
        self._compiling.install()
        self._bytecode.install()
        run = self._call = _JitExecutor.__call__

        def recorded(executor: Any, *args: Any, **kwargs: Any) -> Any:
            return self._recorded(run, executor, args, kwargs)

        _JitExecutor.__call__ = recorded

    def remove(self) -> None:
        if self._call is not None:
            _JitExecutor.__call__ = self._call
            self._call = None
            self._bytecode.remove()
            self._compiling.remove()

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def _recorded(self, run: Callable, executor: Any, args: tuple, kwargs: dict) -> Any:
        apis = self.apis
        if apis.quiet.depth or apis.scopes.is_quiet:
            return run(executor, *args, **kwargs)
        name, inputs = _name_and_inputs(executor, args)
        is_cell = name is not None and inputs is not args and isinstance(args[0], nn.Cell)
        if name is None or (is_cell and not self._records_cells) or _is_mindspores(executor):
            with apis.quiet:
                return run(executor, *args, **kwargs)
        return apis.record(f"Jit.{name}", partial(run, executor, *args, **kwargs), inputs, kwargs)


def _name_and_inputs(executor: Any, args: tuple) -> tuple[str | None, tuple]:
    """How the call is named, and its inputs without the cell itself: a construct is named after its class."""
    name = getattr(executor.fn, "__name__", None)
    if executor.obj is None or not args:
        return name, args
    return (type(args[0]).__name__ if name == "construct" else name), args[1:]


def _is_mindspores(executor: Any) -> bool:
    """Whether a function is MindSpore's own: its optimizers are compiled, and are no calls of the program's."""
    return (getattr(executor.fn, "__module__", None) or "").startswith("mindspore.")
