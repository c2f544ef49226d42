"""Level L0: the cells below the model, by forward hooks and by the autograd nodes their calls made.

    forward pre-hook ──> inputs ──> children, APIs ──> forward hook ──> outputs, parameters ──> nodes hooked
    gradient of a parameter ──> entry "Cell.….parameters_grad.n" once all parameters of the cell have theirs

MindSpore's own backward hooks put operators into the graph; these do not.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn

from windtunnel.probe.collector import Collector
from windtunnel.probe.mindspore_calls import CallWriter, OpenCall
from windtunnel.probe.mindspore_quiet import Quiet
from windtunnel.probe.parameter_gradients import ParameterGradients
from windtunnel.probe.scopes import Scopes

__all__ = ["CellHooks", "named_cells", "roots_of"]


def roots_of(model: Any) -> list[tuple[str, nn.Cell]]:
    """The given models with the beginning of their names: "Cell." of one, "Cell.0." of the first of several."""
    if isinstance(model, nn.Cell):
        return [("Cell.", model)]
    return [(f"Cell.{index}.", root) for index, root in enumerate(model or ())]


def named_cells(model: Any) -> list[tuple[str, nn.Cell]]:
    """The cells to watch with their names in a dump: every cell below the given one, which is not watched itself."""
    found: dict[int, tuple[str, nn.Cell]] = {}
    for prefix, root in roots_of(model):
        for path, cell in root.cells_and_names():
            if path and id(cell) not in found:  # a shared cell keeps its first name
                found[id(cell)] = (f"{prefix}{path}.{type(cell).__name__}", cell)
    return list(found.values())


class CellHooks:
    """Hooks on the cells of one model; installed while collecting, gone afterwards."""

    def __init__(
        self,
        collector: Collector,
        writer: CallWriter,
        scopes: Scopes,
        quiet: Quiet,
        is_compiled: Callable[[nn.Cell], bool],
    ) -> None:
        self.collector = collector
        self.writer = writer
        self.scopes = scopes
        self.quiet = quiet
        self.is_compiled = is_compiled  # cells that run only inside graphs take no hooks
        self._handles: list[Any] = []
        self._gradients = ParameterGradients(collector, writer)
        self._open = threading.local()

    def install(self, model: Any) -> None:
        """Hook every cell; calling it again does nothing until `remove`."""
        if self._handles:
            return
        for name, cell in named_cells(model):
            if not self.is_compiled(cell):
                self._watch(name, cell)

    def remove(self) -> None:
        """Take the hooks off the cells. Hooks on the graph stay, for its backward may come later."""
        self._calls().clear()  # of cells that are still running, or that an interrupt has ended
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._gradients.remove_finished()

    def end_step(self) -> None:
        """Take the hooks off the parameters too."""
        self._gradients.remove_all()

    def _watch(self, name: str, cell: nn.Cell) -> None:
        def before(_: nn.Cell, args: tuple, kwargs: dict) -> None:
            try:
                self._begin(name, cell, args, kwargs)
            except Exception as error:
                self.collector.guard(f"the inputs of {name}", error)

        def after(_: nn.Cell, args: tuple, kwargs: dict, output: Any) -> None:
            try:
                self._end(name, cell, output)
            except Exception as error:
                self.collector.guard(f"the outputs of {name}", error)

        self._handles.append(cell.register_forward_pre_hook(before, with_kwargs=True))
        # always_call: also after an exception, so that the stack of cells stays right
        self._handles.append(cell.register_forward_hook(after, with_kwargs=True, always_call=True))

    def _begin(self, name: str, cell: nn.Cell, args: tuple, kwargs: dict) -> None:
        step = self.collector.step
        if step is None or self.scopes.is_quiet:
            self._calls().append((cell, None, None))
            return
        number = step.number(name)
        scope = f"{name}.forward.{number}"
        call: OpenCall | None = None
        try:
            with self.quiet:
                backward = f"{name}.backward.{number}"
                call = self.writer.open(step, scope, backward, self.scopes.names(), args, kwargs)
        finally:  # what runs inside has its parent all the same
            self.scopes.stack.append(scope)
            self._calls().append((cell, scope, call))

    def _end(self, name: str, cell: nn.Cell, output: Any) -> None:
        calls = self._calls()
        if not any(found is cell for found, _, _ in reversed(calls)):
            return
        found = None
        while found is not cell:  # an exception inside leaves the calls of the children behind
            found, scope, call = calls.pop()
            if scope is not None and scope in self.scopes.stack:
                del self.scopes.stack[self.scopes.stack.index(scope) :]
        if scope is not None:
            self.collector.selection.leave(scope, self.scopes.names())
        if call is None:
            return
        with self.quiet:
            parameters = _parameters(cell)
            self.writer.close(call, output, parameters)
            if call.backward is not None and self.collector.selection.parameter_gradients:
                wanted = {key: value for key, value in parameters.items() if value.requires_grad}
                self._gradients.watch(call.step, name, wanted)

    def _calls(self) -> list[tuple[nn.Cell, str | None, OpenCall | None]]:
        found = getattr(self._open, "calls", None)
        if found is None:
            found = self._open.calls = []
        return found


def _parameters(cell: nn.Cell) -> dict[str, Tensor]:
    """The cell's own parameters, by the last part of their names, as msProbe calls them."""
    return {key.rpartition(".")[2]: value for key, value in cell.parameters_dict(recurse=False).items()}
