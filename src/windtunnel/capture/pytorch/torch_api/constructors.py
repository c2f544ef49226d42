"""Replace everything that creates a tensor: `torch.zeros`, `torch.tensor`, `x.new_empty`, parameters, generators.

    torch.zeros(8, device="cuda") ──> the same constructor on the simulated backend, remembering "cuda:0"

Host tensors stay real, so a data pipeline runs for real, except large floating-point tensors from a constructor
(weights of a model built on the CPU): those are simulated host memory, which costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch.jit._builtins import _get_builtin_table
from torch.utils._device import DeviceContext, _device_constructors

from windtunnel.capture.pytorch.kernels.cpu_data import account, adopt
from windtunnel.capture.pytorch.kernels.device_argument import (
    allocating_on,
    ambient_device,
    is_simulated_device,
    plain_device,
    resolve_device,
    simulate,
)
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import CPU, sim_of, world
from windtunnel.capture.pytorch.tensors.traced import compiling

__all__ = ["install_constructors"]

Tensor = torch.Tensor
LARGE_HOST_BYTES = 1 << 20  # float tensors a constructor makes on the host above this size are simulated

_SIZED = ("empty", "zeros", "ones", "rand", "randn")
_FACTORIES = (
    *_SIZED, "full", "empty_strided", "empty_permuted", "randint", "randperm", "arange", "linspace", "logspace",
    "eye", "scalar_tensor", "tril_indices", "triu_indices", "normal", "range", "complex", "hann_window",
    "hamming_window", "bartlett_window", "blackman_window", "kaiser_window",
)  # fmt: skip
_LIKE = ("empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "randint_like")
_NEW = ("new_empty", "new_empty_strided", "new_zeros", "new_ones", "new_full")

_original_constructors = set(_device_constructors())


def install_constructors() -> None:
    """Replace the constructors of torch in this process."""
    scripted = (
        _get_builtin_table()
    )  # TorchScript identifies functions by identity: the old ones now, the new ones below
    for name in _FACTORIES:
        if hasattr(torch, name):
            setattr(torch, name, _factory(getattr(torch, name), name))
    for name in _LIKE:
        setattr(torch, name, _shaped_by(getattr(torch, name)))
    for name in _NEW:
        setattr(Tensor, name, _shaped_by(getattr(Tensor, name)))
    Tensor.new_tensor = _new_tensor(Tensor.new_tensor)  # type: ignore[method-assign]
    torch.tensor = _from_data(torch.tensor)
    torch.as_tensor = _from_data(torch.as_tensor)
    torch.asarray = _from_data(torch.asarray)
    torch.get_default_device = ambient_device
    scripted.update(
        {
            id(getattr(torch, n)): f"aten::{n}"
            for n in (*_FACTORIES, *_LIKE, "tensor", "as_tensor")
            if hasattr(torch, n)
        }
    )
    _install_parameter()
    _install_device_context()
    _install_generator()


def _factory(original: Callable[..., Tensor], name: str) -> Callable[..., Tensor]:
    is_sized = name in _SIZED

    @wraps(original)
    def construct(*args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.get("device")
        out = kwargs.get("out")
        if out is not None or (device is None and args and isinstance(args[0], Tensor)):
            return original(*args, **kwargs)
        if device is None:
            device = ambient_device()
        device = resolve_device(device)
        if kwargs.pop("pin_memory", False) and device.type == "cpu":
            return construct(*args, **{**kwargs, "device": device}).pin_memory()
        if device.type == "cpu" and compiling.depth:  # a compiler computes with it
            return original(*args, **kwargs)
        if is_simulated_device(device):
            kwargs["device"] = store.SIM
            kwargs.pop("generator", None) if device.type != "cpu" else None
            with allocating_on(device):
                return original(*args, **kwargs)
        if device.type == "cpu" and is_sized and _is_large(args, kwargs):
            kwargs["device"] = store.SIM
            with allocating_on(CPU):
                return original(*args, **kwargs)
        return original(*args, **kwargs)

    return construct


def _is_large(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    size = kwargs.get("size", args[0] if len(args) == 1 and not isinstance(args[0], int) else args)
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point or world.is_worker:
        return False  # integers control programs (indices, lengths, permutations): keep them real
    try:
        return math.prod(int(n) for n in size) * dtype.itemsize > LARGE_HOST_BYTES
    except (TypeError, ValueError):
        return False


def _shaped_by(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`zeros_like(x)`, `x.new_zeros()`: on x's device unless another is named."""

    @wraps(original)
    def construct(source: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.pop("device", None)
        kwargs.pop("pin_memory", None)
        if device is None:
            return original(source, *args, **kwargs)
        return _on_device(original, source, args, kwargs, resolve_device(device))

    return construct


def _new_tensor(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(original)
    def construct(self: Tensor, data: Any, *, dtype: Any = None, device: Any = None, **kwargs: Any) -> Tensor:
        if device is None:
            return original(self, data, dtype=dtype, **kwargs)
        return torch.tensor(data, dtype=dtype or self.dtype, device=device, **kwargs)

    return construct


def _on_device(original: Any, source: Tensor, args: Any, kwargs: Any, device: torch.device) -> Tensor:
    if device == source.device:
        return original(source, *args, **kwargs)
    if is_simulated_device(device):
        with allocating_on(device):
            return original(source, *args, device=store.SIM, **kwargs)
    if sim_of(source) is not None:  # shape and dtype from the device tensor, memory elsewhere
        shaped = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
        return original(shaped, *args, device=device, **kwargs)
    return original(source, *args, device=device, **kwargs)


def _from_data(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(original)
    def construct(data: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.pop("device", None)
        kwargs.pop("pin_memory", None)
        if isinstance(data, Tensor) and sim_of(data) is not None:
            return _from_simulated(data, original.__name__, device, kwargs)
        wanted = resolve_device(device) if device is not None else ambient_device()
        if device is None and wanted.type == "cpu" and world.device_type != "cpu":
            return original(data, *args, **kwargs)
        if not is_simulated_device(wanted) or (wanted.type == "cpu" and compiling.depth):
            return original(data, *args, device=wanted, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        real = original(data, *args, device=CPU, **kwargs)
        if wanted.type == "cpu" and original.__name__ != "tensor" and isinstance(data, (Tensor, np.ndarray)):
            return _shared(real, data)
        made = simulate(real, wanted) if wanted.type == "cpu" else real.to(wanted)
        return made.requires_grad_() if requires_grad else made

    return construct


def _shared(real: Tensor, data: Any) -> Tensor:
    """A tensor over the caller's memory: nothing is allocated, unless its type differs."""
    if real.data_ptr() != (data.data_ptr() if isinstance(data, Tensor) else data.ctypes.data):
        account(real)
    return adopt(real)


def _from_simulated(data: Tensor, name: str, device: Any, kwargs: dict[str, Any]) -> Tensor:
    dtype = kwargs.get("dtype") or data.dtype
    made = data.detach() if name == "tensor" else data
    made = made.to(device if device is not None else data.device, dtype)
    made = made.clone() if name == "tensor" and made.data_ptr() == data.data_ptr() else made
    return made.requires_grad_() if kwargs.get("requires_grad") else made


def _install_device_context() -> None:
    """`with torch.device("cuda"):` and set_default_device pass the device below our constructors."""
    originals = _original_constructors
    ours = {f: getattr(torch, f.__name__, f) for f in originals if getattr(f, "__name__", "") in _FACTORIES}

    def __torch_function__(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in originals and kwargs.get("device") is None:
            kwargs["device"] = self.device
            with torch._C.DisableTorchFunction():
                return ours.get(func, func)(*args, **kwargs)
        return func(*args, **kwargs)

    DeviceContext.__torch_function__ = __torch_function__  # type: ignore[method-assign]


# -- parameters and generators ------------------------------------------------------------------------------


def _install_parameter() -> None:
    """Parameters are always simulated: moving a model then swaps storages of the same objects, as on a device."""
    original = torch.nn.Parameter.__new__

    def __new__(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is Tensor and data.layout is torch.strided and plain_device(data).type == "cpu":
            data = simulate(data, CPU)
        return original(cls, data, requires_grad)

    torch.nn.Parameter.__new__ = __new__  # type: ignore[method-assign]


def _install_generator() -> None:
    original = torch.Generator

    class Generator(original):  # type: ignore[valid-type, misc]
        """A CPU generator that claims to be the device's; simulated random operators do not use it."""

        def __new__(cls, device: Any = "cpu") -> Any:
            made = super().__new__(cls, "cpu")
            made._device = resolve_device(device)
            return made

        @property
        def device(self) -> torch.device:
            return self._device

    class _AlsoOriginal(type(original)):  # type: ignore[misc]
        def __instancecheck__(cls, instance: Any) -> bool:
            return isinstance(instance, original)

    torch.Generator = _AlsoOriginal("Generator", (Generator,), {})  # type: ignore[misc]
