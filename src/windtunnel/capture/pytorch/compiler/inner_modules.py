"""Which module inside a compiled region a line of generated code belongs to.

    nodes of the graph (their nn_module_stack) ──> lines of the wrapper ──> add_places: `_at_module("layers.0.norm")` in it
    at run time: the module that was compiled, and that path in it ──> recorder.module, the label of every row

A fused kernel belongs to the module of the last operator in it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels import kernels
from windtunnel.capture.pytorch.tensors.storage import world

__all__ = ["PLACE_FUNCTION", "add_places", "attributed", "enter_place", "places_of"]

PLACE_FUNCTION = "_at_module"  # what generated code calls
Places = list[tuple[int, str]]  # from this line of the code on, it is this module's; "": the region's own


def places_of(line_map: Iterable[tuple[int, Any]]) -> Places:
    """The modules of the lines that Inductor generated, by the nodes that it made them for."""
    places: Places = []
    for line, node in line_map:
        if isinstance(node, torch.fx.Node):
            places.append((line, _path_in_region(node)))
    return places if any(path for _, path in places) else []  # an optimizer, or a function of no module


def _path_in_region(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    root, inner = (str(next(iter(values))[0]) for values in (stack.values(), reversed(stack.values())))
    if not inner.startswith(root):
        return ""
    words = re.findall(r"[A-Za-z_]\w*|\d+", inner[len(root) :])
    return ".".join(word for word in words if word != "_modules")


def add_places(source: str, places: Places) -> str:
    """Insert a call wherever the module changes."""
    if not places:
        return source
    path_at = dict(places)
    added: list[str] = []
    current = pending = ""
    for number, line in enumerate(source.split("\n"), 1):
        pending = path_at.get(number, pending)
        if line.lstrip().startswith("def "):
            current = pending = ""
        if pending != current and line.strip():
            indent = line[: len(line) - len(line.lstrip())]
            added.append(f"{indent}{PLACE_FUNCTION}({pending!r})")
            current = pending
        added.append(line)
    return "\n".join(added)


class _Region(threading.local):
    base = -1  # the module that was compiled


_region = _Region()
_found: dict[tuple[int, str], int] = {}  # (region, path in it) -> index of the module's name


def enter_place(path: str) -> None:
    """What follows belongs to the module with this path in the region."""
    base = _region.base
    found = _found.get((base, path)) if path else base
    if found is None:
        names = world.recorder.writer.names
        region = list(names)[base] if base >= 0 else ""
        # A model's own name is not part of the paths below it.
        found = names.get(f"{region}.{path}", names.get(path, base))
        if found != base:
            _found[base, path] = found
    world.recorder.module = found


def attributed(call: Callable[..., Any]) -> Callable[..., Any]:
    """The generated code, whose rows belong to the modules that its lines name."""

    @wraps(call)
    def run(args: Any) -> Any:
        recorder = world.recorder
        before, look_up = recorder.module, kernels.module_of_node
        kernels.locate_backward(recorder)
        outer, _region.base = _region.base, recorder.module
        kernels.module_of_node = lambda node: recorder.module  # the code says it
        try:
            return call(args)
        finally:
            kernels.module_of_node = look_up
            _region.base = outer
            recorder.module = before

    return run
