"""Floating-point operations of one operator, from its shapes.

    Signature ──> formula by the operator's name ──> operations (0: it only moves bytes)

Matrix products, convolutions, attention and recurrent layers have formulas; everything else is bound by memory. A
multiplication and an addition count as two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod

from windtunnel.events.model import Signature
from windtunnel.events.scalars import arguments_of, counted_of
from windtunnel.timing.operators.mindspore_products import PRODUCTS, ProductSizes, tensors_of
from windtunnel.timing.operators.operator_classes import OpClass, base_name, class_of

__all__ = ["Attention", "attention_of", "base_name", "flops_of"]


@dataclass(frozen=True, slots=True)
class Attention:
    """The dimensions of an attention call."""

    n_heads: int  # of all sequences together
    n_queries: int  # of one sequence
    n_keys: int
    width: int  # of a query and a key
    value_width: int
    n_products: float  # over width + value width, times two operations: 2 forward, 5 backward
    is_causal: bool

    @property
    def flops(self) -> int:
        """A causal mask leaves out half of the products when queries and keys are as long."""
        both = self.width + self.value_width
        flops = int(self.n_products * self.n_heads * self.n_queries * self.n_keys * both)
        return flops // 2 if self.is_causal else flops


def flops_of(signature: Signature) -> int:
    if not signature.inputs:
        return 0
    if class_of(signature.name) is OpClass.FUSED:
        return counted_of(signature.scalars, "flops") or 0
    if (attention := attention_of(signature)) is not None:
        return attention.flops
    formula = _FORMULAS.get(base_name(signature.name))
    if formula is None:
        return 0
    try:
        return formula(signature)
    except (IndexError, ValueError):  # an overload with other arguments: counted by its bytes
        return 0


def _product(first: int) -> Callable[[Signature], int]:
    """Of two matrices, or two batches of matrices; the operands are inputs `first` and the next."""

    def count(signature: Signature) -> int:
        a, b = signature.inputs[first].shape, signature.inputs[first + 1].shape
        columns = b[-1] if len(b) > 1 else 1
        batch = prod(b[:-2]) if len(a) < len(b) and len(a) > 1 else 1  # one matrix times many
        return 2 * prod(a) * columns * batch

    return count


def _linear(signature: Signature) -> int:
    return 2 * prod(signature.inputs[0].shape) * prod(signature.inputs[1].shape[:-1])


def _convolution(signature: Signature) -> int:
    """Each weight is multiplied with each position of the output (of the input, if transposed)."""
    data, weight = signature.inputs[0].shape, signature.inputs[1].shape
    arguments = arguments_of(signature.scalars)
    is_transposed = len(arguments) > 6 and arguments[6] == "True"
    result = signature.outputs[0].shape if signature.outputs else data
    places = (data if is_transposed else result)[2:]
    return 2 * data[0] * prod(places) * prod(weight)


def _convolution_backward(signature: Signature) -> int:
    """As much as forward for each of the two gradients that is wanted."""
    gradient, data, weight = (spec.shape for spec in signature.inputs[:3])
    arguments = arguments_of(signature.scalars)
    is_transposed = len(arguments) > 7 and arguments[7] == "True"
    places = (data if is_transposed else gradient)[2:]
    mask = arguments[10].strip("[]").split(",") if len(arguments) > 10 else ["True", "True"]
    return 2 * data[0] * prod(places) * prod(weight) * mask[:2].count("True")


def attention_of(signature: Signature) -> Attention | None:
    """The geometry of an attention kernel; None for other operators."""
    package, _, rest = signature.name.partition(".")
    kernel = _ATTENTION.get(base_name(signature.name)) or _ATTENTION.get(f"{package}.{rest.split('.')[0]}")
    if kernel is None and package == "inductor" and (found := class_of(signature.name)) is not OpClass.FUSED:
        kernel = (0, 99, "bhsd", _BACKWARD if found is OpClass.ATTENTION_BACKWARD else _FORWARD)
    if kernel is None:
        return None
    first, causal_at, layout, n_products = kernel
    arguments = arguments_of(signature.scalars)
    is_causal = len(arguments) > causal_at and arguments[causal_at] == "True"
    try:
        query, key, value = (spec.shape for spec in signature.inputs[first : first + 3])
        if layout == "npu":
            return _npu_attention(query, key, arguments, causal_at, n_products)
        if layout == "statistics":
            return _mindspore_attention(signature, n_products)
        if layout == "bhsd":
            *batch, n_queries, width = query
            n_keys, heads = key[-2], prod(batch)
        elif len(query) == 4:  # bshd
            n_queries, n_keys, width = query[1], key[1], query[3]
            heads = query[0] * query[2]
        else:  # sequences one after the other: taken as equally long
            n_sequences = max(signature.inputs[_OFFSETS[n_products]].shape[0] - 1, 1)
            n_queries, n_keys, width = query[0] // n_sequences, key[0] // n_sequences, query[2]
            heads = n_sequences * query[1]
    except (IndexError, ValueError, StopIteration, ZeroDivisionError):  # an overload with other arguments
        return None
    return Attention(heads, n_queries, n_keys, width, value[-1], n_products, is_causal)


def _npu_attention(
    query: tuple[int, ...], key: tuple[int, ...], arguments: list[str], sparse_at: int, n_products: float
) -> Attention:
    """`head_num` and the layout are arguments; a compressed mask (sparse_mode 2 or more) is causal."""
    texts = [a for a in arguments if a not in ("_", "None")]
    n_heads = int(next(a for a in texts if a.isdigit()))
    layout = next(a.strip("'\"") for a in texts if a.strip("'\"") in _NPU_LAYOUTS)
    length, batch = _NPU_LAYOUTS[layout]
    n_sequences = query[batch] if batch >= 0 else 1
    width = query[-1] // n_heads if layout in ("BSH", "SBH") else query[-1]
    modes = [a[12:] for a in texts if a.startswith("sparse_mode=")] or arguments[sparse_at : sparse_at + 1]
    is_causal = any(mode not in ("0", "1") for mode in modes)
    return Attention(n_heads * n_sequences, query[length], key[length], width, width, n_products, is_causal)


def _mindspore_attention(signature: Signature, n_products: int) -> Attention:
    """FlashAttentionScore: neither heads nor layout are recorded; both follow from the softmax statistics [b, n, s, 8].

    The mask of 2,048 x 2,048 is the compressed one, of sparse modes that leave out half of the scores.
    """
    inputs = tensors_of(signature)
    query, key, value = (spec.shape for spec in inputs[:3])
    others = inputs[4:] if n_products == _BACKWARD else signature.outputs
    statistics = next(
        s.shape for s in others if s.dtype == "float32" and len(s.shape) > 2 and s.shape[-1] == _STATISTICS
    )
    *batch, heads, n_queries = statistics[:-1]
    if batch:
        n_sequences = batch[0]
    else:  # tokens of all sequences one after the other [t, n, 8]: where they begin is not recorded
        n_sequences, n_queries, heads = 1, *statistics[:2]
    width = prod(query) // (n_sequences * n_queries * heads)
    if len(query) == 3 and batch:  # BSH or SBH
        n_keys = key[1 if query[0] == n_sequences else 0]
        value_width = value[-1] * width // key[-1]
    else:  # BNSD, BSND or TND
        length = 0 if not batch else 2 if query[1:3] == (heads, n_queries) else 1
        n_keys, value_width = key[length], value[-1]
    is_causal = any(s.shape[-2:] == _COMPRESSED and s.dtype in ("bool", "uint8") for s in inputs[3:])
    return Attention(n_sequences * heads, n_queries, n_keys, width, value_width, n_products, is_causal)


def _in_mindspore(rule: Callable[[Signature], list[ProductSizes]]) -> Callable[[Signature], int]:
    return lambda signature: round(sum(2 * prod(product) for product in rule(signature)))


def _grouped(signature: Signature) -> int:
    """Each row of `a` is multiplied with the matrix of its group; with two flat operands, groups share the inner dimension."""
    a, b = signature.inputs[0].shape, signature.inputs[1].shape
    return 2 * prod(a) * b[-1]


def _recurrent(times: int) -> Callable[[Signature], int]:
    """Each weight matrix is multiplied with each position of each sequence."""

    def count(signature: Signature) -> int:
        n_positions = prod(signature.inputs[0].shape[:-1])
        weights = [spec.shape for spec in signature.inputs[1:] if len(spec.shape) == 2]
        return times * 2 * n_positions * sum(prod(shape) for shape in weights)

    return count


_FORWARD, _BACKWARD = 2, 5
_OFFSETS = {_FORWARD: 3, _BACKWARD: 7}  # where flash_attn's packed kernels have the places sequences begin
_STATISTICS = 8  # numbers kept for each row of scores: the same one, eight times
_COMPRESSED = (2048, 2048)
_NPU_LAYOUTS = {"BSH": (1, 0), "SBH": (0, 1), "BNSD": (2, 0), "BSND": (1, 0), "TND": (0, -1)}  # length, batch

# first of query, key, value among the inputs; which argument says causal; how they lie; products
_ATTENTION: dict[str, tuple[int, int, str, int]] = {
    "_scaled_dot_product_flash_attention": (0, 4, "bhsd", _FORWARD),
    "_scaled_dot_product_flash_attention_for_cpu": (0, 4, "bhsd", _FORWARD),
    "_scaled_dot_product_efficient_attention": (0, 6, "bhsd", _FORWARD),
    "_scaled_dot_product_cudnn_attention": (0, 6, "bhsd", _FORWARD),
    "_scaled_dot_product_fused_attention_overrideable": (0, 5, "bhsd", _FORWARD),
    "_scaled_dot_product_flash_attention_backward": (1, 11, "bhsd", _BACKWARD),
    "_scaled_dot_product_flash_attention_for_cpu_backward": (1, 7, "bhsd", _BACKWARD),
    "_scaled_dot_product_efficient_attention_backward": (1, 11, "bhsd", _BACKWARD),
    "_scaled_dot_product_cudnn_attention_backward": (1, 14, "bhsd", _BACKWARD),
    "_scaled_dot_product_fused_attention_overrideable_backward": (1, 13, "bhsd", _BACKWARD),
    "_flash_attn_forward": (0, 5, "bshd", _FORWARD),
    "_flash_attn_backward": (1, 9, "bshd", _BACKWARD),
    "_flash_attn_varlen_forward": (0, 9, "bshd", _FORWARD),
    "_flash_attn_varlen_backward": (1, 13, "bshd", _BACKWARD),
    "flex_attention.forward": (0, 99, "bhsd", _FORWARD),
    "flex_attention.backward": (1, 99, "bhsd", _BACKWARD),
    "npu_fusion_attention": (0, 16, "npu", _FORWARD),
    "npu_fusion_attention_grad": (0, 99, "npu", _BACKWARD),
    "FlashAttentionScore": (0, 99, "statistics", _FORWARD),
    "FlashAttentionScoreGrad": (0, 99, "statistics", _BACKWARD),
    "SpeedFusionAttention": (0, 99, "statistics", _FORWARD),
    "SpeedFusionAttentionGrad": (0, 99, "statistics", _BACKWARD),
}

_FORMULAS: dict[str, Callable[[Signature], int]] = {
    "mm": _product(0),
    "bmm": _product(0),
    "matmul": _product(0),
    "mv": _product(0),
    "dot": _product(0),
    "vdot": _product(0),
    "_int_mm": _product(0),
    "_scaled_mm": _product(0),
    "_grouped_mm": _grouped,
    "_scaled_grouped_mm": _grouped,
    "addmm": _product(1),
    "addmv": _product(1),
    "addbmm": _product(1),
    "baddbmm": _product(1),
    "_addmm_activation": _product(1),
    "linear": _linear,
    "mkldnn_linear": _linear,
    "convolution": _convolution,
    "_convolution": _convolution,
    "convolution_overrideable": _convolution,
    "cudnn_convolution": _convolution,
    "mkldnn_convolution": _convolution,
    "_slow_conv2d_forward": _convolution,
    "convolution_backward": _convolution_backward,
    "convolution_backward_overrideable": _convolution_backward,
    "_cudnn_rnn": _recurrent(1),
    "_cudnn_rnn_backward": _recurrent(2),
    "mkldnn_rnn_layer": _recurrent(1),
    "mkldnn_rnn_layer_backward": _recurrent(2),
    **dict.fromkeys(("DynamicRNN", "DynamicGRUV2"), _recurrent(1)),
    **dict.fromkeys(("DynamicRNNGrad", "DynamicGRUV2Grad"), _recurrent(2)),
    **{name: _in_mindspore(rule) for name, rule in PRODUCTS.items()},
}  # fmt: skip
