"""An option of windtunnel after the script belongs to the script; if the script does not accept it, a message says so."""

from __future__ import annotations

import pytest

from tests.commands.cli import read_json, windtunnel
from windtunnel.commands.run_options import misplaced_options


@pytest.mark.parametrize(
    ("arguments", "ours"),
    [
        ("--device h100 --lr 3", ("--device", "h100")),
        ("--lr 3 --world_size=8 data", ("--world_size=8",)),
        ("--json --steps", ("--json", "--steps")),
        ("--lr 3", ()),
        ("-m x", ()),
    ],
)
def test_options_of_ours_are_found_with_their_values(arguments, ours):
    assert misplaced_options(arguments.split()) == ours


@pytest.mark.parametrize(
    ("script", "arguments", "code", "note"),
    [
        (
            "print('ran')",
            ["--device", "h100"],
            0,
            "the script never read its arguments (--device h100); options of windtunnel come before the script:"
            " windtunnel run --device h100 train.py",
        ),
        ("print('ran')", ["--lr", "3"], 0, "the script never read its arguments (--lr 3)"),
        (
            "import argparse; p = argparse.ArgumentParser(); p.add_argument('--lr'); p.parse_args()",
            ["--lr", "3", "--device", "h100"],
            3,
            "--device may have been meant for windtunnel: options of windtunnel come before the script:"
            " windtunnel run --device h100 train.py --lr 3",
        ),
        ("import sys; print(sys.argv[1:])", ["--device", "h100"], 0, None),
        ("import sys; sys.argv[1:]; raise ValueError('no data')", ["--device", "h100"], 3, None),
    ],
    ids=["ignored", "not ours", "refused", "read", "failed otherwise"],
)
def test_an_option_after_the_script_is_told_if_nobody_wants_it(tmp_path, script, arguments, code, note):
    (tmp_path / "train.py").write_text(script + "\n")
    done = windtunnel("run", "--level", 0, "--no-html", "train.py", *arguments, cwd=tmp_path)
    assert done.returncode == code
    (rank,) = read_json(tmp_path / "windtunnel-out")["ranks"]
    assert [said for said in rank["notes"] if "arguments" in said or "windtunnel run" in said] == (
        [note] if note else []
    )
