"""Find what the Ascend plugin of a MindSpore wheel needs from CANN, from the wheel itself.

    plugin libraries ──> libraries and symbols that the wheel does not contain ──> WantedFromCann
                    └──> names in their text that they look up at run time ──────┘

Nothing depends on one version: a new wheel needs other names, and they are found the same way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from windtunnel.capture.mindspore.cann.elf_reader import ElfLibrary, read_library
from windtunnel.errors import CorruptFile, NoToolchain

__all__ = ["CANN_LIBRARY", "WantedFromCann", "plugin_of", "wanted_from_cann"]

CANN_LIBRARY = "libascendcl.so"  # MindSpore finds CANN's folder by where this one is

# Names of CANN's functions: aclInit, aclrtMalloc, aclnnMatmul, HcclAllReduce, rtKernelLaunch, halHostRegister.
_CALL = rb"(?:acl[a-z]*|Hccl|Hcom|Msprof|rt|hal|ge)[A-Z]\w{1,120}"
# Libraries are opened by their path below CANN's folder.
_OPENED = rb"/?lib64/lib\w{1,60}\.so"
# Separate packages that MindSpore does not require: a plugin library that needs one fails to load, as it does where
# CANN is installed without them.
_ADD_ONS = ("libatb", "libacl_dvpp")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # valid in C; a mangled name is one
_SYSTEM_FOLDERS = ("/lib", "/usr/lib", "/lib64", "/usr/lib64")
_MACHINES = {62: "x86_64", 183: "aarch64"}


@dataclass(frozen=True, slots=True)
class WantedFromCann:
    """Everything the loader will ask for."""

    machine: str
    libraries: tuple[str, ...]  # sonames
    symbols: tuple[str, ...]  # linked or looked up by name
    cxx11_strings: bool  # which of libstdc++'s two std::string the wheel was built with


def plugin_of(mindspore_folder: Path) -> Path:
    """The main library of the Ascend plugin."""
    found = sorted((mindspore_folder / "lib" / "plugin").glob("libmindspore_ascend.so*"))
    if not found:
        raise NoToolchain(
            f"the MindSpore in {mindspore_folder} has no Ascend plugin (lib/plugin/libmindspore_ascend.so*)",
            hint="install the Linux wheel of mindspore 2.10 or later, which contains it",
        )
    return found[-1]


def wanted_from_cann(mindspore_folder: Path) -> WantedFromCann:
    """Follow the dependencies of the plugin's libraries and collect what the wheel does not contain."""
    main = read_library(plugin_of(mindspore_folder))
    machine = _MACHINES.get(main.machine)
    if machine is None:
        raise NoToolchain(
            f"{main.path.name} is built for machine {main.machine}; the stubs support {', '.join(_MACHINES.values())}"
        )
    shipped = {path.name: path for path in _shipped_libraries(mindspore_folder)}
    plugins = (_read_root(path) for path in _plugin_libraries(mindspore_folder))
    roots = [root for root in plugins if root is not None and root.machine == main.machine]
    roots = [root for root in roots if not any(name.startswith(_ADD_ONS) for name in root.needed)]
    loaded = _with_what_they_need(roots, shipped)
    others = {name for library in loaded for name in library.needed if name not in shipped}
    system = {name: path for name in others if (path := _system_library(name, machine))}
    defined = _union(library.defined for library in loaded) | _union(
        read_library(path).defined for path in system.values()
    )
    lacking = _union(library.lacking for library in loaded) - defined
    linked = {name for name in lacking if not name.startswith(("Py", "_Py"))}  # the interpreter has these
    texts = {text for root in roots for text in root.printable}
    opened = {text.rpartition("/")[2] for text in texts if "/" in text}
    called = {text for text in texts if "/" not in text} - defined
    return WantedFromCann(
        machine=machine,
        libraries=tuple(sorted((others | opened | {CANN_LIBRARY}) - system.keys() - shipped.keys())),
        symbols=tuple(sorted(name for name in linked | called if _IDENTIFIER.fullmatch(name))),
        cxx11_strings=any("__cxx11" in name for name in linked),
    )


def _plugin_libraries(mindspore_folder: Path) -> list[Path]:
    plugin = mindspore_folder / "lib" / "plugin"
    patterns = ("libmindspore_*ascend*.so*", "ascend/*.so*", "ascend/*/op_api/lib/*.so*")
    return sorted(path for pattern in patterns for path in plugin.glob(pattern))


def _shipped_libraries(mindspore_folder: Path) -> Iterable[Path]:
    yield from mindspore_folder.glob("*.so*")
    yield from (mindspore_folder / "lib").rglob("*.so*")


def _read_root(path: Path) -> ElfLibrary | None:
    try:
        return read_library(path, pattern=_CALL + rb"|" + _OPENED)
    except CorruptFile:
        return None  # MindSpore cannot load it either, with or without stubs


def _with_what_they_need(roots: list[ElfLibrary], shipped: dict[str, Path]) -> list[ElfLibrary]:
    loaded = {root.path: root for root in roots}
    queue = list(roots)
    while queue:
        for name in queue.pop().needed:
            path = shipped.get(name)
            if path is not None and path not in loaded:
                loaded[path] = read_library(path)
                queue.append(loaded[path])
    return list(loaded.values())


def _system_library(soname: str, machine: str) -> Path | None:
    folders = [*_SYSTEM_FOLDERS, *(f"{folder}/{machine}-linux-gnu" for folder in _SYSTEM_FOLDERS[:2])]
    return next((path for folder in folders if (path := Path(folder) / soname).exists()), None)


def _union(sets: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*sets)
