"""The probe never breaks training: every broad `except` where it collects passes its error on to the collector's guard."""

from __future__ import annotations

import ast
from pathlib import Path

import windtunnel.probe

ROOMS = ("collect", "pytorch", "mindspore")
GUARDS = {"guard", "failed", "_failed"}  # `failed` of a writer or a sink calls `Collector.guard`
# What goes on in another way, and why nothing is missing from the dump, or the user is told what is.
OTHERWISE = {
    ("pytorch/eager/tensor_meter.py", "measure"),  # a tensor of another kind is measured in another way
    ("pytorch/eager/tensor_meter.py", "_measure_odd"),  # one that cannot be measured has statistics of None
    ("pytorch/compiled/tracing.py", "_compile_with_notes"),  # compiled without notes, and the user is told
    ("mindspore/graph/compilers.py", "compile_watched"),  # as above
    ("mindspore/pynative/errors.py", "wait"),  # the program's own error, raised into it
}


def broad_handlers(path: Path):
    """The function around each `except Exception`, and what is called in it."""
    functions = [
        node
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, (ast.FunctionDef, ast.Lambda))
    ]
    for function in functions:
        if isinstance(function, ast.Lambda):
            continue
        inner = {
            id(node)
            for found in functions
            if found is not function and found in ast.walk(function)
            for node in ast.walk(found)
        }
        for node in ast.walk(function):
            if isinstance(node, ast.ExceptHandler) and id(node) not in inner and _is_broad(node.type):
                yield (
                    function.name,
                    {_name(call.func) for call in ast.walk(node) if isinstance(call, ast.Call)},
                )


def _is_broad(kind: ast.expr | None) -> bool:
    return kind is None or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def test_every_error_of_the_probe_reaches_the_one_guard():
    root = Path(windtunnel.probe.__file__).parent
    otherwise, n_guarded = set(), 0
    for path in (path for room in ROOMS for path in sorted((root / room).rglob("*.py"))):
        for function, called in broad_handlers(path):
            if called & GUARDS:
                n_guarded += 1
            else:
                otherwise.add((path.relative_to(root).as_posix(), function))
    assert otherwise == OTHERWISE
    assert n_guarded > 20


def test_a_handler_that_keeps_an_error_to_itself_is_found(tmp_path):
    path = tmp_path / "a.py"
    path.write_text("def f():\n    try:\n        g()\n    except Exception:\n        h()\n")
    assert list(broad_handlers(path)) == [("f", {"h"})]
