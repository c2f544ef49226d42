"""An installed bitsandbytes on the simulated device: its own Python allocates, its compiled library is answered.

import bitsandbytes ──> the library's functions do nothing; each operator for CUDA runs its Python here too, then one row
paged optimizer state ──> managed memory, in no allocator's account: reported, not counted
"""

from __future__ import annotations

import types
from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch

from windtunnel.capture.pytorch.kernels.define_operator import announce
from windtunnel.capture.pytorch.kernels.kernels import written_arguments
from windtunnel.capture.pytorch.kernels.launches import record_launch, tensors_in
from windtunnel.capture.pytorch.tensors.storage import NO_DEVICE, World, new_tensor, world
from windtunnel.capture.pytorch.tensors.strides import contiguous_strides

__all__ = ["answer_library", "answer_operators", "answer_paged_memory"]

Tensor = torch.Tensor
_NAME = "bitsandbytes"


def answer_library(cextension: types.ModuleType) -> None:
    """The package has a class for a library that could not be loaded: with it, tensors of the host run in Python."""
    missing: Any = getattr(cextension, "ErrorHandlerMockBNBNativeLibrary", object)
    answers: dict[str, _Answer] = {}
    members = {
        "__init__": lambda self: None,
        "__getattr__": lambda self, name: answers.setdefault(name, _Answer()),
        "__getitem__": lambda self, name: answers.setdefault(name, _Answer()),
        "compiled_with_cuda": True,
    }
    cextension.lib = type("AnsweredLibrary", (missing,), members)()  # type: ignore[attr-defined]


class _Answer:
    """A function of the library: it succeeds."""

    argtypes: Any = None
    restype: Any = None

    def __call__(self, *_: Any) -> int:
        return 0


def answer_operators(ops: types.ModuleType) -> None:
    """What is registered for CUDA is registered for the simulated device too."""
    plain: Callable[..., Any] = ops.register_kernel

    def register_kernel(op: str, device_types: Any, func: Any = None, /, **options: Any) -> Any:
        def register(body: Callable[..., Any]) -> Any:
            if device_types == "cuda" and op.startswith(f"{_NAME}::"):
                name = op.partition("::")[2]
                _library().impl(name, _recorded(name, body), "PrivateUse1")
            return plain(op, device_types, body, **options)

        return register if func is None else register(func)

    ops.register_kernel = register_kernel  # type: ignore[attr-defined]


@cache
def _library() -> torch.library.Library:
    return torch.library.Library(_NAME, "FRAGMENT")


def _recorded(name: str, body: Callable[..., Any]) -> Callable[..., Any]:
    base, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.bitsandbytes, base), overload or "default")
    written = written_arguments(op)
    names = [argument.name for argument in op._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        announce(
            f"{_NAME}: its Python ran, its compiled kernels were recorded with their tensors and not run"
        )
        results = body(*args, **kwargs)
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        changed = [t for i in written for t in tensors_in(given.get(names[i]))]
        read = [t for value in given.values() for t in tensors_in(value)]
        record_launch(f"{_NAME}.{base}", "", read, [*changed, *tensors_in(results)])
        return results

    return kernel


def answer_paged_memory(functional: types.ModuleType) -> None:
    def get_paged(*shape: int, dtype: torch.dtype = torch.float32, device: Any = None) -> Tensor:
        announce(
            f"{_NAME}: the state of a paged optimizer is in managed memory, which leaves the device when it is full: it"
            " is not counted"
        )
        strides, n_bytes = contiguous_strides(shape), prod(shape) * dtype.itemsize
        counted = world.index_of_device
        world.index_of_device = dict.fromkeys(World.index_of_device, NO_DEVICE)  # type: ignore[misc]  # this thread's
        try:
            paged: Any = new_tensor(tuple(shape), strides, dtype, world.default_device, n_bytes)
        finally:
            if counted is World.index_of_device:
                del world.index_of_device
            else:
                world.index_of_device = counted  # type: ignore[misc]
        paged.is_paged, paged.page_deviceid = True, 0
        return paged

    functional.get_paged = get_paged  # type: ignore[attr-defined]
