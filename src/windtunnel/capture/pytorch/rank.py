"""Run the user's own script as one rank of the simulated machine, in this process.

    RankTask ──> simulated torch ──> the script ──> recording.arrows (+ footer: how it ended)

Everything that replaces a part of torch is installed here, once, before the script's first import.
"""

from __future__ import annotations

import gc
import os
import runpy
import sys
import sysconfig
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from windtunnel import torch_compatibility
from windtunnel.capture.child_workers import ChildWorkers
from windtunnel.capture.enough_steps import EnoughSteps, step_counter
from windtunnel.capture.failure_hints import explain
from windtunnel.capture.memory_counters_protocol import MakeCounters, MemoryCounters
from windtunnel.capture.pytorch import loop_state, processes, saved_tensors, spawn, what_if
from windtunnel.capture.pytorch.compiler import torch_compile
from windtunnel.capture.pytorch.kernels import (
    attention,
    autocast,
    composites,
    cpu_allocations,
    finite,
    foreach,
    registration,
)
from windtunnel.capture.pytorch.packages.finder import install_packages
from windtunnel.capture.pytorch.phases_and_roles import compiled_paths, install_program, mark_compiled
from windtunnel.capture.pytorch.tensors import storage
from windtunnel.capture.pytorch.torch_api import (
    constructors,
    cuda,
    export,
    foreign_kernels,
    generators,
    lbfgs,
    safetensors,
    saving,
    storage_methods,
    tensor_methods,
)
from windtunnel.capture.pytorch.world import distributed
from windtunnel.capture.rank_messages import RankMessages
from windtunnel.capture.recorder import EndlessLoop, Recorder
from windtunnel.capture.routing import Routing
from windtunnel.capture.script_arguments import ScriptArguments
from windtunnel.capture.task import RankTask
from windtunnel.capture.values_set_by_user import VARIABLE
from windtunnel.events.file import RecordingWriter
from windtunnel.interrupts import held
from windtunnel.msprobe_imports import answer_msprobe

__all__ = ["run_rank"]

# Python code of torch that computes shapes here and that a real run does not execute
_ONLY_IN_A_DRY_RUN = (
    "/torch/_decomp/",
    "/torch/_refs/",
    "/torch/_prims",
    "/torch/_meta_registrations.py",
    "/torch/_ops.py",
)


def run_rank(task: RankTask, make_counters: MakeCounters, program: Callable[[], Any] | None = None,
             on_step: Callable[[int], None] | None = None,
             messages: RankMessages | None = None) -> tuple[dict[str, Any], str | None]:  # fmt: skip
    """Run the task until it ends, however it ends; the recording is closed and readable afterwards.

    Returns how it ended, and why the recording could not be written, if so.
    """
    _set_environment(task)
    header = {"framework": "torch", "torch": torch.__version__, "script": task.script, "arguments": list(task.arguments),
              "is_module": task.is_module, "rank": task.rank,
              "world_size": task.world_size, "device": task.device.id, "level": task.level, "allocator": task.allocator,
              "allocator_conf": task.allocator_conf}  # fmt: skip
    writer = RecordingWriter(task.recording_path, header)
    _flush_on_sudden_exit(writer)
    recorder = Recorder(writer, script=task.script, is_tracking_stacks=task.is_tracking_stacks)
    recorder.is_host = task.device.kind == "cpu"
    recorder.on_step = step_counter(task.max_steps, on_step)
    install(task, recorder, make_counters(writer, task.recording_path), messages)
    note = torch_compatibility.unfamiliar()
    if note is not None:
        recorder.notice(note)
    changes = what_if.install_changes(task, recorder)
    arguments = ScriptArguments([task.script, *task.arguments])
    workers = ChildWorkers()
    if program is None:
        sys.argv = arguments
        workers.install()
    outcome = _run(program or _script_of(task), recorder, task.world_size)
    outcome["workers"] = workers.sentence()
    with held():  # an interrupt that comes now waits until the recording is closed
        _close(task, writer, recorder, outcome, changes, arguments if program is None else None)
    return outcome, writer.failure


def _flush_on_sudden_exit(writer: RecordingWriter) -> None:
    """Flush the recording when the script calls os._exit, which runs no cleanup."""
    leave, process = os._exit, os.getpid()

    def _exit(status: int) -> None:
        if os.getpid() == process:
            writer.flush()
        leave(status)

    os._exit = _exit  # type: ignore[assignment]  # typeshed says NoReturn, which a wrapper cannot promise


def _close(
    task: RankTask,
    writer: RecordingWriter,
    recorder: Recorder,
    outcome: dict[str, Any],
    changes: what_if.Changes,
    arguments: ScriptArguments | None,
) -> None:
    """Write the rest of the recording, and how the program ended."""
    for sentence in changes.without_effect():
        recorder.notice(sentence)
    for where in sorted(
        set(recorder.assumed) - {unknown.where for unknown in recorder.unknown_values.values()}
    ):
        recorder.notice(f"{VARIABLE} sets {where}, but that line read no unknown value")
    outcome |= {
        "steps": recorder.n_steps,
        "unknown_values": [
            {"where": u.where, "what": u.what, "value": _plain(u.value), "count": u.count}
            for u in recorder.unknown_values.values()
        ],
        "routing": _routing(recorder, task),
        "notices": list(recorder.notices),
        "has_unread_arguments": arguments is not None and bool(task.arguments) and not arguments.was_read,
        "n_ops": recorder.n_ops,
        "batches": changes.batches.as_footer(),
        "compiled": torch_compile.compiled_parts(recorder, compiled_paths),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    writer.close(outcome)


def _routing(recorder: Recorder, task: RankTask) -> dict[str, Any] | None:
    """Which routing decided values that the program read, and where; None if it read no such value."""
    routers = [{"where": w, "experts": n, "chosen": k} for w, (n, k) in recorder.routers.items()]
    return {"policy": task.routing["text"], "routers": routers} if routers else None


def install(
    task: RankTask, recorder: Recorder, counters: MemoryCounters, messages: RankMessages | None = None
) -> None:
    """Replace every device interface of torch in this process."""
    recorder.loops.framework_state = loop_state.state_of
    device = task.device
    n_devices = 1 if device.kind == "cpu" else max(task.nproc_per_node, 1)
    storage.install_backend(recorder, device.kind, n_devices)
    storage.World.routing = Routing.from_fields(task.routing)
    if device.kind == "cpu":
        cpu_allocations.install_cpu_kernels()
    composites.install_composites(device.kind)
    finite.install_finite()
    registration.install_kernels()
    constructors.install_constructors()
    tensor_methods.install_tensor_methods()
    storage_methods.install_storage_methods()
    attention.install_attention(_attention_of(device))
    autocast.install_autocast()
    foreach.install_foreach()
    cuda.install_device_module(device, n_devices, counters)
    generators.install_generators(device.kind)
    foreign_kernels.install_foreign_kernels(device.kind)
    install_packages(device.kind)
    answer_msprobe()
    saving.install_checkpoints()
    safetensors.install_safetensors()
    lbfgs.install_lbfgs()
    export.install_exports()
    processes.install_processes()
    torch_compile.install_compile(recorder, mark_compiled)
    distributed.install_distributed(task.rank, task.world_size, messages, task.max_steps is not None)
    if task.world_size > 1 and task.job_began:
        _overlook_later_files(task.job_began)
    spawn.install_spawn(recorder)
    install_program(recorder)
    if task.is_recording_saves:
        saved_tensors.install_saves(recorder)
    gc.callbacks.append(lambda phase, info: setattr(recorder, "is_collecting", int(phase == "start")))
    gc.freeze()  # torch has half a million objects: the collector does not have to visit them in every step


def _overlook_later_files(job_began: float) -> None:
    from windtunnel.capture.pytorch.world.later_files import LaterFiles  # late: one device has no other rank
    from windtunnel.capture.pytorch.world.process_group import SimulatedGroup

    LaterFiles(job_began, time.time(), lambda: SimulatedGroup.n_collectives > 0).install()


def _attention_of(device: Any) -> Callable[[attention.Attention], str]:
    if device.kind == "cpu":
        return attention.choose_cpu
    if device.kind == "npu":
        return attention.choose_npu
    return attention.choose_cuda(device.capability)


def _set_environment(task: RankTask) -> None:
    os.environ["WINDTUNNEL_DRY_RUN"] = "1"

    if not task.is_launched:
        os.environ.update(task.variables)
        return
    os.environ.update(
        RANK=str(task.rank),
        WORLD_SIZE=str(task.world_size),
        LOCAL_RANK=str(task.local_rank),
        LOCAL_WORLD_SIZE=str(task.nproc_per_node),
        GROUP_RANK=str(task.rank // task.nproc_per_node),
        NODE_RANK=str(task.rank // task.nproc_per_node),
        GROUP_WORLD_SIZE=str(max(task.world_size // task.nproc_per_node, 1)),
        ROLE_RANK=str(task.rank),
        ROLE_WORLD_SIZE=str(task.world_size),
        RANK_ID=str(task.rank),
        RANK_SIZE=str(task.world_size),
        MASTER_ADDR=os.environ.get("MASTER_ADDR", "127.0.0.1"),
        MASTER_PORT=os.environ.get("MASTER_PORT", "29500"),
        TORCHELASTIC_RUN_ID="windtunnel",
    )
    os.environ.update(task.variables)


def _script_of(task: RankTask) -> Callable[[], Any]:
    def run_module() -> Any:
        sys.path.insert(0, os.getcwd())
        return runpy.run_module(task.script, run_name="__main__", alter_sys=True)

    def run_path() -> Any:
        sys.path.insert(0, str(Path(task.script).resolve().parent))
        return runpy.run_path(task.script, run_name="__main__")

    return run_module if task.is_module else run_path


def _run(program: Callable[[], Any], recorder: Recorder, n_ranks: int) -> dict[str, Any]:
    """Run the program; return how it ended: ok, failed or interrupted."""
    warnings.filterwarnings("ignore", message=".*Overriding a previously registered kernel.*")
    try:
        try:
            program()
        finally:
            _wait_for_threads()
    except EnoughSteps:
        return {"status": "ok", "error": None, "is_stopped": True}
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else 0 if exit.code is None else 1
        if code == 0:
            return {"status": "ok", "error": None, "is_stopped": False}
        text = f"the script exited with code {code}"
        text = f"{text}: {exit.code}" if isinstance(exit.code, str) else text
        return {"status": "failed", "error": _sentence(text, exit, recorder)}
    except EndlessLoop as error:
        return {"status": "failed", "error": str(error), "where": _last_user_line(error, recorder)}
    except KeyboardInterrupt:
        recorder.notice_loop()
        return {"status": "interrupted", "error": "interrupted: what ran before is reported"}
    except BaseException as error:
        _show_traceback(error)
        return {
            "status": "failed",
            "error": _sentence(explain(error, n_ranks), error, recorder),
            "where": _last_user_line(error, recorder),
        }
    return {"status": "ok", "error": None, "is_stopped": False}


def _sentence(text: str, error: BaseException, recorder: Recorder) -> str:
    """What failed, and the invented value that it rests on, if the source shows one."""
    cause = recorder.cause_of(error)
    if cause is None:
        return text
    is_number = isinstance(cause.value, (bool, int, float))
    ways = (
        f'{VARIABLE}="{cause.where}=NUMBER" or windtunnel.mock'
        if is_number and cause.is_read
        else "windtunnel.mock"
    )
    return (
        f"{text}; this rests on {cause.where}, which read {cause.what.partition(' (')[0]} as {cause.value!r}: no simulated"
        f" device knows it, and with the real value the script may run; set it with {ways}"
    )


def _wait_for_threads() -> None:
    """Wait for threads that the script left running, as Python does at exit."""
    for thread in threading.enumerate():
        if (
            thread is not threading.current_thread()
            and not thread.daemon
            and type(thread) is not threading._DummyThread
        ):
            thread.join()


def _show_traceback(error: BaseException) -> None:
    """Print the user's traceback, without the frames that only exist in a dry run."""
    text = traceback.TracebackException.from_exception(error)
    seen: Any = text
    while seen is not None:
        kept = [f for f in seen.stack if not _is_ours(f.filename)]
        seen.stack = traceback.StackSummary.from_list(kept or list(seen.stack))
        seen = seen.__cause__ or seen.__context__
    name = storage.SIM.type
    for line in text.format():
        sys.stderr.write(line.replace(f"{name}:0", str(storage.world.default_device)))
    sys.stderr.flush()


def _is_ours(filename: str) -> bool:
    text = filename.replace("\\", "/")
    if any(part in text for part in _ONLY_IN_A_DRY_RUN):
        return True
    return (
        "/windtunnel/capture/" in text
        or "<frozen runpy>" in text
        or text.endswith("/runpy.py")
        or "windtunnel/session" in text
        or "windtunnel/commands" in text
    )


def _last_user_line(error: BaseException, recorder: Recorder) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not recorder.is_framework(f.filename)]
    own = [frame for frame in frames if not _is_installed(frame.filename)]
    return next((f"{frame.filename}:{frame.lineno}" for frame in reversed(own or frames)), "")


def _is_installed(filename: str) -> bool:
    """Whether a file is a library's: its lines tell a user less than their own line that called it."""
    return "site-packages" in filename or filename.startswith((sysconfig.get_path("stdlib"), "<"))


def _plain(value: object) -> object:
    return value if isinstance(value, (int, float, str, bool)) or value is None else str(value)
