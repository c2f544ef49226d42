"""One callback for the Trainer of transformers and for Lightning: a step of the debugger per optimizer step.

    Trainer    on_step_begin        ──> start(model) ──> on_step_end       ──> stop, step
    Lightning  on_train_batch_start ──> start(module) ──> on_train_batch_end ──> an optimizer step was made? ──> stop, step

Both look their hooks up by name, so neither has to be imported.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ProbeCallback"]


class ProbeCallback:
    """Create it with a debugger and pass it to `Trainer(callbacks=[...])` of either library."""

    def __init__(self, debugger: Any) -> None:
        self.debugger = debugger
        self._n_steps = 0  # optimizer steps of Lightning that were seen

    # transformers: its step is an optimizer step already, however many micro-batches it has

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.debugger.start(model)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.debugger.stop()
        self.debugger.step()

    # Lightning: a batch is an optimizer step only when gradients are not accumulated further

    def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        self.debugger.start(pl_module)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any, **__: Any) -> None:
        if trainer.global_step != self._n_steps:
            self._n_steps = trainer.global_step
            self.debugger.stop()
            self.debugger.step()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self._n_steps = trainer.global_step  # not 0 when a training resumes from a checkpoint

    # both: a training that ends in the middle of a step

    def on_train_end(self, *_: Any, **__: Any) -> None:
        self.debugger.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self.debugger.stop()

    # Lightning asks every callback for these

    state_key = "windtunnel.ProbeCallback"

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Nothing to prepare."""

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Nothing to clean up."""

    def state_dict(self) -> dict:
        return {}

    def load_state_dict(self, state_dict: dict) -> None:
        """Nothing is kept in checkpoints."""

    def __getattr__(self, name: str) -> Callable:
        """Every other callback of either library does nothing."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(f"ProbeCallback has no {name!r}")


def _nothing(*_: Any, **__: Any) -> None:
    return None
