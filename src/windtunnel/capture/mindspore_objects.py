"""Python objects that ranks send each other: answered here, since a simulated card delivers nothing.

    all_gather_object, broadcast_object_list, ... ──> what this rank itself gives, for every peer

Peers are taken to send what this rank would, as in a job whose ranks do the same; the user is told once.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from mindspore.mint import distributed

__all__ = ["install_objects"]

_SAID = (
    "mint.distributed.{name}: a simulated rank cannot hear from its peers, so each of them is taken to send what this rank"
    " sends"
)


def install_objects(notice: Callable[[str], None]) -> None:
    """Replace the calls of mint.distributed that move objects."""

    def told(name: str, answer: Callable) -> None:
        if hasattr(distributed, name):

            def call(*args: Any, **kwargs: Any) -> Any:
                notice(_SAID.format(name=name))
                return answer(*args, **kwargs)

            setattr(distributed, name, call)

    told("all_gather_object", _all_gather)
    told("gather_object", _gather)
    told("broadcast_object_list", _broadcast)
    told("scatter_object_list", _scatter)


def _all_gather(object_list: list[Any], obj: Any, group: Any = None) -> None:
    object_list[:] = [copy.deepcopy(obj) for _ in object_list]


def _gather(obj: Any, object_gather_list: list[Any] | None = None, dst: int = 0, group: Any = None) -> None:
    if object_gather_list:
        _all_gather(object_gather_list, obj)


def _broadcast(object_list: list[Any], src: int = 0, group: Any = None, device: Any = None) -> None:
    """The list stays what it is: of a rank that receives, what it filled it with itself."""


def _scatter(
    scatter_object_output_list: list[Any],
    scatter_object_input_list: list[Any] | None = None,
    src: int = 0,
    group: Any = None,
) -> None:
    if scatter_object_input_list:
        place = distributed.get_rank(group) if group is not None else distributed.get_rank()
        scatter_object_output_list[0] = scatter_object_input_list[max(place, 0)]
