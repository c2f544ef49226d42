"""Run many scripts one after the other in one process, each in the folder made for it, and say how each ended.

    windtunnel run driver.py PLACE name… ──> PLACE/name/here is the working folder of scripts/name.py

A process for each script would take minutes; here only what a script leaves behind on disk is of interest.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import runpy
import sys
import traceback
from pathlib import Path

import torch  # noqa: F401  a training script as far as windtunnel is concerned

SCRIPTS = Path(__file__).parent / "scripts"


def main() -> None:
    place = Path(sys.argv[1])
    for name in sys.argv[2:]:
        os.chdir(place / name / "here")
        os.environ |= {"HOME": str(place / name / "home"), "SCRATCH": str(place / name / "scratch")}
        said, error = io.StringIO(), None
        try:
            with contextlib.redirect_stdout(said):
                runpy.run_path(str(next(SCRIPTS.glob(f"*/{name}.py"))), run_name="__main__")
        except BaseException as problem:  # also SystemExit: the next script is to run in any case
            error = "".join(traceback.format_exception(problem)[-3:])
        done = said.getvalue().endswith("DONE\n")
        print("ENDED " + json.dumps({"name": name, "done": done, "error": error}), flush=True)


if __name__ == "__main__":
    main()
