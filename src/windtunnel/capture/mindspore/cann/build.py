"""Compile the loader stubs: one library with every symbol, one thin library per other soname, and two of our own.

WantedFromCann ──> generated C++ + stubs.cc ──────> libascendcl.so
                                                └──> thin libraries that link to it
marks.cc ──────────────────────────────────────────> libwindtunnel_marks.so
repairs.cc ────────────────────────────────────────> libwindtunnel_repairs.so
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from windtunnel.capture.mindspore.cann.symbols import CANN_LIBRARY, WantedFromCann
from windtunnel.errors import NoToolchain

__all__ = ["MARKS_LIBRARY", "REPAIRS_LIBRARY", "SOURCES", "build_stubs", "find_compiler"]

MARKS_LIBRARY = "libwindtunnel_marks.so"
REPAIRS_LIBRARY = "libwindtunnel_repairs.so"
SOURCES = tuple(Path(__file__).with_name(name) for name in ("stubs.cc", "marks.cc", "repairs.cc"))
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 300  # a compiler that takes longer than this for 1,000 empty functions will not finish
_OPTIONS = "-std=c++14 -O1 -fPIC -shared -w -fno-builtin -Wl,-z,noexecstack -Wl,--build-id=none -Wl,--as-needed".split()

# The bytes that a constructor of these classes must zero: a smart pointer, in Operator after the virtual table.
# A class that is not listed is only a registration and has no members.
_OBJECT_BYTES = {
    "Operator": 24,
    **dict.fromkeys("AscendString Shape TensorDesc Tensor Graph GNode Session TensorType".split(), 16),
    **dict.fromkeys("GraphBuffer Promote".split(), 8),
}
_CONSTRUCTOR = re.compile(r"_ZN2ge(\d+)(\w+)")
# These return the object, so that calls can be chained.
_CHAINED = re.compile(r"_ZN2ge(?:8Operator|5Graph|10TensorDesc)")
# Attributes never exist: ge::GRAPH_FAILED, and the caller's value is unchanged.
_ABSENT = re.compile(r"_ZNK2ge8Operator7GetAttrE")
_DATA = ("_ZTV", "_ZTI", "_ZTS")


def find_compiler() -> list[str]:
    """The C++ compiler to use: $CXX, else the first of c++, g++ and clang++."""
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if shutil.which(command[0]):
            return command
    missing = f"$CXX, {chosen[0]}, is not" if chosen else f"none of {', '.join(_COMPILERS)} is"
    raise NoToolchain(
        f"MindSpore's Ascend plugin needs loader stubs, but no C++ compiler was found ({missing} in PATH)",
        hint="install g++ (apt install g++, or conda install gxx)",
    )


def build_stubs(wanted: WantedFromCann, folder: Path) -> None:
    """Write every library into `folder`/lib."""
    compiler = find_compiler()
    libraries = folder / "lib"
    libraries.mkdir(parents=True)
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(wanted.cxx11_strings)}"
    generated = folder / "symbols.cc"
    generated.write_text("\n".join(_stub_lines(wanted.symbols)), encoding="utf-8")
    behaviour, marks, repairs = map(str, SOURCES)
    _compile(
        compiler, libraries / CANN_LIBRARY, abi, str(generated), behaviour, _only(folder, wanted.symbols)
    )
    _compile(compiler, libraries / MARKS_LIBRARY, abi, marks, "-ldl", _only(folder, ["windtunnel_*"]))
    _compile(compiler, libraries / REPAIRS_LIBRARY, abi, repairs, "-ldl", _only(folder, ["_ZN9mindspore*"]))
    for name in wanted.libraries:
        if name != CANN_LIBRARY:
            # dlsym on a handle also searches the library's dependencies, so a thin library has every symbol.
            needs = ("-Wl,--no-as-needed", f"-L{libraries}", f"-l:{CANN_LIBRARY}", "-Wl,-rpath,$ORIGIN")
            _compile(compiler, libraries / name, "-nostdlib", "-x", "c++", os.devnull, "-x", "none", *needs)


def _only(folder: Path, symbols: Iterable[str]) -> str:
    """The linker option that exports only these: other libraries must not use the std::string in ours."""
    script = folder / "exports.map"
    script.write_text("{ global: " + "; ".join(("none", *symbols)) + "; local: *; };\n", encoding="utf-8")
    return f"-Wl,--version-script={script}"


def _stub_lines(symbols: tuple[str, ...]) -> Iterator[str]:
    """C++ that defines each name as a weak C function: a mangled name is an identifier like any other."""
    yield 'extern "C" {'
    for name in symbols:
        if name.startswith(_DATA):
            yield f"__attribute__((weak)) void *{name}[32];"
            continue
        yield f"__attribute__((weak)) void *{name}(char *self) {{ {_body(name)} }}"
    yield "}\n"


def _body(name: str) -> str:
    n_bytes = _constructed_bytes(name)
    if n_bytes is not None:
        return f"for (int i = 0; i < {n_bytes}; ++i) self[i] = 0; return self;"
    if _ABSENT.match(name):
        return "return (void *)0xFFFFFFFFul;"
    return "return self;" if _CHAINED.match(name) else "return 0;"


def _constructed_bytes(name: str) -> int | None:
    """The bytes that a constructor sets, None if the function is not one: _ZN2ge5ShapeC1Ev -> 16."""
    match = _CONSTRUCTOR.match(name)
    if not match:
        return None
    length = int(match[1])
    class_name, rest = match[2][:length], match[2][length:]
    return _OBJECT_BYTES.get(class_name, 0) if re.match(r"C[12]E", rest) else None


def _compile(compiler: list[str], output: Path, *arguments: str) -> None:
    command = [*compiler, *_OPTIONS, f"-Wl,-soname,{output.name}", "-o", str(output), *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoToolchain(f"the compiler {compiler[0]} could not be run: {error}", hint=_SET_CXX) from error
    if done.returncode or not output.exists():
        raise NoToolchain(
            f"the compiler {compiler[0]} failed on {output.name}: {_first_error(done.stderr)}", hint=_SET_CXX
        )


_SET_CXX = "set CXX to a working C++ compiler"


def _first_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return next(
        (line for line in lines if "error" in line.lower()), lines[0] if lines else "it printed nothing"
    )
