"""A dry run leaves every file as it was, whatever its script does, and its report says what a real run would have done."""

from __future__ import annotations

import json
import os
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from tests.isolation.cases import CASES, Case, Change
from tests.isolation.runner import (
    DRIVER,
    MODES,
    SCRIPTS,
    Site,
    leftovers,
    protection_expected,
    report_of,
    site,
    start,
    wait,
)
from tests.isolation.tree import fingerprint, sizes

LIGHT = [case for case in CASES if not case.alone and not case.heavy]
HEAVY = [case for case in CASES if case.heavy]
IN_EVERY_SUITE = {"ends_killed", "ends_later", "two_ranks"}


def _in_modes(ordinary: tuple[str, ...]) -> list:
    return [pytest.param(mode, marks=() if mode in ordinary else pytest.mark.thorough) for mode in MODES]


def _each_alone() -> list:
    return [
        pytest.param(
            mode, case, id=f"{mode}-{case.script}",
            marks=() if mode == "as_is" and case.script in IN_EVERY_SUITE else pytest.mark.thorough,
        )
        for mode in MODES
        for case in CASES
    ]  # fmt: skip


def test_every_script_has_a_case_and_every_case_a_script():
    assert sorted(case.script for case in CASES) == sorted(path.stem for path in SCRIPTS.glob("*/*.py"))


@pytest.mark.parametrize("mode", _in_modes(("as_is", "user", "forbidden")))
def test_scripts_in_one_process_change_nothing(mode):
    _check_together(mode, LIGHT)


@pytest.mark.parametrize("mode", _in_modes(("as_is",)))
def test_frameworks_that_rotate_checkpoints_change_nothing(mode):
    _check_together(mode, HEAVY)


@pytest.mark.parametrize(("mode", "case"), _each_alone())
def test_a_script_in_a_process_of_its_own_changes_nothing(mode, case):
    with site(mode, case.script) as at:
        before, n_bytes = fingerprint(at.place), sizes(at.place)
        code, said = wait(
            at, start(at, next(SCRIPTS.glob(f"*/{case.script}.py")), name=case.script, options=case.options)
        )
        changed = _changed(before, fingerprint(at.place))
        is_guarded = protection_expected(mode) == "guard"
        if changed and is_guarded and case.guard_fault:
            pytest.xfail(case.guard_fault)
        assert not changed, "\n".join([*changed, said])
        problems = _check_report(at, mode, [case], n_bytes)
        is_denied = case.denied and is_guarded
        if code != (3 if is_denied else case.exit_code):
            problems.append(f"exit code {code}")
        if ("DONE" in said.split()) is is_denied:
            problems.append("not refused by the guard" if is_denied else "did not come to its end")
        if problems and case.fault:
            pytest.xfail(case.fault)
        assert not problems, "\n".join([*problems, said])


def _check_together(mode: str, cases: list[Case]) -> None:
    if protection_expected(mode) == "guard":
        cases = [case for case in cases if not case.guard_fault]
    names = [case.script for case in cases]
    with site(mode, *names) as at:
        before, n_bytes = fingerprint(at.place), sizes(at.place)
        code, said = wait(at, start(at, DRIVER, at.place, *names))
        problems = _changed(before, fingerprint(at.place))
        ended = [
            json.loads(line.partition(" ")[2]) for line in said.splitlines() if line.startswith("ENDED ")
        ]
        assert (code, [each["name"] for each in ended]) == (0, names), "\n".join([*problems, said])
        for case, each in zip(cases, ended, strict=True):
            is_denied = case.denied and protection_expected(mode) == "guard"
            if is_denied and each["done"]:
                problems.append(f"{case.script}: not refused by the guard")
            elif not is_denied and not each["done"]:
                problems.append(f"{case.script}: {each['error'] or 'did not come to its end'}")
        problems += _check_report(at, mode, cases, n_bytes)
        assert not problems, "\n".join(problems)


def _changed(before: dict[str, tuple], after: dict[str, tuple]) -> list[str]:
    """What is no longer as it was, which is the one thing that must never be."""
    return [
        f"CHANGED {path}: was {before.get(path)}, is {after.get(path)}"
        for path in sorted(before.keys() | after.keys())
        if before.get(path) != after.get(path)
    ]


def _check_report(at: Site, mode: str, cases: list[Case], n_bytes: dict[str, int]) -> list[str]:
    files = report_of(at).get("files", {"protection": "not even told", "changes": []})
    problems = [f"a layer was left behind: {path}" for path in leftovers(at)]
    protection = protection_expected(mode)
    if files["protection"] != protection:
        problems.append(f"protection is {files['protection']}, not {protection}")
    # only the layer of a true root notes what was renamed; in another one a real file that moves is copied and removed
    sees_moves = mode == "as_is" and protection == "layer" and os.geteuid() == 0
    listed = [dict(entry, path=os.path.relpath(entry["path"], at.place)) for entry in files["changes"]]
    for case in cases:
        mine = [entry for entry in listed if Path(entry["path"]).parts[0] == case.script]
        listed = [entry for entry in listed if entry not in mine]
        expected, maybe = case.changes, case.maybe
        if protection == "guard" and case.denied:  # it may have come some way before it was refused
            expected, maybe = (), (*maybe, *(change.path for change in expected))
        elif not sees_moves:
            expected, maybe = _moves_as_copies(
                case, {entry["path"] for entry in mine if entry["what"] == "moved"}
            )
        here = f"{case.script}/here"
        problems += [f"{case.script}: {each}" for each in _compare(mine, expected, maybe, here, at, n_bytes)]
    return problems + [f"of no script: {entry}" for entry in listed if entry["path"].startswith("../..")]


def _moves_as_copies(case: Case, told_as_moves: set[str]) -> tuple[tuple[Change, ...], tuple[str, ...]]:
    """A move as a copy and a removal: as true as to call it a move."""
    expected, maybe = [], list(case.maybe)
    for change in case.changes:
        if change.moved_from is None or f"{case.script}/here/{change.path}" in told_as_moves:
            expected.append(change)
            continue
        is_folder = "." not in Path(change.moved_from).name
        expected.append(
            Change("written|replaced", f"{change.path}/*" if is_folder else change.path, change.n_bytes)
        )
        if any(f"{other.path}/".startswith(f"{change.moved_from}/") for other in case.changes):
            maybe.append(f"{change.moved_from}/*")  # something new is at the old place
        else:
            expected.append(Change("removed", change.moved_from))
    return tuple(expected), tuple(maybe)


def _compare(
    listed: list[dict],
    expected: tuple[Change, ...],
    maybe: tuple[str, ...],
    here: str,
    at: Site,
    n_bytes: dict[str, int],
) -> list[str]:
    """Where the entries of a report differ from those a case declares."""
    problems, left = [], list(listed)
    for change in sorted(expected, key=lambda change: "*" in change.path):  # a star takes what others left
        path = os.path.normpath(f"{here}/{change.path}")
        found = [entry for entry in left if fnmatchcase(entry["path"], path)]
        left = [entry for entry in left if entry not in found]
        if not found or (len(found) > 1 and "*" not in path):
            problems.append(f"{change.what} {change.path} is listed {len(found)} times")
        problems += [
            f"{entry}: {wrong}" for entry in found for wrong in _wrong(entry, change, here, at, n_bytes)
        ]
    patterns = [os.path.normpath(f"{here}/{path}") for path in maybe]
    return problems + [
        f"not expected: {entry}"
        for entry in left
        if not any(fnmatchcase(entry["path"], each) for each in patterns)
    ]


def _wrong(entry: dict, change: Change, here: str, at: Site, n_bytes: dict[str, int]) -> list[str]:
    """What is not true in one entry."""
    problems = []
    if entry["what"] not in change.what.split("|"):
        problems.append(f"is not {change.what}")
    if isinstance(change.n_bytes, range):
        if entry["n_bytes"] not in change.n_bytes:
            problems.append(f"size is not from {change.n_bytes.start} to {change.n_bytes.stop}")
    elif change.n_bytes is not None and entry["n_bytes"] != change.n_bytes:
        problems.append(f"size is not {change.n_bytes}")
    if change.moved_from is not None:
        source = os.path.normpath(f"{here}/{change.moved_from}")
        if entry["moved_from"] != str(at.place / source):
            problems.append(f"was not moved from {source}")
        if entry["n_bytes"] != n_bytes[source]:
            problems.append(f"size is not that of {source}, {n_bytes[source]}")
    before = None if entry["what"] == "written" else n_bytes.get(entry["path"])
    if not (at.place / entry["path"]).is_symlink() and not _is_size(entry["n_bytes_before"], before):
        problems.append(f"size before is not {before}")
    if entry["what"] == "removed" and entry["n_bytes"] is not None:
        problems.append("what is gone has no size")
    return problems


def _is_size(told: int | None, true: int | None) -> bool:
    """Equal, but for the few bytes of links in a folder, which may be counted or not."""
    return told == true or (told is not None and true is not None and true < told < true + 50)
