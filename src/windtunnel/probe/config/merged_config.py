"""What a run collects: the user's config.json, the arguments of the debugger and the defaults, merged into one record.

    arguments ─┐
    config.json ├──> load_config ──> ProbeConfig (checked, complete) ──> Selection, hooks, files
    defaults  ─┘

Arguments override the file, and the file overrides the defaults. msProbe configs load unchanged; a setting that has no
meaning here is rejected with the reason, or ignored with a sentence in `notes`, never silently.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from windtunnel.errors import ProbeConfigError
from windtunnel.probe.config.file import read_config_file
from windtunnel.probe.config.number_sets import NumberSet
from windtunnel.probe.config.section_reader import Section
from windtunnel.probe.config.slices import Slice
from windtunnel.probe.config.values import (
    api_list_of,
    bench_path_of,
    data_mode_of,
    dump_path_of,
    file_format_of,
    given_section,
    is_off,
    level_for,
    names_of,
    note_unused,
    numbers_of,
    path_of,
    scope_of,
    slices_of,
    summary_mode_of,
    task_of,
    task_section,
)
from windtunnel.probe.config.vocabulary import (
    KEYS,
    LEVELS,
    PRECISIONS,
    REFUSED_KEYS,
    RISK_LEVELS,
    SECTION_KEYS,
    UNUSED_KEYS,
    UNUSED_SECTION_KEYS,
)

__all__ = ["ProbeConfig", "load_config"]

_LONGEST_FLUSH_SECONDS = 3600.0


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """What a run collects; made by load_config. `notes` are sentences to show the user once."""

    framework: str  # "pytorch" | "mindspore"
    task: str  # "statistics" | "tensor" | "structure" | "overflow_check"
    level: str  # "L0" | "L1" | "L2" | "mix" | "debug"
    dump_path: Path  # absolute
    ranks: NumberSet | None  # None = all
    steps: NumberSet | None  # None = all
    summary_mode: str  # "statistics" | "md5" | "xor"
    data_mode: frozenset[str]  # of forward, backward, input, output; "all" is all four
    scope: tuple[str, str] | None
    list: tuple[str, ...]
    tensor_list: tuple[str, ...]
    slices: tuple[Slice, ...]
    request_id: str | None
    bench_path: (
        Path | None
    )  # an earlier md5 dump: save tensors only of calls whose outputs differ from it while inputs agree
    diff_nums: int  # stop after this many such calls; -1 = never
    overflow_nums: int  # stop after this many calls with non-finite outputs; -1 = never
    async_dump: bool
    extra_info: bool
    precision: str  # "low" | "high"
    risk_level: str  # "ALL" | "CORE" | "FOCUS"
    dump_enable: bool | None  # None = the file is read once
    custom_op_namespaces: tuple[str, ...]
    file_format: str  # "pt" | "npy"
    strict_json: bool
    api_list: frozenset[tuple[str, str]] | None  # (prefix, api); None = every API
    flush_seconds: float
    config_path: Path | None
    notes: tuple[str, ...] = ()
    arguments: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def last_step(self) -> int | None:
        """The last step to collect; None when every step is wanted."""
        return None if self.steps is None else self.steps.last

    def wants_rank(self, rank: int | None) -> bool:
        """Whether this process collects. A process without a rank is the only one: rank 0."""
        return self.ranks is None or (rank or 0) in self.ranks

    def wants_step(self, step: int) -> bool:
        return self.steps is None or step in self.steps

    def rank_note(self, rank: int | None, n_ranks: int | None = None) -> str | None:
        """What to tell the user when the rank filter excludes this process, or names ranks that do not exist."""
        if self.ranks is None:
            return None
        if not self.wants_rank(rank):
            me = "a single process, rank 0" if rank is None else f"rank {rank}"
            me += f" of {n_ranks}" if rank is not None and n_ranks else ""
            return (
                f"rank filter {self.ranks} excludes this process ({me}): nothing is collected here; "
                'set "rank": [] to collect every rank'
            )
        if n_ranks is not None and self.ranks.last >= n_ranks:
            return f"rank filter {self.ranks} names ranks that do not exist: this job has {n_ranks} (0-{n_ranks - 1})"
        return None

    def step_note(self, first: int, after_last: int) -> str | None:
        """What to tell the user at the end when none of the steps first..after_last-1 was selected."""
        if self.steps is None or after_last <= first or self.steps.overlaps(first, after_last - 1):
            return None
        ran = f"step {first}" if after_last - first == 1 else f"steps {first}-{after_last - 1}"
        return (
            f"step filter {self.steps} matches none of the steps that ran ({ran}): nothing was collected; "
            'set "step": [] to collect every step'
        )

    def reloaded(self) -> ProbeConfig:
        """Return the config as its file is now; a file that cannot be used turns collecting off and says why."""
        try:
            new = load_config(self.framework, self.config_path, **self.arguments)
        except ProbeConfigError as error:
            return replace(
                self, dump_enable=False, notes=(f"collecting is off until this is fixed: {error}",)
            )
        # As in msProbe: removing the key from the file leaves the switch as it is.
        return replace(new, dump_enable=self.dump_enable) if new.dump_enable is None else new


def load_config(
    framework: str,
    config_path: str | os.PathLike[str] | None = None,
    *,
    task: str | None = None,
    dump_path: str | os.PathLike[str] | None = None,
    level: str | None = None,
    step: Sequence[int | str] | None = None,
) -> ProbeConfig:
    """Return what to collect, or raise ProbeConfigError with the key, its value and what is allowed."""
    path = None if config_path is None else path_of(config_path, "config_path")
    top = Section(str(path or "the default config"), read_config_file(path) if path else {})
    top.check_keys(KEYS)
    arguments = {"task": task, "dump_path": dump_path, "level": level, "step": step}
    given = given_section(arguments)
    notes: list[str] = []

    for key, (reason, instead) in REFUSED_KEYS.items():
        if not is_off(top.values.get(key)):
            raise ProbeConfigError(f'{top.source}: "{key}" is not supported: {reason}', hint=instead)
    note_unused(top, UNUSED_KEYS, notes)

    task_named, task = task_of(given if "task" in given.values else top)
    sections = {name: task_section(top, name) for name in SECTION_KEYS if name in top.values}
    chosen = sections.get(task_named, Section(top.source, {}, f"{task_named}."))
    note_unused(chosen, UNUSED_SECTION_KEYS, notes)
    level = (given if "level" in given.values else top).choice("level", LEVELS, "L1")
    level = level_for(task, level, notes)
    summary_mode = summary_mode_of(chosen, notes)
    bench_path = bench_path_of(chosen)
    if task_named == "diff_check" and bench_path is None:
        raise ProbeConfigError(
            f'{top.source}: task "diff_check" needs "diff_check.bench_path"',
            hint='pass the folder of an earlier dump made with summary_mode "md5"',
        )
    return ProbeConfig(
        framework=framework,
        task=task,
        level=level,
        dump_path=dump_path_of(given if "dump_path" in given.values else top),
        ranks=numbers_of(top, "rank"),
        steps=numbers_of(given if "step" in given.values else top, "step"),
        summary_mode=summary_mode,
        data_mode=data_mode_of(chosen),
        scope=scope_of(chosen, level, notes),
        list=names_of(chosen, "list", level, notes),
        tensor_list=names_of(chosen, "tensor_list", level, notes),
        slices=slices_of(chosen, level, notes),
        request_id=chosen.text("request_id"),
        bench_path=bench_path,
        diff_nums=chosen.count("diff_nums", 1),
        overflow_nums=chosen.count("overflow_nums", 1),
        async_dump=top.flag("async_dump", False),
        extra_info=top.flag("extra_info", True),
        precision=top.choice("precision", PRECISIONS, chosen.choice("precision", PRECISIONS, "high")),
        risk_level=top.choice("risk_level", RISK_LEVELS, "FOCUS"),
        dump_enable=top.flag("dump_enable", False) if "dump_enable" in top.values else None,
        custom_op_namespaces=top.names("custom_op_namespaces")
        if "custom_op_namespaces" in top.values
        else ("_C_ascend",),
        file_format=file_format_of(framework, top, chosen, notes),
        strict_json=top.flag("strict_json", False),
        api_list=api_list_of(top),
        flush_seconds=top.seconds("flush_seconds", 1.0, _LONGEST_FLUSH_SECONDS),
        config_path=path,
        notes=tuple(notes),
        arguments=arguments,
    )
