"""What every hook writes to: the counters of one step, its folder, and the error log.

    hooks ──> number("Functional.relu") ──> name ──> put(name, pieces) ──> StepWriter
                                                 └─> pieces that wait for a device: queued until `settle`

Nothing here depends on a framework, and nothing here raises into the observed program: hooks pass their exceptions to
`guard`, which logs them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from windtunnel.probe.collect.call_stack import CallStacks
from windtunnel.probe.config.merged_config import ProbeConfig
from windtunnel.probe.config.selection import Selection
from windtunnel.probe.files.entry_name import of_pass
from windtunnel.probe.files.notices import ErrorLog, tell
from windtunnel.probe.files.step_writer import StepWriter
from windtunnel.probe.files.tensor_store import TensorStore

__all__ = ["Collector", "StepOutput"]

_MOST_QUEUED = 512  # entries that may wait for the device: bounds memory, and what a killed process loses
_LONGEST = 160  # characters of an error message that are shown; torch's can be pages long


class StepOutput:
    """One step of one rank: its folder, its tensor files, and its counters."""

    def __init__(self, config: ProbeConfig, folder: Path, version: str, wants_tensors: bool) -> None:
        tensors = folder / "dump_tensor_data"
        header = {
            "task": config.task,
            "level": config.level,
            "framework": config.framework,
            "dump_data_dir": str(tensors) if wants_tensors else None,
            "windtunnel": version,
        }
        is_debug = config.level == "debug"
        self.folder = StepWriter(
            folder,
            header=header,
            file_name="debug.json" if is_debug else "dump.json",
            extra_info=config.extra_info and not is_debug,
            strict_json=config.strict_json,
            flush_seconds=config.flush_seconds,
        )
        self.store = TensorStore(self.folder.path / "dump_tensor_data", config.file_format)
        self.errors = ErrorLog(self.folder.path)
        self.counts: dict[str, int] = {}
        self._passes: dict[str, int] = {}  # entry of a backward -> how often it ran
        self.lock = threading.Lock()
        self.is_open = True

    def number(self, key: str) -> int:
        """How often this API or module was called before in this step."""
        with self.lock:
            count = self.counts.get(key, 0)
            self.counts[key] = count + 1
        return count

    def next_pass(self, entry: str) -> str:
        """The name for the next backward of a call: that of its entry, then "….pass2.…" and so on."""
        with self.lock:
            nth = self._passes[entry] = self._passes.get(entry, 0) + 1
        return of_pass(entry, nth)

    def rename(self, path: Path) -> None:
        """Move the folder, as when the rank becomes known after it was created."""
        self.store.drain()
        self.store.path = self.folder.move_to(path) / "dump_tensor_data"


class Collector:
    """Takes finished calls from the hooks and writes them to the step's folder."""

    def __init__(self, config: ProbeConfig, settle: Callable[[], None]) -> None:
        self.config = config
        self.selection = Selection(config)
        self.stacks = CallStacks()
        self.n_errors = 0
        self.left_out: dict[str, int] = {}  # API -> calls that were seen but not wanted
        self.step: StepOutput | None = None  # the current step; None between steps
        self.n_put = 0  # entries that were collected, in all steps
        self.n_steps = 0  # that have ended
        self.n_incomplete = 0  # of those, steps whose files could not be written
        self.n_lost = self.n_lost_tensors = 0  # entries of the latter, and tensors without a file
        self.n_late = 0  # backward records that arrived after their step had ended
        self._has_files = False  # whether a tensor file was written
        self._unmatched: set[str] = set()  # what ran in steps of which nothing was collected
        self._settle = settle
        self._queue: list[tuple] = []
        self._lock = threading.RLock()
        self.has_structure_only = config.task == "structure"

    def put(
        self,
        step: StepOutput,
        name: str,
        pieces: list[Any],
        frames: tuple[str, ...] | None = None,
        parent: str | None = None,
        has_parent: bool = False,
    ) -> None:
        """Write one finished call; pieces that are callables are evaluated once the device has finished."""
        if not step.is_open:
            self.n_late += 1
            return
        self.n_put += 1
        if self.has_structure_only:
            step.folder.add_call(name, None, frames, parent, has_parent)
            return
        try:
            body = "".join(pieces)
        except TypeError:
            with self._lock:
                self._queue.append((step, name, pieces, frames, parent, has_parent))
                if len(self._queue) >= _MOST_QUEUED:
                    self.settle()
            return
        step.folder.add_call(name, body, frames, parent, has_parent)

    def settle(self) -> None:
        """Write the calls that wait for a device."""
        with self._lock:
            queue, self._queue = self._queue, []
            if not queue:
                return
            self._settle()
            for step, name, pieces, frames, parent, has_parent in queue:
                body = "".join(piece if isinstance(piece, str) else piece() for piece in pieces)
                step.folder.add_call(name, body, frames, parent, has_parent)

    def flush(self) -> None:
        """Write everything collected so far to valid files."""
        if self.step is not None:
            self.settle()
            self.step.store.drain()
            self.step.folder.flush()

    def end_step(self) -> None:
        """End the step: complete its files."""
        step = self.step
        if step is None:
            return
        try:
            self.settle()
            step.is_open = False
            if not self.n_put:
                self._unmatched.update(step.counts)
            step.store.drain()
            self._has_files = self._has_files or step.store.path.exists()
            step.folder.close()
            self._count(step)
            self.selection.new_step()
        except Exception as error:
            self.guard("the end of a step", error)  # while the step is set: its log is in its folder
        finally:
            self.step = None

    def _count(self, step: StepOutput) -> None:
        self.n_steps += 1
        self.n_incomplete += not step.folder.is_complete
        self.n_lost += step.folder.n_lost
        self.n_lost_tensors += step.store.n_lost

    def outcome(self, success: str) -> str:
        """One sentence on where the files are: `success`, unless some could not be written."""
        if not self.n_incomplete:
            return success
        path, remedy = self.config.dump_path, "free space or choose another dump_path, and run again"
        lost = f"up to {self.n_lost} collected entries are lost: {remedy}"
        if self.n_incomplete == self.n_steps:
            return f"no step could be written completely to {path}, so {lost}"
        return f"{self.n_incomplete} of {self.n_steps} steps could not be written completely to {path}, so {lost}"

    def summary(self) -> str:
        """What the user should know at the end, besides where the files are."""
        said = []
        if self.left_out:
            most = sorted(self.left_out, key=self.left_out.__getitem__, reverse=True)[:3]
            why = "api_list" if self.config.api_list is not None else f"risk_level {self.config.risk_level}"
            said.append(
                f"{sum(self.left_out.values())} calls of {len(self.left_out)} APIs were excluded by {why} "
                f"({', '.join(most)}{', ...' if len(self.left_out) > 3 else ''})"
            )
        if self._unmatched and not self.n_put and not self.selection.is_open:
            some = sorted(self._unmatched)
            said.append(
                f"nothing matched {_filters(self.config)}; these ran: {', '.join(some[:5])}"
                f"{f' and {len(some) - 5} more' if len(some) > 5 else ''}"
            )
        if self.config.tensor_list and self.n_put and not self._has_files:
            said.append(
                f"tensor_list {list(self.config.tensor_list)} matched nothing, so no tensor was saved"
            )
        if self.n_lost_tensors:
            said.append(f"{self.n_lost_tensors} tensors could not be saved")
        if self.n_late:
            said.append(f"{self.n_late} calls ran backward after their step() and were not collected")
        if self.n_errors:
            said.append(f"{self.n_errors} errors of the probe are in dump_error_info.log")
        return "; ".join(said)

    def safely(self, what: str, work: Callable[[], Any]) -> Any:
        """Return what `work` returns; if it raises, record the error and return None: the program continues."""
        try:
            return work()
        except Exception as error:
            self.guard(what, error)
            return None

    def guard(self, what: str, error: Exception) -> None:
        """Log an exception of the probe; the user's program continues."""
        self.n_errors += 1
        step = self.step
        log = step.errors if step is not None else ErrorLog(self.config.dump_path)
        log.record(what, error)
        if self.n_errors == 1:
            tell(
                f"an error in the probe itself ({what}: {_in_short(error)}); the program continues, "
                f"but some values will be missing; see {log.path}"
            )


def _in_short(error: Exception) -> str:
    first = str(error).partition("\n")[0]
    return f"{type(error).__name__}: {first[:_LONGEST]}{'...' if len(first) > _LONGEST else ''}"


def _filters(config: ProbeConfig) -> str:
    named = {"list": config.list, "scope": config.scope}
    return " and ".join(f"{key} {list(value)}" for key, value in named.items() if value)
