"""Where cells and parameters stand in the user's model.

    living cells ──> who holds whom ──> "layers.0.mlp", "layers.0.mlp.weight"

Paths are those of the model, not of what training wraps around it: a cell that only holds the model (a loss, one step of
training) adds no word. MindSpore's own parameter names cannot be used for this: a cell that holds an optimizer renames every
weight of the model to "optimizer. ...".
"""

from __future__ import annotations

import gc
from typing import Any

import mindspore
from mindspore import Parameter, nn

__all__ = ["CellPaths", "is_optimizer", "living"]

_WRAPPERS = ("network", "_backbone")  # attributes of TrainOneStepCell and WithLossCell
_RECOMPUTE = "mindspore.common.recompute"  # its cells stand between a cell and what it computes again
_LISTS = (nn.CellList, nn.SequentialCell)


class CellPaths:
    """Knows every cell that was alive when it last looked; looks again when asked about another."""

    def __init__(self) -> None:
        self.prefixes: set[str] = set()  # what was cut off paths
        self._holder: dict[
            int, tuple[Any, str]
        ] = {}  # id of a cell -> the cell that holds it, and under which name
        self._paths: dict[int, str] = {}
        self._alive: list[Any] = []  # so that an id is never another cell's

    def path_of(self, cell: Any) -> str:
        """ "" for the outermost."""
        found = self._paths.get(id(cell))
        if found is None:
            self._look()
            found = self._paths[id(cell)] = self._path(cell)
            self._alive.append(cell)
        return found

    def parameter_names(self) -> dict[str, str]:
        """MindSpore's name of each parameter -> its path in the model."""
        self._look()
        found: dict[str, str] = {}
        for cell in living(nn.Cell):
            if is_optimizer(cell):
                continue
            for attribute, parameter in cell.parameters_and_names(expand=False):
                if isinstance(parameter, Parameter):
                    path = ".".join(filter(None, (self._path(cell), attribute.rpartition(".")[2])))
                    found[parameter.name] = max(found.get(parameter.name, ""), path, key=len)
        return found

    def _look(self) -> None:
        self._paths.clear()
        self._holder.clear()
        # The model's own cells first: recomputation holds a cell a second time.
        for cell in sorted(living(nn.Cell), key=_recomputes):
            if not is_optimizer(cell):
                for name, part in cell._cells.items():
                    if part is not None:
                        self._holder.setdefault(id(part), (cell, name))

    def _path(self, cell: Any) -> str:
        words: list[str] = []
        seen = {id(cell)}
        while (held := self._holder.get(id(cell))) is not None and id(held[0]) not in seen:
            holder, word = held
            seen.add(id(holder))
            if not _recomputes(cell):
                words.insert(0, word)
            cell = holder
        # `cell` is the outermost one now; go down again as long as it only wraps.
        cut: list[str] = []
        while words and words[0] in cell._cells and (words[0] in _WRAPPERS or _only_wraps(cell)):
            cell = cell._cells[words[0]]
            cut.append(words.pop(0))
        if cut:
            self.prefixes.add(".".join(cut))
            while cut and cut[0] in _WRAPPERS:  # names of scopes have lost these already
                cut.pop(0)
            self.prefixes.add(".".join(cut))
            self.prefixes.discard("")
        return ".".join(words)


def is_optimizer(cell: Any) -> bool:
    return isinstance(cell, (nn.Optimizer, mindspore.experimental.optim.Optimizer))


def living(kind: type) -> list[Any]:
    """All objects of a class. By their type, as asking a weak proxy whose object is gone would raise."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]


def _recomputes(cell: Any) -> bool:
    return type(cell).__module__ == _RECOMPUTE


def _only_wraps(cell: Any) -> bool:
    """Holds one other cell and nothing else. One that holds a list of layers is a model."""
    parts = [part for part in cell._cells.values() if part is not None and not is_optimizer(part)]
    return (
        len(parts) == 1
        and not cell._params
        and not isinstance(cell, _LISTS)
        and not isinstance(parts[0], _LISTS)
    )
