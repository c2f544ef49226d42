"""How long an operator takes on a device.

    Signature, DeviceProfile ──> max(operations / peak, bytes / bandwidth) + launch ──> seconds
    measured seconds by cost_key ──> CostTable ──> used instead, where there are any

The roofline knows no kernel: it ranks operators well and predicts their sum roughly. Where a real run has been
measured, its table replaces the guess operator by operator.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite, prod

from windtunnel.devices import DeviceProfile
from windtunnel.errors import CorruptFile
from windtunnel.events.model import Signature, TensorSpec
from windtunnel.timing.flops import base_name, flops_of

__all__ = ["CostTable", "bytes_moved", "cost_key", "op_seconds", "seconds_of"]

_COMPUTE_EFFICIENCY = 0.55  # of the peak a good matrix kernel reaches on shapes as they come
_BANDWIDTH_EFFICIENCY = 0.75
_LAUNCH_S = {"cuda": 5e-6, "npu": 10e-6, "cpu": 1e-6}
_UNKNOWN_FP32_SHARE = 1 / 16  # of the bf16 peak
_FORMAT = 1

_ITEM_BYTES = {
    "float64": 8, "int64": 8, "uint64": 8, "complex64": 8, "complex128": 16,
    "float32": 4, "int32": 4, "uint32": 4, "complex32": 4,
    "float16": 2, "bfloat16": 2, "int16": 2, "uint16": 2,
}  # fmt: skip
_HALF = ("float16", "bfloat16")
_BYTE_WIDE = ("float8", "int8", "uint8")
# They hand out another view of the same bytes, or none at all.
_MOVE_NOTHING = frozenset(
    """_conj _reshape_alias _unsafe_view alias as_strided chunk detach diagonal empty empty_like empty_strided expand
    flatten imag lift_fresh narrow new_empty new_empty_strided permute real record_stream resize select set slice split
    split_with_sizes squeeze t transpose unbind unfold unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze view
    view_as view_as_complex view_as_real""".split()
)
# They read as many rows of a table as they return, not all of it.
_LOOKUPS = frozenset("embedding gather index index_select take take_along_dim".split())


def cost_key(name: str, shapes: Iterable[Sequence[int]]) -> str:
    """What a measured time is filed under: the operator and the shapes of its tensors, in order.

    Without the overload: whether a number came as a number or as a tensor of one changes nothing.
    """
    return f"{name[: name.rfind('.')]} {' '.join('x'.join(map(str, shape)) for shape in shapes)}"


def op_seconds(signature: Signature, device: DeviceProfile) -> float:
    """The roofline estimate for one operator."""
    if base_name(signature.name) in _MOVE_NOTHING:
        return 0.0
    flops = flops_of(signature)
    compute_s = flops / (_peak_flops(signature, device) * _COMPUTE_EFFICIENCY) if flops else 0.0
    memory_s = bytes_moved(signature) / (device.bandwidth_gbs * 1e9 * _BANDWIDTH_EFFICIENCY)
    return max(compute_s, memory_s) + _LAUNCH_S[device.kind]


def bytes_moved(signature: Signature) -> int:
    """Bytes an operator reads and writes, each tensor once."""
    base = base_name(signature.name)
    if base in _MOVE_NOTHING:
        return 0
    written = sum(map(_n_bytes, signature.outputs))
    if base in _LOOKUPS:
        return 2 * written + sum(_n_bytes(spec) for spec in signature.inputs[1:])
    if not signature.outputs and signature.inputs:
        written = _n_bytes(signature.inputs[0])  # in place
    return written + sum(map(_n_bytes, signature.inputs))


class CostTable:
    """Measured seconds by `cost_key`."""

    def __init__(self, seconds: Mapping[str, float] | None = None) -> None:
        self._seconds = dict(seconds or {})

    def __len__(self) -> int:
        return len(self._seconds)

    def find(self, key: str) -> float | None:
        return self._seconds.get(key)

    def find_signature(self, signature: Signature) -> float | None:
        """The measured time of a recorded operator, if it ran with these shapes."""
        return self._seconds.get(cost_key(signature.name, (spec.shape for spec in signature.inputs)))

    def to_json(self) -> str:
        return json.dumps({"version": _FORMAT, "seconds": dict(sorted(self._seconds.items()))}, indent=1)

    @classmethod
    def from_json(cls, text: str) -> CostTable:
        try:
            table = json.loads(text)
            version, seconds = table["version"], table["seconds"]
            if version != _FORMAT or not all(isfinite(s) and s >= 0 for s in seconds.values()):
                raise ValueError("not this format")
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise CorruptFile(
                f"this is not a table of operator costs: {error}",
                hint="write one with windtunnel.dtr.save_costs(path) in a real run",
            ) from None
        return cls(seconds)


def seconds_of(
    signatures: Iterable[Signature], device: DeviceProfile, table: CostTable | None = None
) -> list[float]:
    """Seconds of each signature: as measured where the table has it, else by the roofline."""
    found = []
    for signature in signatures:
        measured = table.find_signature(signature) if table is not None else None
        found.append(op_seconds(signature, device) if measured is None else measured)
    return found


def _peak_flops(signature: Signature, device: DeviceProfile) -> float:
    """Operations per second the device could do in this type."""
    dtype = signature.inputs[0].dtype if signature.inputs else "float32"
    half = device.bf16_tflops * 1e12
    if dtype in _HALF:
        return half
    if dtype.startswith(_BYTE_WIDE):
        return 2 * half
    full = device.fp32_tflops * 1e12 or half * _UNKNOWN_FP32_SHARE
    if dtype == "float32":
        # Convolutions use TF32 from Ampere on unless switched off; matrix products do not unless switched on.
        is_tf32 = device.capability >= (8, 0) and "conv" in base_name(signature.name)
        return max(full, half / 2) if is_tf32 else full
    return full / 2


def _n_bytes(spec: TensorSpec) -> int:
    """Of the memory behind a tensor that is read: what is expanded lies there once."""
    n = prod(size for size, stride in zip(spec.shape, spec.strides, strict=True) if stride or not size)
    return n * _ITEM_BYTES.get(spec.dtype, 1)
