"""Streams and events of a simulated device: they order nothing, but allocations know which stream they are on.

with torch.cuda.stream(s): x = torch.empty(...)   ──> ALLOC row with s's number
x.record_stream(s)                                ──> RECORD_STREAM row
"""

from __future__ import annotations

import itertools
from typing import Any

import torch

from windtunnel.capture.torch_storage import sim_of, world
from windtunnel.events.model import Kind

__all__ = [
    "Event",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "record_stream",
    "synchronize",
]

_numbers = itertools.count(1)
_current: dict[torch.device, Stream] = {}
_default: dict[torch.device, Stream] = {}


class Stream:
    """A queue of work on one device; number 0 is the default stream."""

    def __init__(self, device: Any = None, priority: int = 0, *, number: int | None = None, **_: Any) -> None:
        self.device = _device(device)
        self.priority = priority
        self.stream_id = next(_numbers) if number is None else number
        self.cuda_stream = self.npu_stream = self.stream_id
        self.device_index = self.device.index or 0
        self._contexts: list[StreamContext] = []

    def wait_stream(self, stream: Any) -> None:
        return None

    def wait_event(self, event: Any) -> None:
        return None

    def record_event(self, event: Any = None) -> Event:
        return event if event is not None else Event()

    def synchronize(self) -> None:
        world.recorder.plain_row(Kind.SYNC, stream=self.stream_id, device=self.device_index)

    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def __enter__(self) -> Stream:
        context = StreamContext(self)
        self._contexts.append(context)
        context.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._contexts.pop().__exit__(*error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.device, self.stream_id) == (other.device, other.stream_id)

    def __hash__(self) -> int:
        return hash((self.device, self.stream_id))


class Event:
    """A point in a stream. Time does not pass on a simulated device below level 3: elapsed_time is 1 ms."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.event_id = 0

    def record(self, stream: Any = None) -> None:
        return None

    def wait(self, stream: Any = None) -> None:
        return None

    def synchronize(self) -> None:
        return None

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        world.recorder.invent("the time between two device events", 1.0)
        return 1.0


class StreamContext:
    """`with torch.cuda.stream(s):`"""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is None:
            return
        self.before = current_stream(self.stream.device)
        set_stream(self.stream)

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            set_stream(self.before)


def default_stream(device: Any = None) -> Stream:
    device = _device(device)
    if device not in _default:
        _default[device] = Stream(device, number=0)
    return _default[device]


def current_stream(device: Any = None) -> Stream:
    device = _device(device)
    return _current.get(device) or default_stream(device)


def set_stream(stream: Stream) -> None:
    _current[stream.device] = stream
    world.recorder.stream = stream.stream_id


def synchronize(device: Any = None) -> None:
    world.recorder.plain_row(Kind.SYNC, stream=-1, device=_device(device).index or 0)


def record_stream(tensor: torch.Tensor, stream: Any) -> None:
    """Tensor.record_stream."""
    sim = sim_of(tensor)
    if sim is not None and sim.device_index >= 0:
        world.recorder.plain_row(Kind.RECORD_STREAM, sim.id, stream=stream.stream_id, device=sim.device_index)


def _device(device: Any) -> torch.device:
    from windtunnel.capture.torch_named_device import resolve_device

    return world.default_device if device is None else resolve_device(device)
