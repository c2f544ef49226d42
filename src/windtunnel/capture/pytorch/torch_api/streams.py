"""Streams and events of a simulated device: nothing is executed in order here, but the rows record who waits for whom.

with torch.cuda.stream(s): x = torch.empty(...)   ──> ALLOC row with s's number
x.record_stream(s)                                ──> RECORD_STREAM row
event.record(s), other.wait_event(event)          ──> EVENT_RECORD, EVENT_WAIT rows
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch.autograd import DeviceType

from windtunnel.capture.pytorch.tensors.storage import sim_of, world
from windtunnel.events.model import Kind

__all__ = [
    "Event",
    "ExternalStream",
    "Stream",
    "StreamContext",
    "current_stream",
    "default_stream",
    "record_stream",
    "synchronize",
]

_numbers = itertools.count(1)
_event_numbers = itertools.count(1)
_HOST = -1  # the host waits, not a stream
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

    @property
    def device_type(self) -> int:
        """Torch's number of the device type; a type without a number is an extension, as on a real device."""
        kinds = DeviceType.__members__
        return kinds.get(world.device_type.upper(), kinds["PrivateUse1"]).value

    def wait_stream(self, stream: Any) -> None:
        self.wait_event(stream.record_event())

    def wait_event(self, event: Any) -> None:
        event.wait(self)

    def record_event(self, event: Any = None) -> Event:
        event = event if event is not None else Event()
        event.record(self)
        return event

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


class ExternalStream(Stream):
    """A stream that another library made: its address is its number."""

    def __init__(self, stream_ptr: int, device: Any = None, **_: Any) -> None:
        super().__init__(device, number=stream_ptr)


class Event:
    """A point in a stream. Time does not pass while a program is simulated: elapsed_time is 1 ms."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.event_id = 0  # of its last record; 0: never recorded, so waiting for it does nothing

    def record(self, stream: Any = None) -> None:
        stream = current_stream() if stream is None else stream
        self.event_id = next(_event_numbers)
        self._write(Kind.EVENT_RECORD, stream.stream_id, stream.device_index)

    def wait(self, stream: Any = None) -> None:
        stream = current_stream() if stream is None else stream
        self._write(Kind.EVENT_WAIT, stream.stream_id, stream.device_index)

    def synchronize(self) -> None:
        self._write(Kind.EVENT_WAIT, _HOST, 0)

    def query(self) -> bool:
        return True

    def elapsed_time(self, end: Any) -> float:
        world.recorder.note_unknown("the time between two device events", 1.0)
        return 1.0

    def _write(self, kind: Kind, stream: int, device: int) -> None:
        if self.event_id:
            world.recorder.plain_row(kind, self.event_id, stream=stream, device=device)


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
    from windtunnel.capture.pytorch.kernels.device_argument import resolve_device

    return world.default_device if device is None else resolve_device(device)
