"""Each value of a probe's config, from what the user wrote to what the probe works with.

Section ──> data_mode_of, scope_of, slices_of, ... ──> a checked value, or ProbeConfigError; remarks go into `notes`
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path

from windtunnel.errors import ProbeConfigError
from windtunnel.probe.config.api_list import read_api_list
from windtunnel.probe.config.name_patterns import check_pattern
from windtunnel.probe.config.number_sets import LARGEST, NumberSet, read_numbers
from windtunnel.probe.config.section_reader import Section, quoted
from windtunnel.probe.config.slices import Slice
from windtunnel.probe.config.vocabulary import (
    DATA_MODES,
    DEFAULT_DUMP_PATH,
    DEFAULT_FILE_FORMAT,
    FILE_FORMATS,
    REFUSED_TASKS,
    SECTION_KEYS,
    STATISTIC_NAMES,
    SUMMARY_MODES,
    TASK_MEANS,
    TASKS,
)

__all__ = [
    "api_list_of",
    "bench_path_of",
    "data_mode_of",
    "dump_path_of",
    "file_format_of",
    "given_section",
    "is_off",
    "level_for",
    "names_of",
    "note_unused",
    "numbers_of",
    "path_of",
    "scope_of",
    "slices_of",
    "summary_mode_of",
    "task_of",
    "task_section",
]

_ARGUMENTS = "PrecisionDebugger's arguments"
_SIDES = frozenset(("input", "output"))
_DIRECTIONS = frozenset(("forward", "backward"))
_API_NAME = re.compile(r"(?!Module\.|Cell\.)[^.]+\..+\.[0-9]+\.(forward|backward)", re.DOTALL)
_MODULE_NAME = re.compile(r"(Module|Cell)\..+\.(forward|backward)\.[0-9]+", re.DOTALL)


def path_of(value: object, key: str) -> Path:
    if not isinstance(value, (str, os.PathLike)):
        raise ProbeConfigError(f"{_ARGUMENTS}: {key} is {value!r:.80}", hint="it must be a path")
    return Path(value).expanduser()


def given_section(arguments: Mapping[str, object]) -> Section:
    """The arguments that were given, as if they were in a file."""
    values = {key: value for key, value in arguments.items() if value is not None and value != ""}
    dump_path, step = values.get("dump_path"), values.get("step")
    if isinstance(dump_path, os.PathLike):
        values["dump_path"] = os.fspath(dump_path)
    if isinstance(step, (tuple, range)):
        values["step"] = [*step]
    return Section(_ARGUMENTS, values)


def task_section(top: Section, name: str) -> Section:
    section = Section(top.source, top.values[name], f"{name}.")
    section.check_keys(SECTION_KEYS[name])
    return section


def is_off(value: object) -> bool:
    """Whether a value says nothing, so that leaving it out needs no sentence."""
    return value is None or value is False or value in ("", [], {})


def note_unused(section: Section, unused: Mapping[str, str], notes: list[str]) -> None:
    for key, sentence in unused.items():
        value = section.values.get(key)
        if not is_off(value):
            notes.append(f'{section.source}: "{section.prefix}{key}" has no effect: {sentence.format(value)}')


def task_of(section: Section) -> tuple[str, str]:
    """The task as named, and as it is called here."""
    named = section.values.get("task")
    if isinstance(named, str) and named in REFUSED_TASKS:
        reason, instead = REFUSED_TASKS[named]
        raise ProbeConfigError(f'{section.source}: task "{named}" is not supported: {reason}', hint=instead)
    named = section.choice("task", (*TASKS, *TASK_MEANS), "statistics")
    return named, TASK_MEANS.get(named, named)


def level_for(task: str, level: str, notes: list[str]) -> str:
    if task == "structure" and level not in ("L0", "mix"):
        notes.append(
            f'task "structure" is collected at level "L0" or "mix", not "{level}": level "mix" is used'
        )
        return "mix"
    return level


def dump_path_of(section: Section) -> Path:
    text = section.values.get("dump_path") or DEFAULT_DUMP_PATH
    if not isinstance(text, str):
        raise section.wrong("dump_path", "it must be the path of a folder")
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        encoded = b"\0"
    if b"\0" in encoded:
        raise section.wrong("dump_path", "a path cannot contain this character")
    if len(encoded) > 4096 or any(len(part) > 255 for part in encoded.split(b"/")):
        raise section.wrong("dump_path", "a path has at most 4096 bytes, and each component at most 255")
    path = Path(os.path.abspath(os.path.expanduser(text)))
    if path.exists() and not path.is_dir():
        raise section.wrong("dump_path", "it is a file; pass a folder")
    return path


def numbers_of(section: Section, key: str) -> NumberSet | None:
    values = section.values.get(key, [])
    if not isinstance(values, list):
        raise section.wrong(key, f'it must be a list such as [0, 2, "4-6"]; [] means every {key}')
    if len(values) > LARGEST:
        raise ProbeConfigError(f'{section.source}: "{key}" has {len(values)} elements, more than {LARGEST}')
    try:
        return read_numbers(values)
    except ValueError as error:
        raise ProbeConfigError(
            f'{section.source}: "{key}": {error}', hint=f'allowed: integers from 0 to {LARGEST}, "3" or "4-6"'
        ) from None


def data_mode_of(section: Section) -> frozenset[str]:
    modes = frozenset(section.names("data_mode"))
    for mode in modes:
        if mode not in DATA_MODES:
            raise section.wrong("data_mode", f'"{mode[:40]}" is not one of {quoted(DATA_MODES)}')
    if "all" in modes:
        if len(modes) > 1:
            raise section.wrong("data_mode", '"all" cannot be combined with others')
        modes = frozenset()
    # As in msProbe, "input" or "output" alone means both directions, and "forward" or "backward" alone both sides.
    return (
        modes
        | (frozenset() if modes & _SIDES else _SIDES)
        | (frozenset() if modes & _DIRECTIONS else _DIRECTIONS)
    )


def summary_mode_of(section: Section, notes: list[str]) -> str:
    value = section.values.get("summary_mode")
    if not isinstance(value, list):
        return section.choice("summary_mode", SUMMARY_MODES, "statistics")
    for name in section.names("summary_mode"):
        if name not in STATISTIC_NAMES:
            raise section.wrong("summary_mode", f"allowed in a list: {quoted(STATISTIC_NAMES)}")
    mode = "md5" if any(STATISTIC_NAMES[name] == "md5" for name in value) else "statistics"
    notes.append(
        f'{section.source}: "{section.prefix}summary_mode" is a list: all statistics are written'
        + (", with a CRC-32 as the hash" if mode == "md5" else "")
    )
    return mode


def scope_of(section: Section, level: str, notes: list[str]) -> tuple[str, str] | None:
    names = names_of(section, "scope", level, notes)
    if not names:
        return None
    if len(names) != 2:
        raise section.wrong("scope", f"it must hold two names, the first and the last; it has {len(names)}")
    pattern, example = {
        "L0": ((_MODULE_NAME,), '"Module.conv1.Conv2d.forward.0"'),
        "L1": ((_API_NAME,), '"Functional.conv2d.0.forward"'),
    }.get(
        level, ((_MODULE_NAME, _API_NAME), '"Functional.conv2d.0.forward" or "Module.conv1.Conv2d.forward.0"')
    )
    for name in names:
        if not any(one.fullmatch(name) for one in pattern):
            raise section.wrong(
                "scope", f'at level "{level}" a name must be complete as in dump.json, such as {example}'
            )
    return names[0], names[1]


def names_of(section: Section, key: str, level: str, notes: list[str]) -> tuple[str, ...]:
    names = section.names(key)
    if names and level == "debug":
        notes.append(f'{section.source}: "{section.prefix}{key}" has no effect at level "debug"')
        return ()
    for name in names:
        fault = check_pattern(name) if key != "scope" else None
        if fault:
            raise section.wrong(key, f'of "{name[:40]}": {fault}')
    return names


def slices_of(section: Section, level: str, notes: list[str]) -> tuple[Slice, ...]:
    values = section.values.get("slice", [])
    if not isinstance(values, list):
        raise section.wrong("slice", 'it must be a list such as [{"dim": 0, "begin": 0, "end": 8}]')
    found = []
    for at, value in enumerate(values):
        entry = Section(section.source, value, f"{section.prefix}slice[{at}].")
        entry.check_keys(("dim", "size", "begin", "end"))
        for key, number in entry.values.items():
            if not isinstance(number, int) or isinstance(number, bool):
                raise entry.wrong(key, "it must be an integer")
            if key in ("dim", "size") and number < 0:
                raise entry.wrong(key, "it must be 0 or more")
        if entry.values:
            found.append(Slice(**entry.values))
    if found and level not in ("L0", "L1", "mix"):
        notes.append(f'{section.source}: "{section.prefix}slice" has no effect at level "{level}"')
        return ()
    return tuple(found)


def bench_path_of(section: Section) -> Path | None:
    text = section.text("bench_path")
    if text is None:
        return None
    path = Path(text).expanduser()
    if not path.is_dir():
        raise section.wrong(
            "bench_path", "there is no such folder; pass the dump_path of an earlier md5 dump"
        )
    return path.absolute()


def file_format_of(framework: str, top: Section, chosen: Section, notes: list[str]) -> str:
    default = DEFAULT_FILE_FORMAT[framework]
    if "file_format" in top.values:
        return top.choice("file_format", FILE_FORMATS, default)
    named = chosen.choice("file_format", (*FILE_FORMATS, "bin"), default)
    # Old configs carry "tensor": {"file_format": "npy"}, which only MindSpore's graph mode ever read.
    if named != default:
        notes.append(
            f'{chosen.source}: "{chosen.prefix}file_format" has no effect: files are .{default}; '
            'the key works at the top level, where "pt" and "npy" are allowed'
        )
    return default


def api_list_of(top: Section) -> frozenset[tuple[str, str]] | None:
    text = top.text("api_list")
    return None if text is None else read_api_list(Path(text).expanduser())
