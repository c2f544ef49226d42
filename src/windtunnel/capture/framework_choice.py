"""Find out which framework a script uses from its imports, without running it.

    train.py ──> its imports, and those of the modules beside it ──> "torch" or "mindspore"

The script's own imports decide; otherwise those of the local modules it imports, nearest first. A script that imports
neither is assumed to use torch, as most do.
"""

from __future__ import annotations

import ast
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from windtunnel.foreign_files import read_at_most

__all__ = ["FRAMEWORKS", "framework_of"]

FRAMEWORKS = ("torch", "mindspore")
_MOST_BYTES = 1 << 24  # of a source file: larger ones are skipped
# Packages built on a framework. Less certain than the framework itself: some scripts only use their tokenizers.
_BELONGS_TO = {
    "torchvision": "torch", "torchtitan": "torch", "transformers": "torch", "accelerate": "torch",
    "megatron": "torch", "deepspeed": "torch", "lightning": "torch", "torch_npu": "torch",
    "mindformers": "mindspore", "mindnlp": "mindspore", "mindcv": "mindspore",
    "mindspore_gs": "mindspore", "mindone": "mindspore", "hyper_parallel": "mindspore",
}  # fmt: skip


def framework_of(script: str, is_module: bool = False, folder: Path | None = None) -> str:
    """ "torch" or "mindspore"."""
    start = _module_file(script, folder or Path.cwd()) if is_module else Path(script)
    if start is None:
        return FRAMEWORKS[0]
    roots = (folder or Path.cwd(),) if is_module else (start.parent,)
    waiting, seen = deque([start]), {start}
    while waiting:
        file = waiting.popleft()
        imports = list(_imports(file))
        # In the order in which the program would import them.
        packages = [name.partition(".")[0] for name, level in imports if not level]
        named = next((package for package in packages if package in FRAMEWORKS), None)
        framework = named or next(
            (_BELONGS_TO[package] for package in packages if package in _BELONGS_TO), None
        )
        if framework is not None:
            return framework
        for name, level in imports:
            near = (file.parents[level - 1],) if 0 < level <= len(file.parents) else roots
            found = next((path for root in near if (path := _module_file(name, root)) is not None), None)
            if found is not None and found not in seen:
                seen.add(found)
                waiting.append(found)
    return FRAMEWORKS[0]


def _imports(path: Path) -> Iterator[tuple[str, int]]:
    """Full names of the modules a file imports, wherever in it, and the number of dots before them."""
    try:
        tree = ast.parse(read_at_most(path, _MOST_BYTES))
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return
    found = [node for node in ast.walk(tree) if isinstance(node, (ast.Import, ast.ImportFrom))]
    for node in sorted(found, key=lambda node: (node.lineno, node.col_offset)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
            continue
        if node.module:
            yield node.module, node.level
        yield from (
            (".".join(filter(None, (node.module, alias.name))), node.level)
            for alias in node.names
            if alias.name != "*"
        )


def _module_file(name: str, root: Path) -> Path | None:
    path = root.joinpath(*name.split("."))
    candidates = (path.with_suffix(".py"), path / "__main__.py", path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)
