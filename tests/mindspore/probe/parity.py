"""Compare an extract of msProbe's files with one of ours; sort what differs into intended and wrong.

    extract of msProbe, extract of ours ──> differences() ──> what is wrong; what is intended, with its reason

The reasons are explained in docs/probe-mindspore.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from tests.likeness import Likeness, likeness
from tests.mindspore.probe.parity_cases import Case

__all__ = ["Differences", "differences"]


@dataclass
class Differences:
    n_compared: int = 0
    wrong: list[str] = field(default_factory=list)
    intended: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Compared:
    alike: Likeness
    has_checksums: bool


def differences(
    case: Case, theirs: dict, ours: dict, *, with_checksums: bool = True, are_same_bits: bool = True
) -> Differences:
    """Compare two extracts step by step: bit by bit if the same arithmetic made both, otherwise by statistics alone."""
    found = Differences()
    compared = _Compared(likeness(are_same_bits), with_checksums and are_same_bits)
    theirs = {key: value for key, value in theirs.items() if key != "made_with"}
    _same(found, "steps", list(theirs), list(ours))
    for step in theirs.keys() & ours.keys():
        _step(found, theirs[step], ours[step], compared)
    return found


def _step(found: Differences, theirs: dict, ours: dict, compared: _Compared) -> None:
    theirs = _without(theirs, _left_out(found, theirs, ours))
    for key in ("files", "header", "has_tensor_folder", "stack"):
        _same(found, key, theirs.get(key), ours.get(key))
    names = [list(side["data"]) for side in (theirs, ours)]
    _same(found, "names", sorted(names[0]), sorted(names[1]))
    _order(found, names, ours)
    _construct(found, theirs, ours)
    for entry in theirs["data"].keys() & ours["data"].keys():
        _entry(found, entry, theirs["data"][entry], ours["data"][entry], compared)
    _tensors(found, theirs.get("tensors", {}), ours.get("tensors", {}), compared)


def _left_out(found: Differences, theirs: dict, ours: dict) -> list[str]:
    """Entries of msProbe's that ours has not, on purpose."""
    every = [*theirs["data"], *theirs.get("construct", {})]
    lacking = [
        name for name in dict.fromkeys(every) if name not in {*ours["data"], *ours.get("construct", {})}
    ]
    nothing = [name for name in lacking if name in theirs["data"] and _is_nothing(theirs["data"][name])]
    # `gamma.to(float32)` of a float32 parameter is the parameter itself.
    same = [name for name in lacking if name.startswith("Tensor.to.") and name.endswith(".backward")]
    found.intended += [f"an entry of nothing, for tensors without gradient: {name}" for name in nothing]
    found.intended += [f"a call that returns a parameter as it is has no node: {name}" for name in same]
    return nothing + same


def _without(side: dict, names: list[str]) -> dict:
    """An extract without some entries."""
    kept = {key: value for key, value in side.items() if key not in ("data", "construct", "tensors")}
    for key in ("data", "construct"):
        if key in side:
            kept[key] = {name: value for name, value in side[key].items() if name not in names}
    if "tensors" in side:
        stems = tuple(f"{name}." for name in names)
        kept["tensors"] = {
            name: value for name, value in side["tensors"].items() if not name.startswith(stems)
        }
    return kept


def _order(found: Differences, names: list[list[str]], ours: dict) -> None:
    theirs, mine = ([name for name in side if name in names[1 - n]] for n, side in enumerate(names))
    if theirs == mine:
        return
    if any(".output" in f".{path}" for body in ours["data"].values() for path in body):
        data = ours["data"]
        ends = [name for name in mine if name.startswith("Cell.") and _gives_nothing(data[name])]
        why = "a cell without gradients of its inputs is over when what is inside it is"
    elif ours["header"]["level"] == "debug":
        ends = [name for name in mine if "_grad." in name]
        why = "the gradients of a point are written when they come"
    else:
        ends = [name for name in mine if name.startswith("Cell.")]
        why = "a cell is written when it ends, also where only its inputs are"
    found.intended += [f"{why}: {name}" for name in ends]
    theirs, mine = ([name for name in side if name not in ends] for side in (theirs, mine))
    _same(found, "order of names", theirs, mine)


def _gives_nothing(body: dict) -> bool:
    outputs = [value for path, value in body.items() if path.startswith("output")]
    return any(path.startswith("input.") for path in body) and all(value in (None, []) for value in outputs)


def _is_nothing(body: dict) -> bool:
    return all(value is None for value in body.values())


def _construct(found: Differences, theirs: dict, ours: dict) -> None:
    parents = theirs.get("construct", {})
    if theirs["header"]["task"] != "structure":
        unseen = [name for name in parents if name not in theirs["data"]]
        found.intended += [
            f"construct.json of msProbe has calls that were not collected: {name}" for name in unseen
        ]
        parents = {name: parent for name, parent in parents.items() if name not in unseen}
    mine = ours.get("construct", {})
    for name, parent in list(parents.items()):
        if (
            name.endswith(".backward")
            and mine.get(name, parent) != parent
            and mine[name] == _true_parent(name, mine)
        ):
            found.intended.append(f"the parent of a backward is that of its forward: {name}")
            parents = {**parents, name: mine[name]}
    _same(found, "construct.json", parents, mine)


def _true_parent(name: str, construct: dict[str, str | None]) -> str | None:
    parent = construct.get(name.replace(".backward", ".forward"))
    return parent and parent.replace(".forward.", ".backward.")


def _same(found: Differences, what: str, theirs: Any, ours: Any) -> None:
    found.n_compared += 1
    if theirs == ours:
        return
    if isinstance(theirs, list) and isinstance(ours, list):
        missing = [item for item in theirs if item not in ours]
        extra = [item for item in ours if item not in theirs]
        found.wrong.append(
            f"{what}: missing {missing}, extra {extra}" if missing or extra else f"{what}: another order"
        )
    elif isinstance(theirs, dict) and isinstance(ours, dict):
        for key in sorted(theirs.keys() | ours.keys()):
            if theirs.get(key, "nothing") != ours.get(key, "nothing"):
                found.wrong.append(
                    f"{what} {key}: {theirs.get(key, 'nothing')!r} and {ours.get(key, 'nothing')!r}"
                )
    else:
        found.wrong.append(f"{what}: {theirs!r} and {ours!r}")


def _entry(found: Differences, entry: str, theirs: dict, ours: dict, compared: _Compared) -> None:
    compared = replace(compared, alike=compared.alike.within(theirs))
    if entry.startswith("Primitive.") and entry.endswith(".backward"):
        theirs, ours = _reordered(found, entry, theirs, ours, replace(compared, has_checksums=False))
    for path in theirs.keys() | ours.keys():
        if ".BatchNorm." in entry and path in ("output.1", "output.2"):
            found.intended.append(f"outputs that the kernel of a CPU never writes: {entry} {path}")
            continue
        _value(found, f"{entry} {path}", theirs.get(path, "nothing"), ours.get(path, "nothing"), compared)


def _reordered(
    found: Differences, entry: str, theirs: dict, ours: dict, compared: _Compared
) -> tuple[dict, dict]:
    """Gradients of a primitive's inputs: msProbe's in the order they come, ours in that of the arguments."""
    mine = [_unnamed(value) for path, value in ours.items() if path.startswith("output.")]
    their = [_unnamed(value) for path, value in theirs.items() if path.startswith("output.")]
    if len(mine) != len(their) or _agree(their, mine, compared) or not _agree(their, mine[::-1], compared):
        return theirs, ours
    found.intended.append(f"gradients of a primitive in the order of its arguments: {entry}")
    same = [
        {path: value for path, value in side.items() if not path.startswith("output.")}
        for side in (theirs, ours)
    ]
    return same[0], same[1]


def _agree(theirs: list, ours: list, compared: _Compared) -> bool:
    trial = Differences()
    for one, other in zip(theirs, ours, strict=True):
        _tensor(trial, "", one, other, compared)
    return not trial.wrong


def _unnamed(value: list) -> list:
    """A tensor without the name of its file, which goes by its place."""
    return [*value[:2], {key: figure for key, figure in value[2].items() if key != "data_name"}]


def _value(found: Differences, place: str, theirs: Any, ours: Any, compared: _Compared) -> None:
    found.n_compared += 1
    if ".backward output" in place and "nothing" in (theirs, ours):
        found.intended.append(f"gradients of tensors that are given in a list or tuple: {place}")
        return
    if isinstance(theirs, list) and isinstance(ours, list) and theirs and ours:
        _tensor(found, place, theirs, ours, compared)
    elif theirs != ours:
        found.wrong.append(f"{place}: {theirs!r} and {ours!r}")


def _tensor(found: Differences, place: str, theirs: list, ours: list, compared: _Compared) -> None:
    _same(found, place, theirs[:2], ours[:2])
    _, shape, one = theirs
    other = ours[2]
    if set(one) != set(other):
        found.wrong.append(f"{place}: keys {sorted(one)} and {sorted(other)}")
        return
    for key, value in one.items():
        found.n_compared += 1
        if key in ("Max", "Min", "Mean", "Norm"):
            if key == "Norm" and not shape and value is not None and value < 0:
                found.intended.append(f"the norm of a scalar is not negative: {place}")
            elif not compared.alike.accepts(key, theirs, other[key]):
                found.wrong.append(f"{place} {key}: {value} and {other[key]}")
        elif key == "md5" and not compared.has_checksums:
            continue
        elif value != other[key]:
            found.wrong.append(f"{place} {key}: {value!r} and {other[key]!r}")


def _tensors(found: Differences, theirs: dict, ours: dict, compared: _Compared) -> None:
    for name in theirs.keys() | ours.keys():
        found.n_compared += 1
        is_turned = name.startswith("Primitive.") and ".backward.output." in name
        if name not in ours:
            found.wrong.append(f"file {name} is missing")
        elif name not in theirs and ".backward.output." in name:
            found.intended.append(f"gradients of tensors that are given in a list or tuple: {name}")
        elif name not in theirs:
            found.wrong.append(f"file {name} is not msProbe's")
        elif is_turned and theirs[name] != ours[name]:
            found.intended.append(f"gradients of a primitive in the order of its arguments: {name}")
        elif ".BatchNorm." in name and ".output." in name:
            continue
        elif compared.has_checksums and theirs[name] != ours[name]:
            found.wrong.append(f"values of {name} differ: {theirs[name]} and {ours[name]}")
