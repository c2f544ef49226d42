"""Find the paths of cells and parameters in the user's model.

    live cells ──> which cell contains which ──> "layers.0.mlp", "layers.0.mlp.weight"

Paths start at the model, not at the wrappers of training: a cell that only contains the model (a loss, one step of
training) adds nothing. MindSpore's own parameter names cannot be used for this: a cell that contains an optimizer renames
every weight of the model to "optimizer. ...".
"""

from __future__ import annotations

import gc
import weakref
from functools import wraps
from typing import Any

import mindspore
from mindspore import Parameter, nn

__all__ = ["CellPaths", "is_optimizer", "live_objects"]

_WRAPPERS = ("network", "_backbone")  # attributes of TrainOneStepCell and WithLossCell
_RECOMPUTE = "mindspore.common.recompute"  # its cells wrap the cells that are recomputed
_LISTS = (nn.CellList, nn.SequentialCell)


class CellPaths:
    """Knows every live cell without keeping any alive, so that memory is freed as usual."""

    def __init__(self) -> None:
        self.prefixes: set[str] = set()  # what was cut off paths
        self._cells: dict[int, weakref.ref[Any]] = {}  # by id, in the order in which they were made
        self._holders: dict[
            int, tuple[int, str]
        ] = {}  # of a cell: the one that holds it, and under which name
        self._paths: dict[int, str] = {}
        self._is_stale = False  # cells came or went since paths were found

    def watch(self) -> None:
        """Register cells when they are created: searching for them takes as long as running a layer."""
        original = nn.Cell.__init__

        @wraps(original)
        def __init__(cell: Any, *args: Any, **kwargs: Any) -> None:
            original(cell, *args, **kwargs)
            self._add(cell)

        nn.Cell.__init__ = __init__

    def path_of(self, cell: Any) -> str:
        """ "" for the outermost."""
        if id(cell) not in self._cells:
            self._search()  # a copy of another cell: copies are created without __init__
        self._look()
        found = self._paths.get(id(cell))
        if found is None:
            found = self._paths[id(cell)] = self._path(cell)
        return found

    def cells(self) -> list[Any]:
        return [cell for ref in list(self._cells.values()) if (cell := ref()) is not None]

    def parameter_names(self) -> dict[str, str]:
        """MindSpore's name of each parameter -> its path in the model."""
        self._look()
        found: dict[str, str] = {}
        for cell in self.cells():
            if is_optimizer(cell):
                continue
            for attribute, parameter in cell.parameters_and_names(expand=False):
                if isinstance(parameter, Parameter):
                    path = ".".join(filter(None, (self._path(cell), attribute.rpartition(".")[2])))
                    found[parameter.name] = max(found.get(parameter.name, ""), path, key=len)
        return found

    def _add(self, cell: Any) -> None:
        key = id(cell)

        def forget(ref: Any) -> None:
            if self._cells.get(key) is ref:
                del self._cells[key]
                self._is_stale = True

        self._cells[key] = weakref.ref(cell, forget)
        self._is_stale = True

    def _search(self) -> None:
        for cell in live_objects(nn.Cell):
            if id(cell) not in self._cells:
                self._add(cell)

    def _look(self) -> None:
        """Find out which cell contains which, if that may have changed."""
        if not self._is_stale:
            return
        self._is_stale = False
        self._paths.clear()
        self._holders.clear()
        # The model's own cells first: recomputation contains a cell a second time.
        for cell in sorted(self.cells(), key=_recomputes):
            if not is_optimizer(cell):
                for name, part in cell._cells.items():
                    if part is not None:
                        self._holders.setdefault(id(part), (id(cell), name))

    def _holder(self, cell: Any) -> tuple[Any, str] | None:
        key, name = self._holders.get(id(cell), (0, ""))
        holder = self._cells[key]() if key in self._cells else None
        return None if holder is None else (holder, name)

    def _path(self, cell: Any) -> str:
        words: list[str] = []
        seen = {id(cell)}
        while (held := self._holder(cell)) is not None and id(held[0]) not in seen:
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
            while cut and cut[0] in _WRAPPERS:  # scope names do not contain these
                cut.pop(0)
            self.prefixes.add(".".join(cut))
            self.prefixes.discard("")
        return ".".join(words)


def is_optimizer(cell: Any) -> bool:
    return isinstance(cell, (nn.Optimizer, mindspore.experimental.optim.Optimizer))


def live_objects(kind: type) -> list[Any]:
    """All live objects of a class. Checks `type`, as `isinstance` raises for a weak proxy whose object is gone."""
    return [thing for thing in gc.get_objects() if issubclass(type(thing), kind)]


def _recomputes(cell: Any) -> bool:
    return type(cell).__module__ == _RECOMPUTE


def _only_wraps(cell: Any) -> bool:
    """Whether a cell contains one other cell and nothing else. A cell with a list of layers is a model."""
    parts = [part for part in cell._cells.values() if part is not None and not is_optimizer(part)]
    return (
        len(parts) == 1
        and not cell._params
        and not isinstance(cell, _LISTS)
        and not isinstance(parts[0], _LISTS)
    )
