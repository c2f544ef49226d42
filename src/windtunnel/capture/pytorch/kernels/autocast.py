"""Autocast for the simulated device: the target's own cast lists.

    with torch.autocast("cuda", torch.bfloat16) ──> the simulated backend's autocast key
    linear(x, w) ──> cast by list ──> linear(x.bf16, w.bf16)

Which operators are listed is read from the installed torch (it registers them for every build); how each is
cast is stated here. A test checks that the two agree. Casts of leaf weights are cached until the outermost
autocast ends, as torch does: those copies are memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from windtunnel.capture.pytorch.tensors import storage as store
from windtunnel.capture.pytorch.tensors.storage import sim_of, world
from windtunnel.capture.pytorch.tensors.traced import is_traced

__all__ = [
    "FP32",
    "FP32_APPEND_DTYPE",
    "FP32_SET_DTYPE",
    "PROMOTE",
    "install_autocast",
    "listed_operators",
    "policy_of",
]

Tensor = torch.Tensor

FP32_SET_DTYPE = frozenset(
    "prod prod.dim_int softmax.int log_softmax.int cumprod cumsum linalg_vector_norm linalg_matrix_norm"
    " linalg_matrix_norm.str_ord sum sum.dim_IntList".split()
)
FP32_APPEND_DTYPE = frozenset("norm.Scalar norm.ScalarOpt_dim".split())
PROMOTE = frozenset(
    "addcdiv addcmul atan2 bilinear cross dot grid_sampler index_put tensordot scatter_add vdot cat stack index_copy".split()
)
FP32 = frozenset(
    """acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow.Tensor_Scalar
    pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm rms_norm frobenius_norm.dim nuclear_norm
    nuclear_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp upsample_nearest1d _upsample_nearest_exact1d
    upsample_nearest2d _upsample_nearest_exact2d upsample_nearest3d _upsample_nearest_exact3d upsample_linear1d
    upsample_bilinear2d _upsample_bilinear2d_aa upsample_trilinear3d upsample_bicubic2d
    _upsample_bicubic2d_aa""".split()
)
# On the CPU, torch also casts these to float32; all other operators are in both lists.
_FP32_ON_CPU_ONLY_IF_NOT_LOWER = frozenset({"_native_multi_head_attention", "_addmm_activation", "mkldnn_rnn_layer",
                                            "conv1d.padding", "conv2d.padding", "conv3d.padding"})  # fmt: skip
_BANNED = frozenset({"binary_cross_entropy"})

_KEY = torch._C.DispatchKey.AutocastPrivateUse1  # type: ignore[attr-defined]  # not in torch's stubs
_KEYS = torch._C.DispatchKeySet(_KEY)
_lib = torch.library.Library("aten", "IMPL")
_any_lib = torch.library.Library("_", "IMPL")
_cache: dict[int, tuple[Tensor, Tensor]] = {}  # id of a leaf weight -> (the weight, its cast)


def listed_operators(device_type: str) -> list[str]:
    """Operators torch casts on this device, e.g. "matmul"; read from torch's own registrations."""
    key = "AutocastCPU" if device_type == "cpu" else "AutocastCUDA"
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return [n[6:] for n in torch._C._dispatch_get_all_op_names() if n.startswith("aten::") and has(n, key)]


def policy_of(name: str, device_type: str) -> str:
    """How autocast treats an operator: lower, fp32, fp32_set_dtype, fp32_append_dtype, promote or banned."""
    if name in _BANNED:
        return "banned" if device_type != "cpu" else "fp32"
    if name in PROMOTE:
        return "promote"
    if device_type == "cpu":
        is_lower = name in _FP32_ON_CPU_ONLY_IF_NOT_LOWER or (
            policy_of(name, "cuda") == "lower" and name in _LOWER
        )
        return "lower" if is_lower else "fp32"
    if name in FP32_SET_DTYPE:
        return "fp32_set_dtype"
    if name in FP32_APPEND_DTYPE:
        return "fp32_append_dtype"
    return "fp32" if name in FP32 else "lower"


_LOWER = frozenset(
    """_convolution _convolution.deprecated conv1d conv2d conv3d conv_tbc conv_transpose1d conv_transpose2d.input
    conv_transpose3d.input convolution prelu addmm addmv addr matmul einsum mm mv linalg_vecdot linear addbmm baddbmm
    bmm chain_matmul linalg_multi_dot _thnn_fused_lstm_cell _thnn_fused_gru_cell lstm_cell gru_cell rnn_tanh_cell
    rnn_relu_cell _scaled_dot_product_flash_attention scaled_dot_product_attention cudnn_convolution
    cudnn_convolution_transpose""".split()
)


def install_autocast() -> None:
    """Register the cast lists on the simulated backend and point torch.autocast at it."""
    device_type = world.device_type
    _any_lib.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    for name in listed_operators(device_type):
        base, _, overload = name.partition(".")
        op = getattr(getattr(torch.ops.aten, base), overload or "default")
        _lib.impl(name, _caster(op, policy_of(name, device_type)), "AutocastPrivateUse1")
    _redirect(device_type)


# -- casting ------------------------------------------------------------------------------------------------


def _caster(op: Any, policy: str) -> Callable[..., Any]:
    handler = _POLICIES[policy]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            return handler(op, args, kwargs)

    return kernel


def _lower(op: Any, args: Any, kwargs: Any) -> Any:
    dtype = torch.get_autocast_dtype(store.SIM.type)
    return op(*_cast(args, dtype), **{k: _cast(v, dtype) for k, v in kwargs.items()})


def _fp32(op: Any, args: Any, kwargs: Any) -> Any:
    return op(*_cast(args, torch.float32), **{k: _cast(v, torch.float32) for k, v in kwargs.items()})


def _fp32_set_dtype(op: Any, args: Any, kwargs: Any) -> Any:
    """These take a dtype: torch asks the kernel to accumulate in float32 instead of casting its input."""
    names = [a.name for a in op._schema.arguments]
    position = names.index("dtype")
    is_set = kwargs.get("dtype") is not None or (len(args) > position and args[position] is not None)
    if not is_set and _is_low_precision(args[0]):
        kwargs = {**kwargs, "dtype": torch.float32}
        args = args[:position]
    return op(*args, **kwargs)


def _fp32_append_dtype(op: Any, args: Any, kwargs: Any) -> Any:
    if not _is_low_precision(args[0]):
        return op(*args, **kwargs)
    packet = torch.ops.aten.norm
    if op._overloadname == "Scalar":
        return packet.ScalarOpt_dtype(args[0], args[1] if len(args) > 1 else 2, dtype=torch.float32)
    return packet.ScalarOpt_dim_dtype(*args, **kwargs, dtype=torch.float32)


def _promote(op: Any, args: Any, kwargs: Any) -> Any:
    found: list[torch.dtype] = []
    _collect_float_types((*args, *kwargs.values()), found)
    if not found:
        return op(*args, **kwargs)
    low = torch.get_autocast_dtype(store.SIM.type)
    widest = torch.float32 if torch.float32 in found else low
    return op(*_cast(args, widest), **{k: _cast(v, widest) for k, v in kwargs.items()})


def _banned(op: Any, args: Any, kwargs: Any) -> Any:
    raise RuntimeError(
        "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast. Use"
        " binary_cross_entropy_with_logits, or disable autocast around it."
    )


_POLICIES: dict[str, Callable[..., Any]] = {
    "lower": _lower,
    "fp32": _fp32,
    "fp32_set_dtype": _fp32_set_dtype,
    "fp32_append_dtype": _fp32_append_dtype,
    "promote": _promote,
    "banned": _banned,
}


def _is_eligible(t: Tensor) -> bool:
    return t.is_floating_point() and t.dtype is not torch.float64 and (sim_of(t) is not None or is_traced(t))


def _is_low_precision(t: Any) -> bool:
    return isinstance(t, Tensor) and t.dtype in (torch.float16, torch.bfloat16)


def _cast(a: Any, dtype: torch.dtype) -> Any:
    if isinstance(a, Tensor):
        if not _is_eligible(a) or a.dtype is dtype:
            return a
        return _cached_cast(a, dtype)
    if isinstance(a, (list, tuple)):
        # The last argument first: C++ compilers evaluate torch's casts in this order, and it decides the placement.
        return [_cast(each, dtype) for each in reversed(a)][::-1]
    return a


def _cached_cast(a: Tensor, dtype: torch.dtype) -> Tensor:
    can_cache = (
        dtype is torch.get_autocast_dtype(store.SIM.type)
        and a.dtype is torch.float32
        and a.requires_grad
        and a.is_leaf
        and not a._is_view()
        and torch.is_autocast_cache_enabled()
    )
    if not can_cache:
        return a.to(dtype)
    known = _cache.get(id(a))
    if known is None:
        known = _cache[id(a)] = (a, a.to(dtype))
    return known[1]


def _collect_float_types(values: Any, found: list[torch.dtype]) -> None:
    for a in values:
        if isinstance(a, Tensor):
            if _is_eligible(a):
                found.append(a.dtype)
        elif isinstance(a, (list, tuple)):
            _collect_float_types(a, found)


# -- torch.autocast("cuda") -> the simulated backend's key -----------------------------------------------------


def _redirect(device_type: str) -> None:
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        setattr(torch, name, _on_backend(getattr(torch, name), device_type))
    torch.get_autocast_gpu_dtype = lambda: torch.get_autocast_dtype(device_type)
    clear = torch.clear_autocast_cache

    def clear_autocast_cache() -> None:
        _cache.clear()
        clear()

    torch.clear_autocast_cache = clear_autocast_cache
    torch.amp.is_autocast_available = lambda kind: True  # type: ignore[assignment]
    torch.amp.autocast_mode.is_autocast_available = lambda kind: True  # type: ignore[assignment]
    torch.set_autocast_dtype(device_type, torch.bfloat16 if device_type == "cpu" else torch.float16)


def _on_backend(original: Callable[..., Any], device_type: str) -> Callable[..., Any]:
    """Calls about the simulated device type go to the simulated backend; the rest to torch."""

    def call(*args: Any) -> Any:
        if args and (args[0] == device_type or args[0] in world.aliases):
            if device_type == "cpu" and len(args) > 1:
                original(*args)  # traced tensors are the host's own
            args = (store.SIM.type, *args[1:])
        elif device_type == "cuda" and (not args or isinstance(args[0], bool)):
            args = (store.SIM.type, *args)  # the old one-argument form means cuda
        return original(*args)

    return call
