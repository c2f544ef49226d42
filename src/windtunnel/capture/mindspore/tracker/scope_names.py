"""Find the module of an operator of a compiled MindSpore graph from its name.

    "Gradients/Default/network-WithLossCell/_backbone-Net/fc1-Dense/Grad_MatMul/MatMul-op0"
        ──> Place(operator "MatMul", module "fc1", phase BACKWARD)

A scope is a sequence of `attribute-Class` words. The outermost ones are MindSpore's own training wrappers, which are not
in the user's code; the names of parameters do not contain them either.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from windtunnel.events.kinds import Phase

__all__ = ["Place", "place_of"]

_NUMBER = re.compile(r"-op\d+$")
_ROOTS = ("Default", "Gradients")
_GRADIENT = "Grad_"
_WRAPPERS = ("network", "_backbone")  # attributes of TrainOneStepCell and WithLossCell
_OPTIMIZER = re.compile(r"^_?optimizer-|^opt-")


@dataclass(frozen=True, slots=True)
class Place:
    """An operator's own name, its module ("" outside all) and its phase (None: the name does not say)."""

    operator: str
    module: str
    phase: Phase | None
    is_again: bool = False  # recomputed for backward
    undoes: str = ""  # the forward operator that this one is the gradient of, if the scope says


@lru_cache(maxsize=1 << 16)
def place_of(name: str) -> Place:
    """Read a name; one without a scope is an operator's own."""
    *scope, last = name.split("/")
    operator = _NUMBER.sub("", last)
    if not scope:
        return Place(operator, "", None)
    is_again = any(word.startswith("recompute_") for word in scope)
    scope = [word.removeprefix("recompute_") for word in scope]
    is_backward = "Gradients" in scope
    is_optimizer = any(_OPTIMIZER.match(word) for word in scope)
    undoes = next((word.removeprefix(_GRADIENT) for word in scope if word.startswith(_GRADIENT)), "")
    modules = [word for word in scope if word not in _ROOTS and not word.startswith(_GRADIENT)]
    while modules and modules[0].partition("-")[0] in _WRAPPERS:
        modules.pop(0)
    path = ".".join(word.rpartition("-")[0] or word for word in modules)
    if len(scope) == 1 and not is_backward:
        phase = None  # "Default/Cast-op0": a single operator of a dynamic graph
    elif is_optimizer:
        phase = Phase.OPTIMIZER
    else:
        phase = Phase.BACKWARD if is_backward else Phase.FORWARD
    return Place(operator, path, phase, is_again, undoes)
