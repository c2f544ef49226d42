"""A small graph file whose memory can be counted by hand, and the real ones of MindSpore."""
# ruff: noqa: E501  (lines as MindSpore writes them)

from __future__ import annotations

import gzip
from pathlib import Path

DATA = Path(__file__).parents[1] / "data" / "mindspore"
GRAPHS = ("dense", "transformer_recompute", "transformer_lazy_inline", "pipeline")

KIB = 1 << 10
# x: 4 KiB input, w: 16 KiB weight; h = 8 KiB, y = 2 KiB, the gradient g = 16 KiB and its sum over ranks s.
HAND_MADE = """\
# IR entry: @main
# Total subgraphs: 1

# Total params: 2
# Params:
%para1_x: <Tensor[Float32], (16, 64)> : [32, 64]
%para2_w: <Ref[Tensor[Float32]], (64, 64), ref_key=w, is_parameter, is_inplace>  :  has_default

subgraph @main() {
  %0(a) = Load(%para2_w, UMonad[U])
      : (<Ref[Tensor[Float32]], (64, 64), ref_key=w, is_parameter>, <UMonad, NoShape>) -> (<Tensor[Float32], (64, 64)>)
      # Fullname with scope: (Default/Load-op0)
  %1(h) = PrimFunc_MatMul(%para1_x, %0, Bool(0), Bool(1)) {instance name: matmul} primitive_attrs: {in_strategy: ((2, 1), (1, 1))}
      : (<Tensor[Float32], (16, 64)>, <Tensor[Float32], (64, 64)>, <Bool, NoShape>, <Bool, NoShape>) -> (<Tensor[Float64], (16, 64)>)
      # Fullname with scope: (Default/MatMul-op0)
      # In file train.py:3, 4~5/    return "x" * (/
  %2(r) = PrimFunc_Reshape(%1, (I64(1024)))
      : (<Tensor[Float64], (16, 64)>, <Tuple[Int64], TupleShape(NoShape)>) -> (<Tensor[Float64], (1024)>)
      # Fullname with scope: (Default/Reshape-op0)
  %3(y) = PrimFunc_Cast(%2, I64(42))
      : (<Tensor[Float64], (1024)>, <Int64, NoShape>) -> (<Tensor[Float16], (1024)>)
      # Fullname with scope: (Default/Cast-op0)
  %4(g) = PrimFunc_MatMul(%1, %para1_x, Bool(1), Bool(0))
      : (<Tensor[Float64], (16, 64)>, <Tensor[Float32], (16, 64)>, <Bool, NoShape>, <Bool, NoShape>) -> (<Tensor[Float32], (64, 64)>)
      # Fullname with scope: (Gradients/Default/MatMul-op0)
  %5(s) = AllReduce(%4) {instance name: grad} primitive_attrs: {group: "hccl_world_group", op: "sum"}
      : (<Tensor[Float32], (64, 64)>) -> (<Tensor[Float32], (64, 64)>)
      # Fullname with scope: (Gradients/Default/AllReduce-op0)
  %6(o) = ApplyMomentum(%para2_w, %5) primitive_attrs: {side_effect_mem: Bool(1)}
      : (<Ref[Tensor[Float32]], (64, 64), ref_key=w, is_parameter>, <Tensor[Float32], (64, 64)>) -> (<Tensor[Float32], (64, 64)>)
      # Fullname with scope: (Default/ApplyMomentum-op0)
  %7(d) = Depend(%3, %6)
      : (<Tensor[Float16], (1024)>, <Tensor[Float32], (64, 64)>) -> (<Tensor[Float16], (1024)>)
      # Fullname with scope: (Default/Depend-op0)
  Return(%7)
      : (<Tensor[Float16], (1024)>)
      # Fullname with scope: (Default/Return-op0)
}
"""


def write_graph(folder, text=HAND_MADE, order=None):
    """A saved graph as MindSpore leaves it, with its order of execution if there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "21_validate_0082.ir"
    path.write_text(text, encoding="utf-8")
    if order is not None:
        (folder / "execute_order").mkdir(exist_ok=True)
        (folder / "execute_order" / "execute_order.csv").write_text(order, encoding="utf-8")
    return path


def unpack(name, folder, *, with_order=True):
    """One of the real graphs."""
    order = _text(f"{name}.execute_order.csv.gz") if with_order else None
    return write_graph(folder, _text(f"{name}.ir.gz"), order)


def order_of(*scopes):
    return "index,node_name,logic_id,stream_id\n" + "".join(
        f'"{i}","{scope}","4294967295","0"\n' for i, scope in enumerate(scopes)
    )


def _text(name):
    return gzip.decompress((DATA / name).read_bytes()).decode()
