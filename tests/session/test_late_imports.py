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


SCRIPT = """
import sys, torch
model = torch.nn.Linear(8, 8).cuda()
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(8, device="cuda")).sum().backward()
optimizer.step()
compiler = ("torch._inductor.graph", "torch._functorch.aot_autograd", "windtunnel.capture.pytorch.compiler.inductor")
print("compilers", [name for name in compiler if name in sys.modules])
"""


def test_level_1_imports_neither_timing_nor_traces_nor_compilers(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=tmp_path, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "loaded []" in done.stdout
    assert "compilers []" in done.stdout
