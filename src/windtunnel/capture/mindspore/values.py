"""Report where a script reads values from a simulated device, which do not exist.

Tensor.asnumpy, item, tolist, int(), float(), bool(), print ──> what MindSpore gives (zeros) + a note with the line
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from mindspore import Tensor

from windtunnel.capture.mindspore.tracker.marks import MarkWriter
from windtunnel.capture.mindspore.tracker.user_lines import is_users_file

__all__ = ["UnknownReads"]

_METHODS = ("asnumpy", "item", "tolist", "__int__", "__float__", "__bool__", "__index__", "numpy")
_OWN_READERS = ("/mindspore/common/parameter.py",)


class UnknownReads:
    """Records every line where the program reads a value from the device, and how often."""

    def __init__(self, marks: MarkWriter) -> None:
        self._marks = marks
        self._found: dict[tuple[str, str], dict[str, Any]] = {}
        self._is_reading = False
        self.notices: list[str] = []

    def install(self) -> None:
        for name in _METHODS:
            if hasattr(Tensor, name):
                setattr(Tensor, name, self._watched(getattr(Tensor, name), name))

    def notice(self, sentence: str) -> None:
        """Tell the user something about this run; each sentence is reported once."""
        if sentence not in self.notices:
            self.notices.append(sentence)

    def count(self, what: str, taken_as: int) -> None:
        """Note the line of a size that depends on values; of a compiled graph, the line that has it compiled."""
        line = _user_line()
        if line is not None:
            self._add(line, what, taken_as)

    def found(self) -> list[dict[str, Any]]:
        return list(self._found.values())

    def _watched(self, original: Callable, name: str) -> Callable:
        @wraps(original)
        def read(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_reading or not _is_on_device(tensor):
                return original(tensor, *args, **kwargs)
            self._is_reading = True  # `item` calls `asnumpy`: that counts as one read
            try:
                value = original(tensor, *args, **kwargs)
            finally:
                self._is_reading = False
            self._note(name, value)
            return value

        return read

    def _note(self, name: str, value: Any) -> None:
        line = _user_line()
        if line is None:
            return
        self._add(line, f"Tensor.{name}", value if isinstance(value, (bool, int, float)) else 0)
        self._marks.add("read")

    def _add(self, line: str, what: str, value: bool | int | float) -> None:
        entry = self._found.setdefault(
            (line, what), {"where": line, "what": what, "value": value, "count": 0}
        )
        entry["count"] += 1


def _is_on_device(tensor: Any) -> bool:
    try:
        return tensor.device.startswith("Ascend")
    except Exception:  # whatever is wrong with it, the read itself will report it
        return False


def _user_line() -> str | None:
    """The line where the script reads; None if MindSpore itself reads, for example to copy a tensor to a parameter."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.endswith(_OWN_READERS):
            return None
        if is_users_file(file):
            return f"{file.rsplit('/', 1)[-1]}:{frame.f_lineno}"
        frame = frame.f_back
    return "(no Python line)"
