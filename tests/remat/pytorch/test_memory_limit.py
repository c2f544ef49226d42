"""Without a threshold: evict when an allocation does not fit, in forward and in backward. On the CPU under a set limit."""

from __future__ import annotations

import pytest
import torch

import windtunnel.dtr as dtr
from windtunnel.remat.evict_and_recompute import Settings
from windtunnel.remat.pytorch.runtime import Runtime

WIDTH, ROWS, LAYERS, STEPS = 128, 1024, 12, 3
ACTIVATION = ROWS * WIDTH * 4
WEIGHTS = LAYERS * (WIDTH * WIDTH + WIDTH) * 4

pytestmark = pytest.mark.filterwarnings("ignore:windtunnel.dtr. with the")  # low limits are what is tested


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _model():
    torch.manual_seed(0)
    layers = [(torch.nn.Linear(WIDTH, WIDTH), torch.nn.GELU(), torch.nn.Dropout(0.1)) for _ in range(LAYERS)]
    return torch.nn.Sequential(*[each for layer in layers for each in layer])


def _train(model, meter, after_forward=lambda: None):
    """Losses, final weights, the most bytes in use after a forward, and whether gradients stayed the same objects."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses, most, gradients = [], 0, []
    for step in range(STEPS):
        torch.manual_seed(step)
        loss = model(torch.randn(ROWS, WIDTH)).square().mean()
        most = max(most, meter.live_bytes())
        after_forward()
        loss.backward()
        gradients.append([id(p.grad) for p in model.parameters()])
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        losses.append(loss.item())
    weights = [p.detach().numpy().tobytes() for p in model.parameters()]
    return losses, weights, most, gradients


def _run(limit_over_base=None, **more):
    """Train under a limit, given in bytes above what is in use before."""
    settings = Settings(minimum_size=1024)
    live = Runtime(settings, torch.device("cpu"))
    base = live.meter.live_bytes()
    model = _model()
    if limit_over_base is not None:
        settings.memory_limit = base + limit_over_base
        live.start()
    try:
        *found, most, gradients = _train(model, live.meter, **more)
    finally:
        live.stop()
    return found, most - base, gradients, live.engine.statistics


@pytest.fixture(scope="module")
def plain():
    return _run()


@pytest.mark.parametrize("share", [0.9, 0.7, 0.5])
def test_training_under_a_limit_has_the_same_bits_and_keeps_it(plain, share):
    expected, most, _, _ = plain
    found, _, gradients, statistics = _run(int(most * share))
    assert found == expected
    assert statistics.failed_allocations > 0
    assert statistics.evictions > 0
    assert gradients[0] == gradients[1] == gradients[2]  # accumulated in place, as without us


def test_what_fits_is_left_alone(plain):
    expected, most, _, _ = plain
    found, _, _, statistics = _run(2 * most)
    assert (found, statistics.evictions, statistics.failed_allocations) == (expected, 0, 0)


def test_after_every_operator_the_limit_is_kept(plain):
    """Gradients of the first step are new in backward: without retries there they would exceed the limit."""
    _, most, _, _ = plain
    settings = Settings(minimum_size=1024)
    live = Runtime(settings, torch.device("cpu"))
    settings.memory_limit = live.meter.live_bytes() + int(most * 0.7)
    seen = []
    retry = live.host.with_retry

    def watched(func, args, kwargs):
        out = retry(func, args, kwargs)
        seen.append((torch._C._current_graph_task_id() != -1, live.meter.live_bytes()))
        return out

    live.host.with_retry = watched
    model = _model()
    live.start()
    try:
        _train(model, live.meter)
    finally:
        live.stop()
    in_backward = [n_bytes for is_backward, n_bytes in seen if is_backward]
    assert len(in_backward) > LAYERS
    assert max(n_bytes for _, n_bytes in seen) <= settings.memory_limit


def test_eviction_happens_in_backward_if_only_backward_exceeds_the_limit(plain):
    expected, most, _, _ = plain
    in_forward = []
    settings = Settings(minimum_size=1024)
    live = Runtime(settings, torch.device("cpu"))
    base = live.meter.live_bytes()
    model = _model()
    settings.memory_limit = base + most + ACTIVATION // 2  # forward fits
    live.start()
    try:
        found = _train(
            model, live.meter, lambda: in_forward.append(live.engine.statistics.failed_allocations)
        )
    finally:
        live.stop()
    assert in_forward[0] == 0
    assert live.engine.statistics.failed_allocations > 0
    assert list(found[:2]) == expected


def test_a_limit_below_what_is_needed_is_one_sentence(plain):
    with pytest.raises(
        torch.OutOfMemoryError, match=r"CPU out of memory: dtr.memory_limit is .* more are needed"
    ):
        _run(WEIGHTS + ACTIVATION)


class _FailsOnce(torch.autograd.Function):
    """Its backward calls an operator that the device refuses once."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return torch.ops.windtunnel_test.refused_once(gradient)


@pytest.fixture
def refused():
    calls = []
    library = torch.library.Library("windtunnel_test", "DEF")
    library.define("refused_once(Tensor x) -> Tensor")

    def refused_once(x):
        calls.append(1)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 KiB. GPU 0 has")
        return x * 2

    library.impl("refused_once", refused_once, "CPU")
    yield calls
    library._destroy()


def test_an_operator_of_backward_that_the_device_refuses_runs_again(refused):
    settings = Settings(minimum_size=1024)
    live = Runtime(settings, torch.device("cpu"))
    torch.manual_seed(0)
    model = _model()
    # Near the limit, and far enough from it that nothing is evicted for its sake.
    settings.memory_limit = live.meter.live_bytes() + 60 * ACTIVATION
    live.start()
    try:
        x = torch.randn(ROWS, WIDTH, requires_grad=True)
        loss = _FailsOnce.apply(model(x)).sum()
        settings.memory_limit = live.meter.live_bytes() + 30 * ACTIVATION
        loss.backward()
    finally:
        live.stop()
    assert len(refused) == 2
    assert live.engine.statistics.failed_allocations == 1
    assert live.engine.statistics.evictions >= 1


def test_the_setting_is_checked_and_read_from_the_environment(monkeypatch):
    control = dtr._Control({"WINDTUNNEL_DTR_MEMORY_LIMIT": "2GB"})
    assert control.settings.memory_limit == 2 << 30
    control.set_limit(0)
    assert control.settings.memory_limit is None
    with pytest.raises(dtr.UsageError, match="memory_limit"):
        control.set_limit("much")
