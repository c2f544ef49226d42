"""A list of APIs to collect, from a file in the style of msProbe's support_wrap_ops.yaml.

    functional:          ──> read_api_list ──> {("Functional", "conv2d"), ("Torch", "norm")}
      - conv2d
    torch:
      - linalg.norm          # named in a dump by its last part: Torch.norm.0.forward

Only this much of YAML is read: sections, each a list of names, and comments. Anything else is rejected with its line.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from pathlib import Path

from windtunnel.errors import ProbeConfigError
from windtunnel.foreign_files import read_at_most

__all__ = ["LISTED_PREFIXES", "read_api_list"]

# section of the file -> how the names of its APIs begin in a dump
_PREFIXES = {
    "functional": "Functional",
    "torch.nn.functional": "Functional",
    "tensor": "Tensor",
    "torch.Tensor": "Tensor",
    "torch": "Torch",
    "_VF": "VF",
    "torch_npu": "NPU",
    "aten": "Aten",
    "distributed": "Distributed",
    "torch.distributed": "Distributed",
    "npu_distributed": "Distributed",
    "mindspeed": "MindSpeed",
    "ops": "Functional",
    "mint": "Mint",
    "mint.ops": "Mint",
    "mint.nn.functional": "MintFunctional",
    "mint.distributed": "MintDistributed",
    "communication.comm_func": "Distributed",
}
LISTED_PREFIXES = frozenset(_PREFIXES.values())
_LARGEST_BYTES = 4 * 1024 * 1024
_SECTION = re.compile(r"([\w.]+)\s*:\s*(\[\s*\])?")
# A list that msProbe ships has a name with a space in it; it names no API, and is no reason to reject the file.
_ITEM = re.compile(r"\s*-\s+([\"']?)([\w.]+(?: [\w.]+)*)\1")


def read_api_list(path: Path) -> frozenset[tuple[str, str]]:
    """Return the (prefix, api) pairs a file lists."""
    found: set[tuple[str, str]] = set()
    prefix = None
    sections: set[str] = set()
    for number, line in enumerate(_lines(path), 1):
        text = line.split(" #")[0].rstrip() if not line.lstrip().startswith("#") else ""
        if text in ("", "---"):
            continue
        section, item = _SECTION.fullmatch(text), _ITEM.fullmatch(text)
        if section:
            if section[1] in sections:
                raise _error(path, number, f'duplicate section "{section[1]}"', "remove one")
            sections.add(section[1])
            prefix = _prefix(path, number, section[1])
        elif item and prefix is not None:
            found.add((prefix, item[2].rsplit(".", 1)[-1]))
        elif item:
            raise _error(path, number, f'"{item[2]}" is not in a section', 'begin with "functional:"')
        else:
            raise _error(
                path, number, f"{text.strip()[:60]!r} is not understood", 'allowed: "section:" and "  - name"'
            )
    if not found:
        raise ProbeConfigError(f"api_list {path} names no API", hint='write "functional:" and "  - conv2d"')
    return frozenset(found)


def _lines(path: Path) -> list[str]:
    try:
        return read_at_most(path, _LARGEST_BYTES).decode("utf-8-sig").splitlines()
    except FileNotFoundError:
        raise ProbeConfigError(f"api_list {path} is not a file") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ProbeConfigError(f"api_list {path} cannot be read: {reason}") from None


def _prefix(path: Path, number: int, section: str) -> str:
    if section not in _PREFIXES:
        close = get_close_matches(section, _PREFIXES, n=1)
        hint = f'did you mean "{close[0]}"?' if close else f"known sections: {', '.join(_PREFIXES)}"
        raise _error(path, number, f'unknown section "{section}"', hint)
    return _PREFIXES[section]


def _error(path: Path, number: int, fact: str, hint: str) -> ProbeConfigError:
    return ProbeConfigError(f"api_list {path}, line {number}: {fact}", hint=hint)
