"""Translate MindSpore's terms to ours: collectives, tasks that are not kernels, sizes.

"DistCommAllReduce" ──> "c10d.all_reduce"      66048 bytes of the pool ──> 65536 bytes requested
"""

from __future__ import annotations

from math import prod

from windtunnel.events.model import TensorSpec

__all__ = ["OWN_TASK", "collective_of", "is_kernel", "requested_bytes"]

# Longest first where one word is the end of another; prefixes such as InnerComm and DistComm do not matter.
_COLLECTIVES = (
    ("AllReduce", "all_reduce"), ("AllGather", "all_gather"), ("AllGatherIntoTensor", "all_gather"),
    ("AllGatherIntoTensorUneven", "all_gather"), ("AllGatherV", "all_gather"), ("ReduceScatter", "reduce_scatter"),
    ("ReduceScatterTensor", "reduce_scatter"), ("ReduceScatterTensorUneven", "reduce_scatter"),
    ("ReduceScatterV", "reduce_scatter"), ("AlltoAll", "all_to_all"), ("AllToAll", "all_to_all"),
    ("AlltoAllV", "all_to_all"), ("AllToAllV", "all_to_all"), ("AlltoAllVC", "all_to_all"),
    ("AllToAllvC", "all_to_all"), ("AllToAllSingle", "all_to_all"), ("AllToAllVSingle", "all_to_all"),
    ("NeighborExchangeV2", "all_to_all"), ("Broadcast", "broadcast"), ("Reduce", "reduce"), ("Gather", "gather"),
    ("GatherIntoTensor", "gather"), ("Scatter", "scatter"), ("ScatterTensor", "scatter"), ("Send", "send"),
    ("Isend", "send"), ("Receive", "recv"), ("Irecv", "recv"), ("Barrier", "barrier"),
)  # fmt: skip
_PREFIXES = ("DistComm", "InnerComm", "InnerMoe", "Inner")
_BY_WORD = dict(_COLLECTIVES)
# Without a prefix these are operators of one device: mindspore.ops.Gather selects rows of a table.
_NEEDS_PREFIX = {"Gather", "GatherIntoTensor", "Scatter", "ScatterTensor", "BroadcastTo"}

_NO_KERNELS = {
    "RecordEvent", "WaitEvent", "StreamSend", "StreamRecv", "UpdateOutputDeviceAddress", "CopyTensorData",
    "CopyValueNodeData", "SyncTensorData",
}  # fmt: skip
OWN_TASK = "windtunnel"  # of our own first mark
_OTHER_TASKS = ("SyncTensorData", "PrepareDataForSequenceAndScalarValue", OWN_TASK)

_BITS = {
    "float64": 64, "int64": 64, "uint64": 64, "complex64": 64, "float32": 32, "int32": 32, "uint32": 32,
    "float16": 16, "bfloat16": 16, "int16": 16, "uint16": 16, "int8": 8, "uint8": 8, "bool": 8,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "hifloat8": 8, "complex128": 128, "int4": 4,
}  # fmt: skip
_PADDING = 512


def collective_of(operator: str) -> str | None:
    """Our name of a communication operator; None for any other operator."""
    for prefix in _PREFIXES:
        if operator.startswith(prefix) and operator.removeprefix(prefix) in _BY_WORD:
            return f"c10d.{_BY_WORD[operator.removeprefix(prefix)]}"
    if operator in _NEEDS_PREFIX or operator not in _BY_WORD:
        return None
    return f"c10d.{_BY_WORD[operator]}"


def is_kernel(operator: str, task: str) -> bool:
    """Whether the device computes: copies from the host and bookkeeping are tasks too."""
    if operator in _NO_KERNELS or task in _OTHER_TASKS or task.endswith("Actor"):
        return False
    return not operator.startswith("data-")


def requested_bytes(size: int, spec: TensorSpec | None) -> int:
    """The bytes requested, given the bytes MindSpore's pool used: (n + 512 + 31) // 512 * 512 for n bytes.

    A tensor that fills the block gives them exactly; otherwise size - 512, which the pool rounds to the same size.
    """
    if spec is not None:
        n_bytes = (prod(spec.shape) * _BITS.get(spec.dtype, 0) + 7) // 8
        if n_bytes and (n_bytes + _PADDING + 31) // _PADDING * _PADDING == size:
            return n_bytes
    return size - _PADDING if size > _PADDING else max(1, size - 32)
