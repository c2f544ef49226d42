"""Define fused kernels of device-specific packages as real torch operators, with their own names.

    define(schema, shapes) ──> torch.ops.<package>.<name> ──> OP row under that name, outputs as ALLOC rows
    differentiate(name, save, backward) ──> autograd keeps exactly what the real kernel keeps

A kernel's scratch (a dropout mask, an accumulator) uses memory only while the kernel runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.kernels import call_kernel
from windtunnel.capture.pytorch.tensors.storage import WORKSPACE, new_tensor, sim_of, world

__all__ = ["announce", "define", "differentiate"]

Tensor = torch.Tensor
_libraries: dict[str, torch.library.Library] = {}
_announced: set[str] = set()


def define(
    namespace: str,
    schema: str,
    shapes: Callable[..., Any],
    scratch: Callable[..., Sequence[int]] | None = None,
    package: str = "",
) -> Any:
    """A new operator: `shapes` returns empty tensors like its results, `scratch` the bytes it uses while running.

    `package` contains the real kernel: the report says once that it was simulated.
    """
    library = _library(namespace)
    name = schema.partition("(")[0]
    library.define(schema)
    op = getattr(getattr(torch.ops, namespace), name).default
    library.impl(name, shapes, "Meta")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if package:
            announce(f"{package} is not installed here: its kernels were simulated")
        held = [] if scratch is None else _take(scratch(*args, **kwargs), args)
        result = call_kernel(op, *args, **kwargs)
        del held
        return result

    library.impl(name, kernel, "PrivateUse1")
    return getattr(getattr(torch.ops, namespace), name)


def announce(sentence: str) -> None:
    """Tell the user once that kernels are not the real ones."""
    if sentence not in _announced:
        _announced.add(sentence)
        world.recorder.notice(sentence)


def differentiate(namespace: str, name: str, save: Callable[..., None], backward: Callable[..., Any]) -> None:
    """Give an operator its gradient; `save(ctx, inputs, output)` keeps what the real kernel keeps."""

    def setup(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.set_materialize_grads(False)  # as generated code does: unused results have no gradient
        save(ctx, inputs, output)

    torch.library.register_autograd(
        f"{namespace}::{name}", backward, setup_context=setup, lib=_library(namespace)
    )


def _library(namespace: str) -> torch.library.Library:
    if namespace not in _libraries:
        _libraries[namespace] = torch.library.Library(namespace, "FRAGMENT")
    return _libraries[namespace]


def _take(sizes: Sequence[int], args: tuple[Any, ...]) -> list[Tensor]:
    world.op = world.recorder.n_ops  # of the operator that comes next
    first = next(sim for a in args if isinstance(a, Tensor) and (sim := sim_of(a)) is not None)
    device = first.device if first.device in world.index_of_device else world.default_device
    return [new_tensor((n,), (1,), torch.uint8, device, n, WORKSPACE) for n in sizes if n]
