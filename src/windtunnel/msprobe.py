"""Run a training script written for msProbe, unchanged: its imports of `msprobe` get windtunnel's probe.

    python -m windtunnel.msprobe train.py --epochs 3
    python -m windtunnel.msprobe -m package.train

An installed msProbe wins over this, and a line says so. `windtunnel run` answers the same imports in a dry run.
"""

from __future__ import annotations

import os
import runpy
import sys

from windtunnel.exit_codes import BAD_USAGE
from windtunnel.frameworks import location_of
from windtunnel.msprobe_imports import answer_msprobe

__all__ = ["main"]

_USAGE = "usage: python -m windtunnel.msprobe [-m MODULE | SCRIPT] [ARGUMENT ...]"


def main(argv: list[str]) -> int:
    """Run the script or module; returns only if it cannot be started or ends normally."""
    is_module = argv[:1] == ["-m"]
    if argv in ([], ["-m"], ["-h"], ["--help"]):
        sys.stderr.write(f"{_USAGE}\n")
        return 0 if "h" in "".join(argv) else BAD_USAGE
    script = argv[1] if is_module else argv[0]
    if not is_module and not os.path.isfile(script):
        sys.stderr.write(f"windtunnel: there is no script {script}; {_USAGE}\n")
        return BAD_USAGE
    installed = location_of("msprobe")
    if installed is not None and (installed / "pytorch").is_dir():  # not just a folder of that name
        sys.stderr.write("windtunnel: msProbe is installed in this Python, and the script gets that one\n")
    answer_msprobe()
    sys.argv[:] = argv[1:] if is_module else argv
    if is_module:
        runpy.run_module(script, run_name="__main__", alter_sys=True)
    else:
        sys.path[0] = os.path.dirname(os.path.abspath(script))  # as `python SCRIPT` does
        runpy.run_path(script, run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
