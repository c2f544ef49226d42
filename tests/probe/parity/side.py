"""Compare an extract of msProbe's files with one of ours; sort what differs into intended and wrong.

    extract of msProbe, extract of ours ──> differences() ──> what is wrong; what is intended, with its reason

The reasons are explained in docs/probe-msprobe.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.likeness import Likeness, likeness
from tests.probe.parity.cases import Case

__all__ = ["Differences", "differences"]

# Seen by ours and not in the lists of msProbe (and linear, which a slip keeps out of its level CORE).
NOT_LISTED = (
    "Functional.linear.",
    "Tensor.abs.",
    "Tensor.contiguous.",
    "Tensor.div_.",
    "Tensor.view.",
    "Torch.ones.",
    "Torch.zeros_like.",
)

# APIs that are more than one node of autograd: msProbe shows what its last node has, ours the gradients of the inputs.
SEVERAL_NODES = {
    "Functional.cross_entropy",
    "Functional.linear",
    "Functional.scaled_dot_product_attention",
    "Torch.matmul",
    "Torch.einsum",
    "Tensor.__matmul__",
    "Tensor.reshape",
}


@dataclass
class Differences:
    n_compared: int = 0
    wrong: list[str] = field(default_factory=list)
    intended: list[str] = field(default_factory=list)


def differences(case: Case, theirs: dict, ours: dict, *, are_same_bits: bool = True) -> Differences:
    """Compare two extracts step by step: bit by bit if the same arithmetic made both, otherwise by statistics alone."""
    found = Differences()
    alike = likeness(are_same_bits, case.amplifies)
    theirs = {key: value for key, value in theirs.items() if key != "made_with"}
    _same(found, "steps", list(theirs), list(ours))
    for step in theirs.keys() & ours.keys():
        _step(found, case, theirs[step], ours[step], alike)
    return found


def _step(found: Differences, case: Case, theirs: dict, ours: dict, alike: Likeness) -> None:
    for key in ("files", "header", "has_tensor_folder"):
        _same(found, key, theirs[key], ours[key])
    names = [[*side.get("names", side.get("data", ()))] for side in (theirs, ours)]
    nothing = [name for name, body in theirs.get("data", {}).items() if body == {"": None}]
    found.intended += [f"an entry of nothing, for a tensor without gradient: {name}" for name in nothing]
    names[0] = [name for name in names[0] if name not in nothing]
    _names(found, case, *names)
    if case.is_ordered:
        common = [
            [name for name in side if ".forward" in name and name in names[1 - n]]
            for n, side in enumerate(names)
        ]
        _same(found, "order of forward entries", *common)
    if "construct" in theirs:
        _construct(found, case, theirs["construct"], ours["construct"], set(names[0]))
    if "stack" in theirs:
        stacks = [sorted(name for group in side["stack"] for name in group) for side in (theirs, ours)]
        _names(found, case, *stacks, what="stack.json: ")
    for entry in theirs.get("data", {}).keys() & ours.get("data", {}).keys():
        _entry(found, entry, theirs["data"][entry], ours["data"][entry], alike)
    if "tensors" in theirs or "tensors" in ours:
        _tensors(found, theirs.get("tensors", {}), ours.get("tensors", {}), alike)


def _same(found: Differences, what: str, theirs: Any, ours: Any) -> None:
    found.n_compared += 1
    if theirs != ours:
        found.wrong.append(f"{what}: {theirs!r} and {ours!r}")


def _names(found: Differences, case: Case, theirs: list[str], ours: list[str], what: str = "") -> None:
    found.n_compared += len(theirs)
    found.wrong += [f"{what}{name} is missing" for name in theirs if name not in set(ours)]
    for name in ours:
        if name in set(theirs):
            continue
        if name in case.extra or name.startswith(NOT_LISTED):
            found.intended.append(f"an API that is not in msProbe's list: {what}{name}")
        else:
            found.wrong.append(f"{what}{name} is not msProbe's")


def _construct(found: Differences, case: Case, theirs: dict, ours: dict, collected: set[str]) -> None:
    has_all = case.keys["task"] == "structure"
    for name, parent in theirs.items():
        if name not in ours:
            if has_all or name in collected:
                found.wrong.append(f"construct.json: {name} is missing")
            else:
                found.intended.append(f"construct.json of msProbe has calls that were not collected: {name}")
        elif parent != ours[name] and ours[name] == _true_parent(name, theirs):
            found.intended.append(f"the parent of a backward is that of its forward: {name}")
        else:
            _same(found, f"parent of {name}", parent, ours[name])


def _true_parent(name: str, construct: dict[str, str | None]) -> str | None:
    parent = construct.get(name.replace(".backward", ".forward"))
    return parent and parent.replace(".forward.", ".backward.")


def _entry(found: Differences, entry: str, theirs: dict, ours: dict, alike: Likeness) -> None:
    api = entry.rsplit(".", 2)[0]
    alike = alike.within(theirs)
    for path in theirs.keys() | ours.keys():
        one = Differences()
        _value(one, f"{entry} {path}", theirs.get(path), ours.get(path), alike)
        if one.wrong and entry.endswith(".backward") and path.startswith("output") and api in SEVERAL_NODES:
            one.wrong = []
            one.intended = [f"gradients of {api}, which is several nodes of autograd: {path}"]
        found.n_compared += one.n_compared
        found.wrong += one.wrong
        found.intended += one.intended


def _value(found: Differences, place: str, theirs: Any, ours: Any, alike: Likeness) -> None:
    found.n_compared += 1
    if isinstance(theirs, list) and isinstance(ours, list):
        _tensor(found, place, theirs, ours, alike)
    elif theirs is None and isinstance(ours, dict):
        found.intended.append(f"a value msProbe writes as null: {place}")
    elif theirs != ours:
        found.wrong.append(f"{place}: {theirs!r} and {ours!r}")


def _tensor(found: Differences, place: str, theirs: list, ours: list, alike: Likeness) -> None:
    _same(found, place, theirs[:2], ours[:2])
    dtype, shape, one = theirs
    other = ours[2]
    if not set(one) <= set(other):
        found.wrong.append(f"{place}: keys {sorted(one)} and {sorted(other)}")
        return
    for key, value in one.items():
        found.n_compared += 1
        if key in ("Max", "Min", "Mean", "Norm"):
            if value is None and other[key] is not None:
                found.intended.append(f"a mean or norm of {dtype}, which msProbe does not have: {place}")
            elif key == "Norm" and not shape and value is not None and value < 0:
                found.intended.append(f"the norm of a scalar is not negative: {place}")
            elif not alike.accepts(key, theirs, other[key]):
                found.wrong.append(f"{place} {key}: {value} and {other[key]}")
        elif key == "md5":
            if not isinstance(value, str):
                found.intended.append(f"the checksum of a scalar is not its value: {place}")
            elif alike.has_same_bits and value != other[key]:
                _checksum(found, place, value, other[key])
        elif value != other[key]:
            found.wrong.append(f"{place} {key}: {value!r} and {other[key]!r}")


def _checksum(found: Differences, place: str, one: str, other: str) -> None:
    api = place.split(".")[1]
    is_in_place = (api.endswith("_") and not api.endswith("__")) or api.startswith("__i")
    if is_in_place and "input" in place:
        found.intended.append(f"checksum of an input that the call then overwrites, read too late: {place}")
    else:
        found.wrong.append(f"{place} md5: {one} and {other}")


def _tensors(found: Differences, theirs: dict, ours: dict, alike: Likeness) -> None:
    for name in theirs.keys() | ours.keys():
        api = name.split(".backward.")[0].rsplit(".", 1)[0]
        found.n_compared += 1
        if ".backward.output" in name and api in SEVERAL_NODES:
            if theirs.get(name) != ours.get(name):
                found.intended.append(f"gradients of {api}, which is several nodes of autograd: {name}")
        elif name not in ours:
            found.wrong.append(f"file {name} is missing")
        elif name not in theirs:
            found.wrong.append(f"file {name} is not msProbe's")
        elif alike.has_same_bits and theirs[name] != ours[name]:
            found.wrong.append(f"values of {name} differ")
