"""MindSpore's settings as a script for Ascend sees them, on a machine without Ascend.

    set_device("Ascend"), set_context(device_target=...) ──> nothing happens        get_context("device_target") ──> "Ascend"
    GRAPH_MODE ──> refused: a graph for Ascend cannot be compiled here

MindSpore's own Python code reads the same settings, and so chooses the operators for Ascend.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NoReturn

import mindspore
from mindspore import context, device_manager
from mindspore._c_expression import ms_ctx_param

from windtunnel.capture.mindspore.meta.tensors import replace_function
from windtunnel.errors import NoToolchain

__all__ = ["Settings", "install_context"]

_TARGET = "Ascend"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)GB")


@dataclass
class Settings:
    """The settings of the script that windtunnel has to respect."""

    max_device_bytes: int | None = None

    def limit(self, size: Any) -> None:
        """As MindSpore writes it: "30GB"."""
        if found := _SIZE.fullmatch(str(size)):
            self.max_device_bytes = int(float(found[1]) * 2**30)


def install_context(device_id: int) -> Settings:
    """Before the script's first line."""
    chosen_by_script = Settings()
    settings = context._Context
    get_param, set_mode = settings.get_param, settings.set_mode

    def answer(self: Any, param: Any) -> Any:
        return _TARGET if param == ms_ctx_param.device_target else get_param(self, param)

    def choose_mode(self: Any, mode: int) -> None:
        if mode == mindspore.GRAPH_MODE:
            _refuse_graphs()
        set_mode(self, mode)

    settings.get_param = answer
    settings.set_mode = settings.setters["mode"] = choose_mode
    settings.set_device_target = settings.setters["device_target"] = lambda self, target: None
    settings.set_device_id = settings.setters["device_id"] = lambda self, number: None
    settings.set_max_device_memory = settings.setters["max_device_memory"] = lambda self, size: (
        chosen_by_script.limit(size)
    )

    chosen = device_manager.DeviceInfo(_TARGET, device_id)
    replace_function(device_manager.set_device, lambda device_target, device_id=None: None)
    replace_function(device_manager.get_current_device, lambda: chosen)

    def set_memory(*args: Any, **kwargs: Any) -> None:
        chosen_by_script.limit(kwargs.get("max_size", args[2] if len(args) > 2 else ""))

    replace_function(mindspore.runtime.set_memory, set_memory)
    for name in ("synchronize", "empty_cache", "set_cpu_affinity"):
        if (old := getattr(mindspore.runtime, name, None)) is not None:
            replace_function(old, lambda *args, **kwargs: None)
    return chosen_by_script


def _refuse_graphs() -> NoReturn:
    raise NoToolchain(
        "the script uses GRAPH_MODE, which needs loader stubs that cannot be built here without a C++ compiler",
        hint="install one, for example `apt-get install g++`, or run the script in PYNATIVE_MODE",
    )
