"""Which values of a framework are tensors, and how to walk over those in a nested value.

ValueWords(torch.Tensor, clone) ──> tensors_in(args) ──> every tensor, in the order of its encoding
                               └──> copied(args)    ──> the same value with copies of its tensors
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

__all__ = ["DEEPEST", "ValueWords"]

DEEPEST = 10  # so that a list that contains itself twice still ends


class ValueWords:
    """The tensors of one framework."""

    def __init__(self, tensor: type, copy: Callable[[Any], Any]) -> None:
        self.tensor = tensor
        self._copy = copy

    def tensors_in(self, value: Any, depth: int = 0) -> Iterator[Any]:
        """Every tensor of a value, in the order of its encoding."""
        if isinstance(value, self.tensor):
            yield value
        elif depth < DEEPEST:
            if isinstance(value, (list, tuple)):
                for item in value:
                    yield from self.tensors_in(item, depth + 1)
            elif isinstance(value, Mapping):
                for item in value.values():
                    yield from self.tensors_in(item, depth + 1)
            elif dataclasses.is_dataclass(value) and not isinstance(value, type):
                for field in dataclasses.fields(value):
                    yield from self.tensors_in(getattr(value, field.name, None), depth + 1)

    def copied(self, value: Any) -> Any:
        """The value with copies of its tensors, for a call that may write to them."""
        if isinstance(value, self.tensor):
            return self._copy(value)
        if isinstance(value, tuple) and not hasattr(value, "_fields"):
            return tuple(map(self.copied, value))
        if isinstance(value, list):
            return [*map(self.copied, value)]
        if isinstance(value, dict):
            return {key: self.copied(item) for key, item in value.items()}
        return value
