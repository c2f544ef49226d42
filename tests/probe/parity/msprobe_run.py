"""Runs a small model under real msProbe and prints the names of the entries it collected.

    python msprobe_run.py '{"level": "mix"}' FOLDER ──> a JSON list of names

Started as a process of its own, because msProbe keeps one debugger per process and leaves torch patched.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def main(config: dict, folder: Path) -> list[str]:
    import torch
    from msprobe.pytorch import PrecisionDebugger
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 4)
            self.act = nn.ReLU()

        def forward(self, x):
            return self.act(self.fc(x)) * 2

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = Block(), Block(), nn.Linear(4, 4)

        def forward(self, x):
            return torch.sigmoid(self.c(self.b(self.a(x) + 1)))

    path = folder / "config.json"
    path.write_text(json.dumps({**config, "dump_path": str(folder / "dump")}))
    net = Net()
    debugger = PrecisionDebugger(config_path=str(path))
    debugger.start(net)
    net(torch.ones(2, 4, requires_grad=True)).sum().backward()
    debugger.stop()
    debugger.step()
    return [
        name
        for file in (folder / "dump").glob("step0/*/dump.json")
        for name in json.loads(file.read_text())["data"]
    ]


if __name__ == "__main__":
    names = main(json.loads(sys.argv[1]), Path(sys.argv[2]))
    (Path(sys.argv[2]) / "names.json").write_text(json.dumps(names))
