"""Simulate Python objects sent between ranks, since a simulated device delivers nothing.

    all_gather_object, broadcast_object_list, ... ──> this rank's own object, for every peer

Peers are assumed to send what this rank sends, as in a job whose ranks do the same; this is reported once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from mindspore.mint import distributed

__all__ = ["install_objects"]

_NOTICE = (
    "mint.distributed.{name}: a simulated rank receives nothing from its peers, so each of them is assumed to send what"
    " this rank sends"
)


def install_objects(notice: Callable[[str], None]) -> None:
    """Replace the calls of mint.distributed that move objects."""

    def replace(name: str, answer: Callable) -> None:
        if hasattr(distributed, name):

            def call(*args: Any, **kwargs: Any) -> Any:
                notice(_NOTICE.format(name=name))
                return answer(*args, **kwargs)

            setattr(distributed, name, call)

    replace("all_gather_object", _all_gather)
    replace("gather_object", _gather)
    replace("broadcast_object_list", _broadcast)
    replace("scatter_object_list", _scatter)


def _all_gather(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [copy.deepcopy(obj) for _ in object_list]


def _gather(obj: Any, object_gather_list: list[Any] | None = None, dst: int = 0, group: Any = None) -> None:
    if object_gather_list:
        _all_gather(object_gather_list, obj)


def _broadcast(object_list: list[Any], src: int = 0, group: Any = None, device: Any = None) -> None:
    """The list does not change: a receiving rank keeps what it put there itself."""


def _scatter(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int = 0,
    group: Any = None,
) -> None:
    if scatter_object_input_list:
        place = distributed.get_rank(group) if group is not None else distributed.get_rank()
        scatter_object_output_list[0] = scatter_object_input_list[max(place, 0)]
