"""Make tensors of the meta device behave like device tensors: they have an address, and their values read as zero.

    Tensor, Parameter, mint.empty, ... ──> a handle for each tensor        asnumpy, item, ... ──> the host's value, or zeros

Only what MindSpore does not dispatch, or its meta device cannot do, is replaced.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from math import prod
from types import ModuleType
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, mint, ops
from mindspore.ops import tensor_method

from windtunnel.capture.mindspore.meta.device import Handle, MetaDevice, tensors_in

__all__ = ["install_tensors", "replace_function"]

_UNSEEN = ("empty", "empty_like", "rand", "rand_like", "randn", "randn_like", "randint", "randint_like")
_DEVICES = ("Ascend", "CPU", "GPU", "npu")
_PLAIN = (int, slice, type(None), type(Ellipsis))


def install_tensors(device: MetaDevice) -> None:
    """Before the script's first line."""
    _install_constructors(device)
    _install_values(device)
    _install_places(device)
    _install_methods(device)


def replace_function(old: Any, new: Any) -> None:
    """Replace a function in all modules of MindSpore that imported it."""
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "mindspore" and isinstance(module, ModuleType):
            for key, value in list(vars(module).items()):
                if value is old:
                    setattr(module, key, new)


# -- creating tensors ----------------------------------------------------------------------------------------


def _install_constructors(device: MetaDevice) -> None:
    make_tensor, make_parameter = Tensor.__init__, Parameter.__init__

    @wraps(make_tensor)
    def new_tensor(self: Any, *args: Any, **kwargs: Any) -> None:
        make_tensor(self, *args, **kwargs)
        data = args[0] if args else kwargs.get("input_data")
        value = device.handle(data).value if isinstance(data, Tensor) else data
        device.make_host_tensor(self, value)

    @wraps(make_parameter)
    def new_parameter(self: Any, *args: Any, **kwargs: Any) -> None:
        make_parameter(self, *args, **kwargs)
        device.make_weight(self)

    Tensor.__init__, Parameter.__init__ = new_tensor, new_parameter
    for name in _UNSEEN:
        if (old := getattr(mint, name, None)) is not None:
            replace_function(old, _announced(device, old))


def _announced(device: MetaDevice, make: Callable) -> Callable:
    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("device") is not None:
            kwargs["device"] = None
        like = make(*args, **kwargs)
        result = device.new_tensor(tuple(like.shape), like.dtype)
        device.record(make.__name__.title().replace("_", ""), [], [result])
        return result

    return made


# -- values --------------------------------------------------------------------------------------------------


def _install_values(device: MetaDevice) -> None:
    def asnumpy(self: Any) -> Any:
        value = device.handle(self).value
        if value is not None:
            return np.asarray(value, _numpy_type(self)).reshape(self.shape)
        return np.zeros(self.shape, _numpy_type(self))

    def item(self: Any, *_: Any) -> Any:
        values = asnumpy(self)
        return values.reshape(-1)[0].item() if values.size else 0

    Tensor.asnumpy = Tensor.numpy = asnumpy
    Tensor.item = item
    Tensor.get_bytes = lambda self: bytes(prod(self.shape) * self._itemsize)
    Tensor.tolist = lambda self: asnumpy(self).tolist()
    Tensor.__int__ = lambda self: int(item(self))
    Tensor.__float__ = lambda self: float(item(self))
    Tensor.__bool__ = lambda self: bool(item(self))
    Tensor.__index__ = lambda self: int(item(self))


def _numpy_type(tensor: Any) -> np.dtype:
    try:
        return np.dtype(str(tensor.dtype).lower())
    except TypeError:
        return np.dtype(np.float32)  # numpy has no bfloat16 and none of the smaller ones


# -- where tensors are ---------------------------------------------------------------------------------------


class _DeviceStorage:
    """Replaces an untyped storage: that of the meta device cannot be resized."""

    def __init__(self, handle: Handle, original: Any) -> None:
        self._handle, self._original = handle, original

    def resize_(self, size: int) -> _DeviceStorage:
        self._handle.storage.resize(size)
        return self

    def size(self) -> int:
        return self._handle.storage.n_bytes

    def nbytes(self) -> int:
        return self._handle.storage.n_bytes

    def data_ptr(self) -> int:
        return self._handle.storage.address

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)


def _install_places(device: MetaDevice) -> None:
    def place(self: Any) -> str:
        return "CPU" if device.handle(self).value is not None else "Ascend:0"

    def storage_of(original: Callable) -> Callable:
        return lambda self: _DeviceStorage(device.handle(self), original(self))

    Tensor.device = property(place)
    Tensor.data_ptr = lambda self: device.handle(self).storage.address
    Tensor.untyped_storage = storage_of(Tensor.untyped_storage)
    Tensor.storage = storage_of(Tensor.storage)
    to, move_to = Tensor.to, Tensor.move_to

    @wraps(to)
    def to_device(self: Any, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("device", None)
        kwargs.pop("non_blocking", None)
        args = tuple(arg for arg in args if not (isinstance(arg, str) and arg.startswith(_DEVICES)))
        return to(self, *args, **kwargs) if args or kwargs.get("dtype") is not None else self

    Tensor.to = to_device
    Tensor.move_to = wraps(move_to)(lambda self, *args, **kwargs: self)


# -- methods -------------------------------------------------------------------------------------------------


def _install_methods(device: MetaDevice) -> None:
    take = Tensor.__getitem__

    @wraps(take)
    def __getitem__(self: Any, index: Any) -> Any:
        result = take(self, index)
        words = index if isinstance(index, tuple) else (index,)
        if isinstance(result, Tensor) and all(isinstance(word, _PLAIN) for word in words):
            device.took_view(self, result)
        return result

    def __setitem__(self: Any, index: Any, value: Any) -> None:
        # The meta device has no such operator; nothing but values would change.
        device.handle(self).writes()
        device.record("InplaceCopy", [self, *tensors_in(value)], [self])

    Tensor.__getitem__, Tensor.__setitem__ = __getitem__, __setitem__
    # The meta device has `all` and lacks `any`, whose results look the same.
    Tensor.any = Tensor.all
    replace_function(mint.any, mint.all)
    replace_function(ops.any, ops.all)
    for name in dir(tensor_method):
        prefix = next((p for p in ("deprecated_tensor_", "tensor_") if name.startswith(p)), None)
        method = name.removeprefix(prefix) if prefix else ""
        if callable(getattr(Tensor, method, None)) and not method.endswith("_"):
            instead = getattr(tensor_method, name)
            setattr(Tensor, method, _or_in_python(getattr(Tensor, method), instead))


def _or_in_python(original: Callable, instead: Callable) -> Callable:
    """MindSpore returns None for overloads that its meta device lacks; its implementations in Python have them."""

    @wraps(original)
    def method(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        return instead(*args, **kwargs) if result is None else result

    return method
