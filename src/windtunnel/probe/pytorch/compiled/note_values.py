"""Arguments of a module as a compiler can carry them: tensors, numbers, and one line that says how they belong together.

    args (while tracing) ──> pack ──> [tensors], [ints], [floats], plan ──> graph ──> unpack ──> args (while running)

`pack` is traced by Dynamo, so it is plain Python without imports: every line of it must fold away. Sizes that are
symbols travel as numbers of the graph; written into the plan they would fix a dynamic shape.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch

__all__ = ["pack", "unpack"]

_DEEPEST = 8


def pack(
    value: Any, tensors: list[torch.Tensor], integers: list[int], reals: list[float], depth: int = 0
) -> str:
    """Append what must travel to the three lists, and return the plan: JSON with the places of the values in them."""
    if value is None or depth > _DEEPEST:
        return "null"
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return f'{{"t": {len(tensors) - 1}, "g": {1 if value.requires_grad else 0}}}'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        integers.append(value)
        return f'{{"i": {len(integers) - 1}}}'
    if isinstance(value, float):
        reals.append(value)
        return f'{{"f": {len(reals) - 1}}}'
    if isinstance(value, str):
        return f'"{_plain(value)}"'
    if isinstance(value, (list, tuple)):
        kind = "l" if isinstance(value, list) else "p"
        items = [pack(item, tensors, integers, reals, depth + 1) for item in value]
        return f'{{"{kind}": [{", ".join(items)}]}}'
    if isinstance(value, dict):
        pairs = [
            f'"{_plain(str(key))}": {pack(item, tensors, integers, reals, depth + 1)}'
            for key, item in value.items()
        ]
        return f'{{"d": {{{", ".join(pairs)}}}}}'
    if hasattr(value, "__dataclass_fields__"):
        pairs = [
            f'"{name}": {pack(getattr(value, name), tensors, integers, reals, depth + 1)}'
            for name in value.__dataclass_fields__
        ]
        return f'{{"d": {{{", ".join(pairs)}}}}}'
    return "null"


def unpack(
    plan: str, tensors: Sequence[torch.Tensor], integers: Sequence[int], reals: Sequence[float]
) -> Any:
    """The value that was packed; what could not travel is None."""
    return _build(_read(plan), tensors, integers, reals)


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"', "'").replace("\n", " ")


@lru_cache(maxsize=4096)
def _read(plan: str) -> Any:
    return json.loads(plan, strict=False)


def _build(plan: Any, tensors: Sequence, integers: Sequence, reals: Sequence) -> Any:
    if not isinstance(plan, dict):
        return plan
    if "t" in plan:
        tensor = tensors[plan["t"]]
        # Inside a compiled graph nothing requires a gradient; what the program asked for is in the plan.
        return tensor.detach().requires_grad_() if plan["g"] else tensor
    if "i" in plan:
        return integers[plan["i"]]
    if "f" in plan:
        return reals[plan["f"]]
    if "d" in plan:
        return {key: _build(item, tensors, integers, reals) for key, item in plan["d"].items()}
    items = [_build(item, tensors, integers, reals) for item in plan.get("l") or plan.get("p") or ()]
    return items if "l" in plan else tuple(items)
