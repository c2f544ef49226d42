# The functions of fused.cpp; strides count elements.
from collections.abc import Callable
from typing import Any

def text(numbers: tuple[float, ...], /) -> str: ...
def glimpse(address: int, item_size: int, shape: tuple[int, ...], strides: tuple[int, ...], /) -> bytes: ...
def measure(
    address: int,
    n_bytes: int,
    code: str,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    checksum: Callable[..., int] | None,
    /,
) -> tuple[Any, ...] | None: ...
