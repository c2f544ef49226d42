"""The recording of a rank, from level 2 on with the workspaces of its kernels.

RunRequest, path ──> recording ──> (level 2 and 3) with workspaces, and notes about them
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from windtunnel.events.file import read_recording
from windtunnel.events.model import Recording
from windtunnel.memory import Allocator
from windtunnel.memory.workspace.rows import WorkspaceTable, with_workspaces
from windtunnel.session.request import RunRequest

__all__ = ["allocator_maker", "recording_of", "workspace_table"]


def recording_of(request: RunRequest, path: Path) -> tuple[Recording, tuple[str, ...]]:
    recording = read_recording(path)
    if request.level < 2 or not len(recording):
        return recording, ()
    return with_workspaces(recording, request.device, workspace_table(request), env=os.environ)


def workspace_table(request: RunRequest) -> WorkspaceTable:
    table = WorkspaceTable.built_in()
    return table.with_file(request.workspace_file) if request.workspace_file is not None else table


def allocator_maker(request: RunRequest, recording: Recording) -> Callable[[int | None], Allocator]:
    """Return a function that makes the requested allocator, for the torch version of the recording."""
    version = ".".join(str(recording.header.get("torch", "2.13")).split(".")[:2])

    def make_allocator(device_bytes: int | None) -> Allocator:
        return Allocator.from_spec(
            request.allocator, torch=version, conf=request.allocator_conf, device_bytes=device_bytes
        )

    return make_allocator
