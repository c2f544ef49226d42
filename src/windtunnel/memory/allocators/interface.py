"""The interface of the allocator models: what every model can do, and how to get one by name.

    name, torch version, conf text, device bytes ──> Allocator ──> addresses, peaks, segments

A model is exact: given the same requests in the same order it places every byte where the real
allocator would. The rules of each are in its own file (`cuda/`, `models/`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Hashable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING

from windtunnel.errors import UsageError
from windtunnel.memory.allocators.records import AllocatorStats, Segment
from windtunnel.units import parse_bytes

__all__ = ["Allocator", "UnknownBlock", "refuse_alloc", "refuse_id"]


class UnknownBlock(UsageError):
    """An id was freed twice, or never allocated."""


class Allocator:
    """A simulated device allocator. Ids are the caller's: any hashable, one live allocation each."""

    name: str
    device_bytes: int | None  # None: the device has no limit
    allocated_bytes: int  # live, after the allocator's rounding ("without fragments")
    peak_allocated_bytes: int

    if TYPE_CHECKING:  # at run time an attribute or a property, as each model has it

        @property
        def reserved_bytes(self) -> int:
            """Taken from the device ("with fragments")."""

        @property
        def peak_reserved_bytes(self) -> int: ...

    def alloc(self, id: Hashable, n_bytes: int, stream: int = 0) -> int:
        """Place `n_bytes` and return the address. Zero bytes take nothing: the address is 0.

        Raises PredictedOutOfMemory when the device is full; the allocator stays usable.
        """
        raise NotImplementedError

    def free(self, id: Hashable) -> None:
        """Give an allocation back. Deferred while streams that `record_stream` named still run."""
        raise NotImplementedError

    def record_stream(self, id: Hashable, stream: int) -> None:
        """Another stream uses this allocation: its memory may be reused only after that stream is done."""
        raise NotImplementedError

    def stream_done(self, stream: int) -> None:
        """The device has finished all work given to `stream` so far."""
        raise NotImplementedError

    def empty_cache(self) -> None:
        """Return unused segments to the device, as `torch.cuda.empty_cache()` does."""
        raise NotImplementedError

    def segments(self) -> tuple[Segment, ...]:
        """Every segment with its blocks, in address order."""
        raise NotImplementedError

    def stats(self) -> AllocatorStats:
        raise NotImplementedError

    @staticmethod
    def names() -> tuple[str, ...]:
        """The names that `Allocator.named` accepts."""
        return tuple(_builders())

    @staticmethod
    def named(
        name: str, *, torch: str = "2.13", conf: str | None = "", device_bytes: int | str | None = None
    ) -> Allocator:
        """Make the allocator `name` as PyTorch `torch` has it, set up by `conf`.

        `conf` is the text of PYTORCH_CUDA_ALLOC_CONF, or of its counterpart for that allocator.
        """
        builders = _builders()
        if name not in builders:
            near = get_close_matches(str(name), builders, n=2, cutoff=0.4) or builders
            raise UsageError(f"there is no allocator {name!r}", hint=f"try {' or '.join(near)}")
        limit = None if device_bytes is None else parse_bytes(device_bytes)
        return builders[name](torch=torch, conf=conf or "", device_bytes=limit)

    @staticmethod
    def from_spec(
        spec: str, *, torch: str = "2.13", conf: str | None = "", device_bytes: int | str | None = None
    ) -> Allocator:
        """Make an allocator from `NAME[:key=value,…]`, e.g. `cuda:max_split_size_mb=64,torch=2.12`.

        `torch` and `mem` are read here; every other key is an option of the allocator's own conf
        and is added after `conf`, so it wins.
        """
        name, _, options = spec.partition(":")
        parts = [conf] if conf and conf.strip() else []
        for option in _split_outside_brackets(options):
            key, equals, value = (text.strip() for text in option.partition("="))
            if not equals or not key or not value:
                raise UsageError(
                    f"cannot read {option!r} in --allocator {spec!r}", hint="write NAME:key=value,key=value"
                )
            if key == "torch":
                torch = value
            elif key == "mem":
                device_bytes = value
            else:
                parts.append(f"{key}:{value}")
        return Allocator.named(name.strip(), torch=torch, conf=",".join(parts), device_bytes=device_bytes)


def refuse_alloc(id: Hashable, n_bytes: int, live: Container[Hashable], empty_ids: set[Hashable]) -> int:
    """Answer a request no model places: nothing at all, or an id that is taken. Returns address 0."""
    if id in live or id in empty_ids:
        raise UsageError(f"{id!r} is already allocated", hint="free it first, or use another id")
    if n_bytes < 0:
        raise UsageError(f"cannot allocate {n_bytes} bytes for {id!r}", hint="a size is zero or more")
    empty_ids.add(id)
    return 0


def refuse_id(id: Hashable, empty_ids: set[Hashable], verb: str, *, forget: bool = True) -> None:
    """Accept the free of an allocation of zero bytes; refuse every other unknown id."""
    if id not in empty_ids:
        raise UnknownBlock(
            f"cannot {verb} {id!r}: it is not allocated", hint="freed twice, or never allocated?"
        )
    if forget:
        empty_ids.remove(id)


def _builders() -> Mapping[str, Callable[..., Allocator]]:
    # Late, because every model in that table is an Allocator and so needs this file first.
    from windtunnel.memory.allocators.models.by_name import BUILDERS

    return BUILDERS


def _split_outside_brackets(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for position, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append(text[start:position])
            start = position + 1
    parts.append(text[start:])
    return [part for part in parts if part.strip()]
