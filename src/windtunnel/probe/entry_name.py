"""What the name of an entry says: which module or API, which direction, which call.

"Module.layers.0.fc.Linear.forward.2"  ──> module layers.0.fc, class Linear, forward, call 2
"Functional.linear.7.backward"         ──> API Functional.linear, backward, call 7
"hidden_grad.0.debug"                  ──> variable hidden_grad, debug, call 0
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["BACKWARD", "DEBUG", "FORWARD", "GRADIENT", "EntryName", "parse_entry_name"]

FORWARD, BACKWARD, GRADIENT, DEBUG = "forward", "backward", "parameters_grad", "debug"

_MODULE = re.compile(r"(Module|Cell)\.(.+)\.([^.]+)\.(forward|backward|parameters_grad)(?:\.(\d+))?")
_API = re.compile(r"([^.]+)\.(.+)\.(\d+)\.(forward|backward)")
_DEBUG = re.compile(r"(.+)\.(\d+)\.debug")


@dataclass(frozen=True, slots=True)
class EntryName:
    prefix: str  # "Module", "Functional", "Tensor", ...
    path: str  # of the module, or the API
    class_name: str  # of the module; "" otherwise
    direction: str
    call: int

    @property
    def is_module(self) -> bool:
        return self.prefix in ("Module", "Cell")

    @property
    def without_call(self) -> str:
        return f"{self.prefix}.{self.path}.{self.class_name}.{self.direction}"

    @property
    def structure(self) -> str:
        """What stays when modules are renamed."""
        return f"{self.prefix}.{self.class_name if self.is_module else self.path}.{self.direction}"


def parse_entry_name(name: str) -> EntryName:
    """Take a name apart; one that follows no rule is its own path."""
    if match := _MODULE.fullmatch(name):
        prefix, path, class_name, direction, call = match.groups()
        return EntryName(prefix, path, class_name, direction, int(call or 0))
    if match := _API.fullmatch(name):
        prefix, path, call, direction = match.groups()
        return EntryName(prefix, path, "", direction, int(call))
    if match := _DEBUG.fullmatch(name):
        return EntryName("", match.group(1), "", DEBUG, int(match.group(2)))
    return EntryName("", name, "", FORWARD, 0)
