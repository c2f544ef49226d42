"""Live output while ranks run: the script's own lines, and a progress line below them.

    lines of a rank, WorldProgress ──> Screen ──> terminal

The progress line is drawn on a terminal and disappears at the end; without a terminal, a run of many ranks prints a
line to stderr every few seconds. Control characters are removed here; run.log has the lines as the script wrote them.
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

from windtunnel.report.results.run import RunResult
from windtunnel.session.request import RunRequest
from windtunnel.session.run_log import last_lines
from windtunnel.session.world import WorldProgress

__all__ = ["Screen", "harmless"]

_REFRESHES_PER_S = 8
_SECONDS_BETWEEN_LINES = 10.0  # where there is no terminal
_RUNNING_NAMED = 4  # ranks
_LONGEST = 2000  # characters of a line; run.log has the rest
_TAIL_LINES = 40  # of a failed rank whose output was not shown
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b\][^\x07]*\x07|\x1b[^\[]")  # all but colours
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f]|\x1b(?!\[[0-9;]*m)")


class Screen:
    """Shows a run on a console as it happens. Errors of the terminal do not stop the run."""

    def __init__(self, console: Console, request: RunRequest, *, shows_every_rank: bool) -> None:
        self._console = console
        self._request = request
        self._shown = None if shows_every_rank else {request.ranks[0] if request.ranks else 0}
        self._is_one_rank = request.ranks is not None and len(request.ranks) == 1
        self._world: WorldProgress | None = None
        self._stage = ""  # what is done after the ranks have run
        self._started = time.monotonic()
        self._has_ended = threading.Event()
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
        elif not self._is_one_rank:
            threading.Thread(target=self._print_regularly, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._has_ended.set()
        if self._console.is_terminal:
            self._live.stop()

    def watch(self, world: WorldProgress) -> None:
        """Show this progress from now on."""
        self._world = world

    def tell(self, stage: str) -> None:
        """Set the current stage, after the ranks have run."""
        self._stage = stage

    def on_line(self, rank: int, text: str) -> None:
        if self._shown is None or rank in self._shown:
            self._write(text if self._is_one_rank else f"[rank {rank}] {text}")

    def write(self, text: str) -> None:
        """Show a line that is not a rank's: of the shell script that starts them."""
        self._write(text)

    def show_failures(self, result: RunResult) -> None:
        """Print the end of the log of the first failed rank, unless its output was shown live."""
        failed = [rank.rank for rank in result.ranks if rank.status == "failed"]
        if not failed or self._shown is None or set(failed) & self._shown:
            return
        with suppress(OSError):
            log = Path(self._request.folder) / f"rank{failed[0]}" / "run.log"
            for line in last_lines(log)[-_TAIL_LINES:-5]:
                self._write(f"[rank {failed[0]}] {line}")

    def close_stdout(self) -> None:
        """Discard further output after the reader closed the pipe, as `| head` does: flushing it would fail at exit."""
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

    def _print_regularly(self) -> None:
        while not self._has_ended.wait(_SECONDS_BETWEEN_LINES):
            with suppress(OSError, ValueError):
                print(f"windtunnel: {self._progress().plain}", file=sys.stderr, flush=True)

    def _progress(self) -> Text:
        request, world = self._request, self._world
        seconds = time.monotonic() - self._started
        if self._stage:
            return Text(f"{self._stage}, {seconds:.0f} s")
        if world is not None and world.is_interrupted:
            return Text(
                f"interrupted: ranks close their recordings, Ctrl-C kills them, {seconds:.0f} s{_running(world)}"
            )
        n_steps = sum(list(world.steps.values())) if world is not None else 0
        if self._is_one_rank or world is None:
            what = f"rank {request.ranks[0]}" if request.ranks else "ranks"
            of = f" of {request.world_size}" if request.world_size > 1 else ""
            wanted = f" of {request.max_steps}" if request.max_steps else ""
            return Text(
                f"simulating {what}{of} on {request.device.id}: {n_steps}{wanted} steps, {seconds:.0f} s"
            )
        parts = [f"{world.n_done} of {world.n_known} ranks done"]
        if request.ranks is None:
            n_classes = len(world.classes)
            parts.append(f"{n_classes} kind{'' if n_classes == 1 else 's'} of work found so far")
        parts += [f"{n_steps} steps", f"{seconds:.0f} s"]
        if (left := world.seconds_left) is not None:
            parts.append(f"about {left:.0f} s left")
        return Text(f"simulating {request.world_size} ranks: {', '.join(parts)}{_running(world)}")


def _running(world: WorldProgress) -> str:
    ranks = sorted(world.running)
    if not ranks:
        return ""
    more = f" and {len(ranks) - _RUNNING_NAMED} more" if len(ranks) > _RUNNING_NAMED else ""
    waiting = f", {world.n_waiting} waiting for messages" if world.n_waiting else ""
    return f" (running: {', '.join(map(str, ranks[:_RUNNING_NAMED]))}{more}{waiting})"


class _Late:
    """Text that is computed each time the line is drawn."""

    def __init__(self, ask: Any) -> None:
        self._ask = ask

    def __rich__(self) -> Text:
        return self._ask()


def harmless(line: str) -> str:
    """Make a line safe for a terminal: keep colours; remove bells, cursor moves and other control characters."""
    text = _CONTROLS.sub("?", _ESCAPES.sub("", line))
    if len(text) <= _LONGEST:
        return text
    return f"{text[:_LONGEST]} ... ({len(text) - _LONGEST} more characters in run.log)"
