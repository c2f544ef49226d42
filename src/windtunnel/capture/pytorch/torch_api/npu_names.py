"""The names of `torch.npu` that `torch.cuda` does not have: compiler options, overflow flags, typed constructors.

torch.npu.set_compile_mode(jit_compile=False) ──> remembered, and changes nothing in a dry run
torch.npu.get_npu_overflow_flag()             ──> False: gradients count as finite, as everywhere in a dry run
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Callable
from typing import Any

import torch

from windtunnel.capture.pytorch.tensors.storage import world
from windtunnel.capture.pytorch.torch_api.legacy_types import legacy_types

__all__ = ["npu_names"]


def npu_names() -> dict[str, Any]:
    """Name -> function or class, for torch.npu."""
    return {
        **legacy_types("npu"),
        **_compiler_options(),
        **_overflow(),
        **_dumps(),
        **_allocators(),
        **_graphs(),
        "mstx": types.SimpleNamespace(
            mark=lambda message, stream=None, domain="default": None,
            range_start=lambda message, stream=None, domain="default": 0,
            range_end=lambda range_id, domain="default": None,
            mstx_range=lambda *_, **__: lambda function: function,
        ),
        "is_autocast_enabled": lambda: torch.is_autocast_enabled("npu"),
        "set_autocast_enabled": lambda enable: torch.set_autocast_enabled("npu", enable),
        "get_autocast_dtype": lambda: torch.get_autocast_dtype("npu"),
        "set_autocast_dtype": lambda dtype: torch.set_autocast_dtype("npu", dtype),
        "set_sync_debug_mode": lambda debug_mode: None,
        "get_sync_debug_mode": lambda: 0,
        "is_support_inf_nan": lambda: True,
    }


def _compiler_options() -> dict[str, Any]:
    options: dict[str, Any] = {"jit_compile": False, "is_nd": True}

    def set_option(option: dict[str, Any]) -> None:
        if not isinstance(option, dict):
            raise TypeError(f"npu option must be a dict, got {type(option).__name__}")
        options.update(option)

    return {
        "set_option": set_option,
        "set_compile_mode": lambda jit_compile=False: options.update(jit_compile=bool(jit_compile)),
        "is_jit_compile_false": lambda: not options["jit_compile"],
        "set_mm_bmm_format_nd": lambda is_nd=True: options.update(is_nd=bool(is_nd)),
        "get_mm_bmm_format_nd": lambda: options["is_nd"],
        "set_aoe": lambda dump_path: None,
        "config": types.SimpleNamespace(allow_internal_format=False),
        "matmul": types.SimpleNamespace(allow_hf32=False),
        "conv": types.SimpleNamespace(allow_hf32=True),
        "enable_deterministic_with_backward": lambda tensor: tensor,
        "disable_deterministic_with_backward": lambda tensor: tensor,
        "set_device_limit": lambda device, cube_num=-1, vector_num=-1: None,
    }


def _overflow() -> dict[str, Any]:
    return {
        "get_npu_overflow_flag": lambda: False,
        "npu_check_overflow": lambda grad: False,
        "clear_npu_overflow_flag": lambda: None,
    }


def _dumps() -> dict[str, Any]:
    return {"init_dump": lambda: None, "set_dump": lambda cfg_file: None, "finalize_dump": lambda: None}


def _allocators() -> dict[str, Any]:
    def change_current_allocator(allocator: Any) -> None:
        world.recorder.notice(
            "torch.npu.change_current_allocator changed nothing: a dry run keeps the allocator of --device"
        )

    class NPUPluggableAllocator:
        """An allocator of the user's own, in a shared library: named, never loaded."""

        def __init__(self, path_to_so_file: str, alloc_fn_name: str, free_fn_name: str) -> None:
            self.path = path_to_so_file

        def allocator(self) -> Any:
            return self

    return {
        "change_current_allocator": change_current_allocator,
        "NPUPluggableAllocator": NPUPluggableAllocator,
        "empty_virt_addr_cache": lambda: None,
    }


def _graphs() -> dict[str, Any]:
    def note() -> None:
        world.recorder.notice(
            "NPU graphs are not simulated: the captured code ran once, eagerly, and replays did nothing"
        )

    class NPUGraph:
        def __init__(self, *_: Any, **__: Any) -> None:
            note()

        def __getattr__(self, name: str) -> Callable[..., None]:
            return lambda *_, **__: None

    def make_graphed_callables(callables: Any, *_: Any, **__: Any) -> Any:
        note()
        return callables

    return {
        "NPUGraph": NPUGraph,
        "graph": lambda *_, **__: contextlib.nullcontext(),
        "graph_pool_handle": lambda: (0, 0),
        "make_graphed_callables": make_graphed_callables,
    }
