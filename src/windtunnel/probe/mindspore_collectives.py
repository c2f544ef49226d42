"""Communication between processes: what a call only receives into, and what has arrived when it is done.

    distributed.all_gather_into_tensor(output, input) ──> inputs (null, input) ──> the call, waited for ──> (output, input)
    comm_func.all_reduce(x) ──> inputs (x) ──> the call, waited for ──> what it returns

Most of these functions write into their arguments and return nothing: their output is the list of these afterwards.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from windtunnel.probe.mindspore_elements import tensors_in

__all__ = ["Communication"]

_PREFIXES = ("Distributed.", "MintDistributed.")
# The argument that is only received into: its position and what it is called then.
_RECEIVED = {
    "recv": (0, "tensor"),
    "irecv": (0, "tensor"),
    "scatter": (0, "tensor"),
    "scatter_tensor": (0, "output_tensor"),
    "gather": (1, "gather_list"),
    "gather_into_tensor": (0, "output_tensor"),
    "all_gather": (0, "tensor_list"),
    "all_gather_into_tensor": (0, "output_tensor"),
    "all_gather_into_tensor_uneven": (0, "output"),
    "all_to_all": (0, "output_tensor_list"),
    "all_to_all_single": (0, "output"),
    "all_to_all_v_c": (0, "output"),
    "reduce_scatter": (0, "output"),
    "reduce_scatter_tensor": (0, "output"),
    "reduce_scatter_tensor_uneven": (0, "output"),
}


class Communication:
    """One function that communicates."""

    def __init__(self, function: Callable, name: str) -> None:
        position, parameter = _RECEIVED.get(name, (0, ""))
        names = list(inspect.signature(function).parameters)
        # Of two functions of one name one returns what has arrived, the other one is given the memory for it.
        has_memory = names[position : position + 1] == [parameter]
        self._position, self._parameter = (position, parameter) if has_memory else (len(names), "")

    @classmethod
    def of(cls, function: Callable, key: str) -> Communication | None:
        """By the name in a dump, "Prefix.name"; None of a function that does not communicate."""
        return cls(function, key.rpartition(".")[2]) if key.startswith(_PREFIXES) else None

    def given(self, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        """What is sent. Memory that is only received into holds what was there by chance: null."""
        if self._position < len(args):
            args = (*args[: self._position], None, *args[self._position + 1 :])
        elif self._parameter in kwargs:
            kwargs = {**kwargs, self._parameter: None}
        return args, kwargs

    def arrived(self, args: tuple, kwargs: dict, result: Any) -> Any:
        """What has arrived, once it has: a call that goes on in the background is waited for."""
        for item in result if isinstance(result, (tuple, list)) else (result,):
            if hasattr(item, "wait"):
                item.wait()
        has_tensors = any(True for _ in tensors_in((result,)))
        return result if has_tensors else (*args, *kwargs.values())
