"""When a run collects, and which parts are installed while it does: the same for every framework.

    start(model) ──> wanted step and rank? ──> step folder, hooks ──> stop ──> hooks removed, files flushed ──> step

The hooks of a level are installed only between start and stop of a wanted step. After stop, only the hooks on the
autograd graph of that segment remain, so that its backward is still collected; they are freed with the graph. A
framework's own debugger builds the parts, and knows models and ranks.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from windtunnel.errors import UsageError
from windtunnel.mocking import is_dry_run
from windtunnel.probe.collect.call_writer import CallWriter
from windtunnel.probe.collect.collector import Collector, StepOutput
from windtunnel.probe.collect.custom_apis import CustomApis
from windtunnel.probe.collect.elements import Elements, Meter
from windtunnel.probe.collect.saved_points import PointWriter
from windtunnel.probe.collect.scopes import Scopes
from windtunnel.probe.collect.token_range import (
    TokenRange,
    check_scheduled_tokens,
    check_token_range,
    slices_for,
)
from windtunnel.probe.config.file import ConfigWatch
from windtunnel.probe.config.merged_config import ProbeConfig, load_config
from windtunnel.probe.files.notices import tell

__all__ = ["MODULE_LEVELS", "Debugger", "Part"]

MODULE_LEVELS = ("L0", "mix")  # these need the model


class Part(Protocol):
    """Something that is installed between start and stop."""

    def install(self, model: Any) -> None: ...

    def remove(self) -> None: ...

    def end_step(self) -> None: ...


class Debugger:
    """Collects what a program computes, as its config says; users see it as a framework's `PrecisionDebugger`.

    `build` creates from `config`: `meter`, `collector`, `elements`, `writer`, `scopes`, `points` and `parts`.
    """

    framework: str  # as in config.json
    model_words: str  # what start(model) takes
    custom_apis: CustomApis
    meter: Meter
    collector: Collector
    elements: Elements
    writer: CallWriter
    scopes: Scopes
    points: PointWriter
    parts: Sequence[Part]

    def __init__(
        self,
        config_path: str | os.PathLike | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike | None = None,
        level: str | None = None,
        step: Sequence | None = None,
    ) -> None:
        self.config: ProbeConfig = load_config(
            self.framework, config_path, task=task, dump_path=dump_path, level=level, step=step
        )
        for note in self.config.notes:
            tell(note)
        self._step = self._first_step = 0
        self._is_on = False
        self._pid = os.getpid()
        self._was_told: set[str] = set()
        path = self.config.config_path
        self._watch = None if path is None or self.config.dump_enable is None else ConfigWatch(path)
        self._tokens: TokenRange | None = None
        self._is_reported = False
        self.last_model: Any = None  # the model most recently passed to `start`
        self.build()
        atexit.register(self.close)

    def build(self) -> None:
        """Create everything that depends on the config; called again when the config has changed."""
        raise NotImplementedError

    def is_model(self, item: Any) -> bool:
        """Whether it can be passed to `start`."""
        raise NotImplementedError

    def rank_of(self, rank_id: int | None) -> tuple[int | None, int | None]:
        """The rank of this process and the number of ranks, as far as known; `rank_id` is what the user passed."""
        raise NotImplementedError

    def renamed(self, name: str) -> None:
        """Called when the folder of this process was renamed."""

    @property
    def step_number(self) -> int:
        """The number of the current step, or of the next one."""
        return self._step

    def area_for(self, model: Any) -> str:
        """The folder below dump_path for the step that this model begins; "" for dump_path itself."""
        return ""

    def start(
        self,
        model: Any = None,
        token_range: Sequence[int] | None = None,
        rank_id: int | None = None,
        scheduled_tokens: Mapping[str, int] | None = None,
    ) -> None:
        """Begin to collect; does nothing in steps and ranks that the config excludes."""
        self._check(model, token_range, rank_id)
        check_scheduled_tokens(scheduled_tokens)
        if model is not None:
            self.last_model = model
        self._reload()
        if self._is_on or not self._is_wanted(rank_id) or not self._take_slices(scheduled_tokens):
            return
        if self.collector.step is None:
            self.safely(lambda: self._open_step(rank_id, model))
            if self.collector.step is None:
                return
        self._is_on = True
        if token_range is None:
            self._install(model)
        else:
            root = model[0] if isinstance(model, (list, tuple)) else model
            self._tokens = TokenRange(root, token_range, lambda: self._install(model), self._remove)

    def stop(self) -> None:
        """Stop collecting; what was collected is in valid files afterwards."""
        if not self._is_on:
            return
        self._is_on = False
        tokens, self._tokens = self._tokens, None
        if tokens is not None:
            self.safely(tokens.close)
        self._remove()
        self.safely(self.collector.flush)
        self.meter.forget()  # until the next start, memory may change without our knowing

    def step(self) -> None:
        """End the step: complete its files and reset the counters."""
        self.stop()
        self.step_over()
        self._step += 1
        last = self.config.last_step
        if last is not None and self._step == last + 1:
            self._report(
                self.collector.outcome(f"all selected steps have been collected in {self.config.dump_path}")
            )
            self._is_reported = True

    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:
        """Save a value at this point of the program, and the gradients of its tensors when backward computes them."""
        if self.config.level != "debug":
            self.tell_once(f'save("{name}") has no effect at level {self.config.level}: set "level": "debug"')
            return
        if not self._is_wanted(None):
            return
        if self.collector.step is None:
            self.safely(lambda: self._open_step(None))
        self.safely(lambda: self.points.save(variable, name, save_backward))

    def set_init_step(self, step: int) -> None:
        """Count steps from this number: for a training that resumes from a checkpoint."""
        if not isinstance(step, int) or isinstance(step, bool) or step < 0:
            raise UsageError(
                f"set_init_step({step!r}) is not a step number", hint="pass a non-negative integer"
            )
        self._step = self._first_step = step
        self.safely(self._move_step)

    @contextmanager
    def watch(self, model: Any = None, **options: Any) -> Iterator[None]:
        """One step as a block: start, the block, stop and step."""
        self.start(model, **options)
        try:
            yield
        finally:
            self.step()

    def close(self) -> None:
        """Complete all open files; called automatically at exit."""
        atexit.unregister(self.close)
        if os.getpid() != self._pid:
            return  # a forked child: the files and the final message are its parent's
        self.custom_apis.restore_all()
        if self._is_on or self.collector.step is not None:
            self.step()
        note = self.config.step_note(self._first_step, self._step)
        if note is not None:
            self.tell_once(note)
        elif not self._is_reported and (self.collector.n_put or self.collector.summary()):
            self._report(self.collector.outcome(f"the collected data is in {self.config.dump_path}"))

    def register_custom_api(self, module: Any, api: str, api_prefix: str | None = None) -> None:
        """Collect the function `module.api` too, as `{api_prefix}.{api}` (or by the name of the module)."""
        self.custom_apis.register(module, api, api_prefix)

    def restore_custom_api(self, module: Any, api: str) -> None:
        """Restore the function that `register_custom_api` replaced."""
        self.custom_apis.restore(module, api)

    def _install(self, model: Any) -> None:
        for part in self.parts:
            self.safely(partial(part.install, model))

    def _remove(self) -> None:
        for part in reversed(self.parts):
            self.safely(part.remove)
        self.scopes.stack.clear()  # no hook will report the end of the modules that are running

    def _take_slices(self, scheduled_tokens: Mapping[str, int] | None) -> bool:
        """Whether the request that the config selects, if any, is in the batch."""
        slices = slices_for(self.config.slices, self.config.request_id, scheduled_tokens)
        if slices is None:
            self.tell_once(
                f"request {self.config.request_id!r} has not been in any batch so far, so nothing is collected"
            )
            return False
        self.elements.slices = slices
        return True

    def _check(self, model: Any, token_range: Any, rank_id: Any) -> None:
        needs_model = self.config.level in MODULE_LEVELS
        if model is None:
            if needs_model or token_range is not None:
                reason = f"level {self.config.level}" if needs_model else "token_range"
                raise UsageError(f"start() needs a model for {reason}", hint="start(model=...)")
        else:
            models = model if isinstance(model, (list, tuple)) else [model]
            wrong = [type(item).__name__ for item in models if not self.is_model(item)]
            if wrong or not models:
                raise UsageError(
                    f"start(model) was given {wrong[0] if wrong else 'an empty list'}",
                    hint=f"pass a {self.model_words}, or a list or tuple of them",
                )
        check_token_range(token_range)
        if rank_id is not None and (not isinstance(rank_id, int) or rank_id < 0):
            raise UsageError(f"rank_id {rank_id!r} is not a rank", hint="pass a non-negative integer")

    def _is_wanted(self, rank_id: int | None) -> bool:
        if is_dry_run():
            self.tell_once(
                "PrecisionDebugger collects nothing in a dry run: simulated tensors have no values"
            )
            return False
        if self.config.dump_enable is False or not self.config.wants_step(self._step):
            return False
        if self.writer.finder is not None and self.writer.finder.is_satisfied:
            return False
        rank, n_ranks = self.rank_of(rank_id)
        note = self.config.rank_note(rank, n_ranks)
        if note is not None:
            self.tell_once(note)
        return self.config.wants_rank(rank)

    def _open_step(self, rank_id: int | None, model: Any = None) -> None:
        area = self.area_for(model)
        rank, _ = self.rank_of(rank_id)
        name = f"proc{os.getpid()}" if rank is None else f"rank{rank}"
        folder = Path(self.config.dump_path) / area / f"step{self._step}" / name
        wants_tensors = self.config.task in ("tensor", "overflow_check") or bool(self.config.tensor_list)
        self.collector.step = StepOutput(self.config, folder, self.version, wants_tensors)

    def _name_by_rank(self) -> None:
        """Rename proc{pid} to rank{R} if the process group was created after the folder."""
        step, (rank, _) = self.collector.step, self.rank_of(None)
        if step is not None and rank is not None and step.folder.path.name == f"proc{os.getpid()}":
            step.rename(step.folder.path.with_name(f"rank{rank}"))
            self.renamed(f"rank{rank}")

    def _move_step(self) -> None:
        """Move a step that began before its number was known to its folder, or end it if it is not wanted."""
        output = self.collector.step
        if output is None:
            return
        if not self.config.wants_step(self._step):
            self.stop()
            self.step_over()
            return
        folder = output.folder.path
        output.rename(folder.parent.with_name(f"step{self._step}") / folder.name)
        with suppress(OSError):
            folder.parent.rmdir()

    def _reload(self) -> None:
        """Read the config again if it changed; with dump_enable in it, it may be edited while the program runs."""
        if self._watch is None or self._is_on or not self._watch.changed():
            return
        self.step_over()
        self.config = self.config.reloaded()
        for note in self.config.notes:
            self.tell_once(note)
        self.build()

    def step_over(self) -> None:
        """Complete the files of an open step without counting it."""
        self.safely(self.writer.finish_partial)
        for part in self.parts:
            self.safely(part.end_step)
        self.safely(self.points.end_step)
        self.safely(self._name_by_rank)
        self.safely(self.collector.end_step)
        self.meter.forget()

    @property
    def version(self) -> str:
        """The version of windtunnel, for file headers."""
        import windtunnel

        return windtunnel.__version__

    def safely(self, work: Callable[[], Any]) -> None:
        """Do work of the probe itself; if it fails, the program continues."""
        self.collector.safely("starting or stopping", work)

    def tell_once(self, sentence: str) -> None:
        """Tell the user a sentence, unless this debugger has already told it."""
        if sentence not in self._was_told:
            self._was_told.add(sentence)
            tell(sentence)

    def _report(self, sentence: str) -> None:
        summary = self.collector.summary()
        self.tell_once(f"{sentence}; {summary}" if summary else sentence)
