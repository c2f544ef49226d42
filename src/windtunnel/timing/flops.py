"""Floating-point operations of one operator, from its shapes.

    Signature ──> formula by the operator's name ──> operations (0: it only moves bytes)

Matrix products, convolutions, attention and recurrent layers have formulas; everything else is bound by memory. A
multiplication and an addition count as two.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from windtunnel.events.model import Signature

__all__ = ["base_name", "flops_of"]


def flops_of(signature: Signature) -> int:
    formula = _FORMULAS.get(base_name(signature.name))
    if formula is None or not signature.inputs:
        return 0
    try:
        return formula(signature)
    except (IndexError, ValueError):  # an overload with other arguments: counted by its bytes
        return 0


def base_name(name: str) -> str:
    """`addmm` of "aten.addmm_.default": one formula serves the in-place form too."""
    parts = name.split(".")
    return (parts[1] if len(parts) > 1 else name).rstrip("_")


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
    """Each weight meets each place of the output (of the input, if transposed)."""
    data, weight = signature.inputs[0].shape, signature.inputs[1].shape
    arguments = _arguments(signature.scalars)
    is_transposed = len(arguments) > 6 and arguments[6] == "True"
    result = signature.outputs[0].shape if signature.outputs else data
    places = (data if is_transposed else result)[2:]
    return 2 * data[0] * prod(places) * prod(weight)


def _convolution_backward(signature: Signature) -> int:
    """As much as forward for each of the two gradients that is wanted."""
    gradient, data, weight = (spec.shape for spec in signature.inputs[:3])
    arguments = _arguments(signature.scalars)
    is_transposed = len(arguments) > 7 and arguments[7] == "True"
    places = (data if is_transposed else gradient)[2:]
    mask = arguments[10].strip("[]").split(",") if len(arguments) > 10 else ["True", "True"]
    return 2 * data[0] * prod(places) * prod(weight) * mask[:2].count("True")


def _attention(n_products: float, first: int, causal_at: int) -> Callable[[Signature], int]:
    """Products over query and key; a causal mask leaves out half of them when both are as long."""

    def count(signature: Signature) -> int:
        query, key, value = (spec.shape for spec in signature.inputs[first : first + 3])
        *batch, n_queries, width = query
        flops = int(n_products * prod(batch) * n_queries * key[-2] * (width + value[-1]))
        arguments = _arguments(signature.scalars)
        is_causal = len(arguments) > causal_at and arguments[causal_at] == "True"
        return flops // 2 if is_causal else flops

    return count


def _recurrent(times: int) -> Callable[[Signature], int]:
    """Each weight matrix meets each position of each sequence."""

    def count(signature: Signature) -> int:
        n_positions = prod(signature.inputs[0].shape[:-1])
        weights = [spec.shape for spec in signature.inputs[1:] if len(spec.shape) == 2]
        return times * 2 * n_positions * sum(prod(shape) for shape in weights)

    return count


_FORWARD, _BACKWARD = 2, 5  # products of one attention, times two operations each, over width + value width

_FORMULAS: dict[str, Callable[[Signature], int]] = {
    "mm": _product(0),
    "bmm": _product(0),
    "matmul": _product(0),
    "mv": _product(0),
    "dot": _product(0),
    "vdot": _product(0),
    "_int_mm": _product(0),
    "_scaled_mm": _product(0),
    "_grouped_mm": _product(0),
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
    "_scaled_dot_product_flash_attention": _attention(_FORWARD, 0, 4),
    "_scaled_dot_product_flash_attention_for_cpu": _attention(_FORWARD, 0, 4),
    "_scaled_dot_product_efficient_attention": _attention(_FORWARD, 0, 6),
    "_scaled_dot_product_cudnn_attention": _attention(_FORWARD, 0, 6),
    "_scaled_dot_product_fused_attention_overrideable": _attention(_FORWARD, 0, 5),
    "_scaled_dot_product_flash_attention_backward": _attention(_BACKWARD, 1, 11),
    "_scaled_dot_product_flash_attention_for_cpu_backward": _attention(_BACKWARD, 1, 7),
    "_scaled_dot_product_efficient_attention_backward": _attention(_BACKWARD, 1, 11),
    "_scaled_dot_product_cudnn_attention_backward": _attention(_BACKWARD, 1, 14),
    "_scaled_dot_product_fused_attention_overrideable_backward": _attention(_BACKWARD, 1, 13),
    "_cudnn_rnn": _recurrent(1),
    "_cudnn_rnn_backward": _recurrent(2),
    "mkldnn_rnn_layer": _recurrent(1),
    "mkldnn_rnn_layer_backward": _recurrent(2),
}  # fmt: skip


def _arguments(scalars: str) -> list[str]:
    """The top-level parts of "_,_,[1,1],False"."""
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(scalars):
        if letter in "[(":
            depth += 1
        elif letter in "])":
            depth -= 1
        elif letter == "," and depth == 0:
            parts.append(scalars[start:i])
            start = i + 1
    parts.append(scalars[start:])
    return parts
