"""Level L1: the primitives that cells of the model hold as attributes: `self.matmul = ops.MatMul()`.

    cell.matmul(x, w) ──> "Primitive.matmul.MatMul.0.forward"

A primitive is an object that is called, so it is given a class that records, and its own back at `stop`. One that
several cells hold under one name counts its calls together with them, as msProbe does.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from mindspore.ops.primitive import Primitive

from windtunnel.probe.mindspore.pynative.apis import ApiStandIns
from windtunnel.probe.mindspore.pynative.cells import roots_of

__all__ = ["Primitives"]


class Primitives:
    """Records calls of the model's primitives while it is installed."""

    def __init__(self, apis: ApiStandIns) -> None:
        self.apis = apis
        self._changed: list[tuple[Primitive, type, type]] = []  # with its class and the one that records
        self._classes: dict[tuple[type, str], type] = {}

    def install(self, model: Any) -> None:
        if self._changed or model is None:
            return
        seen: set[int] = set()
        for _, root in roots_of(model):
            for _, cell in root.cells_and_names():
                for name, value in vars(cell).items():
                    if isinstance(value, Primitive) and id(value) not in seen:
                        seen.add(id(value))
                        self._change(name, value)

    def remove(self) -> None:
        changed, self._changed = self._changed, []
        for primitive, kind, recording in changed:
            if type(primitive) is recording:
                primitive.__class__ = kind

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def _change(self, name: str, primitive: Primitive) -> None:
        kind = type(primitive)
        if not self.apis.collector.selection.wants_api("Primitive", f"{name}.{kind.__name__}"):
            return
        recording = self._classes.get((kind, name))
        if recording is None:
            recording = self._classes[kind, name] = self._recording(kind, f"Primitive.{name}.{kind.__name__}")
        try:
            primitive.__class__ = recording
        except TypeError:  # a class of another layout: it is not recorded
            return
        self._changed.append((primitive, kind, recording))

    def _recording(self, kind: type, key: str) -> type:
        apis = self.apis
        original: Callable = kind.__call__

        def call(self: Primitive, *args: Any, **kwargs: Any) -> Any:
            if apis.quiet.depth or apis.scopes.is_quiet:
                return original(self, *args, **kwargs)
            return apis.record(key, partial(original, self, *args, **kwargs), args, kwargs)

        return type(
            kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__, "__slots__": ()}
        )
