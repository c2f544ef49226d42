"""Record what the program does, and where in the program it happens.

    kernels, patches, hooks ──> Recorder ──> RecordingWriter.rows

There is one recorder per simulated rank. Its state (phase, module, stream) labels every row.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from windtunnel.capture.failure_causes import Place, cause_of
from windtunnel.capture.values_set_by_user import VARIABLE, values_set_by_user
from windtunnel.capture.waiting_loops import Waiting, WaitingLoops
from windtunnel.events.file import FLUSH_EVERY, RecordingWriter
from windtunnel.events.model import NO_NAME, Kind, Phase, Role

__all__ = ["EndlessLoop", "Recorder", "UnknownValue", "short_path"]

_ROOT_OF_FRAMEWORKS = ("torch", "windtunnel")
_MOST_READS = (
    100_000  # of unknown values by one line in one step; the environment variable below overrides it
)
_MOST_READS_VARIABLE = "WINDTUNNEL_MOST_READS"
_PATIENCE = (
    10_000  # reads of one line in one step after which one of them is 0, if the loop around it cannot be read
)
_LOOK_FROM, _LOOK_EVERY, _LOOK_FOR = (
    200,
    128,
    32,
)  # reads of one line: when, and how long, its loop is looked at
_STACK, _MOST_CAUSES = 10, 50  # lines kept of each read; reads that a failure is traced to
_MANY_READS = 100  # enough to suspect an endless loop when the user interrupts the program
_STANDARD_LIBRARY = sysconfig.get_path("stdlib") + os.sep  # enum.py is nobody's own line
_OP, _ALLOC, _FREE, _CALL, _RETURN = map(int, (Kind.OP, Kind.ALLOC, Kind.FREE, Kind.CALL, Kind.RETURN))


class EndlessLoop(BaseException):
    """A loop waits for a value that never comes. Not an Exception, so that scripts' own handlers let it pass."""


@dataclass
class UnknownValue:
    """A value the program read that a simulated device cannot know."""

    where: str
    what: str
    value: object
    count: int = 0
    step: int = 0  # in which it was last read
    count_in_step: int = 0
    is_read: bool = False  # as a number, which the user can set for the line
    order: int = 0  # of its last read among all reads
    stack: tuple[Place, ...] = ()  # of its last read, from the line that read outwards


@dataclass
class Recorder:
    """The events of one rank, and the state that labels them."""

    writer: RecordingWriter
    script: str = ""
    is_tracking_stacks: bool = False
    is_host: bool = False  # the simulated device is the CPU: reading a value waits for no device
    phase: int = int(Phase.BUILD)
    module: int = NO_NAME
    stream: int = 0
    n_ops: int = 0
    n_storages: int = 0
    n_steps: int = 0
    is_collecting: int = (
        0  # 1 while Python's cycle collector runs: when it frees something is not deterministic
    )
    unknown_values: dict[tuple[str, str], UnknownValue] = field(default_factory=dict)
    last_unknown: UnknownValue | None = None
    n_reads: int = 0  # of unknown values
    most_reads: int = field(default_factory=lambda: _most_reads())
    assumed: dict[str, float] = field(
        default_factory=values_set_by_user
    )  # line -> what it reads, set by the user
    routers: dict[str, tuple[int, int]] = field(
        default_factory=dict
    )  # line -> experts, and how many each token chooses, where the routing of the run decided a value
    notices: dict[str, int] = field(default_factory=dict)  # a sentence for the user -> how often it applied
    on_step: Callable[[int], None] | None = None
    futures: dict[int, tuple[int, ...]] = field(
        default_factory=dict
    )  # collectives that C++ code will wait for -> the storages they write
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.rows = self.writer.rows
        self.loops = WaitingLoops(self.is_framework)
        self._frame_cache: dict[tuple[int, int], int] = {}
        self._is_ours: dict[str, bool] = {}
        self._codes: list[CodeType] = []

    # -- rows ---------------------------------------------------------------------------------------------
    # One method per kind of row; columns that are not arguments come from the state above.

    def write_op(
        self, id: int, signature: int, device: int, inputs: Sequence[int], outputs: Sequence[int] = ()
    ) -> None:
        self.rows.append(
            (_OP, id, signature, -1, 0, self.module, self.phase, self.stream, device, self.frame_here(), inputs, outputs)
        )  # fmt: skip
        if len(self.rows) >= FLUSH_EVERY:  # a program may run for ever without a module or a step
            self.writer.flush_if_due()

    def write_new_op(self, signature: int, device: int, inputs: Sequence[int]) -> None:
        """The row of an operator that allocates nothing; it takes the next number."""
        id = self.n_ops
        self.n_ops = id + 1
        self.write_op(id, signature, device, inputs)

    def write_alloc(self, storage: int, n_bytes: int, op: int, role: int, device: int) -> None:
        self.rows.append(
            (_ALLOC, storage, n_bytes, op, role, self.module, self.phase, self.stream, device, self.frame_here(), (), ())
        )  # fmt: skip

    def write_free(self, storage: int, device: int) -> None:
        self.rows.append(
            (_FREE, storage, -1, -1, self.is_collecting, self.module, self.phase, self.stream, device, NO_NAME, (), ())
        )  # fmt: skip

    def write_call(self, id: int, signature: int, flags: int, inputs: Sequence[int]) -> None:
        self.rows.append(
            (_CALL, id, signature, flags, 0, self.module, self.phase, self.stream, 0, NO_NAME, inputs, ())
        )

    def write_return(self, call: int, written: Sequence[int], outputs: Sequence[int]) -> None:
        self.rows.append(
            (_RETURN, call, -1, -1, 0, self.module, self.phase, self.stream, 0, NO_NAME, written, outputs)
        )

    def write_module(self, kind: Kind, path: int, is_recomputation: bool) -> None:
        """Entry into a module, or exit from it."""
        extra = 1 if is_recomputation else -1
        self.rows.append((kind, path, -1, extra, 0, path, self.phase, 0, 0, NO_NAME, (), ()))

    def write_group(self, id: int, name: int, device: int, ranks: Sequence[int]) -> None:
        frame = self.frame_here()
        self.rows.append((Kind.GROUP, id, name, -1, 0, NO_NAME, self.phase, 0, device, frame, ranks, ()))

    def write_collective(
        self,
        id: int,
        signature: int,
        group: int,
        is_async: bool,
        device: int,
        inputs: Sequence[int],
        outputs: Sequence[int],
    ) -> None:
        self.rows.append(
            (Kind.COLLECTIVE, id, signature, group, int(is_async), self.module, self.phase, self.stream, device,
             self.frame_here(), inputs, outputs)
        )  # fmt: skip

    def write_saved(self, kind: Kind, handle: int, storage: int, extra: int, device: int) -> None:
        """Autograd saved a tensor, asked for it or dropped it."""
        self.rows.append(
            (kind, handle, storage, extra, self.is_collecting, self.module, self.phase, self.stream, device, NO_NAME, (), ())
        )  # fmt: skip

    def mark(self, storage: int, role: Role, name: int = NO_NAME) -> None:
        self.rows.append((Kind.MARK, storage, name, -1, role, NO_NAME, self.phase, 0, 0, NO_NAME, (), ()))

    def plain_row(
        self,
        kind: Kind,
        subject: int = -1,
        value: int = -1,
        stream: int = 0,
        device: int = 0,
        *,
        extra: int = -1,
    ) -> None:
        """A row of any other kind."""
        self.rows.append(
            (kind, subject, value, extra, 0, self.module, self.phase, stream, device, NO_NAME, (), ())
        )

    def read_value(self, device: int) -> None:
        """The host waits for the device, to read what it computed."""
        if device >= 0 and not self.is_host:
            self.plain_row(Kind.SYNC, stream=self.stream, device=device, extra=1)

    def wait_for_futures(self, storage: int | None = None) -> None:
        """Record waits that happened in C++: when backward ends, or when what a collective wrote is read."""
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

    # -- unknown values -----------------------------------------------------------------------------------

    def read_unknown(self, what: str, value: Any) -> Any:
        """Note a read as below. Its value is the given default, what the user set for the line, or 0 to end a loop."""
        is_set = bool(self.assumed) and self.user_line() in self.assumed
        if is_set:
            value = type(value)(self.assumed[self.user_line()])
        unknown = self.note_unknown(what, value)
        unknown.is_read = True
        if unknown.count >= _LOOK_FROM and unknown.count % _LOOK_EVERY < _LOOK_FOR:
            waiting = self.loops.look(unknown.where, sys._getframe(1))
            if waiting is not None:
                self._end_waiting(unknown, waiting, is_set)
                return type(value)(0)
        if unknown.count_in_step % _PATIENCE == 0:
            # `while error > tolerance:` would never end: reading an unknown value again does not change it.
            self.notice(
                f"{unknown.where} read an unknown value {_PATIENCE:,} times in one step, which looks like a loop that waits"
                " for it: it read as 0 (False) once, so that the loop ends; windtunnel.mock can set it"
            )
            return type(value)(0)
        return value

    def _end_waiting(self, unknown: UnknownValue, waiting: Waiting, is_set: bool) -> None:
        """Let a loop that waits for a value read 0 once; stop the program if that does not end it."""
        loop = f"the loop at {short_path(waiting.file)}:{waiting.line}"
        advice = f'{VARIABLE}="{unknown.where}=NUMBER" or windtunnel.mock'
        if waiting.is_again or is_set:
            raise EndlessLoop(
                f"{unknown.where} has read a value that a simulated device cannot know {unknown.count:,} times, each time as"
                f" {unknown.value!r}{'' if is_set else ' and then as 0'}, and {loop} ends by nothing else: set a value that"
                f" ends it with {advice}"
            )
        self.notice(
            f"{unknown.where} reads a value that a simulated device cannot know, and {loop} ends by nothing else: after"
            f" {unknown.count:,} reads it read as 0 (False) once, so that the loop ends; {advice} can set it"
        )

    def note_unknown(self, what: str, value: object) -> UnknownValue:
        """Note that the program read a value that does not exist, and on which line."""
        where = self.user_line()
        key = (where, what)
        if key not in self.unknown_values:
            self.unknown_values[key] = UnknownValue(where, what, value)
        unknown = self.unknown_values[key]
        unknown.count += 1
        if unknown.step != self.n_steps:
            unknown.step, unknown.count_in_step = self.n_steps, 0
        unknown.count_in_step += 1
        self.n_reads += 1
        unknown.order, unknown.stack = self.n_reads, self._user_stack()
        self.last_unknown = unknown
        if unknown.count_in_step >= self.most_reads:
            raise EndlessLoop(
                f"{where} read a value that a simulated device cannot know {unknown.count_in_step:,} times without an"
                " optimizer step in between: a loop that waits for this value never ends; set the value with"
                f" windtunnel.mock, or set {_MOST_READS_VARIABLE} to a larger number if the script needs so many reads"
            )
        return unknown

    def cause_of(self, error: BaseException) -> UnknownValue | None:
        """The unknown value that an exception of the program rests on, if its source shows one."""
        latest = sorted(self.unknown_values.values(), key=lambda unknown: -unknown.order)[:_MOST_CAUSES]
        found = cause_of(error, [unknown.stack for unknown in latest])
        return None if found is None else latest[found]

    def note_router(self, where: str, n_experts: int, n_chosen: int, is_covered: bool) -> None:
        """Note that the program read which experts a router on this line chose."""
        self.routers[where] = (n_experts, n_chosen)
        if not is_covered:
            self.notice(
                f"the file given to --routing says nothing about {where}, which chooses among {n_experts:,}: it is balanced"
            )

    def notice_loop(self) -> None:
        """The user interrupted the program: add a notice if it was probably waiting for an unknown value."""
        unknown = self.last_unknown
        if unknown is None or unknown.step != self.n_steps or unknown.count_in_step < _MANY_READS:
            return
        self.notice(
            f"{unknown.where} had read a value that a simulated device cannot know {unknown.count_in_step:,} times since"
            f" the last optimizer step, each time as {unknown.value!r}: a loop that waits for another value never ends;"
            " set it with windtunnel.mock"
        )

    def notice(self, sentence: str) -> None:
        """Tell the user something about this run; each sentence is reported once, with a count."""
        self.notices[sentence] = self.notices.get(sentence, 0) + 1

    # -- where in the user's source -----------------------------------------------------------------------

    def user_line(self) -> str:
        """`train.py:41`: the innermost line of code that is neither torch's nor ours."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if not self.is_framework(frame.f_code.co_filename):
                return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"
            frame = frame.f_back
        return "(no Python line)"

    def _user_stack(self) -> tuple[Place, ...]:
        found: list[Place] = []
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and len(found) < _STACK:
            if not self.is_framework(frame.f_code.co_filename):
                found.append(Place(frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return tuple(found)

    def frame_here(self) -> int:
        """Intern the innermost line outside torch and windtunnel (or the whole stack, if requested)."""
        frame: FrameType | None = sys._getframe(1)
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
            frame = frame.f_back
        return NO_NAME

    def _intern_frame(self, frame: FrameType, key: tuple[int, int]) -> int:
        code = frame.f_code
        if self.is_framework(code.co_filename):
            known = NO_NAME
        else:
            known = self.writer.frame(code.co_filename, frame.f_lineno, code.co_name)
        self._frame_cache[key] = known
        self._codes.append(code)  # the code object must outlive its id
        return known

    def _stack(self, frame: FrameType | None) -> int:
        frames: list[FrameType] = []
        while frame is not None:
            if not self.is_framework(frame.f_code.co_filename):
                frames.append(frame)
            frame = frame.f_back
        parent = NO_NAME
        for each in reversed(frames):
            parent = self.writer.frame(each.f_code.co_filename, each.f_lineno, each.f_code.co_name, parent)
        return parent

    def is_framework(self, filename: str) -> bool:
        known = self._is_ours.get(filename)
        if known is None:
            parts = filename.replace("\\", "/").split("/")
            is_installed = "site-packages" in parts[:-1]
            inside = parts[parts.index("site-packages") + 1] if is_installed else ""
            known = (
                inside in _ROOT_OF_FRAMEWORKS
                or filename.startswith("<")
                or "/windtunnel/capture/" in filename.replace("\\", "/")
                or (filename.startswith(_STANDARD_LIBRARY) and not is_installed)
            )
            self._is_ours[filename] = known
        return known


def _most_reads() -> int:
    text = os.environ.get(_MOST_READS_VARIABLE, "")
    return int(text) if text.isdecimal() else _MOST_READS


def short_path(filename: str) -> str:
    """A short form of a path: from the package on for installed packages, otherwise the file name."""
    text = filename.replace("\\", "/")
    if "/site-packages/" in text:
        return text.split("/site-packages/", 1)[1]
    return text.rsplit("/", 1)[-1]
