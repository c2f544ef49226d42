"""What the Python file that inductor generated says of its kernels: which arguments a kernel reads, which it writes.

async_compile.cpp_pybinding(['const float*', 'float*'], '''… void kernel(const float* in_ptr0, float* out_ptr0)''')
    ──> {"cpp_fused_relu_0": ("in", "out")}
# Topologically Sorted Source Nodes: [relu], Original ATen: [aten.relu]     above a call ──> its source
"""

from __future__ import annotations

import ast
import linecache
import re
from functools import lru_cache

__all__ = ["argument_roles", "source_comment"]

IN, OUT, BOTH = "in", "out", "both"
_PREFIXES = (("in_out_ptr", BOTH), ("in_ptr", IN), ("out_ptr", OUT))
_SIGNATURE = re.compile(r"\bvoid\s+\w+\(([^)]*)\)\s*\{", re.DOTALL)


@lru_cache(maxsize=256)
def argument_roles(path: str) -> dict[str, tuple[str, ...]]:
    """For every kernel compiled in the file: what it does with each of its arguments."""
    found: dict[str, tuple[str, ...]] = {}
    tree = ast.parse("".join(linecache.getlines(path)), path)
    for node in tree.body:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        call, target = node.value, node.targets[0]
        if not isinstance(target, ast.Name) or not isinstance(call.func, ast.Attribute):
            continue
        texts = [
            arg.value for arg in call.args if isinstance(arg, ast.Constant) and isinstance(arg.value, str)
        ]
        if call.func.attr in ("cpp", "cpp_pybinding") and texts:
            found[target.id] = _roles(texts[-1])
        elif call.func.attr == "triton" and texts:
            found[target.id] = _triton_roles(texts[-1])
    return found


@lru_cache(maxsize=4096)
def source_comment(path: str, line: int) -> str | None:
    """The comment above a call in generated code, which names the operators of the program it stands for."""
    lines = []
    line -= 1
    while (text := linecache.getline(path, line).strip()).startswith("#"):
        lines.append(text.lstrip("# "))
        line -= 1
    return "\n".join(reversed(lines)) or None


def _roles(source: str) -> tuple[str, ...]:
    signature = _SIGNATURE.search(source)
    names = [part.split()[-1] for part in signature.group(1).split(",") if part.strip()] if signature else []
    return tuple(_role(name) for name in names)


def _triton_roles(source: str) -> tuple[str, ...]:
    signature = re.search(r"def \w+\(([^)]*)\):", source)
    names = [part.split(":")[0].strip() for part in signature.group(1).split(",")] if signature else []
    return tuple(_role(name) for name in names if name and not name.endswith("BLOCK"))


def _role(name: str) -> str:
    return next((role for prefix, role in _PREFIXES if name.lstrip("*&").startswith(prefix)), IN)
