"""Bytes in use on the host: exact, and a second way where the first is missing."""

from __future__ import annotations

import textwrap

import pytest
import torch

from tests.commands.warm import run_warm_python
from tests.remat.memory_events import watched
from tests.remat.pytorch import training
from windtunnel.remat.pytorch import meter as torch_meter
from windtunnel.remat.pytorch.meter import CountingMeter, HostMeter, meter_for

CPU = torch.device("cpu")


@pytest.fixture
def meter():
    found = meter_for(CPU)
    assert isinstance(found, HostMeter)
    return found


def test_counts_each_allocation_exactly_once(meter):
    before = meter.live_bytes()
    x = torch.empty(12_345, dtype=torch.uint8)
    assert meter.live_bytes() == before + 12_345
    views = [x[1:], x.view(5, -1), x.detach()]
    assert meter.live_bytes() == before + 12_345
    del x
    assert meter.live_bytes() == before + 12_345
    del views
    assert meter.live_bytes() == before


def test_follows_resizing(meter):
    before = meter.live_bytes()
    x = torch.empty(1000)
    x.untyped_storage().resize_(10_000)
    assert meter.live_bytes() == before + 10_000
    x.untyped_storage().resize_(0)
    assert meter.live_bytes() == before


def test_agrees_with_the_profiler(meter):
    layer = torch.nn.Linear(64, 64)
    with watched() as usage:
        before = meter.live_bytes()
        y = layer(torch.ones(32, 64)).relu()
        after = meter.live_bytes()
    assert after - before == usage.at_end > 0
    del y


def test_one_per_process(meter):
    assert meter_for(CPU) is meter


def test_capacity_is_what_is_used_and_what_is_free(meter):
    assert meter.capacity() > meter.live_bytes()


def test_tensors_from_before_are_counted():
    """In a process of its own: the first meter switches the counting on."""
    program = """
        import torch
        x = torch.empty(10_000_000, dtype=torch.uint8)
        view = x[5:]
        from windtunnel.remat.pytorch.meter import meter_for
        meter = meter_for(torch.device("cpu"))
        before = meter.live_bytes()
        assert before >= 10_000_000, before
        del x, view
        assert meter.live_bytes() == before - 10_000_000, meter.live_bytes()
    """
    done = run_warm_python(["-c", textwrap.dedent(program)])
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # torch does not complain of frees it knows nothing of


def test_counts_what_it_saw_where_torch_does_not_say(monkeypatch):
    monkeypatch.setattr(torch_meter, "_host_meter", [])
    monkeypatch.setattr(torch_meter, "_REPORTER", "no_such_symbol")
    meter = meter_for(CPU)
    assert isinstance(meter, CountingMeter)
    before = meter.live_bytes()
    x = torch.empty(1000)
    assert meter.live_bytes() == before
    meter.saw(x.untyped_storage())
    meter.saw(x.untyped_storage())
    assert meter.live_bytes() == before + 4000
    del x
    assert meter.live_bytes() == before
    assert meter.capacity() > before


def test_a_runtime_works_with_what_it_saw(monkeypatch):
    monkeypatch.setattr(torch_meter, "_host_meter", [])
    monkeypatch.setattr(torch_meter, "_REPORTER", "no_such_symbol")

    def program():
        layers = [each for _ in range(6) for each in (torch.nn.Linear(128, 128), torch.nn.Tanh())]
        model = torch.nn.Sequential(*layers)
        loss = model(torch.randn(64, 128)).square().mean()
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    expected = training.run(program)
    with training.runtime(0) as live:
        live.settings.threshold = live.meter.live_bytes() + 6 * 64 * 128 * 4
        assert training.run(program) == expected
    assert isinstance(live.meter, CountingMeter)
    assert live.engine.statistics.rematerialisations > 0
