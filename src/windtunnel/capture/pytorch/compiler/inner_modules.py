"""Which module inside a compiled region a line of generated code belongs to.

    nodes of the graph (their nn_module_stack) ──> `_at_module("layers.0.norm")` in the wrapper that Inductor writes
    at run time: the module that was compiled, and that path in it ──> recorder.module, the label of every row

A fused kernel belongs to the module of the last operator in it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch._inductor.codegen.wrapper import PythonWrapperCodegen

from windtunnel.capture.pytorch.kernels import kernels
from windtunnel.capture.pytorch.tensors.storage import world

__all__ = ["PLACE_FUNCTION", "attributed", "enter_place", "install_places", "without_repetitions"]

PLACE_FUNCTION = "_at_module"  # what generated code calls


def install_places() -> None:
    """Let Inductor write the module of each node before the code that it makes for it."""
    enter = PythonWrapperCodegen.enter_context

    def enter_context(self: PythonWrapperCodegen, node: Any) -> None:
        enter(self, node)
        if isinstance(node, torch.fx.Node):
            self.writeline(f"{PLACE_FUNCTION}({_path_in_region(node)!r})")

    PythonWrapperCodegen.enter_context = enter_context  # type: ignore[method-assign]


def _path_in_region(node: torch.fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    inner = re.sub(r"^[LG]\['\w+'\]", "", str(next(reversed(stack.values()))[0]))  # "L['self'].layers.0"
    return ".".join(word for word in re.findall(r"[A-Za-z_]\w*|\d+", inner) if word != "_modules")


def without_repetitions(source: str) -> str:
    """The code, with a call only where the module changes."""
    kept: list[str] = []
    nowhere = current = f"{PLACE_FUNCTION}('')"
    for line in source.split("\n"):
        text = line.lstrip()
        if text.startswith("def "):
            current = nowhere
        elif text.startswith(PLACE_FUNCTION):
            if text == current:
                continue
            current = text
        kept.append(line)
    return "\n".join(kept)


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
