"""The lanes of a rank's timeline: its host, its streams, and one for each communication channel.

StepProgram ──> lanes, lane of each stream, lane of each element
"""

from __future__ import annotations

import numpy as np

from windtunnel.cluster.program import Lane, LaneKind, StepProgram, Work
from windtunnel.pool_streams import is_pool_stream

__all__ = ["lanes_of"]

_COMMUNICATION = (Work.COLLECTIVE, Work.SEND, Work.RECEIVE)


def lanes_of(program: StepProgram) -> tuple[tuple[Lane, ...], dict[int, int], np.ndarray]:
    """The host, the streams, and a lane for each channel (a group, or a peer and direction), in order of first use."""
    lanes = [Lane(LaneKind.HOST, "program", -1)]
    lane = np.zeros(len(program), np.int32)
    is_kernel = program.work == Work.KERNEL
    streams: dict[int, int] = {}
    on_streams = (program.work != Work.HOST) & (program.work != Work.STEP)
    for number in np.unique(program.stream[on_streams]).tolist():
        if number >= 0:
            streams[number] = len(lanes)
            if not program.is_synchronous:
                lane[is_kernel & (program.stream == number)] = len(lanes)
            name = "CUDA graphs" if is_pool_stream(number) else f"stream {number}"
            lanes.append(Lane(LaneKind.STREAM, name, number))
    channels: dict[tuple[int, ...], int] = {}
    for i in np.flatnonzero(np.isin(program.work, _COMMUNICATION)).tolist():
        group, work = int(program.group[i]), int(program.work[i])
        channel = (group,) if work == Work.COLLECTIVE else (group, int(program.peer[i]), work)
        if channel not in channels:
            channels[channel] = len(lanes)
            lanes.append(Lane(LaneKind.COMMUNICATION, _channel_name(program, channel), group))
        lane[i] = channels[channel]
    return tuple(lanes), streams, lane


def _channel_name(program: StepProgram, channel: tuple[int, ...]) -> str:
    name = program.group_names[channel[0]] or "group"
    if len(channel) > 1:
        name = f"{name} {'to' if channel[2] == Work.SEND else 'from'} rank {channel[1]}"
    return f"{name} ({len(program.groups[channel[0]])} ranks)"
