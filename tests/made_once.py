"""Something expensive that tests only read, made by one of the processes that run them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_PATIENCE_S = 1200  # several times what the slowest takes on one busy core


def made_once(factory: Any, name: str, make: Callable[[Path], None]) -> Path:
    """A folder that `make` filled, in this process or in another of the same test run; `factory` is tmp_path_factory."""
    home = factory.getbasetemp()
    if home.name.startswith("popen-"):  # of a worker of xdist: the folder above is everyone's
        home = home.parent
    folder, done, failed = (home / f"once-{name}{end}" for end in ("", ".done", ".failed"))
    try:
        folder.mkdir()
    except FileExistsError:
        ends = time.monotonic() + _PATIENCE_S
        while not done.exists():
            assert not failed.exists(), f"{name} could not be made: see the test that tried"
            assert time.monotonic() < ends, f"{name} was not made within {_PATIENCE_S} s"
            time.sleep(0.1)
        return folder
    try:
        make(folder)
    except BaseException:
        failed.touch()
        raise
    done.touch()
    return folder
