"""Make a call again from its signature: the operator, and its arguments with gaps for the tensors.

Signature ──> call_of ──> Call ──> fill(tensors) ──> args, kwargs
                 └──> CannotRebuild: a sentence why not
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from windtunnel.events.model import Signature
from windtunnel.timing.measured.scalars import MORE, TENSOR, Word, read_scalars

__all__ = ["Call", "CannotRebuild", "call_of", "dtype_of"]

_NAME = re.compile(r"aten\.(\w+)\.(\w+)")
_PLAIN_WORDS = (torch.dtype, torch.layout, torch.memory_format)
_FORBIDDEN = frozenset({"from_file"})  # it opens a file of the signature's choice


class CannotRebuild(Exception):
    """Why an operator cannot be run from its signature."""


@dataclass(frozen=True)
class Call:
    operator: Callable[..., Any]
    args: list[Any]
    kwargs: dict[str, Any]
    dtypes: tuple[torch.dtype, ...]  # of the tensors, in order
    writes_out: bool

    def fill(self, tensors: list[torch.Tensor]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments, with a tensor in every gap."""
        rest = iter(tensors)
        args = [_filled(each, rest) for each in self.args]
        return args, {name: _filled(each, rest) for name, each in self.kwargs.items()}


def call_of(signature: Signature, device: torch.device) -> Call:
    overload = _overload(signature.name)
    dtypes = tuple(dtype_of(spec.dtype) for spec in signature.inputs)
    try:
        args, kwargs = read_scalars(signature.scalars)
    except ValueError as error:
        raise CannotRebuild(f"its arguments cannot be read: {error}") from None
    if not signature.scalars:  # kernels that differ only in their tensors
        args = [TENSOR] * len(dtypes)
    _lengthen(args, kwargs, len(dtypes))
    args = [_settled(each, device) for each in args]
    kwargs = {name: _settled(each, device) for name, each in kwargs.items()}
    writes_out = any(argument.is_out for argument in overload._schema.arguments)
    return Call(overload._op, args, kwargs, dtypes, writes_out)


def dtype_of(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype) or name.startswith(("quint", "qint")):
        raise CannotRebuild(f"tensors of type {name} cannot be made from a shape")
    return found


def _overload(name: str) -> Any:
    parts = _NAME.fullmatch(name)
    packet = getattr(torch.ops.aten, parts[1], None) if parts and parts[1] not in _FORBIDDEN else None
    if parts is None or packet is None or parts[2] not in packet.overloads():
        raise CannotRebuild("it is not an operator of this torch")
    return getattr(packet, parts[2])


def _lengthen(args: list[Any], kwargs: dict[str, Any], n_tensors: int) -> None:
    """Lists are cut short in a signature; those of tensors are as long as the tensors that are left."""
    cut: list[list[Any]] = []
    n_written = sum(_count(each, cut) for each in (*args, *kwargs.values()))
    n_left = n_tensors - n_written
    if cut:
        if n_left <= 0 or n_left % len(cut) or any(item is not TENSOR for each in cut for item in each[:-1]):
            raise CannotRebuild("its signature does not list all its arguments")
        for each in cut:
            each[:] = [TENSOR] * (n_left // len(cut))
    elif n_left:
        raise CannotRebuild(f"its signature has {n_tensors} tensors for {n_written} places")


def _count(value: Any, cut: list[list[Any]]) -> int:
    if value is TENSOR:
        return 1
    if not isinstance(value, list):
        return 0
    if value and value[-1] is MORE:
        cut.append(value)
        return 0
    return sum(_count(each, cut) for each in value)


def _settled(value: Any, device: torch.device) -> Any:
    """Words become what they name; a generator becomes the default one."""
    if isinstance(value, list):
        return [_settled(each, device) for each in value]
    if not isinstance(value, Word):
        return value
    if value.text.startswith("device("):
        return device
    if "Generator" in value.text:
        return None
    found = getattr(torch, value.text.removeprefix("torch."), None)
    if isinstance(found, _PLAIN_WORDS):
        return found
    raise CannotRebuild(f"{value.text[:40]} is not a value that can be recreated")


def _filled(value: Any, tensors: Iterator[torch.Tensor]) -> Any:
    if value is TENSOR:
        return next(tensors)
    if isinstance(value, list):
        return [_filled(each, tensors) for each in value]
    return value
