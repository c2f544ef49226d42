"""Replace the methods of a tensor that depend on its device or leave it: `.to()`, `.device`, `.numpy()`, printing.

tensor.to(device)             ──> a copy there; its gradient moves back
tensor.device                 ──> the device the program named
tensor.numpy(), print(tensor) ──> known values, or documented defaults that are reported
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch._subclasses.functional_tensor import FunctionalTensor

from windtunnel.capture.pytorch.kernels.device_argument import (
    allocating_on,
    is_simulated_device,
    plain_device,
    resolve_device,
)
from windtunnel.capture.pytorch.kernels.known_values import values_of
from windtunnel.capture.pytorch.kernels.unknown_values import unknown_value
from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import PINNED, sim_of, world
from windtunnel.capture.pytorch.tensors.traced import is_traced, traced_device
from windtunnel.capture.pytorch.torch_api.legacy_types import install_host_types, legacy_type_of
from windtunnel.capture.pytorch.torch_api.saving import move_storage
from windtunnel.events.model import Role

__all__ = ["install_tensor_methods"]

Tensor = torch.Tensor
_plain_to = torch._C.TensorBase.to
_plain_data: Any = torch._C.TensorBase.data


def install_tensor_methods() -> None:
    install_host_types()
    patched: Any = Tensor  # the stubs do not allow methods to be replaced
    patched.device = property(_device_of)
    patched.is_cuda = property(lambda self: _device_of(self).type == "cuda")
    patched.is_npu = property(lambda self: _device_of(self).type == "npu")
    patched.is_cpu = property(lambda self: _device_of(self).type == "cpu")
    patched.get_device = lambda self: -1 if (d := _device_of(self)).type == "cpu" else (d.index or 0)
    patched.data = property(_plain_data.__get__, _set_data)
    patched.to = _to
    patched.cuda = _mover("cuda")
    patched.npu = _mover("npu")
    patched.cpu = lambda self, memory_format=torch.preserve_format: self.to(
        "cpu", memory_format=memory_format
    )
    patched.type = _type(Tensor.type)
    patched.numpy = _numpy(Tensor.numpy)
    patched.__array__ = _array(Tensor.__array__)
    patched.tolist = _tolist(Tensor.tolist)
    patched.__setitem__ = _setitem(Tensor.__setitem__)
    patched.__repr__ = _repr(Tensor.__repr__)
    patched.__deepcopy__ = _deepcopy(Tensor.__deepcopy__)
    patched.pin_memory = _pin_memory
    patched.is_pinned = lambda self, device=None: getattr(self.untyped_storage(), PINNED, False)
    patched.share_memory_ = _unless_simulated(Tensor.share_memory_)
    patched._make_wrapper_subclass = staticmethod(_wrapping(Tensor._make_wrapper_subclass))


def _device_of(self: Tensor) -> torch.device:
    device = plain_device(self)
    if device.type != store.SIM.type:
        return device
    sim = sim_of(self)
    return sim.device if sim is not None else world.default_device


def _set_data(self: Tensor, value: Tensor) -> None:
    """`x.data = x.to(device)`: torch allows it between host and device, but not between real and simulated tensors."""
    if {plain_device(self).type, plain_device(value).type} == {"cpu", store.SIM.type}:
        torch._C._swap_tensor_impl(self, value.detach().requires_grad_(self.requires_grad))
    else:
        _plain_data.__set__(self, value)


def _wrapping(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Inside torch, a wrapper of simulated tensors has their backend, whatever device the program names."""

    def inner(device: Any) -> Any:
        return store.SIM if resolve_device(device) in world.index_of_device else device

    def make_wrapper_subclass(cls: type, *args: Any, device: Any = None, **kwargs: Any) -> Tensor:
        place = traced_device if cls is FunctionalTensor else inner
        args = tuple(place(a) if a.__class__ is torch.device else a for a in args)
        return original(cls, *args, **kwargs, **({} if device is None else {"device": place(device)}))

    return make_wrapper_subclass


def _to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    device = kwargs.pop("device", None)
    if args:
        first = args[0]
        if isinstance(first, Tensor):
            device, args = first.device, (first.dtype, *args[1:])
        elif first is None or isinstance(first, (str, torch.device)) or first.__class__ is int:
            device, args = first if first is not None else device, args[1:]
            if args and args[0] is None:
                args = args[1:]
    if args:  # to(…, dtype, non_blocking, copy), where dtype may be left out
        flags = args[1:] if isinstance(args[0], torch.dtype) else args
        kwargs |= dict(zip(("non_blocking", "copy"), flags, strict=False))
        args = args[: len(args) - len(flags)]
    sim = sim_of(self)
    if device is None:
        return _plain_to(self, *args, **kwargs) if args or kwargs.keys() - {"non_blocking"} else self
    wanted = resolve_device(device)
    if sim is None and is_traced(self):
        return _plain_to(self, traced_device(wanted), *args, **kwargs)
    if wanted == (sim.device if sim is not None else plain_device(self)):
        return _plain_to(self, *args, **kwargs) if args or kwargs.keys() - {"non_blocking"} else self
    if wanted.type == "meta":
        return _plain_to(self, wanted, *args, **kwargs)
    if not is_simulated_device(wanted) and wanted.type != "cpu":
        raise RuntimeError(
            f"the script moves a tensor to {wanted}, but the simulated device is {world.default_device}"
            f" (choose a {wanted.type} device with --device)"
        )
    return _move_to(self, wanted, *args, **kwargs)


def _mover(device_type: str) -> Callable[..., Tensor]:
    def move(
        self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None
    ) -> Tensor:
        if device is None:
            device = device_type
        elif device.__class__ is int:
            device = torch.device(device_type, device)
        kwargs = {"memory_format": memory_format} if memory_format is not None else {}
        return self.to(device, **kwargs)

    return move


def _type(original: Callable[..., Any]) -> Callable[..., Any]:
    def type_(self: Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
        if dtype is None:
            name = original(self)
            return name.replace(
                f"torch.{store.SIM.type}.",
                "torch." if self.device.type == "cpu" else f"torch.{self.device.type}.",
            )
        named = legacy_type_of(dtype)
        if named is not None:
            return self.to(named.device_type, named.dtype, non_blocking)
        return original(self, dtype)

    return type_


def _read(self: Tensor, what: str) -> Tensor:
    """Real values for code that leaves torch: known ones, or defaults that are reported."""
    known = values_of(self)
    sim = sim_of(self)
    world.recorder.read_value(sim.device_index if sim is not None else -1)
    if known is not None:
        return known.detach()
    value: Any = world.recorder.read_unknown(what, unknown_value(self))
    same = getattr(
        np, str(self.dtype).removeprefix("torch."), None
    )  # numpy has no bfloat16, and calls bool bool_
    real = torch.from_numpy(np.full(tuple(self.shape), value, dtype=same or np.float32))
    return real if real.dtype is self.dtype else real.to(self.dtype)


def _numpy(original: Callable[..., Any]) -> Callable[..., Any]:
    def numpy(self: Tensor, *, force: bool = False) -> Any:
        if sim_of(self) is None:
            return original(self, force=force)
        if self.device.type != "cpu" and not force:
            raise TypeError(
                f"can't convert {self.device} device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host"
                " memory first."
            )
        if self.requires_grad and not force:
            raise RuntimeError(
                "Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead."
            )
        return original(_read(self, "tensor.numpy()"), force=force)

    return numpy


def _array(original: Callable[..., Any]) -> Callable[..., Any]:
    def array(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(
            self if sim_of(self) is None else _read(self, "numpy.asarray(tensor)"), *args, **kwargs
        )

    return array


def _tolist(original: Callable[..., Any]) -> Callable[..., Any]:
    def tolist(self: Tensor) -> Any:
        return original(self if sim_of(self) is None else _read(self, "tensor.tolist()"))

    return tolist


def _setitem(original: Callable[..., None]) -> Callable[..., None]:
    """`x[i] = 5`: on CUDA torch keeps the number on the host; other devices get a small tensor of it."""

    def setitem(self: Tensor, index: Any, value: Any) -> None:
        if value.__class__ in (int, float, bool) and world.device_type == "cuda" and sim_of(self) is not None:
            value = _host_number(value, dtype=self.dtype)
        original(self, index, value)

    return setitem


_host_number = torch.tensor  # torch's own, before constructors are replaced


def _repr(original: Callable[..., str]) -> Callable[..., str]:
    def text(self: Tensor, *, tensor_contents: Any = None) -> str:
        sim = sim_of(self)
        if sim is None:
            return original(self, tensor_contents=tensor_contents)
        known = values_of(self)
        if known is not None and self.numel() <= 1000:
            inner = original(known.detach())
            return f"{inner[:-1]}, device='{sim.device}')" if sim.device.type != "cpu" else inner
        world.recorder.note_unknown("printing a device tensor", "…")
        grad = ", requires_grad=True" if self.requires_grad and self.is_leaf else ""
        return f"tensor(…, device='{sim.device}', size={tuple(self.shape)}, dtype={self.dtype}{grad})"

    return text


def _deepcopy(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def deepcopy(self: Tensor, memo: dict[int, Any]) -> Tensor:
        if sim_of(self) is None:
            return original(self, memo)
        if id(self) in memo:
            return memo[id(self)]
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at the moment."
            )
        copied = _deep_twin(self, memo)
        if isinstance(self, torch.nn.Parameter):
            _mark_copy(copied)
        copied.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        if type(self) is not Tensor:
            copied = copied.as_subclass(type(self))
        copied.__dict__.update(self.__dict__)
        memo[id(self)] = copied
        return copied

    return deepcopy


def _mark_copy(copied: Tensor) -> None:
    """A copy of a weight stays one, for an average or an old policy, unless it becomes a weight that is called."""
    sim = sim_of(copied)
    if sim is not None and sim.device_index >= 0:
        sim.role = int(Role.COPY)
        world.recorder.mark(sim.id, Role.COPY)


def _deep_twin(self: Tensor, memo: dict[int, Any]) -> Tensor:
    """A copy over a copied storage; views of one storage stay views of one storage."""
    storage = self.untyped_storage()
    copied = memo.get(storage._cdata)
    if copied is None:
        copied = memo[storage._cdata] = move_storage(storage, storage.device)
    return store.attach(copied, self.storage_offset(), tuple(self.shape), self.stride(), self.dtype)


def _pin_memory(self: Tensor, device: Any = None) -> Tensor:
    """All host memory is copied from as if it were pinned; programs ask which is."""
    if _device_of(self).type == "cpu" and not world.is_worker:
        setattr(self.untyped_storage(), PINNED, True)
    return self


def _unless_simulated(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self: original(self) if sim_of(self) is None else self


# -- moving between devices under autograd ------------------------------------------------------------------
# Inside torch every simulated device is the same backend, so torch's own backward of `.to()` would leave a gradient
# on its device. This one moves it to the device of its tensor.


def _move_to(source: Tensor, device: torch.device, *args: Any, **kwargs: Any) -> Tensor:
    """`source.to(device, ...)` for a device `source` is not on."""
    if source.requires_grad and torch.is_grad_enabled():
        return _Move.apply(source, device, args, kwargs)
    return _copy_to(source, device, args, kwargs)


def _copy_to(source: Tensor, device: torch.device, args: Any, kwargs: Any) -> Tensor:
    if sim_of(source) is not None:
        kwargs = {**kwargs, "copy": True}  # inside torch both are one backend: without this it would not copy
    with allocating_on(device):
        return _plain_to(source, store.SIM, *args, **kwargs)


class _Move(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, source: Tensor, device: torch.device, args: Any, kwargs: Any) -> Tensor:
        sim = sim_of(source)
        ctx.device = sim.device if sim is not None else None
        ctx.dtype = source.dtype
        return _copy_to(source, device, args, kwargs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        if ctx.device is not None:
            return gradient.to(ctx.device, ctx.dtype), None, None, None
        # a real host tensor needs a real gradient, but its values were never computed
        world.recorder.note_unknown("the gradient of a host tensor", 1)
        return torch.ones(gradient.shape, dtype=ctx.dtype), None, None, None
