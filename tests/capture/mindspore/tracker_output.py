"""Small tracker output written by hand, as MindSpore writes it."""

from __future__ import annotations

from pathlib import Path

from windtunnel.capture.mindspore.tracker.files import Block, Communication, Task
from windtunnel.capture.mindspore.tracker.graph import TrackedOp
from windtunnel.events.model import TensorSpec

BLOCK_HEADER = (
    "start_time_stamp,end_time_stamp,device_addr,stream_id,pool_type,size,actual_used_memory,actual_peak_memory,file_name,"
    "line_num,type,producer_task,task_name,node_name,graph_name,user_tasks,last_user_task,python_stack,is_persistent,is_small,\n"
)
BLOCK_ROW = (
    "8,35,0x7ff4a2f9e677,0,DefaultEnhancedAscendMemoryPool,4194816,13641728,15739392,device_address_utils.cc,1297,"
    "PyNativeOutput,4,PyNative,Dense,,{9-31},31,File:train.py;Line:12;Function:<module>|,0,0,\n"
)
WEIGHT_ROW = (
    "34,9223372036854775807,0x800e7bdd47d7,2,DefaultEnhancedAscendMemoryPool,66048,74752,74752,actor.cc,73,"
    "Weight,32,SyncTensorData,fc2.weight,kernel_graph0,{98},98,,1,0,\n"
)
TASK_HEADER = "time_stamp,task_name,node_name,graph_name,file_name,line_num,python_stack,\n"
ORDER_HEADER = (
    "index,group,comm_rank,primitive,src_rank,dest_rank,root_rank,input_shape,input_type,output_shape,output_type,"
    "input_size,output_size\n"
)
OPERATOR = (
    "(%8) = Dense(%2, %6, %7), task_info: 4, attrs {stream_id=0} \n"
    "    (BFloat16:[512, 4096]) <- (BFloat16:[512, 1024], BFloat16:[4096, 1024], BFloat16:[4096])\n"
    "    # File:train.py;Line:12;Function:<module>|\n"
)

KIB = 1024


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def spec(*shape: int, dtype: str = "float32") -> TensorSpec:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return TensorSpec(tuple(shape), tuple(reversed(strides)), dtype)


def block(
    start: int, end: int | None, n_kib: int, kind: str = "PyNativeOutput", *, task: int = -1, node: str = "",
    is_persistent: bool = False, address: int | None = None, stream: int = 0,
) -> Block:  # fmt: skip
    """A block of so many KiB as asked for; the pool takes 512 bytes more."""
    at = start << 20 if address is None else address
    return Block(start, end, at, stream, n_kib * KIB + 512, kind, task, node, is_persistent, "")


def operator(
    tick: int, name: str, read: tuple[int, ...] = (), written: tuple[int, ...] = (), *,
    inputs: tuple[TensorSpec, ...] | None = None, outputs: tuple[TensorSpec, ...] | None = None, stack: str = "",
    **attributes: str,
) -> TrackedOp:  # fmt: skip
    """Tensors of one KiB unless told otherwise."""
    one = spec(256)
    return TrackedOp(
        tick, name, read, written, (one,) * len(read) if inputs is None else inputs,
        (one,) * len(written) if outputs is None else outputs, {"stream_id": "0"} | attributes, stack,
    )  # fmt: skip


def tasks(operators: list[TrackedOp], name: str = "PyNative") -> dict[int, Task]:
    return {op.tick: Task(op.tick, name, op.name) for op in operators}


def communication(primitive: str, ranks: tuple[int, ...], **who: int) -> Communication:
    return Communication(
        "g" + "-".join(map(str, ranks)),
        ranks,
        primitive,
        who.get("source"),
        who.get("target"),
        who.get("root"),
    )
