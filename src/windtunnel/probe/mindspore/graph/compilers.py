"""When MindSpore compiles, and what: the two compilers of graphs, and the one of bytecode.

compile(cell or function) ──> around() entered ──> MindSpore reads the Python code ──> around() left
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import mindspore as ms
from mindspore import nn
from mindspore._c_expression import GraphExecutor_, JitExecutor_
from mindspore.graph._utils.pijit_context import PIJitCaptureContext

__all__ = ["BytecodeOff", "CompileWatch", "has_jit", "is_graph_mode"]


def is_graph_mode() -> bool:
    """Whether everything is compiled."""
    return ms.get_context("mode") == ms.GRAPH_MODE


def has_jit(cell: nn.Cell) -> bool:
    """Whether the construct of a cell is compiled to a graph when it is called in PyNative mode.

    By its syntax, that is: what is compiled by its bytecode runs as dynamic code while we collect.
    """
    construct = cell.construct
    if not getattr(construct, "__wrapped_by_jit__", False):
        return False
    inside = getattr(construct, "__func__", construct).__closure__ or ()
    return not any(isinstance(found.cell_contents, PIJitCaptureContext) for found in inside)


class CompileWatch:
    """Enters `around()` while MindSpore compiles.

    What does not compile with it is compiled without it, so that the probe never stops a program; `failed` is called with
    the reason.
    """

    def __init__(
        self,
        around: Callable[[], AbstractContextManager],
        failed: Callable[[Exception], None],
        otherwise: Sequence[Callable[[], AbstractContextManager]] = (),
    ) -> None:
        self.around = around
        self.failed = failed
        self.otherwise = otherwise  # what is entered, one after the other, where it does not compile
        self._compilers: list[tuple[Any, Callable]] = []

    def install(self) -> None:
        if not self._compilers:
            self._compilers = [(executor, executor.compile) for executor in (GraphExecutor_, JitExecutor_)]
            for executor, compile_graph in self._compilers:
                executor.compile = self._watched(compile_graph)

    def remove(self) -> None:
        compilers, self._compilers = self._compilers, []
        for executor, compile_graph in compilers:
            executor.compile = compile_graph

    def _watched(self, compile_graph: Callable) -> Callable:
        def compile_watched(executor: Any, *args: Any, **kwargs: Any) -> Any:
            reason = None
            for around in (self.around, *self.otherwise):
                try:
                    with around():
                        found = compile_graph(executor, *args, **kwargs)
                except Exception as error:
                    reason = reason or error
                    continue
                break
            else:
                # Out of the except block, so that what is the program's own fault comes with one traceback.
                found = compile_graph(executor, *args, **kwargs)
            if reason is not None:
                self.failed(reason)
            return found

        return compile_watched


class BytecodeOff:
    """Functions with jit(capture_mode="bytecode") run as the Python they are, so that all they call is seen."""

    def __init__(self) -> None:
        self._before: tuple[Callable, Callable] | None = None

    def install(self) -> None:
        if self._before is None:
            context = PIJitCaptureContext
            self._before = context.__enter__, context.__exit__
            context.__enter__ = lambda context: None
            context.__exit__ = lambda context, *error: None

    def remove(self) -> None:
        if self._before is not None:
            PIJitCaptureContext.__enter__, PIJitCaptureContext.__exit__ = self._before
            self._before = None
