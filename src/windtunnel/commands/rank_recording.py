"""The recording of a rank as a level sees it: with the working memory of its kernels from level 2 on.

RunRequest, path ──> recording ──> (level 2 and 3) with workspaces, and what to note about them
"""

from __future__ import annotations

import os
from pathlib import Path

from windtunnel.commands.request import RunRequest
from windtunnel.events.file import read_recording
from windtunnel.events.model import Recording
from windtunnel.memory.workspace import WorkspaceTable, with_workspaces

__all__ = ["recording_of", "workspace_table"]


def recording_of(request: RunRequest, path: Path) -> tuple[Recording, tuple[str, ...]]:
    recording = read_recording(path)
    if request.level < 2 or not len(recording):
        return recording, ()
    return with_workspaces(recording, request.device, workspace_table(request), env=os.environ)


def workspace_table(request: RunRequest) -> WorkspaceTable:
    table = WorkspaceTable.built_in()
    return table.with_file(request.workspace_file) if request.workspace_file is not None else table
