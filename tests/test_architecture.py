"""The arrows of ARCHITECTURE.md as a table, and the rules of the code base that a reader can rely on.

Every file under src/windtunnel is parsed, none is imported: a rule is kept or broken by what is written.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "windtunnel"

# room -> the rooms it may import from: `memory` is the files that lie in it itself, `memory.*` all of its sub-rooms
MAY_IMPORT: dict[str, set[str]] = {
    "events": set(),
    "isolation": set(),
    # what runs the user's program
    "capture": {"events", "isolation"},
    "capture.pytorch": {"capture", "capture.pytorch.*", "events"},
    "capture.pytorch.tensors": {"capture", "events"},
    "capture.pytorch.kernels": {"capture.pytorch.tensors", "events"},
    "capture.pytorch.packages": {"capture.pytorch.kernels", "capture.pytorch.tensors"},
    "capture.pytorch.compiler": {"capture", "capture.pytorch.kernels", "capture.pytorch.tensors", "events"},
    "capture.pytorch.torch_api": {
        "capture", "capture.pytorch.kernels", "capture.pytorch.packages", "capture.pytorch.tensors", "events",
        "isolation",
    },
    "capture.pytorch.world": {"capture", "capture.pytorch.kernels", "capture.pytorch.tensors", "events"},
    "capture.mindspore": {"capture", "capture.mindspore.cann", "capture.mindspore.tracker", "events"},
    "capture.mindspore.cann": set(),
    "capture.mindspore.tracker": {"events"},
    "capture.mindspore.meta": {"capture", "capture.mindspore", "capture.mindspore.tracker"},
    # what turns events into numbers
    "cluster": {"events"},
    "memory": {"events", "memory.allocators"},
    "memory.allocators": {"memory.allocators.models"},  # the table of models by name, imported late
    "memory.allocators.cuda": {"memory.allocators"},
    "memory.allocators.models": {"memory.allocators", "memory.allocators.cuda"},
    "memory.files": {"events", "memory", "memory.allocators"},
    "memory.mindspore_graph": {"memory"},
    "memory.workspace": {"events"},
    "memory.what_if": {
        "events", "memory", "memory.allocators", "memory.allocators.cuda", "memory.files", "memory.mindspore_graph",
        "memory.workspace",
    },
    "timing": {"events", "timing.operators", "timing.roofline"},
    "timing.operators": {"events"},
    "timing.roofline": {"events", "timing.operators"},
    "timing.network": {"events"},
    "timing.measured": {"events", "timing.operators", "timing.roofline"},
    "timing.pytorch": {"events", "timing.measured", "timing.operators"},
    "remat": set(),
    "remat.simulated": {"events", "memory", "remat", "timing"},
    "remat.advisor": {"events", "memory", "remat", "remat.simulated"},
    "remat.pytorch": {"events", "remat", "timing"},
    # collecting and comparing meet nowhere but on disk
    "probe": set(),
    "probe.config": set(),
    "probe.files": set(),
    "probe.measure": {"probe.files"},
    "probe.collect": {"probe.config", "probe.files", "probe.measure"},
    "probe.pytorch": {"probe.collect", "probe.pytorch.*"},
    "probe.pytorch.eager": {"probe.collect", "probe.config", "probe.files", "probe.measure"},
    "probe.pytorch.compiled": {"probe.collect", "probe.files", "probe.pytorch.eager"},
    "probe.mindspore": {"probe.collect", "probe.mindspore.*"},
    "probe.mindspore.pynative": {"probe.collect", "probe.config", "probe.files", "probe.measure"},
    "probe.mindspore.graph": {
        "probe.collect", "probe.config", "probe.files", "probe.measure", "probe.mindspore.pynative",
    },
    "probe.compare": {"probe.files"},
    # what turns numbers into text and pictures
    "report": {"memory", "report.results"},
    "report.results": {
        "cluster", "events", "isolation", "memory", "probe.compare", "remat", "remat.simulated", "timing",
        "timing.operators",
    },
    "report.json": {
        "cluster", "isolation", "memory", "probe.compare", "remat.simulated", "report", "report.results", "timing",
    },
    "report.terminal": {
        "cluster", "isolation", "memory", "memory.files", "memory.what_if", "probe.compare", "remat.advisor",
        "remat.simulated", "report", "report.results", "timing",
    },
    "report.pictures": {"memory", "remat.advisor", "remat.simulated", "report.results"},
    "report.page": {
        "events", "memory", "probe.compare", "remat.advisor", "report", "report.json", "report.results",
        "report.terminal",
    },
    "report.trace": {"cluster", "events", "memory", "report", "report.page"},
    # one dry run, from request to report; and the verbs
    "session": {
        "capture", "cluster", "events", "isolation", "memory", "memory.*", "report", "report.*", "session.launchers",
        "timing", "timing.*",
    },
    "session.launchers": {"capture", "isolation"},
    "session.launchers.pytorch": set(),
    "session.launchers.mindspore": set(),
    "commands": {
        "capture", "events", "memory", "memory.*", "probe.compare", "probe.files", "remat", "remat.advisor",
        "remat.simulated", "report", "report.*", "session", "session.launchers", "timing",
    },
}  # fmt: skip
# Files beside the rooms that any file may import; they import only each other.
GROUND = {
    "caches", "errors", "exit_codes", "units", "devices", "frameworks", "mocking", "torch_custom_saves", "torch_compatibility",
    "pool_streams", "foreign_files", "foreign_pickles", "interrupts", "msprobe_imports", "terminal_text", "whole_file",
}  # fmt: skip
# The public doors: they may reach into every room, and no room imports them.
DOORS = {"__init__", "__main__", "dryrun", "dtr", "pytorch", "mindspore", "msprobe"}

# The package in which a framework may be imported; of the files beside the rooms, those whose name begins with `torch_`.
FRAMEWORKS = {
    "pytorch": {"torch", "transformers", "accelerate", "megatron", "deepspeed"},
    "mindspore": {"mindspore"},
}
IMPORTLIB_FILE = "frameworks.py"
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}
LONGEST = 600  # lines
MOST_FILES = 30  # of a folder
DEEPEST = 2  # levels of packages below a room

# Private names that one file borrows from its neighbour in the same room; the list may only shrink.
BORROWED: set[str] = set()

SOURCES = {
    path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))
}


@cache
def trees() -> dict[Path, ast.Module]:
    """Parsed when a test asks: every worker of the suite imports this file."""
    return {path: ast.parse(text, str(path)) for path, text in SOURCES.items()}


def test_every_room_is_in_the_table():
    assert {_room(path) for path in trees() if len(path.parts) > 1} == set(MAY_IMPORT)
    assert {path.stem for path in trees() if len(path.parts) == 1} == GROUND | DOORS


def test_imports_follow_the_arrows():
    assert _against_the_arrows(trees()) == []


@pytest.mark.parametrize(
    ("path", "line"),
    [
        ("probe/compare/pairing.py", "from windtunnel.probe.collect.collector import Collector"),
        ("probe/files/journal.py", "from windtunnel.probe.compare import pairing"),
        ("probe/measure/sketch.py", "import windtunnel.probe.collect.collector"),
        ("capture/pytorch/rank.py", "from windtunnel.capture.mindspore.rank import run_rank"),
        ("capture/pytorch/kernels/attention.py", "from windtunnel.capture.pytorch.world import work"),
        ("session/world.py", "from windtunnel.commands.run import run"),
        ("memory/peak.py", "from windtunnel.memory.files.snapshot_reader import read_snapshot"),
        ("memory/peak.py", "from windtunnel.capture.task import RankTask"),
        ("report/results/run.py", "from windtunnel.report.page import web_page"),
        ("events/model.py", "from windtunnel.dryrun import dry_run"),
    ],
)
def test_an_import_against_the_arrows_is_found(path, line):
    assert Path(path) in trees()
    (found,) = _against_the_arrows({Path(path): ast.parse(line)})
    assert found.startswith(f"{path}:1 windtunnel.")


def test_a_framework_is_imported_only_in_a_package_named_after_it():
    assert _misplaced_frameworks(trees()) == []
    misplaced = {
        Path("memory/peak.py"): ast.parse("import torch"),
        Path("capture/pytorch/rank.py"): ast.parse("import mindspore"),
        Path("probe/mindspore/graph/taps.py"): ast.parse("from torch import nn"),
        Path("units.py"): ast.parse("import torch"),
    }
    assert len(_misplaced_frameworks(misplaced)) == 4


def test_modules_are_imported_by_name_in_one_place_only():
    """An import inside a string cannot be checked, so there is a single place for them."""
    wrong = []
    for path, tree in trees().items():
        if path.name != IMPORTLIB_FILE:
            wrong += [
                f"{path}:{line} {name}" for line, name in _imports(tree) if name.startswith("importlib")
            ]
            wrong += [f"{path}:{line} __import__" for line in _calls(tree, "__import__")]
    assert wrong == []


def test_print_is_called_only_by_commands():
    outside = {path: tree for path, tree in trees().items() if _home(path) != "commands"}
    assert [f"{path}:{line}" for path, tree in outside.items() for line in _calls(tree, "print")] == []


def test_names_of_files_say_what_is_inside():
    assert [str(path) for path in trees() if BANNED_NAMES & set(path.stem.split("_"))] == []


def test_folders_are_small_and_not_deep():
    files = [path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    n_files = Counter(
        path.parent.relative_to(PACKAGE) for path in files if path.suffix not in (".so", ".pyc")
    )
    assert {str(folder): n for folder, n in n_files.items() if n > MOST_FILES} == {}
    assert [str(path) for path in trees() if len(path.parts) - 2 > DEEPEST] == []


def test_no_file_is_too_long_to_read():
    lengths = {str(path): len(text.splitlines()) for path, text in SOURCES.items()}
    assert {path: n for path, n in lengths.items() if n > LONGEST} == {}


def test_every_module_says_what_it_is_for():
    assert [str(path) for path, tree in trees().items() if tree.body and not ast.get_docstring(tree)] == []


def test_all_lists_what_is_really_there():
    wrong = []
    for path, tree in trees().items():
        if not tree.body:
            continue  # an empty door
        exported = _exported(tree)
        if exported is None:
            wrong.append(f"{path} has no __all__")
        elif path != Path("__init__.py"):  # whose names load on first use: see the last test
            wrong += [f"{path} has no {name}" for name in exported if name not in _bound_names(tree)]
            wrong += [f"{path} lists {name} twice" for name in exported if exported.count(name) > 1]
    assert wrong == []


def test_a_name_with_an_underscore_stays_in_its_file():
    borrowed = {
        name
        for tree in trees().values()
        for _, name in _imports(tree)
        if name.startswith("windtunnel.") and name.split(".")[-1].startswith("_") and not name.endswith("__")
    }
    assert borrowed <= BORROWED


def test_imports_are_written_in_full():
    names = [(path, name) for path, tree in trees().items() for _, name in _imports(tree)]
    assert [f"{path} {name}" for path, name in names if name.startswith(".") or name.endswith(".*")] == []


def test_importing_windtunnel_exports_exactly_its_names():
    import windtunnel

    assert windtunnel.__all__ == sorted(windtunnel.__all__)
    for name in windtunnel.__all__:
        assert getattr(windtunnel, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        windtunnel.no_such_name  # noqa: B018


def _room(path: Path) -> str:
    """The package of a file: probe/pytorch/eager/apis.py -> probe.pytorch.eager."""
    return ".".join(path.parts[:-1])


def _against_the_arrows(trees: Mapping[Path, ast.Module]) -> list[str]:
    wrong = []
    for path, tree in trees.items():
        room = _room(path)
        if not room and path.stem in DOORS:
            continue
        allowed = MAY_IMPORT.get(room, set()) | {room}
        for line, name in _imports(tree):
            target = _room_of(name)
            if target is None or target in allowed:
                continue
            if not any(each.endswith(".*") and target.startswith(each[:-1]) for each in allowed):
                wrong.append(f"{path}:{line} {name}")
    return wrong


def _room_of(name: str) -> str | None:
    """The room that an import reaches: windtunnel.memory.peak -> memory; None: not ours, or for everyone."""
    parts = name.split(".")
    if parts[0] != "windtunnel" or len(parts) < 2 or parts[1] in GROUND or parts[1].startswith("__"):
        return None
    if parts[1] in DOORS:
        return parts[1]
    n = 1
    while n < len(parts) and ".".join(parts[1 : n + 1]) in MAY_IMPORT:
        n += 1
    return ".".join(parts[1:n])


def _misplaced_frameworks(trees: Mapping[Path, ast.Module]) -> list[str]:
    every = set().union(*FRAMEWORKS.values())
    wrong = []
    for path, tree in trees.items():
        is_beside = len(path.parts) == 1 and path.stem.startswith("torch_")
        package = "pytorch" if is_beside else next((part for part in path.parts if part in FRAMEWORKS), "")
        others = every - FRAMEWORKS.get(package, set())
        wrong += [f"{path}:{line} {name}" for line, name in _imports(tree) if name.split(".")[0] in others]
    return wrong


def _home(path: Path) -> str:
    """The room of a file, or the name of a file beside the rooms."""
    return path.parts[0] if len(path.parts) > 1 else path.stem


def _imports(tree: ast.Module) -> list[tuple[int, str]]:
    """Line and full dotted name of everything a module imports, wherever in it."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            found += [(node.lineno, f"{module}.{alias.name}") for alias in node.names]
    return found


def _calls(tree: ast.Module, function: str) -> list[int]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [call.lineno for call in calls if isinstance(call.func, ast.Name) and call.func.id == function]


def _exported(tree: ast.Module) -> list[str] | None:
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return [ast.literal_eval(element) for element in node.value.elts]
    return None


def _bound_names(tree: ast.Module) -> set[str]:
    """Names a module binds at its top level."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(alias.asname or alias.name).split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.If, ast.For, ast.Try)):
            found |= {
                n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
    return found
