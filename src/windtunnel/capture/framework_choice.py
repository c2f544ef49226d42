"""Find out which framework a script uses from its imports, without running it.

    train.py ──> its imports, and those of the modules beside it ──> "torch" or "mindspore"

The script's own imports decide; otherwise those of the local modules it imports, nearest first. A script that imports
neither is assumed to use torch, as most do, or MindSpore where only that is installed.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from windtunnel.foreign_files import read_at_most
from windtunnel.frameworks import is_installed

__all__ = ["FRAMEWORKS", "framework_of", "is_training"]

FRAMEWORKS = ("torch", "mindspore")
_MOST_BYTES = 1 << 24  # of a source file: larger ones are skipped
# Packages built on a framework. Less certain than the framework itself: some scripts only use their tokenizers.
_BELONGS_TO = {
    "torchvision": "torch", "torchtitan": "torch", "transformers": "torch", "accelerate": "torch",
    "megatron": "torch", "deepspeed": "torch", "lightning": "torch", "torch_npu": "torch",
    "mindformers": "mindspore", "mindnlp": "mindspore", "mindcv": "mindspore",
    "mindspore_gs": "mindspore", "mindone": "mindspore", "hyper_parallel": "mindspore",
}  # fmt: skip


# What a program that uses a device says somewhere; a program that only prepares data says none of these.
_DEVICE_WORDS = re.compile(
    rb"\b(cuda|npu|xpu|Ascend|backward|init_process_group|Trainer|TrainingArguments|Accelerator|value_and_grad|GradOperation"
    rb"|set_device|set_context|pretrain|DistributedDataParallel|fully_shard|TrainOneStepCell)\b"
)


def framework_of(
    script: str, is_module: bool = False, folder: Path | None = None, arguments: Sequence[str] = ()
) -> str:
    """ "torch" or "mindspore". Of a module that is installed, such as pytest, the files among its arguments tell."""
    found = _named_framework(script, is_module, folder)
    if found is None and is_module:
        files = [word.partition("::")[0] for word in arguments]
        named = (_named_framework(file, False, folder) for file in files if file.endswith(".py"))
        found = next((framework for framework in named if framework is not None), None)
    if found is not None:
        return found
    is_only_other = not is_installed(FRAMEWORKS[0]) and is_installed(FRAMEWORKS[1])
    return FRAMEWORKS[1] if is_only_other else FRAMEWORKS[0]


def is_training(
    script: str, is_module: bool = False, folder: Path | None = None, is_own_source_only: bool = False
) -> bool:
    """Whether a program looks like one that trains on a device, from its source and that of the modules beside it.

    With `is_own_source_only` the program's own file must name the device: the modules of a training repository do, and a
    program that only prepares data imports them too.
    """
    has_framework = has_words = False
    for number, (file, imports) in enumerate(_sources(script, is_module, folder)):
        packages = {name.partition(".")[0] for name, level in imports if not level}
        has_framework = has_framework or bool(packages & {*FRAMEWORKS, *_BELONGS_TO})
        has_words = has_words or _DEVICE_WORDS.search(_source(file)) is not None
        if has_framework and has_words:
            return True
        if is_own_source_only and number == 0 and not has_words:
            return False
    return False


def _named_framework(script: str, is_module: bool, folder: Path | None) -> str | None:
    for _, imports in _sources(script, is_module, folder):
        # In the order in which the program would import them.
        packages = [name.partition(".")[0] for name, level in imports if not level]
        named = next((package for package in packages if package in FRAMEWORKS), None)
        framework = named or next(
            (_BELONGS_TO[package] for package in packages if package in _BELONGS_TO), None
        )
        if framework is not None:
            return framework
    return None


def _sources(
    script: str, is_module: bool, folder: Path | None
) -> Iterator[tuple[Path, list[tuple[str, int]]]]:
    """The program's file and the local modules it imports, nearest first, each with its imports."""
    start = _module_file(script, folder or Path.cwd()) if is_module else Path(script)
    if start is None:
        return
    roots = (folder or Path.cwd(),) if is_module else (start.parent,)
    waiting, seen = deque([start]), {start}
    while waiting:
        file = waiting.popleft()
        imports = list(_imports(file))
        yield file, imports
        for name, level in imports:
            near = (file.parents[level - 1],) if 0 < level <= len(file.parents) else roots
            found = next((path for root in near if (path := _module_file(name, root)) is not None), None)
            if found is not None and found not in seen:
                seen.add(found)
                waiting.append(found)


def _source(path: Path) -> bytes:
    try:
        return read_at_most(path, _MOST_BYTES)
    except (OSError, ValueError):
        return b""


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
