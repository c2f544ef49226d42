"""`acl` and `torchair`, the Python sides of CANN's runtime and of its graph compiler.

acl.rt.get_mem_info(1)               ──> (free, total, 0) of the simulated device
torchair.get_npu_backend()           ──> a backend for torch.compile that runs the code as it is
torchair.register_fx_node_ge_converter(op) ──> keeps the converter: a dry run compiles no graph
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["acl_modules", "torchair_modules"]

_OK = 0  # ACL_SUCCESS
_ACL_HOST = 1


# -- acl ----------------------------------------------------------------------------------------------------


def acl_modules() -> dict[str, dict[str, Any]]:
    """The runtime calls that a training program makes; every call that can fail says that it did not."""
    npu: Any = torch.npu  # type: ignore[attr-defined]  # registered by the simulated device

    def succeed(*_: Any) -> int:
        return _OK

    def set_device(device_id: int) -> int:
        npu.set_device(device_id)
        return _OK

    runtime = {
        "set_device": set_device,
        "reset_device": succeed,
        "get_device": lambda: (npu.current_device(), _OK),
        "get_device_count": lambda: (npu.device_count(), _OK),
        "get_mem_info": lambda attr: (*npu.mem_get_info(), _OK),
        "get_run_mode": lambda: (_ACL_HOST, _OK),
        "synchronize_device": succeed,
        "synchronize_stream": succeed,
        "create_context": lambda device_id: (device_id + 1, _OK),
        "set_context": succeed,
        "get_context": lambda: (npu.current_device() + 1, _OK),
        "destroy_context": succeed,
        "create_stream": lambda: (1, _OK),
        "destroy_stream": succeed,
    }
    return {
        "acl": {
            "init": succeed,
            "finalize": succeed,
            "get_soc_name": lambda: npu.get_device_name(),
            "get_version": lambda: (1, 0, 0, _OK),
        },
        "acl.rt": runtime,
    }


# -- torchair -----------------------------------------------------------------------------------------------


class DataType(enum.IntEnum):
    """The element types of CANN's graph compiler."""

    DT_FLOAT = 0
    DT_FLOAT16 = 1
    DT_INT8 = 2
    DT_INT32 = 3
    DT_UINT8 = 4
    DT_INT16 = 6
    DT_UINT16 = 7
    DT_UINT32 = 8
    DT_INT64 = 9
    DT_UINT64 = 10
    DT_DOUBLE = 11
    DT_BOOL = 12
    DT_STRING = 13
    DT_COMPLEX64 = 16
    DT_COMPLEX128 = 17
    DT_BF16 = 27
    DT_UNDEFINED = 28
    DT_INT4 = 29


class _GraphTensor:
    """A value of a GE graph, for annotations: a dry run makes none."""


class _CompilerConfig:
    """Options in groups of options: keeps what it is given."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _CompilerConfig()
        setattr(self, name, value)
        return value


def _register_converter(op: Any, *_: Any, **__: Any) -> Callable[[Any], Any]:
    return lambda converter: converter


def _eager_backend(*_: Any, **__: Any) -> Callable[..., Any]:
    return lambda graph_module, example_inputs: graph_module.forward


def _only_in_a_graph(name: str) -> Callable[..., Any]:
    def build(*_: Any, **__: Any) -> Any:
        raise RuntimeError(
            f"torchair.ge.{name} builds a graph for CANN's compiler; a dry run compiles none: run the model eagerly"
        )

    return build


def torchair_modules() -> dict[str, dict[str, Any]]:
    """What programs import; what would build a graph says that a dry run has none."""
    logger = logging.getLogger("torchair")
    converter = {
        "register_fx_node_ge_converter": _register_converter,
        "declare_supported": _register_converter,
    }
    types = {"Tensor": _GraphTensor, "TensorSpec": _GraphTensor, "DataType": DataType}
    graph = {
        name: _only_in_a_graph(name) for name in ("custom_op", "Const", "Cast", "Clone", "Fill", "TensorMove")
    }
    attributes = ("Bool", "Int", "Float", "Str", "DataType", "ListBool", "ListInt", "ListFloat", "ListStr")
    config = {"CompilerConfig": _CompilerConfig}
    backend = {"get_npu_backend": _eager_backend, "get_compiler": _eager_backend}
    return {
        "torchair": {
            **config,
            **backend,
            **converter,
            "logger": logger,
            "patch_for_hcom": lambda: None,
            "use_internal_format_weight": lambda model: None,
        },
        "torchair.ge": types | graph,
        "torchair.ge.attr": {name: _only_in_a_graph(f"attr.{name}") for name in attributes},
        "torchair.core": {},
        "torchair.core.utils": {"logger": logger},
        "torchair.configs": {},
        "torchair.configs.compiler_config": config,
        "torchair.npu_fx_compiler": backend,
        "torchair.inference": {"use_internal_format_weight": lambda model: None},
        "torchair.ge_concrete_graph": {},
        "torchair.ge_concrete_graph.ge_apis": graph,
        "torchair.ge_concrete_graph.fx2ge_converter": converter,
        "torchair.ge_concrete_graph.ge_graph": types
        | {
            name: _only_in_a_graph(name)
            for name in ("get_default_ge_graph", "next_unique_name", "compat_as_bytes", "get_invalid_desc")
        },
    }
