"""The properties of an operator that matter for recomputing it; determined once per operator.

OpOverload ──> schema, tags, name ──> Traits
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch

from windtunnel.remat.rerunnable import HIDDEN_WRITES, is_blank, is_fill, is_rerunnable

__all__ = ["Effect", "Traits", "traits_of"]

# Collectives write into these arguments, although their schemas do not mark them.
_WRITTEN_BY_COLLECTIVES = frozenset("tensors output outputs output_tensor output_tensors".split())


class Effect(IntEnum):
    VIEW = 0  # result shares memory with an input
    PLAIN = 1  # reads its inputs, makes new outputs, can be run again
    WRITES = 2  # changes one or more of its inputs
    BLANK = 3  # memory without content
    OTHER = 4  # anything that is never run again: what it makes is never evicted


@dataclass(frozen=True, slots=True)
class Traits:
    name: str
    effect: Effect
    is_seeded: bool  # draws from the device's generator
    is_rerunnable: bool
    written: tuple[int, ...]  # positions of arguments written to; -1: keyword only (out=)
    fills: bool  # a write that does not read the old content
    statistics: tuple[
        int, ...
    ]  # positions of running statistics, which it writes although its schema does not mark them
    is_local: bool  # torch's own: it only computes, and does not wait for other ranks as a collective does


def traits_of(operator: Any, is_cuda: bool) -> Traits:
    schema = operator._schema
    name = str(operator)
    base = name.split(".")[1] if "." in name else name
    written = tuple(
        -1 if argument.kwarg_only else i
        for i, argument in enumerate(schema.arguments)
        if (argument.alias_info is not None and argument.alias_info.is_write)
        or (name.startswith("c10d.") and base != "send" and argument.name in _WRITTEN_BY_COLLECTIVES)
    )
    is_view = not written and any(result.alias_info is not None for result in schema.returns)
    tags = operator.tags
    can_rerun = (
        is_rerunnable(name, is_cuda)
        and torch.Tag.dynamic_output_shape not in tags
        and torch.Tag.data_dependent_output not in tags
        and getattr(torch.Tag, "nondeterministic_bitwise", None) not in tags
        and torch.Tag.inplace_view not in tags
    )
    if is_blank(name):
        effect = Effect.BLANK
    elif written:
        effect = Effect.WRITES
    elif is_view:
        effect = Effect.VIEW
    else:
        effect = Effect.PLAIN if can_rerun else Effect.OTHER
    return Traits(
        name, effect, torch.Tag.nondeterministic_seeded in tags, can_rerun, written, is_fill(name),
        tuple(HIDDEN_WRITES.get(base, ())), name.startswith(("aten.", "prims.")),
    )  # fmt: skip
