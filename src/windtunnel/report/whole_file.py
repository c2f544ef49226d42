"""A file that appears under its name only when it is whole: a reader never meets half of it.

bytes ──> a hidden file beside it ──> renamed
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

__all__ = ["whole_file"]


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A stream to write to; if that fails, what stood under the name before is still there."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as stream:
            yield stream
        os.chmod(temporary, 0o644)  # mkstemp makes files that only their owner may read
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
