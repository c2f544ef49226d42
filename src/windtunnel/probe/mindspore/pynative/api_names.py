"""Which functions of MindSpore are APIs, and how they are called in a dump.

mindspore.ops.relu ──> Functional.relu     mindspore.Tensor.__add__ ──> Tensor.__add__     mindspore.mint.abs ──> Mint.abs

Every public function of the modules below is one, unless it computes nothing: it transforms functions, registers
operators, asks a question about a tensor or moves it elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import FunctionType
from typing import Any

from mindspore import Tensor, mint, ops
from mindspore.communication import comm_func
from mindspore.mint import distributed
from mindspore.mint.nn import functional

__all__ = ["api_places"]


def api_places() -> Iterator[tuple[Any, str, str]]:
    """Every API as (where it stands, its name there, its prefix in a dump)."""
    for home, prefix in _MODULES:
        for name, value in vars(home).items():
            if name.startswith("_") or name in _NOT_APIS or not isinstance(value, FunctionType):
                continue
            if value.__module__.startswith(_HOMES) and value.__module__ not in _NOT_HOMES:
                yield home, name, prefix
    for name in dir(Tensor):
        is_api = name in _OPERATORS if name.startswith("_") else name not in _NOT_METHODS
        if is_api and callable(getattr(Tensor, name)):
            yield Tensor, name, "Tensor"


_MODULES = (
    (ops, "Functional"),
    (mint, "Mint"),
    *((getattr(mint, name), "Mint") for name in ("linalg", "special") if hasattr(mint, name)),
    (functional, "MintFunctional"),
    (comm_func, "Distributed"),
    *((getattr(ops, name), "Distributed") for name in ("communication",) if hasattr(ops, name)),  # 2.9 on
    (distributed, "MintDistributed"),
)
_HOMES = ("mindspore.ops.", "mindspore.mint", "mindspore.communication.comm_func")
_NOT_HOMES = {  # functions that make or change functions and operators
    "mindspore.ops.function.grad.grad_func",
    "mindspore.ops.function.vmap_func",
    "mindspore.ops.function._add_attr_func",
    "mindspore.ops.function.debug_func",
    "mindspore.ops.function.reshard_func",
    "mindspore.ops.vm_impl_registry",
    "mindspore.ops.op_info_register",
    "mindspore.ops.primitive",
    "mindspore.ops.composite.base",
    "mindspore.ops.operations.custom_ops",
    "mindspore.ops.operations._ms_kernel",
    "mindspore.ops._utils.arg_handler",
}


def _words(*lines: str) -> frozenset[str]:
    return frozenset(word for line in lines for word in line.split())


_NOT_APIS = _words(
    # questions, groups of processes, objects that are pickled
    "is_floating_point is_available is_initialized init_process_group destroy_process_group new_group",
    "get_rank get_world_size get_backend get_global_rank get_group_rank get_process_group_ranks",
    "get_cache_group_rank get_cache_group_size get_group_rank_from_world_rank get_group_size set_comm_ops_inplace",
    "all_gather_object broadcast_object_list gather_object scatter_object_list send_object_list recv_object_list",
    "move_to make_row_tensor make_sparse_tensor barrier",
)
# Python's operators, as they are spelt in a dump.
_OPERATORS = _words(
    "__abs__ __neg__ __pos__ __invert__ __bool__ __getitem__ __setitem__",
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __and__ __or__ __xor__ __rand__ __ror__ __rxor__",
    "__add__ __radd__ __iadd__ __sub__ __rsub__ __isub__ __mul__ __rmul__ __imul__ __matmul__ __rmatmul__ __imatmul__",
    "__truediv__ __rtruediv__ __itruediv__ __floordiv__ __rfloordiv__ __ifloordiv__",
    "__mod__ __rmod__ __imod__ __pow__ __rpow__ __ipow__ __lshift__ __rshift__",
)
_NOT_METHODS = _words(
    # the tensor's memory, and where it is
    "asnumpy numpy assign_value assign_value_cpp convert_bytes_to_tensor data_ptr data_sync delete_ flush_from_cache",
    "from_dlpack from_numpy get_bytes init_data is_init is_pinned is_shared move_to offload offload_file_path",
    "pin_memory set_ set_cast_dtype set_const_arg set_device_address set_dtype set_init_flag set_param_info storage",
    "storage_offset to_dlpack untyped_storage value wait_pipeline persistent_data persistent_data_from",
    # questions about it, and its hooks
    "dim hooks is_contiguous is_floating_point ndimension numel register_hook remove_hook requires_grad_ stride tolist",
    "getitem_index_info setitem_index_info type",
    # another name of `to`, which it calls
    "astype",
)
