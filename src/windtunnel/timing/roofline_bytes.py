"""Bytes an operator reads and writes.

Signature ──> rule of its class ──> bytes (each tensor once; what it does not touch, not at all)
"""

from __future__ import annotations

from math import prod

from windtunnel.events.model import Signature, TensorSpec
from windtunnel.events.scalars import arguments_of
from windtunnel.timing.op_classes import OpClass, base_name, class_of

__all__ = ["bytes_moved", "bytes_of", "is_strided"]

_ITEM_BYTES = {
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
    "float32": 4, "int32": 4, "uint32": 4, "complex32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
}  # fmt: skip
# In place, and without reading what was there.
_OVERWRITE = frozenset(
    "copy fill zero bernoulli uniform normal random exponential geometric cauchy log_normal".split()
)
_WHOLE_RESULT = frozenset(
    "embedding_dense_backward _embedding_bag_dense_backward select_backward slice_backward".split()
)


def bytes_of(spec: TensorSpec) -> int:
    """Of the memory behind a tensor that is read: what is expanded lies there once."""
    n = prod(size for size, stride in zip(spec.shape, spec.strides, strict=True) if stride or not size)
    return n * _ITEM_BYTES.get(spec.dtype, 1)


def is_strided(spec: TensorSpec) -> bool:
    """Neighbours along the last dimension are not neighbours in memory."""
    last = next((i for i in reversed(range(len(spec.shape))) if spec.shape[i] > 1), None)
    return last is not None and spec.strides[last] > 1 and _innermost(spec) != last


def bytes_moved(signature: Signature) -> int:
    """Bytes an operator reads and writes, each tensor once."""
    found = class_of(signature.name)
    if found is OpClass.FREE:
        return 0
    base = base_name(signature.name)
    written = sum(map(bytes_of, signature.outputs))
    if found is OpClass.LOOKUP:
        return 2 * written + sum(map(bytes_of, signature.inputs[1:]))
    if found is OpClass.SCATTER and base not in _WHOLE_RESULT:
        return written * (2 if signature.outputs else 0) + _scattered(signature)
    read = sum(map(bytes_of, signature.inputs))
    if not signature.outputs and signature.inputs:
        in_place = _first_list(signature) if found is OpClass.OPTIMIZER else signature.inputs[:1]
        written = sum(map(bytes_of, in_place))
        if found is OpClass.OPTIMIZER and base.startswith("_fused_adam"):
            written *= 3  # the weight and both moments
        elif base in _OVERWRITE:
            read -= written
    return written + read


def _innermost(spec: TensorSpec) -> int:
    """The dimension whose elements lie next to each other."""
    dims = [i for i, size in enumerate(spec.shape) if size > 1 and spec.strides[i] > 0]
    return min(dims, key=lambda i: spec.strides[i], default=-1)


def _scattered(signature: Signature) -> int:
    """In place: as much of the target as there are values or indices for, read and written, and those."""
    target, *others = signature.inputs
    indices = [spec for spec in others if spec.dtype in ("int64", "int32", "bool")]
    values = [spec for spec in others if spec not in indices]
    rest = target.shape[len(indices) :]
    touched = max((prod(spec.shape) for spec in indices), default=0) * prod(rest)
    touched = max(touched, *(prod(spec.shape) for spec in values)) if values else touched
    item = _ITEM_BYTES.get(target.dtype, 1)
    return 2 * min(touched, prod(target.shape)) * item + sum(map(bytes_of, others))


def _first_list(signature: Signature) -> tuple[TensorSpec, ...]:
    """The tensors of the first argument: those a kernel over lists changes."""
    return signature.inputs[: max(arguments_of(signature.scalars)[0].count("_"), 1)]
