"""The name of a torch function in a dump, and whether it is an API at all.

    torch.nn.functional.relu ──> ("Functional", "relu")      torch.Tensor.add_ ──> ("Tensor", "add_")
    torch.linalg.inv         ──> ("Torch", "inv")            torch.Tensor.shape ──> nothing: not a computation

Functions come from torch itself, as a torch function mode sees them, so nothing has to be listed to be seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import Any

import torch
from torch.overrides import resolve_name

__all__ = ["OPERATORS", "ApiName", "exposes_memory", "name_of"]


@dataclass(frozen=True, slots=True)
class ApiName:
    """`is_open`: not recorded itself, but what it calls is (Tensor.backward)."""

    prefix: str
    api: str
    is_open: bool = False
    python: Callable | None = (
        None  # the Python function behind it, to whose signature its arguments are bound
    )

    @property
    def key(self) -> str:
        return f"{self.prefix}.{self.api}"


# Python operators that torch reports under another name: `x + y` arrives as Tensor.add.
OPERATORS = (
    "__add__ __radd__ __iadd__ __sub__ __isub__ __mul__ __rmul__ __imul__ __truediv__ __itruediv__ __div__ __idiv__ "
    "__matmul__ __imatmul__ __mod__ __imod__ __ifloordiv__ __neg__ __pos__ __abs__ __invert__ "
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __iand__ __or__ __ior__ __xor__ __ixor__ "
    "__lshift__ __ilshift__ __rshift__ __irshift__"
).split()

# Seen by the mode, but not a computation on tensors.
_NOT_APIS = set(
    """
    __bool__ __float__ __int__ __index__ __complex__ __len__ __repr__ __str__ __format__ __hash__ __iter__ __contains__
    __reversed__ __deepcopy__ __reduce_ex__ __setstate__ __dir__ __array__ __array_wrap__ __dlpack__ __dlpack_device__
    __cuda_array_interface__ __torch_dispatch__ __torch_function__ __new__ __init__ __delitem__
    item tolist numpy data_ptr storage untyped_storage typed_storage _typed_storage storage_offset storage_type
    size stride dim ndimension numel nelement element_size get_device dense_dim sparse_dim type_as_str
    is_complex is_floating_point is_signed is_conj is_neg is_inference is_pinned is_contiguous is_coalesced is_shared
    is_same_size is_set_to is_distributed is_nonzero is_tensor is_storage has_names align_to names
    requires_grad_ retain_grad register_hook register_post_accumulate_grad_hook share_memory_ pin_memory
    detach detach_ data grad_fn _backward_hooks _is_view _is_zerotensor _is_all_true _is_any_true _nested_tensor_size
    device dtype layout Generator Size result_type promote_types can_cast finfo iinfo get_default_dtype set_default_dtype
    is_grad_enabled broadcast_shapes _make_subclass _make_wrapper_subclass as_subclass _set_grad_enabled is_autocast_enabled
    _assert_async _assert_scalar _debug_has_internal_overlap is_vulkan_available is_deterministic
    set_ resize_ resize_as_ __set__ __delete__ has_symbolic_sizes_strides _has_symbolic_sizes_strides equal
    """.split()
)
# Recorded through what they call, not themselves.
_OPEN = {"backward", "__rdiv__", "__rtruediv__"}
_PREFIX_OF = {"torch.nn.functional": "Functional", "torch.Tensor": "Tensor", "torch": "Torch"}
_NO_SPACES = {
    "profiler",
    "prim",
    "prims",
    "c10d",
}  # c10d: collectives are recorded as torch.distributed functions
_VF = {"lstm", "gru", "rnn_tanh", "rnn_relu", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell"}
# Where a Python wrapper chooses between two functions, torch reports the chosen one.
_ONE_OF_TWO = {f"{kind}_max_pool{n}d" for kind in ("fractional", "adaptive") for n in (1, 2, 3)} | {
    f"max_pool{n}d" for n in (1, 2, 3)
}


# After these a program can write to a tensor without raising its version.
_WAYS_TO_MEMORY = {
    f"torch.Tensor.{name}"
    for name in "data.__get__ numpy __array__ __dlpack__ data_ptr storage untyped_storage typed_storage".split()
}


def exposes_memory(function: Callable) -> bool:
    """Whether a function exposes a tensor's memory, so that it may be written unnoticed."""
    return resolve_name(function) in _WAYS_TO_MEMORY


def name_of(function: Callable) -> ApiName | None:
    """Return the name of a function as dumps have it; None for what is not an API."""
    if isinstance(function, FunctionType) and hasattr(function, "_is_windtunnel"):
        return ApiName("Tensor", function.__name__)  # our own method for an operator
    if isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket)):
        return _operator(function)
    name = resolve_name(function) or _unlisted(function)
    if name is None:
        return None
    home, _, api = name.rpartition(".")
    if api in ("__get__", "__set__", "__delete__"):
        return _getter(home) if api == "__get__" else None
    if name.startswith("torch.nn.init"):
        return None
    python = function if type(function).__name__ == "function" else None
    if api in _NOT_APIS:
        return None
    if api in _OPEN:
        return ApiName("Tensor", api, is_open=True)
    if home in ("torch", "torch._VF") and api in _VF:
        return ApiName("VF", api)
    if api.endswith("_with_indices") or api.removeprefix("_") in _ONE_OF_TWO:
        python = getattr(torch.nn.functional, f"_{api.removeprefix('_')}", python)
        api = api.removeprefix("_").removesuffix("_with_indices")
        return ApiName("Functional", api, python=python)
    if home in _PREFIX_OF:
        return ApiName(_PREFIX_OF[home], api, python=python)
    if home.startswith("torch."):
        return ApiName("Torch", api, python=python)
    return ApiName(home.partition(".")[0], api)


def _operator(operator: Any) -> ApiName | None:
    """An operator called by its own name, torch.ops.space.name or one of its overloads."""
    packet = getattr(operator, "overloadpacket", operator)
    space, _, api = packet._qualified_op_name.partition("::")
    if space in _NO_SPACES or (space == "_c10d_functional" and api != "wait_tensor"):
        return None  # the result of a functional collective is there only once it has been waited for
    return ApiName("Aten" if space == "aten" else space, api)


def _getter(home: str) -> ApiName | None:
    """Attributes that compute: the transposes and the parts of complex numbers; every other one is plain data."""
    attribute = home.rpartition(".")[2]
    return ApiName("Tensor", attribute) if attribute in ("T", "mT", "H", "mH", "real", "imag") else None


def _unlisted(function: Callable) -> str | None:
    """Functions torch does not list as overridable, which the mode sees all the same."""
    module = getattr(function, "__module__", None) or ""
    name = getattr(function, "__name__", None)
    if name is None or (module.startswith("torch._C") and not module.startswith(("torch._C._",))):
        return None
    if module == "torch":
        return f"torch.{name}"
    return None
