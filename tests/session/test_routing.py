"""`--routing` from the command line: what the report says of it, what is refused, and what more imbalance would need."""

from __future__ import annotations

import pytest

from tests.commands.cli import read_json, windtunnel

EXPERT_PARALLEL = """
import torch
import torch.distributed as dist
from torch import nn

class Experts(nn.Module):
    def __init__(self, width, n_experts):
        super().__init__()
        self.n_experts = n_experts
        self.gate = nn.Linear(width, n_experts, bias=False)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        ids = self.gate(x).softmax(-1).topk(2).indices.flatten()
        sent = torch.bincount(ids, minlength=self.n_experts)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent)
        to, of = (counts.view(dist.get_world_size(), -1).sum(1).tolist() for counts in (sent, received))
        tokens = x.new_empty(sum(of), x.shape[1])
        dist.all_to_all_single(tokens, x.detach()[ids.argsort(stable=True) // 2], of, to)
        return self.down(self.up(tokens).relu())

dist.init_process_group("nccl")
model = Experts(256, 16).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(4096, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def _run(tmp_path, *options):
    (tmp_path / "train.py").write_text(EXPERT_PARALLEL)
    done = windtunnel(
        "run", "--world-size", "4", *options, "--no-html", "--out", "out", "--force", "train.py", cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return read_json(tmp_path / "out")


def test_the_report_names_the_routing_and_the_line_that_chose(tmp_path):
    report = _run(tmp_path, "--routing", "worst")
    routers = [{"where": "train.py:14", "experts": 16, "chosen": 2}]
    assert report["ranks"][0]["routing"] == {"policy": "worst", "routers": routers}
    assert any("worst routing was assumed (train.py:14)" in note for note in report["notes"])
    first, *others = [rank["peak_bytes"] for rank in report["ranks"]]
    assert first > 3 * max(others)
    assert len(set(others)) == 1


@pytest.mark.thorough
def test_advice_tells_what_more_imbalance_needs(tmp_path):
    report = _run(tmp_path, "--advise")
    peaks = [rank["peak_bytes"] for rank in report["ranks"]]
    assert len(set(peaks)) == 1
    needs = {remedy["how"]: remedy["needs_bytes"] for remedy in report["advice"]}
    assert list(needs) == ["--routing zipf:1.2", "--routing worst"]
    assert peaks[0] < needs["--routing zipf:1.2"] < needs["--routing worst"]


def test_a_routing_that_does_not_exist_is_refused(tmp_path):
    (tmp_path / "train.py").write_text("")
    done = windtunnel("run", "--routing", "even", "train.py", cwd=tmp_path)
    assert (done.returncode, done.stderr.splitlines()[0]) == (2, "windtunnel: unknown routing 'even'")
