"""A folder with files, which a script sees through the guard while the disk is watched."""

from __future__ import annotations

import os
from pathlib import Path

from tests.isolation.forked import in_fork
from tests.isolation.test_shadow_property import snapshot
from windtunnel.isolation.file_changes import FileChange
from windtunnel.isolation.guard import enter_guard
from windtunnel.isolation.list_shadow_changes import shadow_changes

__all__ = ["World"]


class World:
    """A folder with files, which a function sees through the shadow while the disk is watched."""

    def __init__(self, folder: Path) -> None:
        self.real, self.out, self.base = (folder / name for name in ("real", "out", "base"))
        for made in (self.real, self.real / "old", self.real / "old/deep", self.out, self.base):
            made.mkdir()
        (self.real / "file").write_text("before")
        (self.real / "old/one").write_bytes(b"1" * 100)
        (self.real / "old/deep/two").write_bytes(b"2" * 50)
        (self.real / "link").symlink_to("old")

    def play(self, function):
        """Run in a guarded process, in `real`; return what it returned."""
        before = snapshot(self.real)
        answer = in_fork(self._guarded, function)
        assert snapshot(self.real) == before
        return answer

    def _guarded(self, function):
        os.chdir(self.real)
        enter_guard(self.base, [self.out])
        return function()

    def changes(self) -> list[tuple]:
        """What would have changed, with paths relative to `real`."""
        found = []
        for change in shadow_changes(self.base):
            assert isinstance(change, FileChange)
            paths = [path and os.path.relpath(path, self.real) for path in (change.path, change.moved_from)]
            found.append((change.what, paths[0], change.n_bytes, change.n_bytes_before, paths[1]))
        return found
