"""The arrows of ARCHITECTURE.md as a table, and the house rules a reader should be able to rely on.

Every file under src/windtunnel is parsed, none is imported: a rule is kept or broken by what is written.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "windtunnel"

# room -> the rooms it may import from
MAY_IMPORT: dict[str, set[str]] = {
    "events": set(),
    "isolation": set(),
    "capture": {"events", "isolation"},
    "cluster": {"events"},
    "memory": {"events"},
    "timing": {"events"},
    "remat": {"events", "memory", "timing"},
    "probe": set(),
    "report": {"cluster", "events", "isolation", "memory", "probe", "remat", "timing"},
    "commands": {"capture", "cluster", "events", "isolation", "memory", "probe", "remat", "report", "timing"},
}
# Files beside the rooms that any file may import; they import only each other.
GROUND = {
    "caches", "errors", "units", "devices", "frameworks", "mocking", "torch_custom_saves", "torch_compatibility",
    "foreign_files", "foreign_pickles", "terminal_text",
}  # fmt: skip
# The public doors: they may reach into every room, and no room imports them.
DOORS = {"__init__", "dryrun", "dtr", "pytorch", "mindspore"}

# How a file's name begins -> the frameworks it may import; no other file may import any.
FRAMEWORKS = {
    "torch_": {"torch", "transformers", "accelerate", "megatron", "deepspeed"},
    "mindspore_": {"mindspore"},
}
IMPORTLIB_FILE = "frameworks.py"
BANNED_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "base", "misc"}
LONGEST = 450  # lines

# Private names that one file borrows from its neighbour in the same room; the list may only shrink.
BORROWED: set[str] = set()

SOURCES = {
    path.relative_to(PACKAGE): path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))
}
TREES = {path: ast.parse(text, str(path)) for path, text in SOURCES.items()}


def test_every_room_is_in_the_table():
    rooms = {path.parts[0] for path in TREES if len(path.parts) > 1}
    assert rooms == set(MAY_IMPORT)
    assert {path.stem for path in TREES if len(path.parts) == 1} == GROUND | DOORS


def test_imports_follow_the_arrows():
    wrong = []
    for path, tree in TREES.items():
        home = _home(path)
        if home in DOORS:
            continue
        allowed = GROUND | {"__init__", home} | MAY_IMPORT.get(home, set())
        wrong += [
            f"{path}:{line} {name}" for line, name in _imports(tree) if _target(name, home) not in allowed
        ]
    assert wrong == []


def test_a_framework_is_imported_only_in_a_file_named_after_it():
    every = set().union(*FRAMEWORKS.values())
    wrong = []
    for path, tree in TREES.items():
        allowed = next((names for prefix, names in FRAMEWORKS.items() if path.name.startswith(prefix)), set())
        others = every - allowed
        wrong += [f"{path}:{line} {name}" for line, name in _imports(tree) if name.split(".")[0] in others]
    assert wrong == []


def test_modules_are_imported_by_name_in_one_place_only():
    """An import inside a string cannot be checked, so there is a single place for them."""
    wrong = []
    for path, tree in TREES.items():
        if path.name != IMPORTLIB_FILE:
            wrong += [
                f"{path}:{line} {name}" for line, name in _imports(tree) if name.startswith("importlib")
            ]
            wrong += [f"{path}:{line} __import__" for line in _calls(tree, "__import__")]
    assert wrong == []


def test_print_is_called_only_by_commands():
    outside = {path: tree for path, tree in TREES.items() if _home(path) != "commands"}
    assert [f"{path}:{line}" for path, tree in outside.items() for line in _calls(tree, "print")] == []


def test_names_of_files_say_what_is_inside():
    assert [str(path) for path in TREES if BANNED_NAMES & set(path.stem.split("_"))] == []
    assert [str(path) for path in TREES if len(path.parts) > 2] == []  # rooms have no rooms


def test_no_file_is_too_long_to_read():
    lengths = {str(path): len(text.splitlines()) for path, text in SOURCES.items()}
    assert {path: n for path, n in lengths.items() if n > LONGEST} == {}


def test_every_module_says_what_it_is_for():
    assert [str(path) for path, tree in TREES.items() if tree.body and not ast.get_docstring(tree)] == []


def test_all_lists_what_is_really_there():
    wrong = []
    for path, tree in TREES.items():
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
        for tree in TREES.values()
        for _, name in _imports(tree)
        if name.startswith("windtunnel.") and name.split(".")[-1].startswith("_") and not name.endswith("__")
    }
    assert borrowed <= BORROWED


def test_imports_are_written_in_full():
    names = [(path, name) for path, tree in TREES.items() for _, name in _imports(tree)]
    assert [f"{path} {name}" for path, name in names if name.startswith(".") or name.endswith(".*")] == []


def test_importing_windtunnel_exports_exactly_its_names():
    import windtunnel

    assert windtunnel.__all__ == sorted(windtunnel.__all__)
    for name in windtunnel.__all__:
        assert getattr(windtunnel, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        windtunnel.no_such_name  # noqa: B018


def _home(path: Path) -> str:
    """The room of a file, or the name of a file beside the rooms."""
    return path.parts[0] if len(path.parts) > 1 else path.stem


def _target(name: str, home: str) -> str:
    """Which room or file of ours an import reaches: windtunnel.memory.tape.play -> memory; else `home`."""
    parts = name.split(".")
    if parts[0] != "windtunnel" or len(parts) < 2:
        return home
    return "__init__" if parts[1].startswith("__") else parts[1]


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
