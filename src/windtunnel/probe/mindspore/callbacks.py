"""Callbacks for `mindspore.train.Model.train`: a step of the debugger per step of the training.

MsprobeStep      step begins ──> start(network) ──> step ends ──> stop, step
MsprobeInitStep  first epoch begins ──> how many steps were made before? ──> set_init_step
"""

from __future__ import annotations

from typing import Any

from mindspore.train import Callback

from windtunnel.errors import UsageError
from windtunnel.probe.mindspore.debugger import Debugger

__all__ = ["MsprobeInitStep", "MsprobeStep"]


class MsprobeStep(Callback):
    """Create it with a debugger and pass it to `Model.train(callbacks=[...])`.

    The model is the one passed to `debugger.start(model)` before, or else the network of the training.
    """

    def __init__(self, debugger: Any) -> None:
        super().__init__()
        if not isinstance(debugger, Debugger):
            raise UsageError(
                f"MsprobeStep was given a {type(debugger).__name__}",
                hint="pass the PrecisionDebugger: MsprobeStep(debugger)",
            )
        self.debugger = debugger

    def on_train_step_begin(self, run_context: Any) -> None:
        model = self.debugger.last_model
        self.debugger.start(run_context.original_args().get("network") if model is None else model)

    def on_train_step_end(self, run_context: Any) -> None:
        self.debugger.stop()
        self.debugger.step()

    def on_train_end(self, run_context: Any) -> None:
        self.debugger.stop()


class MsprobeInitStep(Callback):
    """Counts steps from where a training resumes: put it before MsprobeStep in the list of callbacks."""

    def __init__(self) -> None:
        super().__init__()
        self._is_set = False

    def on_train_begin(self, run_context: Any) -> None:
        self._is_set = False

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """Set the initial step in the first epoch: before it, `initial_epoch` is not known."""
        if self._is_set:
            return
        self._is_set = True
        current = Debugger.latest
        if current is None:
            raise UsageError(
                "MsprobeInitStep found no debugger",
                hint='create one before Model.train: PrecisionDebugger(config_path="config.json")',
            )
        step = steps_before(run_context.original_args())
        if step:
            current.set_init_step(step)


def steps_before(args: Any) -> int:
    """How many steps were made before this training, by the epoch it begins with, its counter and its optimizer."""
    epochs = (args.get("cur_epoch_num") or 1) - 1
    batches = args.get("batch_num") or 0
    counted = args.get("cur_step_num") or 0
    return max(counted, epochs * max(batches, 0), _optimizer_steps(args))


def _optimizer_steps(args: Any) -> int:
    for owner in (args, args.get("network"), args.get("train_network")):
        found = getattr(owner, "optimizer", None) if owner is not args else args.get("optimizer")
        count = getattr(found, "global_step", None)
        if count is not None:
            return int(count.asnumpy().reshape(-1)[0])
    return 0
