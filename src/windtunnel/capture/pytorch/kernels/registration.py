"""Register a kernel for each operator of the simulated backend with torch's dispatcher, once.

    special handler                     views, copies between devices, values (views_and_copies.py, unknown_values.py)
    one kernel (kernels.py)             what a device implements as one kernel: mm, softmax, foreach, convolution …
    torch's own composition             what torch builds from other kernels on every device: its own C++ runs here too,
                                        with its temporaries, on the device of its inputs
    torch's own C++, unchanged          CompositeImplicit operators and plain views

Registered kernels work in every thread (autograd's device thread, data loaders) without any mode being active.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef

from windtunnel.capture.pytorch.kernels.device_argument import allocating_on
from windtunnel.capture.pytorch.kernels.kernels import call_kernel, kernel_for
from windtunnel.capture.pytorch.kernels.unknown_values import (
    special,  # the whole table: it extends that of views_and_copies
)
from windtunnel.capture.pytorch.tensors.storage import sim_of, world

__all__ = ["composite_kernel", "install_kernels"]

_lib = torch.library.Library("aten", "IMPL")
_any_lib = torch.library.Library("_", "IMPL")
_has = torch._C._dispatch_has_kernel_for_dispatch_key

# Compositions that are one kernel on an accelerator, or that check a tensor's device and must be intercepted first.
_ONE_KERNEL = frozenset(
    "clone embedding stack sum mean repeat constant_pad_nd _to_copy convolution convolution_backward _convolution"
    " _scaled_dot_product_fused_attention_overrideable _scaled_dot_product_fused_attention_overrideable_backward".split()
)
# On the CPU: they check the device, or create real index tensors inside that would not be recorded.
_ASKED_WHOLE_ON_CPU = frozenset("convolution convolution_backward _convolution repeat".split())
_ONE_KERNEL_FAMILIES = ("_foreach_", "_fused_", "_amp_")
_CONSTRUCTORS = (
    "arange", "full", "zeros", "ones", "rand", "randn", "randint", "randperm", "empty", "new_", "eye", "linspace",
    "logspace", "scalar_tensor", "range",
)  # fmt: skip


def install_kernels() -> None:
    """Register a kernel for every aten operator that a device must implement."""
    for name in torch._C._dispatch_get_all_op_names():
        if name.startswith("aten::"):
            kernel = _kernel(name)
            if kernel is not None:
                _lib.impl(name[6:], kernel, "PrivateUse1")
    _any_lib.fallback(call_kernel, "PrivateUse1")
    _prefer_fakes()


def _prefer_fakes() -> None:
    """Use the registered fake of a custom operator: its body may call what only a real device has."""
    register = CustomOpDef.register_fake

    def register_fake(self: CustomOpDef, fn: Callable[..., Any], /) -> Callable[..., Any]:
        op = self._opoverload
        if self._init_fn.__module__.startswith("torch."):
            return register(self, fn)  # torch's own use operators that every device has
        self._lib.impl(self._name, lambda *args, **kwargs: call_kernel(op, *args, **kwargs), "PrivateUse1")
        return register(self, fn)

    CustomOpDef.register_fake = register_fake  # type: ignore[method-assign]


def _kernel(name: str) -> Callable[..., Any] | None:
    """The Python kernel of this operator; None leaves it to torch."""
    op = _overload(name)
    if name in special:
        handler = special[name]
        return lambda *args, **kwargs: handler(op, args, kwargs)
    if _is_foreign(name) or (_has(name, "CompositeImplicitAutograd") and not _has(name, "CPU")):
        return None
    if _has(name, "CPU") or not _has(name, "CompositeExplicitAutograd"):
        return kernel_for(op)
    if _is_view(op):
        return None
    if world.device_type == "cpu":  # on the CPU torch's composition runs exactly as without us
        return kernel_for(op) if name[6:] in _ASKED_WHOLE_ON_CPU else None
    return kernel_for(op) if _is_one_kernel(name[6:]) else composite_kernel(name)


def composite_kernel(name: str) -> Callable[..., Any]:
    """Torch's own composition; what it allocates is on the device of its inputs."""
    compose = torch.library.get_kernel(name, "PrivateUse1").call_boxed
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.PrivateUse1)

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with allocating_on(_device_of(args)):
            return compose(keys, *args, **kwargs)

    return kernel


def _device_of(args: tuple[Any, ...]) -> torch.device:
    for a in args:
        if isinstance(a, torch.Tensor):
            sim = sim_of(a)
            if sim is not None:
                return sim.device
        elif isinstance(a, (list, tuple)) and a and isinstance(a[0], torch.Tensor):
            return _device_of(tuple(a))
    return world.target or world.default_device


def _is_one_kernel(name: str) -> bool:
    base = name.partition(".")[0]
    return (
        base in _ONE_KERNEL
        or base.endswith(("_like", "_window"))
        or name.startswith(_ONE_KERNEL_FAMILIES)
        or base in _CONSTRUCTORS
        or base.startswith("new_")
        or base == "empty_permuted"
    )


def _overload(name: str) -> Any:
    base, _, overload = name[6:].partition(".")
    return getattr(getattr(torch.ops.aten, base), overload or "default")


def _is_view(op: Any) -> bool:
    return any(r.alias_info is not None and not r.alias_info.is_write for r in op._schema.returns)


def _is_foreign(name: str) -> bool:
    """Operators of other kinds of tensors: sparse, quantised, nested, oneDNN's own layout."""
    if name.startswith("aten::mkldnn_rnn_layer"):
        return False
    return any(
        word in name for word in ("sparse", "quantize", "mkldnn", "_nested", "q_", "qscheme", "coalesce")
    )
