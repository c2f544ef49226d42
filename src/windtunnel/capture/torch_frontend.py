"""The part of torch a program spells devices with: constructors, `.to()`, `.device`, and leaving the device.

    torch.zeros(8, device="cuda") ──> same constructor on the simulated backend, remembering "cuda:0"
    tensor.device                 ──> the device the program named
    tensor.numpy(), print(tensor) ──> known values, or documented defaults that are reported

Host tensors stay real, so a data pipeline runs for real, except the large floating-point ones a constructor
makes (weights of a model built on the CPU): those are simulated host memory, which costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch.utils._device import DeviceContext, _device_constructors

from windtunnel.capture import torch_kernels as kernels
from windtunnel.capture import torch_storage as store
from windtunnel.capture.torch_operators import _preserved_strides, default_value
from windtunnel.capture.torch_storage import CPU, new_tensor, sim_of, values_of, world

__all__ = ["install_frontend", "is_simulated_device", "resolve_device", "simulate"]

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

_plain_device = torch._C.TensorBase.device.__get__
_plain_to = torch._C.TensorBase.to
_original_constructors = set(_device_constructors())


def install_frontend() -> None:
    """Replace the constructors and device-spelling methods of torch in this process."""
    for name in _FACTORIES:
        if hasattr(torch, name):
            setattr(torch, name, _factory(getattr(torch, name), name))
    for name in _LIKE:
        setattr(torch, name, _like(getattr(torch, name)))
    for name in _NEW:
        setattr(Tensor, name, _new(getattr(Tensor, name)))
    torch.tensor = _from_data(torch.tensor)
    torch.as_tensor = _from_data(torch.as_tensor)
    torch.asarray = _from_data(torch.asarray)
    torch.get_default_device = ambient_device
    _install_tensor_methods()
    _install_parameter()
    _install_device_context()
    _install_generator()


# -- which device -----------------------------------------------------------------------------------------


def resolve_device(device: Any) -> torch.device:
    """The device a program means by "cuda", 0, torch.device("cuda:1")…"""
    if device.__class__ is int:
        device = torch.device(world.device_type, device)
    elif not isinstance(device, torch.device):
        device = torch.device(device)
    if device.type == store.SIM.type and device.type != world.device_type:
        return world.target or world.default_device  # torch's own code handed our device back
    if device.type == world.device_type and device.index is None and device.type != "cpu":
        return world.default_device
    return device


def is_simulated_device(device: torch.device) -> bool:
    return device.type == world.device_type


class _aiming_at:
    """While inside torch, new storages belong to this device."""

    __slots__ = ("before", "device")

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def __enter__(self) -> None:
        self.before = world.target
        world.target = self.device

    def __exit__(self, *_: object) -> None:
        world.target = self.before


def simulate(real: Tensor, device: torch.device = CPU) -> Tensor:
    """A simulated twin of a real tensor; small ones keep their values."""
    twin = new_tensor(tuple(real.shape), _preserved_strides(real), real.dtype, device)
    store.remember_values(twin, real.detach(), kernels.KNOWN_VALUE_LIMIT)
    return twin


# -- constructors -----------------------------------------------------------------------------------------


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
        if is_simulated_device(device):
            kwargs["device"] = store.SIM
            kwargs.pop("pin_memory", None)
            kwargs.pop("generator", None) if device.type != "cpu" else None
            with _aiming_at(device):
                return original(*args, **kwargs)
        if device.type == "cpu" and is_sized and _is_large(args, kwargs):
            kwargs["device"] = store.SIM
            kwargs.pop("pin_memory", None)
            with _aiming_at(CPU):
                return original(*args, **kwargs)
        return original(*args, **kwargs)

    return construct


def _is_large(args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    size = kwargs.get("size", args[0] if len(args) == 1 and not isinstance(args[0], int) else args)
    dtype = kwargs.get("dtype") or torch.get_default_dtype()
    if not dtype.is_floating_point:
        return False  # integers steer programs (indices, lengths, permutations): keep them real
    try:
        return math.prod(int(n) for n in size) * dtype.itemsize > LARGE_HOST_BYTES
    except (TypeError, ValueError):
        return False


def _like(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(original)
    def construct(source: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.pop("device", None)
        if device is None:
            return original(source, *args, **kwargs)
        return _on_device(original, source, args, kwargs, resolve_device(device))

    return construct


def _new(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(original)
    def construct(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.pop("device", None)
        if device is None:
            return original(self, *args, **kwargs)
        return _on_device(original, self, args, kwargs, resolve_device(device))

    return construct


def _on_device(original: Any, source: Tensor, args: Any, kwargs: Any, device: torch.device) -> Tensor:
    if device == source.device:
        return original(source, *args, **kwargs)
    if is_simulated_device(device):
        with _aiming_at(device):
            return original(source, *args, device=store.SIM, **kwargs)
    if sim_of(source) is not None:  # shape and dtype from the device tensor, memory elsewhere
        shaped = torch.empty_strided(source.shape, source.stride(), dtype=source.dtype, device="meta")
        return original(shaped, *args, device=device, **kwargs)
    return original(source, *args, device=device, **kwargs)


def _from_data(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @wraps(original)
    def construct(data: Any = None, *args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.pop("device", None)
        if isinstance(data, Tensor) and sim_of(data) is not None:
            return _from_simulated(data, original.__name__, device, kwargs)
        wanted = resolve_device(device) if device is not None else ambient_device()
        if device is None and wanted.type == "cpu" and world.device_type != "cpu":
            return original(data, *args, **kwargs)
        if not is_simulated_device(wanted):
            return original(data, *args, device=wanted, **kwargs)
        requires_grad = kwargs.pop("requires_grad", False)
        kwargs.pop("pin_memory", None)
        real = original(data, *args, device=CPU, **kwargs)
        if wanted.type == "cpu" and original.__name__ != "tensor" and isinstance(data, (Tensor, np.ndarray)):
            return real  # shares the caller's memory: nothing is allocated
        made = simulate(real, wanted) if wanted.type == "cpu" else real.to(wanted)
        return made.requires_grad_() if requires_grad else made

    return construct


def _from_simulated(data: Tensor, name: str, device: Any, kwargs: dict[str, Any]) -> Tensor:
    dtype = kwargs.get("dtype") or data.dtype
    made = data.detach() if name == "tensor" else data
    made = made.to(device if device is not None else data.device, dtype)
    made = made.clone() if name == "tensor" and made.data_ptr() == data.data_ptr() else made
    return made.requires_grad_() if kwargs.get("requires_grad") else made


def ambient_device() -> torch.device:
    """The device of the innermost `with torch.device(...)` or set_default_device, else the CPU."""
    for i in reversed(range(torch._C._len_torch_function_stack())):
        mode = torch._C._get_function_stack_at(i)
        if isinstance(mode, DeviceContext):
            return resolve_device(mode.device)
    return CPU


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


# -- tensor methods ---------------------------------------------------------------------------------------


def _install_tensor_methods() -> None:
    Tensor.device = property(_device_of)  # type: ignore[assignment]
    Tensor.is_cuda = property(lambda self: _device_of(self).type == "cuda")  # type: ignore[assignment]
    Tensor.is_npu = property(lambda self: _device_of(self).type == "npu")  # type: ignore[attr-defined]
    Tensor.is_cpu = property(lambda self: _device_of(self).type == "cpu")  # type: ignore[assignment]
    Tensor.get_device = lambda self: -1 if (d := _device_of(self)).type == "cpu" else (d.index or 0)  # type: ignore[assignment]
    Tensor.to = _to  # type: ignore[assignment]
    Tensor.cuda = _mover("cuda")  # type: ignore[assignment]
    Tensor.npu = _mover("npu")  # type: ignore[attr-defined]
    Tensor.cpu = lambda self, memory_format=torch.preserve_format: self.to("cpu", memory_format=memory_format)  # type: ignore[assignment]
    Tensor.type = _type(Tensor.type)  # type: ignore[assignment]
    Tensor.numpy = _numpy(Tensor.numpy)  # type: ignore[assignment]
    Tensor.__array__ = _array(Tensor.__array__)  # type: ignore[assignment]
    Tensor.tolist = _tolist(Tensor.tolist)  # type: ignore[assignment]
    Tensor.__repr__ = _repr(Tensor.__repr__)  # type: ignore[assignment]
    Tensor.__deepcopy__ = _deepcopy(Tensor.__deepcopy__)  # type: ignore[assignment]
    Tensor.pin_memory = lambda self, device=None: self  # type: ignore[assignment]
    Tensor.is_pinned = lambda self, device=None: _device_of(self).type == "cpu"  # type: ignore[assignment]
    Tensor.share_memory_ = _unless_simulated(Tensor.share_memory_)  # type: ignore[assignment]
    torch.UntypedStorage.resize_ = _resize_storage(torch.UntypedStorage.resize_)  # type: ignore[assignment]
    torch.UntypedStorage.nbytes = _storage_bytes(torch.UntypedStorage.nbytes)  # type: ignore[assignment]
    torch.UntypedStorage.size = _storage_bytes(torch.UntypedStorage.size)  # type: ignore[assignment]


def _device_of(self: Tensor) -> torch.device:
    device = _plain_device(self)
    if device.type != store.SIM.type:
        return device
    sim = sim_of(self)
    return sim.device if sim is not None else world.default_device


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
            elif args and args[0].__class__ is bool:  # to(device, non_blocking)
                args = ()
    if args and not isinstance(args[0], torch.dtype):
        args = ()
    sim = sim_of(self)
    if device is None:
        return _plain_to(self, *args, **kwargs) if args or kwargs else self
    wanted = resolve_device(device)
    if wanted == (sim.device if sim is not None else _plain_device(self)):
        return _plain_to(self, *args, **kwargs) if args or kwargs.keys() - {"non_blocking"} else self
    if wanted.type == "meta":
        return _plain_to(self, wanted, *args, **kwargs)
    if not is_simulated_device(wanted) and wanted.type != "cpu":
        raise RuntimeError(
            f"the script moves a tensor to {wanted}, but the simulated device is {world.default_device}"
            f" (choose a {wanted.type} device with --device)"
        )
    if sim is not None:
        kwargs["copy"] = True  # inside torch both are the simulated backend: without this it would not copy
    with _aiming_at(wanted):
        return _plain_to(self, store.SIM, *args, **kwargs)


def _mover(device_type: str) -> Callable[..., Tensor]:
    def move(self: Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None) -> Tensor:
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
            return name.replace(f"torch.{store.SIM.type}.", "torch." if self.device.type == "cpu" else f"torch.{self.device.type}.")
        if isinstance(dtype, str) and ".cuda." in dtype:
            return original(self.to("cuda"), dtype.replace(".cuda.", ".")) if False else self.to("cuda", _dtype_named(dtype))
        if isinstance(dtype, str) and sim_of(self) is not None:
            return self.to(_dtype_named(dtype))
        return original(self, dtype)

    return type_


def _dtype_named(name: str) -> torch.dtype:
    """torch.cuda.HalfTensor -> torch.float16."""
    kinds = {"Float": torch.float32, "Half": torch.float16, "BFloat16": torch.bfloat16, "Double": torch.float64,
             "Long": torch.int64, "Int": torch.int32, "Short": torch.int16, "Byte": torch.uint8, "Char": torch.int8,
             "Bool": torch.bool}  # fmt: skip
    return kinds[name.rsplit(".", 1)[-1].removesuffix("Tensor")]


def _read(self: Tensor, what: str) -> Tensor:
    """Real values for code that leaves torch: known ones, or defaults that are reported."""
    known = values_of(self)
    if known is not None:
        return known.detach()
    world.recorder.invent(what, default_value(self.dtype))
    real = np.full(tuple(self.shape), 1, dtype=np.float32)
    return torch.from_numpy(real).to(self.dtype)


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
            raise RuntimeError("Can't call numpy() on Tensor that requires grad. Use tensor.detach().numpy() instead.")
        return original(_read(self, "tensor.numpy()"), force=force)

    return numpy


def _array(original: Callable[..., Any]) -> Callable[..., Any]:
    def array(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        return original(self if sim_of(self) is None else _read(self, "numpy.asarray(tensor)"), *args, **kwargs)

    return array


def _tolist(original: Callable[..., Any]) -> Callable[..., Any]:
    def tolist(self: Tensor) -> Any:
        return original(self if sim_of(self) is None else _read(self, "tensor.tolist()"))

    return tolist


def _repr(original: Callable[..., str]) -> Callable[..., str]:
    def text(self: Tensor, *, tensor_contents: Any = None) -> str:
        sim = sim_of(self)
        if sim is None:
            return original(self, tensor_contents=tensor_contents)
        known = values_of(self)
        if known is not None and self.numel() <= 1000:
            inner = original(known.detach())
            return f"{inner[:-1]}, device='{sim.device}')" if sim.device.type != "cpu" else inner
        world.recorder.invent("printing a device tensor", "…")
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
        with torch.no_grad():
            copied = self.detach().clone()
        copied.requires_grad_(self.requires_grad)
        if self.grad is not None:
            copied.grad = self.grad.__deepcopy__(memo)
        if type(self) is not Tensor:
            copied = copied.as_subclass(type(self))
        copied.__dict__.update(self.__dict__)
        memo[id(self)] = copied
        return copied

    return deepcopy


def _unless_simulated(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda self: original(self) if sim_of(self) is None else self


def _resize_storage(original: Callable[..., Any]) -> Callable[..., Any]:
    def resize(self: torch.UntypedStorage, n_bytes: int) -> Any:
        sim = store.sims.get(self._cdata)
        if sim is None:
            return original(self, n_bytes)
        store.resize(sim, n_bytes)
        return self

    return resize


def _storage_bytes(original: Callable[..., int]) -> Callable[..., int]:
    def n_bytes(self: torch.UntypedStorage) -> int:
        sim = store.sims.get(self._cdata)
        return original(self) if sim is None else sim.n_bytes

    return n_bytes


# -- parameters and generators ------------------------------------------------------------------------------


def _install_parameter() -> None:
    """Parameters are always simulated: moving a model then swaps storages under the same objects, as on a device."""
    original = torch.nn.Parameter.__new__

    def __new__(cls: Any, data: Any = None, requires_grad: bool = True) -> Any:
        if type(data) is Tensor and data.layout is torch.strided and _plain_device(data).type == "cpu":
            data = simulate(data, CPU)
        return original(cls, data, requires_grad)

    torch.nn.Parameter.__new__ = __new__  # type: ignore[method-assign]


def _install_generator() -> None:
    original = torch.Generator

    class Generator(original):  # type: ignore[valid-type, misc]
        """A CPU generator that says it is the device's; simulated random operators do not draw from it."""

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
