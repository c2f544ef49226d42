"""Where the program is and what it just did: the state every simulated interface writes to.

    kernels, patches, hooks ──> Recorder ──> RecordingWriter.rows

One recorder per simulated rank. Hot paths append rows to `rows` themselves; everything here is plain state so
that they can.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from windtunnel.events.file import RecordingWriter
from windtunnel.events.model import NO_NAME, Kind, Phase, Role

__all__ = ["EndlessLoop", "Recorder", "UnknownValue"]

_ROOT_OF_FRAMEWORKS = ("torch", "windtunnel")
_MOST_READS = (
    100_000  # of unknown values by one line in one step; the environment variable below says otherwise
)
_MOST_READS_VARIABLE = "WINDTUNNEL_MOST_READS"
_MANY_READS = 100  # enough to suspect a loop when somebody interrupts it


class EndlessLoop(BaseException):
    """A loop waits for a value that never comes; not an Exception, so that scripts' own handlers let it through."""


@dataclass
class UnknownValue:
    """A value the program read that a simulated device cannot know."""

    where: str
    what: str
    value: object
    count: int = 0
    step: int = 0  # in which it was read last, and how often in that step
    count_in_step: int = 0


@dataclass
class Recorder:
    """The events of one rank, and the state that labels them."""

    writer: RecordingWriter
    script: str = ""
    is_tracking_stacks: bool = False
    is_host: bool = False  # the simulated device is the CPU: whoever asks computes
    phase: int = int(Phase.BUILD)
    module: int = NO_NAME
    stream: int = 0
    n_ops: int = 0
    n_storages: int = 0
    n_steps: int = 0
    is_collecting: int = 0  # 1 while Python's cycle collector runs: what it frees, it frees at no fixed time
    unknown_values: dict[tuple[str, str], UnknownValue] = field(default_factory=dict)
    last_unknown: UnknownValue | None = None
    most_reads: int = field(default_factory=lambda: _most_reads())
    notices: dict[str, int] = field(default_factory=dict)  # one sentence -> how often
    on_step: Callable[[int], None] | None = None
    futures: dict[int, tuple[int, ...]] = field(
        default_factory=dict
    )  # collectives C++ will wait for: storages
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.rows = self.writer.rows
        self._frame_cache: dict[tuple[int, int], int] = {}
        self._is_ours: dict[str, bool] = {}

    # -- rows ---------------------------------------------------------------------------------------------

    def mark(self, storage: int, role: Role, name: int = NO_NAME) -> None:
        self.rows.append((Kind.MARK, storage, name, -1, role, NO_NAME, self.phase, 0, 0, NO_NAME, (), ()))

    def plain_row(
        self, kind: Kind, subject: int = -1, value: int = -1, stream: int = 0, device: int = 0
    ) -> None:
        self.rows.append(
            (kind, subject, value, -1, 0, self.module, self.phase, stream, device, NO_NAME, (), ())
        )

    def read_value(self, device: int) -> None:
        """The host waits for the device, to read what it computed."""
        if device >= 0 and not self.is_host:
            self.rows.append(
                (Kind.SYNC, -1, -1, 1, 0, self.module, self.phase, self.stream, device, NO_NAME, (), ())
            )

    def wait_for_futures(self, storage: int | None = None) -> None:
        """Somebody in C++ waited unseen: now that backward ends, or that what a collective wrote is read."""
        if storage is None or any(storage in written for written in self.futures.values()):
            for collective in self.futures:
                self.plain_row(Kind.WAIT, collective, stream=self.stream)
            self.futures.clear()

    def end_step(self) -> None:
        self.n_steps += 1
        self.plain_row(Kind.STEP, self.n_steps)
        self.writer.flush_if_due()
        if self.on_step is not None:
            self.on_step(self.n_steps)

    # -- what cannot be known -----------------------------------------------------------------------------

    def invent(self, what: str, value: object) -> UnknownValue:
        """Note that the program read a value that does not exist, at the line of its own code."""
        where = self.user_line()
        key = (where, what)
        if key not in self.unknown_values:
            self.unknown_values[key] = UnknownValue(where, what, value)
        unknown = self.unknown_values[key]
        unknown.count += 1
        if unknown.step != self.n_steps:
            unknown.step, unknown.count_in_step = self.n_steps, 0
        unknown.count_in_step += 1
        self.last_unknown = unknown
        if unknown.count_in_step >= self.most_reads:
            raise EndlessLoop(
                f"{where} read a value that a simulated device cannot know {unknown.count_in_step:,} times with no optimizer"
                " step between: a loop that waits for it never ends here; set the value with windtunnel.mock, or"
                f" {_MOST_READS_VARIABLE} to a larger number if the script means to read it so often"
            )
        return unknown

    def notice_loop(self) -> None:
        """Somebody lost patience: was the program in a loop that waits for what it cannot know?"""
        unknown = self.last_unknown
        if unknown is None or unknown.step != self.n_steps or unknown.count_in_step < _MANY_READS:
            return
        self.notice(
            f"{unknown.where} had read a value that a simulated device cannot know {unknown.count_in_step:,} times since the"
            f" last optimizer step, each time as {unknown.value!r}: a loop that waits for another value never ends here;"
            " windtunnel.mock can set it"
        )

    def notice(self, sentence: str) -> None:
        """Something the user should know about this run; said once, counted."""
        self.notices[sentence] = self.notices.get(sentence, 0) + 1

    # -- where in the user's source -----------------------------------------------------------------------

    def user_line(self) -> str:
        """`train.py:41`: the innermost line of code that is neither torch's nor ours."""
        frame = sys._getframe(1)
        while frame is not None:
            if not self._is_framework(frame.f_code.co_filename):
                return f"{_short(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back  # type: ignore[assignment]
        return "(no Python line)"

    def frame_here(self) -> int:
        """Intern the innermost line outside torch and windtunnel (or the whole stack, when asked for)."""
        frame = sys._getframe(1)
        if self.is_tracking_stacks:
            return self._stack(frame)
        while frame is not None:
            code = frame.f_code
            key = (id(code), frame.f_lasti)
            known = self._frame_cache.get(key)
            if known is None:
                known = self._intern_frame(frame, key)
            if known >= 0:
                return known
            frame = frame.f_back  # type: ignore[assignment]
        return NO_NAME

    def _intern_frame(self, frame: object, key: tuple[int, int]) -> int:
        code = frame.f_code  # type: ignore[attr-defined]
        if self._is_framework(code.co_filename):
            known = NO_NAME
        else:
            known = self.writer.frame(code.co_filename, frame.f_lineno, code.co_name)  # type: ignore[attr-defined]
        self._frame_cache[key] = known
        # the code object must outlive its id
        self._codes = getattr(self, "_codes", [])
        self._codes.append(code)
        return known

    def _stack(self, frame: object) -> int:
        frames = []
        while frame is not None:
            if not self._is_framework(frame.f_code.co_filename):  # type: ignore[attr-defined]
                frames.append(frame)
            frame = frame.f_back  # type: ignore[attr-defined]
        parent = NO_NAME
        for each in reversed(frames):
            parent = self.writer.frame(each.f_code.co_filename, each.f_lineno, each.f_code.co_name, parent)
        return parent

    def _is_framework(self, filename: str) -> bool:
        known = self._is_ours.get(filename)
        if known is None:
            parts = filename.replace("\\", "/").split("/")
            inside = parts[parts.index("site-packages") + 1] if "site-packages" in parts[:-1] else ""
            known = (
                inside in _ROOT_OF_FRAMEWORKS
                or filename.startswith("<")
                or "/windtunnel/capture/" in filename.replace("\\", "/")
                or filename.endswith(("runpy.py", "threading.py", "contextlib.py", "functools.py"))
            )
            self._is_ours[filename] = known
        return known


def _most_reads() -> int:
    text = os.environ.get(_MOST_READS_VARIABLE, "")
    return int(text) if text.isdecimal() else _MOST_READS


def _short(filename: str) -> str:
    """A path as a person would write it: inside a package from the package, else the file name."""
    text = filename.replace("\\", "/")
    if "/site-packages/" in text:
        return text.split("/site-packages/", 1)[1]
    return text.rsplit("/", 1)[-1]
