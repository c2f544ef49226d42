"""Which framework a script trains with: read from its imports, without running it.

    train.py ──> imports, and those of modules beside it ──> "torch" or "mindspore"

The script decides if it imports one of them itself; otherwise the local modules it imports do, nearest first. A script
that names neither is taken for torch's, as most are.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from pathlib import Path

__all__ = ["FRAMEWORKS", "framework_of"]

FRAMEWORKS = ("torch", "mindspore")
# Packages that only make sense with one of them.
_BELONGS_TO = {
    "torch": "torch", "torchvision": "torch", "torchtitan": "torch", "transformers": "torch", "accelerate": "torch",
    "megatron": "torch", "deepspeed": "torch", "lightning": "torch", "torch_npu": "torch",
    "mindspore": "mindspore", "mindformers": "mindspore", "mindnlp": "mindspore", "mindcv": "mindspore",
    "mindspore_gs": "mindspore", "mindone": "mindspore", "hyper_parallel": "mindspore",
}  # fmt: skip
_MOST_FILES = 200  # of one program: enough to find an import, whatever a folder holds


def framework_of(script: str, is_module: bool = False, folder: Path | None = None) -> str:
    """ "torch" or "mindspore"."""
    start = _module_file(script, folder or Path.cwd()) if is_module else Path(script)
    if start is None:
        return FRAMEWORKS[0]
    roots = (folder or Path.cwd(), start.parent) if is_module else (start.parent,)
    waiting, seen = deque([start]), {start}
    while waiting and len(seen) <= _MOST_FILES:
        names = list(_imports(waiting.popleft()))
        for name in names:  # in the order in which the program would import them
            framework = _BELONGS_TO.get(name.partition(".")[0])
            if framework is not None:
                return framework
        for name in names:
            found = next((file for root in roots if (file := _module_file(name, root)) is not None), None)
            if found is not None and found not in seen:
                seen.add(found)
                waiting.append(found)
    return FRAMEWORKS[0]


def _imports(path: Path) -> Iterator[str]:
    """Full names of the modules a file imports, wherever in it."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in sorted(found, key=lambda node: node.lineno):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:  # of the same package
            yield from (".".join(filter(None, (node.module, alias.name))) for alias in node.names)


def _module_file(name: str, root: Path) -> Path | None:
    path = root.joinpath(*name.split("."))
    candidates = (path.with_suffix(".py"), path / "__main__.py", path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)
