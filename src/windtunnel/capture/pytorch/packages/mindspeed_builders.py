"""MindSpeed's own kernels where MindSpeed is installed: its builders load our operators instead of compiling for CANN.

mindspeed.op_builder.RotaryPositionEmbeddingOpBuilder().load() ──> a module with our npu_rotary_position_embedding

MindSpeed compiles each extension with the CANN headers when it is first used. Here `load` of every builder class answers by
the extension's name. Everything around the extension (autograd functions, checks, fallbacks) stays MindSpeed's.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from windtunnel.capture.pytorch.kernels.define_operator import announce
from windtunnel.capture.pytorch.packages.mindspeed import algorithm_functions, rotary_functions
from windtunnel.capture.pytorch.packages.torch_npu_experts import (
    gmm_functions,
    group_add_functions,
    permute_functions,
    unpermute_functions,
)
from windtunnel.capture.pytorch.packages.torch_npu_fused import (
    matmul_add_functions,
    optimizer_functions,
    ring_functions,
)

__all__ = ["answer_op_builders"]

# name of an extension -> what it has, made when it is first loaded
_EXTENSIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "npu_rotary_position_embedding": rotary_functions,
    "algorithm": algorithm_functions,
    "grouped_matmul": gmm_functions,
    "grouped_matmul_v2": gmm_functions,
    "npu_groupmatmul_add_fp32": group_add_functions,
    "npu_matmul_add_fp32": matmul_add_functions,
    "npu_moe_token_permute": permute_functions,
    "npu_moe_token_unpermute": unpermute_functions,
    "npu_ring_attention_update": ring_functions,
    "npu_apply_fused_adamw_v2": optimizer_functions,
}
_loaded: dict[str, types.ModuleType] = {}


def answer_op_builders(module: types.ModuleType) -> None:
    """Replace `load` in the builder classes that this module defines."""
    for value in list(vars(module).values()):
        if isinstance(value, type) and value.__module__ == module.__name__ and "load" in vars(value):
            value.load = _load  # type: ignore[attr-defined]


def _load(self: Any, verbose: bool = True) -> types.ModuleType:
    name = self.name
    if name not in _EXTENSIONS:
        raise NotImplementedError(
            f"MindSpeed's extension {name} is not simulated: choose options that do not use it;"
            f" these are simulated: {', '.join(sorted(_EXTENSIONS))}"
        )
    announce("MindSpeed's extensions were not compiled for CANN: their kernels were simulated")
    if name not in _loaded:
        _loaded[name] = types.ModuleType(name)
        vars(_loaded[name]).update(_made(_EXTENSIONS[name]))
    return _loaded[name]


@functools.cache
def _made(make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    return make()  # operators can be defined once, and two extensions may share them
