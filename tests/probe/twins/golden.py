"""Dumps of the twins to compare with where only one of the frameworks is installed.

python -m tests.probe.twins.golden torch       in an environment with torch
python -m tests.probe.twins.golden mindspore   in one with MindSpore
python -m tests.probe.twins.golden msprobe     in one with MindSpore and msProbe, which then collects; modules only
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

__all__ = ["GOLDEN"]

GOLDEN = Path(__file__).parent / "golden"


def _make(name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / name
        if name == "torch":
            from tests.probe.twins.torch_twin import dump

            dump(out)
        else:
            from tests.probe.twins.mindspore_twin import dump

            dump(
                out,
                level="L0" if name == "msprobe" else "mix",
                probe="msprobe" if name == "msprobe" else "windtunnel",
            )
        (rank,) = (out / "step0").iterdir()
        target = GOLDEN / name / "step0" / "proc0"
        target.mkdir(parents=True, exist_ok=True)
        for file in ("dump.json", "construct.json"):  # not stack.json: it holds paths of this machine
            document = json.loads((rank / file).read_text(encoding="utf-8"))
            lines = [
                f"{json.dumps(key)}: {json.dumps(value)}" for key, value in document.items() if key != "data"
            ]
            if "data" in document:
                entries = [f"{json.dumps(key)}: {json.dumps(body)}" for key, body in document["data"].items()]
                lines.append('"data": {\n' + ",\n".join(entries) + "\n}")
            (target / file).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    _make(sys.argv[1])
