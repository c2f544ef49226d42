"""Parse the name of an entry: which module or API, which direction, which call.

"Module.layers.0.fc.Linear.forward.2"  ──> module layers.0.fc, class Linear, forward, call 2
"Functional.linear.7.backward"         ──> API Functional.linear, backward, call 7
"Functional.linear.7.pass2.backward"   ──> the same call, when backward ran a second time over the retained graph
"hidden_grad.0.debug"                  ──> variable hidden_grad, debug, call 0
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["BACKWARD", "DEBUG", "FORWARD", "GRADIENT", "EntryName", "of_pass", "parse_entry_name"]

FORWARD, BACKWARD, GRADIENT, DEBUG = "forward", "backward", "parameters_grad", "debug"

_PASS = r"(?:\.pass(\d{1,9}))?"
_MODULE = re.compile(rf"(Module|Cell)\.(.+?)\.([^.]+){_PASS}\.(forward|backward|parameters_grad)(?:\.(\d+))?")
_API = re.compile(rf"([^.]+)\.(.+)\.(\d+){_PASS}\.(forward|backward)")
_DEBUG = re.compile(rf"(.+)\.(\d+){_PASS}\.debug")


@dataclass(frozen=True, slots=True)
class EntryName:
    prefix: str  # "Module", "Functional", "Tensor", ...
    path: str  # of the module, or the API
    class_name: str  # of the module; "" otherwise
    direction: str
    call: int
    nth: int = 1  # pass of backward over this call

    @property
    def phase(self) -> str:
        """Direction and pass."""
        return self.direction if self.nth == 1 else f"pass{self.nth}.{self.direction}"

    @property
    def is_module(self) -> bool:
        return self.prefix in ("Module", "Cell")

    @property
    def without_call(self) -> str:
        return f"{self.prefix}.{self.path}.{self.class_name}.{self.phase}"

    @property
    def structure(self) -> str:
        """The part that does not change when modules are renamed."""
        return f"{self.prefix}.{self.class_name if self.is_module else self.path}.{self.phase}"


def parse_entry_name(name: str) -> EntryName:
    """Parse a name; one that matches no pattern becomes its own path."""
    if match := _MODULE.fullmatch(name):
        prefix, path, class_name, nth, direction, call = match.groups()
        return EntryName(prefix, path, class_name, direction, int(call or 0), int(nth or 1))
    if match := _API.fullmatch(name):
        prefix, path, call, nth, direction = match.groups()
        return EntryName(prefix, path, "", direction, int(call), int(nth or 1))
    if match := _DEBUG.fullmatch(name):
        return EntryName("", match.group(1), "", DEBUG, int(match.group(2)), int(match.group(3) or 1))
    return EntryName("", name, "", FORWARD, 0)


def of_pass(name: str, nth: int) -> str:
    """The name for the nth backward pass over a call; the first pass keeps the plain name.

    "Module.fc.Linear.backward.0" ──> "Module.fc.Linear.pass2.backward.0": readers of msProbe's dumps look for the
    direction in the last two components, so the pass comes before it.
    """
    if nth == 1:
        return name
    words = name.split(".")
    at = len(words) - (1 if words[-1] in (BACKWARD, DEBUG) else 2)
    return ".".join((*words[:at], f"pass{nth}", *words[at:]))
