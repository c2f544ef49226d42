"""`DistributedDataParallel(find_unused_parameters=True)`, the default of many trainers, and `static_graph=True`.

Reducer (C++) ──> a host tensor in pinned memory ──> the kernels below, as if it were pinned

Torch's reducer copies the map of used parameters through pinned memory, and an extension backend without C++ has none
to give. So where a program makes such a reducer, the two CPU kernels it calls are replaced, once.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from windtunnel.capture.pytorch.tensors.storage import PINNED

__all__ = ["install_ddp_pinned"]

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_lib = torch.library.Library("aten", "IMPL")


def install_ddp_pinned() -> None:
    """Notice the first reducer that needs it."""
    make, set_static = DistributedDataParallel._ddp_init_helper, DistributedDataParallel._set_static_graph

    @functools.wraps(make)
    def _ddp_init_helper(self: Any, *args: Any, **kwargs: Any) -> None:
        if self.find_unused_parameters or getattr(self, "static_graph", False):
            _give_pinned_memory()
        make(self, *args, **kwargs)

    @functools.wraps(set_static)
    def _set_static_graph(self: Any) -> None:
        _give_pinned_memory()
        set_static(self)

    DistributedDataParallel._ddp_init_helper = _ddp_init_helper  # type: ignore[method-assign]
    DistributedDataParallel._set_static_graph = _set_static_graph  # type: ignore[method-assign]


@functools.cache
def _give_pinned_memory() -> None:
    plain = torch.library.get_kernel("aten::empty_strided", "CPU").call_boxed

    def empty_strided(size: Any, stride: Any, **kwargs: Any) -> torch.Tensor:
        is_pinned = kwargs.pop("pin_memory", False)
        made = plain(_CPU, size, stride, **kwargs)
        if is_pinned:
            setattr(made.untyped_storage(), PINNED, True)
        return made

    def is_pinned(tensor: torch.Tensor, device: Any = None) -> bool:
        return getattr(tensor.untyped_storage(), PINNED, False)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that they replace torch's own
        _lib.impl("empty_strided", empty_strided, "CPU")
        _lib.impl("is_pinned", is_pinned, "CPU")
