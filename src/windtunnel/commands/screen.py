"""What a person sees while ranks run: the script's own lines, and one line of progress below them.

    (rank, "line" | "step", value) ──> Screen ──> terminal

Progress is drawn only on a terminal and vanishes at the end. Lines are made harmless for the terminal here;
run.log has them as the script wrote them.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from windtunnel.commands.simulation import RunRequest
from windtunnel.report.result import RunResult

__all__ = ["Screen", "harmless"]

_REFRESHES_PER_S = 8
_LONGEST = 2000  # characters of a line; run.log has the rest
_TAIL_LINES = 40  # of a failed rank that was not shown
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07]*\x07|\x1b[^\[]")  # all but colours
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]")


class Screen:
    """Shows a run on a console as it happens. Nothing that goes wrong with the terminal stops the run."""

    def __init__(self, console: Console, request: RunRequest, *, shows_every_rank: bool) -> None:
        self._console = console
        self._request = request
        self._shown = set(request.ranks) if shows_every_rank else {request.ranks[0]}
        self._steps: dict[int, int] = {}
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._is_closed = False
        self._live = Live(
            Spinner("dots", text=_Late(self._progress)),
            console=console,
            refresh_per_second=_REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def listen(self, rank: int, kind: str, value: Any) -> None:
        if kind == "step":
            self._steps[rank] = value
        elif rank in self._shown:
            self._write(f"[rank {rank}] {value}" if len(self._request.ranks) > 1 else value)

    def show_failures(self, result: RunResult) -> None:
        """The end of the log of the first failed rank, when its output was not shown as it came."""
        failed = [rank.rank for rank in result.ranks if rank.status == "failed"]
        if not failed or set(failed) & self._shown:
            return
        with suppress(OSError):
            log = Path(self._request.folder) / f"rank{failed[0]}" / "run.log"
            for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:-5]:
                self._write(f"[rank {failed[0]}] {line}")

    def close_stdout(self) -> None:
        """Nobody reads any more, as after `| head`: what is still buffered must not fail again at exit."""
        self._is_closed = True
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

    def _write(self, line: str) -> None:
        text = harmless(line)
        with self._lock:
            if self._is_closed:
                return
            if self._console.is_terminal:
                self._console.print(Text.from_ansi(text), soft_wrap=True)
                return
            stream = self._console.file
            encoding = getattr(stream, "encoding", None) or "utf-8"
            try:
                stream.write(text.encode(encoding, "replace").decode(encoding) + "\n")
                stream.flush()
            except (OSError, ValueError):
                self.close_stdout()

    def _progress(self) -> Text:
        request = self._request
        n = len(request.ranks)
        what = f"rank {request.ranks[0]}" if n == 1 else f"{n} ranks"
        of = f" of {request.world_size}" if request.world_size > 1 else ""
        done = sum(self._steps.values())
        wanted = f" of {request.max_steps * n}" if request.max_steps else ""
        seconds = time.monotonic() - self._started
        return Text(f"simulating {what}{of} on {request.device.id}: {done}{wanted} steps, {seconds:.0f} s")


class _Late:
    """Text that is asked for whenever the line is drawn."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask

    def __rich__(self) -> Text:
        return self._ask()


def harmless(line: str) -> str:
    """A line as a terminal may have it: colours stay; bells, cursor moves and other controls do not."""
    text = _CONTROLS.sub("?", _ESCAPES.sub("", line))
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]} ... ({len(text) - _LONGEST} more characters in run.log)"
