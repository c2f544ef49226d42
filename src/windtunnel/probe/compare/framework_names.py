"""Names of entries in a vocabulary that both frameworks share, so that equal things have equal names.

    "Cell._backbone.blocks.0.norm1.LayerNorm.forward.0"  ──┐
                                                           ├──> module blocks.0.norm1, layernorm, forward, call 0
    "Module.module.blocks.0.norm1.LayerNorm.forward.0"   ──┘
    "Primitive.matmul.BatchMatMul.3.forward", "Tensor.__matmul__.1.forward" ──> API matmul, forward

The path of a module decides; its class only helps. Prefixes of a path that only one side has (the wrapper of data
parallel training, or of a loss) are found by trial: which ones must be removed for most paths to agree?
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from windtunnel.probe.compare.framework_words import (
    API_PREFIXES,
    APIS,
    CLASSES,
    MINDSPORE,
    MINDSPORE_APIS,
    PARAMETERS,
    WRAPPERS,
)
from windtunnel.probe.files.entry_name import EntryName

__all__ = ["Reader", "api_word", "neutral_dtype", "neutral_shape", "neutral_suffix", "readers"]

Reader = Callable[[str], EntryName]

_MODULE, _API = "Module", "API"
_LONGEST_PREFIX = 4  # components in front of a path that may belong to wrappers
_INTEGER = re.compile(r"u?int\d+|bool")


def readers(
    entries: tuple[Sequence[str], Sequence[str]], frameworks: tuple[str, str], first: tuple[Reader, Reader]
) -> tuple[Reader, Reader]:
    """For each side, a function that parses the name of an entry; `first` applies the user's mapping."""
    plain = [_Plain(framework, read) for framework, read in zip(frameworks, first, strict=True)]
    paths = [
        {name.path for each in names if (name := read(each)).is_module}
        for names, read in zip(entries, plain, strict=True)
    ]
    prefix_a, prefix_b = _prefixes(paths[0], paths[1])
    return _Stripped(plain[0], prefix_a), _Stripped(plain[1], prefix_b)


def neutral_dtype(name: str) -> str:
    """The plain name of a type; integers of all widths are one type, as the frameworks choose different ones."""
    word = name.rpartition(".")[2].lower()
    return "integer" if _INTEGER.fullmatch(word) else word


def neutral_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape without dimensions of one: MindSpore's Conv1d keeps its weight as (out, in, 1, k)."""
    return tuple(size for size in shape if size != 1)


def neutral_suffix(suffix: str) -> str:
    """`parameters.gamma` or, among gradients, `gamma` ──> the same with PyTorch's word."""
    head, dot, word = suffix.rpartition(".")
    return f"{head}{dot}{PARAMETERS.get(word, word)}" if head in ("", "parameters") else suffix


def api_word(prefix: str, path: str, framework: str) -> str:
    """The name of a function, whichever module it was called through."""
    name = path.rpartition(".")[
        2
    ]  # Primitive.matmul.BatchMatMul: the attribute that holds it, then its class
    word = re.sub(r"[^a-z0-9]", "", name.lower())
    if name.endswith("_") and not name.endswith("__"):
        return f"{word}_"
    if framework == MINDSPORE and not prefix.startswith("Mint"):  # mint follows PyTorch
        word = MINDSPORE_APIS.get(word, word)
    return APIS.get(word, word)


@dataclass(frozen=True, slots=True)
class _Plain:
    """Translates names of one framework to the shared vocabulary."""

    framework: str
    read: Reader

    def __call__(self, entry: str) -> EntryName:
        name = self.read(entry)
        if name.is_module:
            path = ".".join(part for part in name.path.split(".") if part not in WRAPPERS)
            word = name.class_name.lower()
            return replace(name, prefix=_MODULE, path=path, class_name=CLASSES.get(word, word))
        if name.prefix in API_PREFIXES:
            return replace(name, prefix=_API, path=api_word(name.prefix, name.path, self.framework))
        return name


class _Stripped:
    """Removes the prefix of wrappers from paths; parses every name once."""

    def __init__(self, read: Reader, prefix: str) -> None:
        self._read, self._prefix = read, prefix
        self._known: dict[str, EntryName] = {}

    def __call__(self, entry: str) -> EntryName:
        name = self._known.get(entry)
        if name is None:
            name = self._read(entry)
            if name.is_module:
                name = replace(name, path=_without(name.path, self._prefix))
            self._known[entry] = name
        return name


def _prefixes(a: set[str], b: set[str]) -> tuple[str, str]:
    """The shortest prefixes to remove from the paths of each side so that most of them agree."""
    best, chosen = -1, ("", "")
    candidates = [(p, q) for p in _leading(a) for q in _leading(b)]
    for p, q in sorted(candidates, key=lambda pair: sum(map(len, pair))):
        n_common = len({_without(path, p) for path in a} & {_without(path, q) for path in b})
        if n_common > best:
            best, chosen = n_common, (p, q)
    return chosen


def _leading(paths: Iterable[str]) -> list[str]:
    """The most frequent prefix of each length, from zero."""
    found = [""]
    rest = [path.split(".") for path in paths]
    for depth in range(1, _LONGEST_PREFIX + 1):
        rest = [parts for parts in rest if len(parts) > depth and ".".join(parts[: depth - 1]) == found[-1]]
        if not rest:
            break
        part, _ = Counter(parts[depth - 1] for parts in rest).most_common(1)[0]
        found.append(f"{found[-1]}.{part}".lstrip("."))
    return found


def _without(path: str, prefix: str) -> str:
    if not prefix:
        return path
    return "" if path == prefix else path.removeprefix(f"{prefix}.")
