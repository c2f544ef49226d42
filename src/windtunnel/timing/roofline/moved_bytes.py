"""Bytes an operator reads and writes.

Signature ──> rule of its class ──> bytes (each tensor once; what it does not touch, not at all)
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from windtunnel.events.model import Signature, TensorSpec
from windtunnel.events.scalars import arguments_of, counted_of
from windtunnel.timing.operators.mindspore_products import tensors_of
from windtunnel.timing.operators.operator_classes import OpClass, base_name, class_of

__all__ = ["bytes_moved", "bytes_of", "is_strided"]

_ITEM_BYTES = {
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
    "float32": 4, "int32": 4, "uint32": 4, "complex32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
}  # fmt: skip
# In place, and without reading what was there.
_OVERWRITE = frozenset(
    """
    copy fill zero bernoulli uniform normal random exponential geometric cauchy log_normal
    Assign InplaceCopy InplaceZero InplaceFillScalar InplaceFillTensor InplaceNormal InplaceUniform InplaceRandom
    InplaceExponential InplaceBernoulliScalar InplaceBernoulliTensor
    """.split()
)
_WHOLE_RESULT = frozenset(
    """
    embedding_dense_backward _embedding_bag_dense_backward select_backward slice_backward
    EmbeddingDenseBackward GatherDGrad GatherDGradV2 MaskedSelectGrad UnsortedSegmentSum UnsortedSegmentMax
    UnsortedSegmentMin UnsortedSegmentProd RepeatInterleaveGrad MoeTokenPermuteGrad
    """.split()
)
# Of a lookup the table is the first input; where it is not, and inputs that are there for their shape alone.
_UNREAD = {"Embedding": 1, "GatherDGrad": 0, "GatherDGradV2": 0}
# MindSpore's operators that change their first input, whether or not the recording names it as a result too.
_IN_PLACE = ("Inplace", "InnerInplace", "Assign", "ScatterUpdate", "ScatterNdUpdate", "TensorCopySlices")
_COUNTED = (OpClass.FUSED, OpClass.OTHER)  # a kernel of a compiler's, or somebody's own, whose row says it
_STAND_INS = {"AdamW": 1}  # states passed twice because an option is off: the second is not read


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
    if found in _COUNTED and (counted := counted_of(signature.scalars, "bytes")) is not None:
        return counted
    base = base_name(signature.name)
    inputs = tensors_of(signature)
    outputs = () if base.startswith(_IN_PLACE) else signature.outputs
    written = sum(map(bytes_of, outputs))
    if not inputs:
        return written
    if found is OpClass.LOOKUP:
        table = _UNREAD.get(base, 0)
        return 2 * written + sum(map(bytes_of, (*inputs[:table], *inputs[table + 1 :])))
    if found is OpClass.SCATTER and base not in _WHOLE_RESULT:
        return written * (2 if outputs else 0) + _scattered(inputs)
    if found is OpClass.OPTIMIZER and signature.name.startswith("ms."):
        return _updated(inputs, _STAND_INS.get(base, 0))
    read = sum(map(bytes_of, inputs)) - (bytes_of(inputs[_UNREAD[base]]) if base in _UNREAD else 0)
    if not outputs and signature.scalars.endswith("out=_"):
        return read  # each once: the result is the last of the inputs
    if not outputs:
        in_place = _first_list(signature) if found is OpClass.OPTIMIZER else inputs[:1]
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


def _scattered(inputs: Sequence[TensorSpec]) -> int:
    """In place: as much of the target as there are values or indices for, read and written, and those."""
    target, *others = inputs
    indices = [spec for spec in others if spec.dtype in ("int64", "int32", "bool")]
    values = [spec for spec in others if spec not in indices]
    rest = target.shape[len(indices) :]
    touched = max((prod(spec.shape) for spec in indices), default=0) * prod(rest)
    touched = max(touched, *(prod(spec.shape) for spec in values)) if values else touched
    item = _ITEM_BYTES.get(target.dtype, 1)
    return 2 * min(touched, prod(target.shape)) * item + sum(map(bytes_of, others))


def _updated(inputs: Sequence[TensorSpec], n_stand_ins: int) -> int:
    """A weight, its states and its gradient, which are as large as each other: all read, all but the gradient written."""
    largest = max((prod(spec.shape) for spec in inputs), default=0)
    full = sorted(bytes_of(spec) for spec in inputs if prod(spec.shape) == largest)
    del full[len(full) - n_stand_ins :]
    return 2 * sum(full) - (full[0] if full else 0)


def _first_list(signature: Signature) -> tuple[TensorSpec, ...]:
    """The tensors of the first argument: those a kernel over lists changes."""
    return signature.inputs[: max(arguments_of(signature.scalars)[0].count("_"), 1)]
