"""async_dump and dump_enable: the same files by another way, and collecting that is switched while a program runs."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from torch import nn

from windtunnel.pytorch import PrecisionDebugger


def _write(path: Path, **config) -> str:
    path.write_text(json.dumps(config))
    return str(path)


def _step(debugger: PrecisionDebugger) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    debugger.start(model)
    model(torch.ones(3, 4)).sum().backward()
    debugger.stop()
    debugger.step()


def _tensors(dump: Path) -> dict[str, torch.Tensor]:
    return {file.name: torch.load(file) for file in dump.glob("step0/*/dump_tensor_data/*.pt")}


def test_tensors_written_by_a_thread_are_the_same(tmp_path):
    found = []
    for is_async in (False, True):
        dump = tmp_path / str(is_async)
        tensor = {"list": ["Module"]}  # msProbe wants a list with async_dump
        config = _write(
            tmp_path / f"{is_async}.json",
            task="tensor",
            level="mix",
            dump_path=str(dump),
            async_dump=is_async,
            tensor=tensor,
        )
        debugger = PrecisionDebugger(config_path=config)
        _step(debugger)
        debugger.close()
        found.append(_tensors(dump))
    direct, later = found
    assert direct
    assert direct.keys() == later.keys()
    assert all(torch.equal(direct[name], later[name]) for name in direct)


def test_collecting_is_switched_on_and_off_in_the_file(tmp_path):
    file = tmp_path / "config.json"
    common = {"task": "statistics", "level": "L1", "dump_path": str(tmp_path / "dump")}
    debugger = PrecisionDebugger(config_path=_write(file, **common, dump_enable=False))
    _step(debugger)
    _write(file, **common, dump_enable=True)
    _step(debugger)
    file.write_text("{")  # somebody is in the middle of editing it
    _step(debugger)
    debugger.close()
    assert [folder.name for folder in (tmp_path / "dump").iterdir()] == ["step1"]
