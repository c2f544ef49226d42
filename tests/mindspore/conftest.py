"""Tests that need a real MindSpore: they run in a virtual environment of its own, as its numpy is not torch's."""

from importlib.util import find_spec

if find_spec("mindspore") is None:
    collect_ignore_glob = ["*"]  # `make test` runs this folder with the interpreter that has it
