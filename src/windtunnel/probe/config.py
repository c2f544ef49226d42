"""What a run collects: the user's config.json, the arguments of the debugger and the defaults, made one record.

    arguments ─┐
    config.json ├──> load_config ──> ProbeConfig (checked, complete) ──> Selection, hooks, files
    defaults  ─┘

Arguments win over the file, the file over the defaults. Configs of msProbe load as they are; what has no meaning
here is refused with the reason, or left out with a sentence in `notes`, never silently.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from windtunnel.errors import ProbeConfigError
from windtunnel.probe.api_list import read_api_list
from windtunnel.probe.config_file import read_config_file
from windtunnel.probe.config_section import Section, quoted
from windtunnel.probe.config_words import (
    DATA_MODES,
    DEFAULT_DUMP_PATH,
    DEFAULT_FILE_FORMAT,
    FILE_FORMATS,
    KEYS,
    LEVELS,
    OFF_VALUES,
    PRECISIONS,
    REFUSED_KEYS,
    REFUSED_TASKS,
    RISK_LEVELS,
    SECTION_KEYS,
    STATISTIC_NAMES,
    SUMMARY_MODES,
    TASK_MEANS,
    TASKS,
    UNUSED_KEYS,
    UNUSED_SECTION_KEYS,
)
from windtunnel.probe.name_patterns import check_pattern
from windtunnel.probe.rank_steps import LARGEST, NumberSet, read_numbers
from windtunnel.probe.tensor_slices import Slice

__all__ = ["ProbeConfig", "load_config"]

_ARGUMENTS = "PrecisionDebugger's arguments"
_LONGEST_FLUSH_SECONDS = 3600.0
_SIDES = frozenset(("input", "output"))
_DIRECTIONS = frozenset(("forward", "backward"))
_API_NAME = re.compile(r"(?!Module\.|Cell\.)[^.]+\..+\.[0-9]+\.(forward|backward)", re.DOTALL)
_MODULE_NAME = re.compile(r"(Module|Cell)\..+\.(forward|backward)\.[0-9]+", re.DOTALL)


@dataclass(frozen=True, slots=True)
class ProbeConfig:
    """What a run collects; made by load_config. `notes` are sentences the user has to be told, once."""

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
    bench_path: Path | None  # an earlier md5 dump: keep tensors only where outputs differ though inputs agree
    diff_nums: int  # stop after so many of them; -1 = never
    overflow_nums: int  # stop after so many non-finite outputs; -1 = never
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
    arguments: Mapping[str, object] = field(default_factory=dict, repr=False)

    @property
    def last_step(self) -> int | None:
        """The step after which nothing is left to collect; None when every step is wanted."""
        return None if self.steps is None else self.steps.last

    def wants_rank(self, rank: int | None) -> bool:
        """Whether this process collects. A process without a rank is the only one: rank 0."""
        return self.ranks is None or (rank or 0) in self.ranks

    def wants_step(self, step: int) -> bool:
        return self.steps is None or step in self.steps

    def rank_note(self, rank: int | None, n_ranks: int | None = None) -> str | None:
        """What to tell the user when the rank filter leaves this process out, or names ranks there are not."""
        if self.ranks is None:
            return None
        if not self.wants_rank(rank):
            me = "a single process, rank 0" if rank is None else f"rank {rank}"
            me += f" of {n_ranks}" if rank is not None and n_ranks else ""
            return (
                f"rank filter {self.ranks} leaves out this process ({me}): nothing is collected here; "
                'set "rank": [] to collect every rank'
            )
        if n_ranks is not None and self.ranks.last >= n_ranks:
            return f"rank filter {self.ranks} names ranks beyond the {n_ranks} that run (0-{n_ranks - 1})"
        return None

    def step_note(self, first: int, after_last: int) -> str | None:
        """What to tell the user at the end when none of the steps first..after_last-1 was asked for."""
        if self.steps is None or after_last <= first or self.steps.overlaps(first, after_last - 1):
            return None
        ran = f"step {first}" if after_last - first == 1 else f"steps {first}-{after_last - 1}"
        return (
            f"step filter {self.steps} matches none of the steps that ran ({ran}): nothing was collected; "
            'set "step": [] to collect every step'
        )

    def reloaded(self) -> ProbeConfig:
        """Return the config as its file now is; a file that cannot be used turns collecting off and says why."""
        try:
            new = load_config(self.framework, self.config_path, **self.arguments)  # type: ignore[arg-type]
        except ProbeConfigError as error:
            return replace(
                self, dump_enable=False, notes=(f"collecting is off until this is put right: {error}",)
            )
        # As in msProbe: taking the key out of the file leaves the switch where it stands.
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
    path = None if config_path is None else _path(config_path, "config_path")
    top = Section(str(path), read_config_file(path) if path else {})
    top.check_keys(KEYS)
    arguments = {"task": task, "dump_path": dump_path, "level": level, "step": step}
    given = _given(arguments)
    notes: list[str] = []

    for key, (reason, instead) in REFUSED_KEYS.items():
        if top.values.get(key) not in OFF_VALUES:
            raise ProbeConfigError(f'{top.source}: "{key}" is not supported: {reason}', hint=instead)
    _note_unused(top, UNUSED_KEYS, notes)

    task_named, task = _task(given if "task" in given.values else top)
    sections = {name: _section(top, name) for name in SECTION_KEYS if name in top.values}
    chosen = sections.get(task_named, Section(top.source, {}, f"{task_named}."))
    _note_unused(chosen, UNUSED_SECTION_KEYS, notes)
    level = (given if "level" in given.values else top).choice("level", LEVELS, "L1")
    level = _level_for(task, level, notes)
    summary_mode = _summary_mode(chosen, notes)
    bench_path = _bench_path(chosen)
    if task_named == "diff_check" and bench_path is None:
        raise ProbeConfigError(
            f'{top.source}: task "diff_check" needs "diff_check.bench_path"',
            hint='give the folder of an earlier dump made with summary_mode "md5"',
        )
    return ProbeConfig(
        framework=framework,
        task=task,
        level=level,
        dump_path=_dump_path(given if "dump_path" in given.values else top),
        ranks=_numbers(top, "rank"),
        steps=_numbers(given if "step" in given.values else top, "step"),
        summary_mode=summary_mode,
        data_mode=_data_mode(chosen),
        scope=_scope(chosen, level, notes),
        list=_wanted_names(chosen, "list", level, notes),
        tensor_list=_wanted_names(chosen, "tensor_list", level, notes),
        slices=_slices(chosen, level, notes),
        request_id=chosen.text("request_id"),
        bench_path=bench_path,
        diff_nums=chosen.count("diff_nums", 1),
        overflow_nums=chosen.count("overflow_nums", 1),
        async_dump=top.flag("async_dump", False),
        extra_info=top.flag("extra_info", True),
        precision=top.choice("precision", PRECISIONS, chosen.choice("precision", PRECISIONS, "low")),
        risk_level=top.choice("risk_level", RISK_LEVELS, "FOCUS"),
        dump_enable=top.flag("dump_enable", False) if "dump_enable" in top.values else None,
        custom_op_namespaces=top.names("custom_op_namespaces")
        if "custom_op_namespaces" in top.values
        else ("_C_ascend",),
        file_format=_file_format(framework, top, chosen, notes),
        strict_json=top.flag("strict_json", False),
        api_list=_api_list(top),
        flush_seconds=top.seconds("flush_seconds", 1.0, _LONGEST_FLUSH_SECONDS),
        config_path=path,
        notes=tuple(notes),
        arguments=arguments,
    )


def _path(value: object, key: str) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise ProbeConfigError(f"{_ARGUMENTS}: {key} is {value!r:.80}", hint="it must be a path")
    return Path(value).expanduser()


def _given(arguments: Mapping[str, object]) -> Section:
    """The arguments that were given, as if they stood in a file."""
    values = {key: value for key, value in arguments.items() if value is not None and value != ""}
    if isinstance(values.get("dump_path"), os.PathLike):
        values["dump_path"] = os.fspath(values["dump_path"])  # type: ignore[arg-type]
    if isinstance(values.get("step"), (tuple, range)):
        values["step"] = [*values["step"]]  # type: ignore[misc]
    return Section(_ARGUMENTS, values)


def _section(top: Section, name: str) -> Section:
    section = Section(top.source, top.values[name], f"{name}.")
    section.check_keys(SECTION_KEYS[name])
    return section


def _note_unused(section: Section, unused: Mapping[str, str], notes: list[str]) -> None:
    for key, sentence in unused.items():
        value = section.values.get(key)
        if value not in OFF_VALUES:
            notes.append(
                f'{section.source}: "{section.prefix}{key}" changes nothing: {sentence.format(value)}'
            )


def _task(section: Section) -> tuple[str, str]:
    """The task as named, and as it is called here."""
    named = section.values.get("task")
    if isinstance(named, str) and named in REFUSED_TASKS:
        reason, instead = REFUSED_TASKS[named]
        raise ProbeConfigError(f'{section.source}: task "{named}" is not supported: {reason}', hint=instead)
    named = section.choice("task", (*TASKS, *TASK_MEANS), "statistics")
    return named, TASK_MEANS.get(named, named)


def _level_for(task: str, level: str, notes: list[str]) -> str:
    if task == "structure" and level not in ("L0", "mix"):
        notes.append(
            f'task "structure" is collected at level "L0" or "mix", not "{level}": level "mix" is used'
        )
        return "mix"
    return level


def _dump_path(section: Section) -> Path:
    text = section.text("dump_path") or DEFAULT_DUMP_PATH
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise section.wrong("dump_path", "a path cannot hold this character")
    if len(encoded) > 4096 or any(len(part) > 255 for part in encoded.split(b"/")):
        raise section.wrong("dump_path", "a path has at most 4096 bytes, and 255 between two slashes")
    path = Path(os.path.abspath(os.path.expanduser(text)))
    if path.exists() and not path.is_dir():
        raise section.wrong("dump_path", "it is a file; give a folder")
    return path


def _numbers(section: Section, key: str) -> NumberSet | None:
    values = section.values.get(key, [])
    if not isinstance(values, list):
        raise section.wrong(key, f'it must be a list such as [0, 2, "4-6"]; [] means every {key}')
    if len(values) > LARGEST:
        raise ProbeConfigError(f'{section.source}: "{key}" has {len(values)} elements, more than {LARGEST}')
    try:
        return read_numbers(values)
    except ValueError as error:
        raise ProbeConfigError(
            f'{section.source}: "{key}": {error}', hint=f'allowed: whole numbers 0-{LARGEST}, "3" or "4-6"'
        ) from None


def _data_mode(section: Section) -> frozenset[str]:
    modes = frozenset(section.names("data_mode"))
    for mode in modes:
        if mode not in DATA_MODES:
            raise section.wrong("data_mode", f'"{mode[:40]}" is not one of {quoted(DATA_MODES)}')
    if "all" in modes:
        if len(modes) > 1:
            raise section.wrong("data_mode", '"all" stands alone')
        modes = frozenset()
    # As in msProbe, naming a side alone means both directions, and naming a direction alone both sides.
    return (
        modes
        | (frozenset() if modes & _SIDES else _SIDES)
        | (frozenset() if modes & _DIRECTIONS else _DIRECTIONS)
    )


def _summary_mode(section: Section, notes: list[str]) -> str:
    value = section.values.get("summary_mode")
    if not isinstance(value, list):
        return section.choice("summary_mode", SUMMARY_MODES, "statistics")
    for name in section.names("summary_mode"):
        if name not in STATISTIC_NAMES:
            raise section.wrong("summary_mode", f"allowed in a list: {quoted(STATISTIC_NAMES)}")
    mode = "md5" if any(STATISTIC_NAMES[name] == "md5" for name in value) else "statistics"
    notes.append(
        f'{section.source}: "{section.prefix}summary_mode" is a list: all statistics are written'
        + (", with a CRC-32 for its hash" if mode == "md5" else "")
    )
    return mode


def _scope(section: Section, level: str, notes: list[str]) -> tuple[str, str] | None:
    names = _wanted_names(section, "scope", level, notes)
    if not names:
        return None
    if len(names) != 2:
        raise section.wrong("scope", f"it must be the first and the last name; it has {len(names)}")
    pattern, example = {
        "L0": ((_MODULE_NAME,), '"Module.conv1.Conv2d.forward.0"'),
        "L1": ((_API_NAME,), '"Functional.conv2d.0.forward"'),
    }.get(
        level, ((_MODULE_NAME, _API_NAME), '"Functional.conv2d.0.forward" or "Module.conv1.Conv2d.forward.0"')
    )
    for name in names:
        if not any(one.fullmatch(name) for one in pattern):
            raise section.wrong(
                "scope", f'at level "{level}" a name is a whole one as in dump.json, such as {example}'
            )
    return names[0], names[1]


def _wanted_names(section: Section, key: str, level: str, notes: list[str]) -> tuple[str, ...]:
    names = section.names(key)
    if names and level == "debug":
        notes.append(f'{section.source}: "{section.prefix}{key}" changes nothing at level "debug"')
        return ()
    for name in names:
        fault = check_pattern(name) if key != "scope" else None
        if fault:
            raise section.wrong(key, f'of "{name[:40]}": {fault}')
    return names


def _slices(section: Section, level: str, notes: list[str]) -> tuple[Slice, ...]:
    values = section.values.get("slice", [])
    if not isinstance(values, list):
        raise section.wrong("slice", 'it must be a list such as [{"dim": 0, "begin": 0, "end": 8}]')
    found = []
    for at, value in enumerate(values):
        entry = Section(section.source, value, f"{section.prefix}slice[{at}].")
        entry.check_keys(("dim", "size", "begin", "end"))
        for key, number in entry.values.items():
            if not isinstance(number, int) or isinstance(number, bool):
                raise entry.wrong(key, "it must be a whole number")
            if key in ("dim", "size") and number < 0:
                raise entry.wrong(key, "it must be 0 or more")
        if entry.values:
            found.append(Slice(**entry.values))  # type: ignore[arg-type]
    if found and level not in ("L0", "L1", "mix"):
        notes.append(f'{section.source}: "{section.prefix}slice" changes nothing at level "{level}"')
        return ()
    return tuple(found)


def _bench_path(section: Section) -> Path | None:
    text = section.text("bench_path")
    if text is None:
        return None
    path = Path(text).expanduser()
    if not path.is_dir():
        raise section.wrong(
            "bench_path", "there is no such folder; give the dump_path of an earlier md5 dump"
        )
    return path.absolute()


def _file_format(framework: str, top: Section, chosen: Section, notes: list[str]) -> str:
    default = DEFAULT_FILE_FORMAT[framework]
    if "file_format" in top.values:
        return top.choice("file_format", FILE_FORMATS, default)
    named = chosen.choice("file_format", (*FILE_FORMATS, "bin"), default)
    # Old configs carry "tensor": {"file_format": "npy"}, which only MindSpore's graph mode ever read.
    if named != default:
        notes.append(
            f'{chosen.source}: "{chosen.prefix}file_format" changes nothing: files are .{default}; '
            'the key works at the top level, where "pt" and "npy" are allowed'
        )
    return default


def _api_list(top: Section) -> frozenset[tuple[str, str]] | None:
    text = top.text("api_list")
    return None if text is None else read_api_list(Path(text).expanduser())
