"""windtunnel remat --advise: from a script to a table, a picture and one sentence."""

from __future__ import annotations

import json

import pytest

from tests.commands.cli import windtunnel
from windtunnel.report.page.saved import read_page_document

pytest.importorskip("scipy")

# 500 MiB are the context's: this leaves 100 MiB, and the model takes more.
CARD = "2080ti-11gb:mem=600MiB"
SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)
    def forward(self, x):
        return x + self.down(F.gelu(self.up(x)))

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(6))
    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

model = Model().cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(3):
    model(torch.randn(8192, 128, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def here(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    return tmp_path


def test_a_script_is_advised_and_again_from_its_recording(here):
    ended = windtunnel("remat", "--advise", "--device", CARD, "--out", "out", "train.py", cwd=here)
    assert ended.returncode == 0, ended.stderr
    assert "6 blocks, layers.0 to layers.5" in ended.stdout
    assert "Use " in ended.stdout
    assert "next: " in ended.stdout
    assert "out/advice.png" in ended.stdout
    document = json.loads((here / "out" / "advice.json").read_text())
    page = read_page_document(here / "out" / "report.html")
    assert (page["advice"], page["opens_on"]) == (document, "advice")
    ways = {point["way"] for point in document["points"]}
    assert ways == {"nothing", "blocks", "fixed set", "dtr"}
    chosen = document["points"][document["recommended"]]
    assert chosen["fits"]
    assert document["answer"] in " ".join(ended.stdout.split())
    assert (here / "out" / "advice.png").read_bytes()[:4] == b"\x89PNG"

    again = windtunnel("remat", "--advise", "--device", CARD, "--json", "out", cwd=here)
    assert again.returncode == 0, again.stderr
    # The script was dry-run once more with the blocks that were recommended; of a recording that is not done.
    others = json.loads(again.stdout)["points"]
    for point, other in zip(document["points"], others, strict=True):
        assert not other["is_confirmed"]
        if point["is_confirmed"]:
            assert point["reserved_bytes"] == pytest.approx(other["reserved_bytes"], rel=0.1)
            other |= {name: point[name] for name in ("is_confirmed", "reserved_bytes", "needs_bytes")}
    assert others == document["points"]


def test_a_card_that_nothing_fits_is_exit_code_4(here):
    ended = windtunnel(
        "remat", "--advise", "--device", "2080ti-11gb:mem=505MiB", "--out", "out", "train.py", cwd=here
    )
    assert ended.returncode == 4
    assert "Nothing fits" in ended.stdout


def test_policies_are_not_compared_here(here):
    ended = windtunnel("remat", "--advise", "--policy", "all", "train.py", cwd=here)
    assert ended.returncode == 2
    assert "not policies" in ended.stderr
