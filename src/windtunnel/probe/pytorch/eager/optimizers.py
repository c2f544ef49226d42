"""Which calls belong to an optimizer's step: their parent in construct.json is "optimizer".

optimizer.step() ──> pre-hook: scope "optimizer" ──> APIs ──> post-hook: scope left
"""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.collect.scopes import Scopes

__all__ = ["OptimizerScope"]

_NAME = "optimizer"


class OptimizerScope:
    """Hooks on every optimizer of the process, while collecting."""

    def __init__(self, collector: Collector, scopes: Scopes) -> None:
        self.collector = collector
        self.scopes = scopes
        self.has_parents = collector.config.level == "mix"
        self._handles: list[Any] = []

    def install(self, model: Any = None) -> None:
        if not self._handles:
            self._handles = [
                register_optimizer_step_pre_hook(self._before),
                register_optimizer_step_post_hook(self._after),
            ]

    def remove(self) -> None:
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()

    def end_step(self) -> None:
        """Nothing is left after stop."""

    def _before(self, *_: Any) -> None:
        self.scopes.stack.append(_NAME)
        step = self.collector.step
        if step is not None and self.has_parents:
            step.folder.add_parent(_NAME, None)

    def _after(self, *_: Any) -> None:
        if _NAME in self.scopes.stack:
            del self.scopes.stack[self.scopes.stack.index(_NAME) :]
