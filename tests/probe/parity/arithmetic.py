"""A fingerprint of the arithmetic under a program: one checksum over the bits that its kernels read.

    fingerprint(case) ──> run_program(case, nobody) under a dispatch mode ──> "9f2c01ab"

Which kernel multiplies two matrices, and in which order it adds, torch, MKL and oneDNN choose each for itself: by processor, by
instruction set, by version, by shape. No word that they say about themselves tells whether two machines come to the same
bits. The program that was recorded does, if it is run once more with nobody watching.

Needs torch only, so that a Python with msProbe and without windtunnel can run it too.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.probe.parity.cases import Case, run_program

__all__ = ["fingerprint"]


def fingerprint(case: Case) -> str:
    """The checksum of a case's program on this machine; the same where, and only where, it computes the same bits."""
    with _Reading() as reading:
        run_program(case, _Nobody())
    return f"{reading.crc:08x}"


class _Nobody:
    """Stands where a debugger would, and looks at nothing."""

    def start(self, model: Any) -> None: ...

    def stop(self) -> None: ...

    def step(self) -> None: ...

    def save(self, *args: Any, **kwargs: Any) -> None: ...


class _Reading(TorchDispatchMode):
    """Adds up what kernels read, not what they give: memory that is only made room for has no bits of its own yet."""

    def __init__(self) -> None:
        super().__init__()
        self.crc = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in _read(func, args, kwargs):
            self.crc = zlib.crc32(
                tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy(), self.crc
            )
        return func(*args, **kwargs)


def _read(func: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[torch.Tensor]:
    for place, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            continue
        value = args[place] if place < len(args) else kwargs.get(argument.name)
        yield from (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor) and leaf.numel())
