"""The process of a MindSpore script on the meta device: the script runs on the plain CPU wheel, tensors have no bytes.

RankTask ──> meta device, world and settings in place ──> the user's script ──> marks.jsonl, the tracker's files
"""

from __future__ import annotations

import atexit
import faulthandler
import os
import signal
import sys
from pathlib import Path

import mindspore

from windtunnel.capture.enough_steps import step_counter
from windtunnel.capture.mindspore.instruments import Instruments
from windtunnel.capture.mindspore.meta.compiled import install_compiled
from windtunnel.capture.mindspore.meta.context import install_context
from windtunnel.capture.mindspore.meta.device import MetaDevice, MetaMode
from windtunnel.capture.mindspore.meta.gradients import install_gradients
from windtunnel.capture.mindspore.meta.tensors import install_tensors
from windtunnel.capture.mindspore.meta.tracker import MetaTracker
from windtunnel.capture.mindspore.meta.world import World, install_world
from windtunnel.capture.mindspore.script import observations, run_script, step_report
from windtunnel.capture.mindspore.tracker.marks import MarkWriter
from windtunnel.capture.mindspore.values import UnknownReads
from windtunnel.capture.task import RankTask

__all__ = ["start"]


def start() -> None:
    """The program: TASK.json MARKS.jsonl STEPS_FD."""
    task = RankTask.from_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    signal.signal(signal.SIGINT, signal.default_int_handler)  # our parent ignores it
    faulthandler.enable()  # the meta device may crash in an operator: then at least its line is known
    folder, steps = Path(sys.argv[2]).parent, os.fdopen(int(sys.argv[3]), "w")
    tracker = MetaTracker()
    device = MetaDevice(tracker, task.is_tracking_stacks)
    marks = MarkWriter(Path(sys.argv[2]), lambda: tracker.clock)
    reads = UnknownReads(marks)
    instruments = Instruments(marks, step_counter(task.max_steps, step_report(steps)))
    # Operators must run on the main thread: MindSpore dispatches them only to the thread that installed the mode.
    mindspore.runtime.launch_blocking()
    mindspore.DeviceCtx("meta").__enter__()
    install_tensors(device)
    settings = install_context(task.local_rank)
    install_world(World(task.rank, task.world_size, task.nproc_per_node), device)
    modelled = install_gradients(device)
    compiled = install_compiled(device)
    instruments.install()
    reads.install()
    with MetaMode(device), mindspore.saved_tensors_hooks(device.save, device.load):
        outcome = run_script(task)
        outcome |= observations(instruments, reads)
    outcome["notices"] = [*outcome["notices"], *outcome.pop("of_pytest", ())]
    if modelled:
        outcome["notices"].append(f"backward was modelled for {', '.join(sorted(modelled))}")
    if compiled:
        outcome["notices"].append(
            f"compiled functions ran as they are written: {', '.join(sorted(compiled))}"
        )
    outcome |= {"is_graph": False, "max_device_bytes": settings.max_device_bytes}
    atexit._run_exitfuncs()
    tracker.write(folder)
    marks.add("end", outcome)
    marks.close()
    sys.stdout.flush()
    sys.stderr.flush()
    # Tensors that outlive Python would release their handles when Python no longer exists.
    os._exit(0 if outcome["status"] == "ok" else 3)
