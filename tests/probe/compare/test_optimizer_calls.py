"""One optimizer computed tensor by tensor, in lists or in one kernel: the weights decide, not the calls."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.probe.probing import make_debugger
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tolerance import Tolerance
from windtunnel.report.json.compare_csv import CsvReport

WAYS = {"loop": {"foreach": False}, "lists": {"foreach": True}, "one kernel": {"fused": True}}
OPTIMIZERS = {
    "AdamW": torch.optim.AdamW,
    "Adam": lambda parameters, **way: torch.optim.Adam(parameters, weight_decay=0.1, **way),
    "SGD": lambda parameters, **way: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **way),
}


def _train(folder: Path, make, level: str = "mix", n_steps: int = 1, **keys) -> Path:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = make(net.parameters())
    debugger = make_debugger(folder, level=level, task="statistics", **keys)
    for _ in range(n_steps):
        debugger.start(net)
        net(torch.linspace(-1, 1, 12).view(3, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    debugger.close()
    return folder / "dump"


def _compare(a: Path, b: Path, **tolerance) -> Findings:
    findings = Findings()
    for found in compare_dumps(a, b, Tolerance(**tolerance), on_note=findings.notes.append):
        findings.add(found)
    return findings


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("ways", [("loop", "lists"), ("lists", "one kernel"), ("one kernel", "loop")])
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_another_way_to_the_same_weights_is_no_difference(tmp_path, name, ways, level):
    paths = [
        _train(tmp_path / way, lambda p, way=way: OPTIMIZERS[name](p, **WAYS[way]), level, 2) for way in ways
    ]
    found = _compare(*paths)
    assert found.is_equal
    assert found.only_a > 0
    assert found.only_b > 0
    assert any(
        note.startswith("the optimizers reach the same weights by different calls") for note in found.notes
    )


def test_the_note_names_the_calls(tmp_path):
    paths = [
        _train(tmp_path / way, lambda p, way=way: torch.optim.AdamW(p, **WAYS[way]))
        for way in ("loop", "lists")
    ]
    assert _compare(*paths).notes == [
        "the optimizers reach the same weights by different calls "
        "(Tensor.__iadd__ and 35 more in A, Torch._foreach_add_ and 8 more in B)"
    ]
    assert _compare(*paths, exact=True).is_equal


OTHERS = {
    "another rate": lambda p: torch.optim.AdamW(p, lr=1.1e-3, foreach=True),
    "another decay": lambda p: torch.optim.AdamW(p, weight_decay=0.2, foreach=True),
    "another optimizer": lambda p: torch.optim.SGD(p, lr=1e-3, foreach=True),
    "a weight that is left out": lambda p: torch.optim.AdamW(list(p)[:-1], foreach=True),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("level", ["L1", "mix"])
def test_other_weights_are_a_difference_whatever_the_calls(tmp_path, name, level):
    one = _train(tmp_path / "a", lambda p: torch.optim.AdamW(p, foreach=False), level)
    found = _compare(one, _train(tmp_path / "b", OTHERS[name], level))
    assert not found.is_equal
    assert found.first.item == "Tensor.__iadd__.0.forward"


def test_calls_of_the_model_are_not_passed_over(tmp_path):
    one = _train(tmp_path / "a", lambda p: torch.optim.SGD(p, lr=0.1, foreach=True))
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, foreach=False)
    debugger = make_debugger(tmp_path / "b", level="mix", task="statistics")
    with debugger.watch(net):
        net(torch.linspace(-1, 1, 12).view(3, 4)).sum().backward()
        optimizer.step()
        torch.relu(torch.ones(3))
    debugger.close()
    found = _compare(one, tmp_path / "b" / "dump")
    assert found.first is not None
    assert (found.first.item, found.first.kind) == ("Torch.relu.0.forward", "only in B")


def test_a_dump_that_says_nothing_of_its_calls_is_not_excused(tmp_path):
    paths = [
        _train(tmp_path / way, lambda p, way=way: torch.optim.SGD(p, **WAYS[way]), "L1", extra_info=False)
        for way in ("loop", "lists")
    ]
    assert not _compare(*paths).is_equal


def test_rows_of_the_csv_pass_as_the_verdict_does(tmp_path):
    paths = [
        _train(tmp_path / way, lambda p, way=way: torch.optim.SGD(p, **WAYS[way]))
        for way in ("loop", "lists")
    ]
    stream = io.BytesIO()
    report = CsvReport(stream)
    for found in compare_dumps(*paths, Tolerance()):
        report.add(found)
    report.close()
    rows = list(csv.DictReader(io.StringIO(stream.getvalue().decode("utf-8-sig"))))
    alone = [row for row in rows if row["Err_message"].startswith("only in")]
    assert {row["Result"] for row in rows} == {"pass"}
    assert len(alone) == 5  # four weights one by one, or all in one call
