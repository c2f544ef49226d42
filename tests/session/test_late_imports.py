"""A run that asks for memory only does not pay for the timing models and the trace writer."""

import subprocess
import sys

PROGRAM = """
import sys
from windtunnel.commands.main import main

code = main(["run", "--level", "1", "--out", "out", "train.py"])
late = ("windtunnel.timing", "windtunnel.report.trace")
print("loaded", [name for name in sys.modules if name.startswith(late)])
sys.exit(code)
"""


def test_level_1_imports_neither_timing_nor_traces(tmp_path):
    (tmp_path / "train.py").write_text("import torch\nx = torch.ones(8, device='cuda')\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "loaded []" in done.stdout
