"""Whether a script looked at its arguments: every way of reading them counts, the name of the script does not."""

from __future__ import annotations

import argparse
import getopt
import pickle
import sys

import pytest

from windtunnel.capture.script_arguments import ScriptArguments


def _argparse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device")
    return parser.parse_args().device


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (_argparse, "h100"),
        (lambda: getopt.getopt(sys.argv[1:], "", ["device="])[0], [("--device", "h100")]),
        (lambda: sys.argv[-1], "h100"),
        (lambda: len(sys.argv), 3),
        (lambda: "--device" in sys.argv, True),
        (lambda: list(sys.argv)[1], "--device"),
        (lambda: " ".join(sys.argv), "train.py --device h100"),
        (lambda: [word for word in sys.argv if word.startswith("--")], ["--device"]),
        (lambda: sys.argv.copy()[2], "h100"),
        (lambda: sys.argv.index("h100"), 2),
        (lambda: sys.argv.__add__(["x"])[1], "--device"),
        (lambda: str(sys.argv), "['train.py', '--device', 'h100']"),
        (lambda: sys.argv.pop(), "h100"),
    ],
)
def test_reading_is_noted_and_gives_what_a_list_gives(monkeypatch, read, found):
    monkeypatch.setattr(sys, "argv", ScriptArguments(["train.py", "--device", "h100"]))
    assert not sys.argv.was_read
    assert read() == found
    assert sys.argv.was_read


def test_the_name_of_the_script_is_no_argument():
    arguments = ScriptArguments(["train.py", "--device", "h100"])
    assert arguments[0] == "train.py"
    assert not arguments.was_read
    assert type(pickle.loads(pickle.dumps(arguments))) is list
