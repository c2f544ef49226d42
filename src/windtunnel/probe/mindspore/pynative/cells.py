"""Level L0: MindSpore's cells below the model, and their parameters.

model ──> named_cells ──> LayerHooks ──> entries "Cell.path.Class.forward.n", "….backward.n", "….parameters_grad.n"
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mindspore import Tensor, nn

from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.layer_hooks import LayerHooks
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.mindspore.pynative.call_writer import CallWriter
from windtunnel.probe.mindspore.pynative.reentry import Quiet

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


class CellHooks(LayerHooks):
    """Hooks on the cells of one model."""

    def __init__(
        self,
        collector: Collector,
        writer: CallWriter,
        scopes: Scopes,
        quiet: Quiet,
        is_compiled: Callable[[nn.Cell], bool],
    ) -> None:
        super().__init__(collector, writer, scopes)
        self.quiet = quiet
        self.is_compiled = is_compiled  # cells that run only inside graphs take no hooks

    def named_layers(self, model: Any) -> list[tuple[str, nn.Cell]]:
        return [(name, cell) for name, cell in named_cells(model) if not self.is_compiled(cell)]

    def unseen(self) -> Quiet:
        return self.quiet

    def parameters_of(self, layer: nn.Cell) -> dict[str, Tensor]:
        """By the last part of their names, as msProbe calls them."""
        return {key.rpartition(".")[2]: value for key, value in layer.parameters_dict(recurse=False).items()}

    def trained(self, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        return {key: value for key, value in parameters.items() if value.requires_grad}
