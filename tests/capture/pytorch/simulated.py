"""Run a function on a simulated device in a forked child, and hand back what it did.

    simulate(program) ──> fork ──> simulated torch ──> Simulated: answer, events, output
    run_plainly(program) ──> fork ──> torch as it is ──> what the program returned

The simulation replaces parts of torch for a whole process, so the test process itself never installs it. What
a program returns comes back pickled: return plain values, not tensors.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo  # what optimizers import late: once here instead of in every child

from tests.memory.recorded import memory_of
from windtunnel.capture.pytorch.compiler.torch_compile import TRIED_TORCH
from windtunnel.capture.pytorch.rank import run_rank
from windtunnel.capture.routing import routing_of
from windtunnel.capture.task import RankTask
from windtunnel.devices import find_device
from windtunnel.events.file import read_recording
from windtunnel.events.model import Alloc, Event, Free, Kind, Op, Recording
from windtunnel.memory import Allocator
from windtunnel.memory.analysis import RankMemory
from windtunnel.memory.live_memory import LiveMemory

__all__ = ["Simulated", "needs_compiler", "run_plainly", "simulate"]

needs_compiler = pytest.mark.skipif(
    not torch.__version__.startswith(TRIED_TORCH),
    reason=f"torch.compile is simulated with torch {TRIED_TORCH}x; with others it runs eagerly",
)

LONGEST_S = 900  # only what hangs is ended: a busy machine is no reason to fail


def _warm_up() -> None:
    """Let torch make the Python objects of its operators once, here: every child inherits them."""
    for name in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = name.partition("::")
        base, _, overload = rest.partition(".")
        if namespace == "aten":
            getattr(getattr(torch.ops.aten, base), overload or "default")


_warm_up()


@dataclass(frozen=True)
class Simulated:
    """What one program did on a simulated device."""

    status: str
    error: str | None
    answer: Any  # what the program returned
    output: str  # what it printed, stdout and stderr together
    recording: Recording
    allocator: str
    notices: list[str] = field(default_factory=list)
    unknown_values: list[dict[str, Any]] = field(default_factory=list)

    @property
    def events(self) -> list[Event]:
        return list(self.recording.events())

    @property
    def memory(self) -> RankMemory:
        return memory_of(self.recording, lambda limit: Allocator.from_spec(self.allocator), None)

    @property
    def peak_bytes(self) -> int:
        return self.memory.peak_bytes

    @property
    def op_names(self) -> list[str]:
        return [self.recording.signatures[e.signature].name for e in self.events if isinstance(e, Op)]

    def alloc_sizes(self, device: int = 0) -> list[int]:
        return [e.n_bytes for e in self.events if isinstance(e, Alloc) and e.device == device]

    def lives(self, device: int = 0) -> list[str]:
        """`+4096` and `-4096` in the order things were born and died."""
        sizes: dict[int, int] = {}
        found = []
        for event in self.events:
            if isinstance(event, Alloc) and event.device == device:
                sizes[event.storage] = event.n_bytes
                found.append(f"+{event.n_bytes}")
            elif isinstance(event, Free) and event.device == device:
                found.append(f"-{sizes[event.storage]}")
        return found

    def count(self, kind: Kind) -> int:
        return int((self.recording.columns["kind"] == kind).sum())

    def modules_of(self, op_name: str) -> list[str]:
        """The module path of every operator of this name, in order."""
        recording = self.recording
        ops = [e for e in self.events if isinstance(e, Op)]
        return [recording.name(e.module) for e in ops if recording.signatures[e.signature].name == op_name]


def simulate(
    program: Callable[[], Any],
    device: str = "a100-80gb",
    *,
    is_ok: bool = True,
    n_devices: int = 1,
    world_size: int | None = None,
    rank: int = 0,
    steps: int | None = None,
    is_recording_saves: bool = False,
    loss_chunks: int = 1,
    routing: str = "balanced",
) -> Simulated:
    """Run `program` on a simulated device; a program that fails fails the test unless `is_ok` is False."""
    profile = find_device(device)
    with tempfile.TemporaryDirectory(prefix="windtunnel-test-") as name:
        folder = Path(name)
        task = RankTask(
            program.__name__,
            (),
            False,
            profile,
            profile.allocator,
            "",
            rank,
            world_size or 1,
            max(world_size or 1, n_devices),
            world_size is not None,
            1,
            steps,
            False,
            str(folder),
            is_recording_saves,
            loss_chunks=loss_chunks,
            routing=routing_of(routing).as_fields(),
        )
        answer_file = folder / "answer.pickle"

        def run_and_answer() -> None:
            answer = program()
            answer_file.write_bytes(pickle.dumps(answer))

        code = _in_child(lambda: _run_task(task, run_and_answer), folder / "output")
        output = (folder / "output").read_text(encoding="utf-8", errors="replace")
        assert code == 0, f"the child died with code {code}:\n{output}"
        recording = read_recording(task.recording_path)
        footer = recording.footer
        assert footer, f"the child died:\n{output}"
        if is_ok:
            assert footer["status"] == "ok", f"{footer['error']}\n{output}"
        answer = pickle.loads(answer_file.read_bytes()) if answer_file.exists() else None
    return Simulated(
        footer["status"],
        footer["error"],
        answer,
        output,
        recording,
        profile.allocator,
        footer["notices"],
        footer["unknown_values"],
    )


def _run_task(task: RankTask, program: Callable[[], Any]) -> int:
    def make_counters(writer: Any, path: Path) -> LiveMemory:
        return LiveMemory(writer, path, lambda: Allocator.from_spec(task.allocator))

    run_rank(task, make_counters, program)
    return 0


def run_plainly(program: Callable[[], Any]) -> Any:
    """What `program` returns in a child without any simulation."""
    with tempfile.TemporaryDirectory(prefix="windtunnel-test-") as name:
        answer_file, output = Path(name) / "answer.pickle", Path(name) / "output"

        def work() -> int:
            answer_file.write_bytes(pickle.dumps(program()))
            return 0

        code = _in_child(work, output)
        assert code == 0, output.read_text(encoding="utf-8", errors="replace")
        return pickle.loads(answer_file.read_bytes())


def _in_child(work: Callable[[], int], output: Path) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(file, 1)
            os.dup2(file, 2)
            sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
            signal.alarm(LONGEST_S)
            warnings.resetwarnings()  # the program's warnings are its own
            torch.set_num_threads(1)
            code = work()
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)
