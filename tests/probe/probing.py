"""Run a piece of a program under the probe and read back what it wrote.

probe(folder, work, model=..., level=...) ──> Dump ──> dump["Functional.relu.0.backward"]["output"][0] ──> a tensor
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from windtunnel.pytorch import PrecisionDebugger

__all__ = ["Dump", "make_debugger", "probe", "read_dump", "tensor_elements"]


class Dump:
    """One step of one process: its files, and its tensors where there are files of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        names = [name for name in ("dump.json", "debug.json") if (folder / name).exists()]
        self.header = json.loads((folder / names[0]).read_text())
        self.data: dict[str, Any] = self.header["data"]

    def __getitem__(self, entry: str) -> dict[str, Any]:
        return self.data[entry]

    def __contains__(self, entry: str) -> bool:
        return entry in self.data

    def json(self, name: str) -> Any:
        return json.loads((self.folder / name).read_text())

    def names(self, *parts: str) -> list[str]:
        """The entries whose names have all of these in them."""
        return [name for name in self.data if all(part in name for part in parts)]

    def tensor(self, element: dict[str, Any] | None) -> torch.Tensor | None:
        """The saved values of an element."""
        if element is None:
            return None
        path = self.folder / "dump_tensor_data" / element["data_name"]
        return torch.load(path, weights_only=True)

    def tensors(self, entry: str, side: str) -> list[torch.Tensor | None]:
        """The saved values of a side (`input`, `output`, ...) of an entry."""
        return [self.tensor(element) for element in self.data[entry][side]]


def make_debugger(folder: Path, **keys: Any) -> PrecisionDebugger:
    """A fresh debugger; keys of the task's section go into it, the others are common keys."""
    if PrecisionDebugger.current is not None:
        PrecisionDebugger.current.close()
        PrecisionDebugger.current = None
    folder.mkdir(parents=True, exist_ok=True)
    task = keys.setdefault("task", "tensor")
    section = {name: keys.pop(name) for name in _SECTION if name in keys}
    config = {"dump_path": str(folder / "dump"), "level": "L1", **keys, task: section}
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return PrecisionDebugger(config_path=str(path))


_SECTION = (
    "scope",
    "list",
    "tensor_list",
    "data_mode",
    "summary_mode",
    "slice",
    "overflow_nums",
    "bench_path",
)


def probe(folder: Path, work: Callable[[], Any], model: Any = None, **keys: Any) -> Dump:
    """Run `work` as one step and read its dump."""
    debugger = make_debugger(folder, **keys)
    debugger.start(model)
    work()
    debugger.stop()
    debugger.step()
    debugger.close()
    return read_dump(folder)


def read_dump(folder: Path, step: int = 0, who: str = "*") -> Dump:
    """The dump of a step; there must be exactly one process."""
    (found,) = (folder / "dump" / f"step{step}").glob(who)
    return Dump(found)


def tensor_elements(value: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every tensor element of an entry with its place in it."""
    if isinstance(value, dict):
        if "dtype" in value and "shape" in value:
            yield path, value
            return
        for key, item in value.items():
            yield from tensor_elements(item, f"{path}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from tensor_elements(item, f"{path}.{index}")
