"""Training that does not stay in one thread: evicted and computed again in all of them, with the same bits."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from tests.remat.pytorch.training import bits, check, live_bytes, runtime
from tests.remat.small_programs import ROWS, WIDTH, rows_of, tanh_layers

WAIT_S = 300  # for another thread: never reached unless something hangs
VALUE = ROWS * WIDTH * 4


def _in_thread(function):
    """What the function returns in a thread of its own; its error, if it raises one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(function).result(WAIT_S)


def _step(model, step=0):
    model(rows_of(step)).square().mean().backward()
    return [p.grad for p in model.parameters()]


def _steps(n):
    return [_step(tanh_layers(), step) for step in range(n)]


def _all_at_once(functions):
    with ThreadPoolExecutor(len(functions)) as pool:
        return [each.result(WAIT_S) for each in [pool.submit(function) for function in functions]]


# -- one thread after the other -----------------------------------------------------------------------------------


def test_backward_in_another_thread():
    def program():
        model = tanh_layers()
        loss = model(rows_of()).square().mean()
        _in_thread(loss.backward)
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


def test_forward_in_another_thread():
    def program():
        model = tanh_layers()
        loss = _in_thread(lambda: F.dropout(model(rows_of()), 0.1).square().mean())
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


def test_forward_in_another_thread_without_modules():
    def program():
        weight = torch.ones(WIDTH, requires_grad=True)

        def forward():
            x = rows_of() * weight
            for _ in range(12):
                x = x.sin()
            return x.sum()

        _in_thread(forward).backward()
        return [weight.grad]

    check(program)


def test_replicas_in_threads_and_one_backward():
    """As torch.nn.DataParallel does it: a thread for each replica and step, backward in the main thread."""

    def program():
        model = tanh_layers()
        for step in range(2):
            halves = [rows_of(step)[:16], rows_of(step)[16:]]
            parts = _all_at_once([lambda half=half: model(half).square().sum() for half in halves])
            sum(parts).backward()
        return [p.grad for p in model.parameters()]

    check(program)


def test_a_thread_that_began_before_is_entered_when_it_calls_a_module():
    torch.manual_seed(0)
    model = tanh_layers()
    with ThreadPoolExecutor(1) as pool:
        expected = bits(pool.submit(_step, model).result(WAIT_S))
        model.zero_grad()
        with runtime(live_bytes() + 6 * VALUE) as live:
            assert bits(pool.submit(_step, model).result(WAIT_S)) == expected
            assert live.engine.statistics.rematerialisations > 0


# -- nothing is silent --------------------------------------------------------------------------------------------


def _sines():
    x = rows_of().requires_grad_()
    for _ in range(12):
        x = x.sin()
    x.sum().backward()


def test_a_thread_that_began_before_and_calls_no_module_is_told_to_enable_it_there():
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result(WAIT_S)
        with runtime(1000) as live:
            pool.submit(_sines).result(WAIT_S)  # may be the backward of a forward from before
            with pytest.warns(
                UserWarning, match=r"are in use, more than the threshold of 1000 B, but no tensor .* in that"
            ):
                pool.submit(_sines).result(WAIT_S)
            pool.submit(_sines).result(WAIT_S)  # told once
            assert live.engine.statistics.evictions == 0
            pool.submit(live.start).result(WAIT_S)
            pool.submit(_sines).result(WAIT_S)
            assert live.engine.statistics.evictions > 0


def test_another_stream_is_left_alone_and_told_once(monkeypatch):
    with runtime(live_bytes() + 4 * VALUE) as live:
        live._home_stream = "stream 0"
        monkeypatch.setattr(torch.accelerator, "current_stream", lambda: "stream 7", raising=False)
        with pytest.warns(
            UserWarning, match=r"another stream than dtr.enable\(\) did: .* on the stream you train"
        ) as told:
            _steps(2)
        assert sum("another stream" in str(each.message) for each in told) == 1
        assert live.engine.statistics.evictions == 0
        monkeypatch.setattr(torch.accelerator, "current_stream", lambda: "stream 0", raising=False)
        _step(tanh_layers())
        assert live.engine.statistics.evictions > 0


# -- threads at once ----------------------------------------------------------------------------------------------


def test_training_in_three_threads_at_once():
    def program():
        models = [tanh_layers() for _ in range(3)]

        def train(model):
            return [_step(model, step) for step in range(3)][-1]

        found = _all_at_once([lambda model=model: train(model) for model in models])
        return [gradient for gradients in found for gradient in gradients]

    check(
        program, shares=(0.1,)
    )  # less than the weights: something is evicted however the threads take turns


def test_a_forward_amid_another_thread_s_backward_does_not_end_its_round():
    """The guard counts a backward against the operators of its forward, whatever another thread runs meanwhile."""
    model, other, counts = tanh_layers(), tanh_layers(), []
    with ThreadPoolExecutor(1) as pool, runtime(live_bytes() + 4 * VALUE) as live:

        def amid(gradient):
            before = live.engine.guard.n_computed
            pool.submit(other, rows_of()).result(WAIT_S)
            counts.append((before, live.engine.guard.n_computed))

        x = model[:6](rows_of())
        x.register_hook(amid)
        model[6:](x).square().mean().backward()
    ((before, after),) = counts
    assert 0 < before == after


def test_random_numbers_drawn_while_another_thread_computes_again():
    """The default generator is everyone's: a mask made again must not move it under another thread."""

    def program():
        model = tanh_layers()
        x = rows_of()
        for layer in model:
            x = F.dropout(layer(x), 0.1)
        loss = x.square().mean()

        def draw():
            x = rows_of().requires_grad_()
            for _ in range(20):
                x = F.dropout(x, 0.001)
            with torch.no_grad():
                return x.detach() + torch.rand(x.shape)

        _, drawn = _all_at_once([loss.backward, draw])
        return [drawn, *(p.grad for p in model.parameters())]

    check(program, shares=(0.1,))  # see above


class _Draws(TorchDispatchMode):
    """Below the recorder: who holds its lock while random numbers are drawn, or memory is written."""

    def __init__(self) -> None:
        super().__init__()
        self.live = None
        self.is_locked: dict[str, bool] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        is_watched = torch.Tag.nondeterministic_seeded in func.tags or str(func).endswith("_.Tensor")
        if self.live is not None and is_watched:
            self.is_locked[str(func)] = self.live.host.lock._is_owned()
        return func(*args, **(kwargs or {}))


def test_nobody_computes_again_while_another_thread_draws_or_writes():
    rows, weight = rows_of(), rows_of().requires_grad_()
    with _Draws() as draws, runtime(1 << 40) as live:
        draws.live = live
        x, _ = torch.native_dropout(weight, 0.1, True)
        x = x * torch.rand(ROWS, WIDTH)
        x.mul_(rows)
        with torch.no_grad():
            torch.empty_like(x).bernoulli_(0.5)
            torch.randn(3)
        draws.live = None
    assert draws.is_locked == {
        "aten.native_dropout.default": True,
        "aten.rand.default": True,
        "aten.mul_.Tensor": True,
        "aten.bernoulli_.float": True,
        "aten.randn.default": True,
    }


def test_an_operator_that_waits_for_another_thread_does_not_hang():
    barrier = threading.Barrier(2, timeout=WAIT_S)

    @torch.library.custom_op("windtunnel_tests::meet", mutates_args={"x"})
    def meet(x: torch.Tensor) -> None:
        barrier.wait()
        x.mul_(2)

    def train():
        model = tanh_layers()
        x = model[:6](rows_of())
        y = x.detach().clone()
        meet(y)
        (model[6:](x) * y).square().mean().backward()

    with runtime(live_bytes() + 6 * VALUE) as live:
        _all_at_once([train, train])
        assert live.engine.statistics.evictions > 0


# -- the end ------------------------------------------------------------------------------------------------------


def test_threads_are_left_as_they_were():
    def state():
        return torch._C._autograd._top_saved_tensors_default_hooks(True), _get_current_dispatch_mode_stack()

    plain_start = threading.Thread.start
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(state).result(WAIT_S) == (None, [])
        with runtime(live_bytes() + 6 * VALUE):
            pool.submit(_step, tanh_layers()).result(WAIT_S)
            assert pool.submit(state).result(WAIT_S) != (None, [])
            assert threading.Thread.start is not plain_start
        assert threading.Thread.start is plain_start
        pool.submit(_step, tanh_layers()).result(
            WAIT_S
        )  # what is on in another thread goes when it is next asked
        assert pool.submit(state).result(WAIT_S) == (None, [])
