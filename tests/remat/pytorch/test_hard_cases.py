"""Hard cases of the live runtime: data, evaluation, failures, on and off, what is never run again."""

from __future__ import annotations

import copy
import gc
import io
import os

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from tests.remat.pytorch.training import MINIMUM, bits, check, live_bytes, run, runtime
from tests.remat.small_programs import ROWS, WIDTH, linear_layers, rows_of, tanh_layers, train_briefly

# -- data, evaluation, files --------------------------------------------------------------------------------------


# On a single core torch says that two workers are many.
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_data_loaders(workers):
    rows = torch.utils.data.TensorDataset(torch.cat([rows_of(i) for i in range(3)]))

    def program():
        model = tanh_layers()
        loader = torch.utils.data.DataLoader(rows, ROWS, shuffle=True, num_workers=workers)
        for (x,) in loader:
            model(x).square().mean().backward()
        return [p.grad for p in model.parameters()]

    check(program, shares=(0.3,))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_between_steps(mode):
    def program():
        model = tanh_layers()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        found = []
        for step in range(3):
            loss = F.dropout(model(rows_of(step)), 0.1).square().mean()
            with mode():  # between forward and backward, too
                found.append(model(rows_of(7)).clone())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            with mode():
                found.append(model(rows_of(9)).mean())
            model.train()
        return [each.clone() for each in found] + list(model.state_dict().values())

    check(program)


def test_files_written_amid_a_step_hold_the_same_bytes():
    def program():
        model = tanh_layers()
        hidden = model[:6](rows_of())
        loss = model[6:](hidden).square().mean()
        file = io.BytesIO()
        torch.save({"model": model.state_dict(), "hidden": hidden.detach()}, file)
        clone = copy.deepcopy(model)
        loss.backward()
        file.seek(0)
        loaded = torch.load(file)
        return [
            loaded["hidden"],
            *loaded["model"].values(),
            *clone.parameters(),
            *(p.grad for p in model.parameters()),
        ]

    check(program)


# -- going wrong, and going on ------------------------------------------------------------------------------------


def test_an_exception_in_forward_and_in_backward():
    def program():
        model = tanh_layers()
        found = []

        def fails(gradient):
            raise ZeroDivisionError

        for step in range(4):
            try:
                x = model[:6](rows_of(step))
                if step == 1:
                    raise ZeroDivisionError
                if step == 2:
                    x.register_hook(fails)
                loss = model[6:](x).square().mean()
                loss.backward()
                found.append(loss.detach())
            except ZeroDivisionError:
                model.zero_grad()
        return [*found, *(p.grad for p in model.parameters())]

    check(program)


def test_torch_still_refuses_what_was_changed_in_place():
    for share in (0.3, 4.0):
        model = tanh_layers()
        x = rows_of()
        with runtime(live_bytes() + int(share * 6 * 2 * ROWS * WIDTH * 4)):
            for layer in model:
                x = layer(x)
            saved = x.exp()
            loss = saved.square().mean()
            with torch.no_grad():
                saved.mul_(2)
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()


def test_anomaly_mode():
    def program():
        with torch.autograd.detect_anomaly(check_nan=False):
            return train_briefly(tanh_layers())

    check(_quietly(program))


def _quietly(program):
    def quiet():
        import warnings

        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Anomaly Detection")
            return program()

    return quiet


def test_forwards_without_a_backward_leave_nothing_behind():
    model = tanh_layers()
    with runtime(1 << 40, minimum_size=1) as live:
        for _ in range(600):
            model(rows_of())
        assert len(live.host._made) < 5000
        assert live.engine.candidates() == []


def test_other_modes_on_top():
    def program():
        model = tanh_layers()
        with FlopCounterMode(display=False):
            loss = model(rows_of()).square().mean()
            loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


# -- processes, on and off ----------------------------------------------------------------------------------------


def test_a_forked_process_trains_plainly():
    def train():
        return bits(train_briefly(tanh_layers()))

    torch.manual_seed(0)
    expected = train()
    with runtime(live_bytes() + 200_000) as live:
        loss = tanh_layers()(rows_of()).square().mean()
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            torch.manual_seed(0)
            is_same = train() == expected and not live.is_on
            os.write(write, b"same" if is_same else b"other")
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(read, 5) == b"same"
        assert live.is_on
        loss.backward()


def test_what_was_evicted_comes_back_after_stop():
    def program():
        torch.manual_seed(0)
        model = tanh_layers()
        with runtime(live_bytes() + 6 * ROWS * WIDTH * 4) as live:
            loss = model(rows_of()).square().mean()
        assert live.engine.statistics.evictions > 0
        loss.backward()
        assert live.engine.statistics.rematerialisations > 0
        return bits([loss, *(p.grad for p in model.parameters())])

    def plain():
        model = tanh_layers()
        loss = model(rows_of()).square().mean()
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    assert program() == run(plain)[:-1]


def test_on_and_off_amid_forward_and_backward():
    def program(live=None):
        torch.manual_seed(0)
        model = tanh_layers(8)
        x = rows_of()
        for i, layer in enumerate(model):
            if i == 3 and live:
                live.start()
            if i == 12 and live:
                live.stop()
            x = layer(x)
        loss = x.square().mean()
        if live:
            live.start()
        loss.backward()
        return bits([loss, *(p.grad for p in model.parameters())])

    expected = program()
    with runtime(live_bytes() + 700_000) as live:
        assert program(live) == expected
        assert live.engine.statistics.rematerialisations > 0


def test_kept_activations_are_never_touched():
    def program():
        model = tanh_layers()
        x = rows_of()
        kept, arrays = [], []
        for layer in model:
            x = layer(x)
            kept.append(x)
            arrays.append(x.detach().numpy())
        loss = x.square().mean()
        middle = [torch.from_numpy(each.copy()) for each in arrays]
        loss.backward()
        return [
            *middle,
            *kept,
            *(torch.from_numpy(each) for each in arrays),
            *(p.grad for p in model.parameters()),
        ]

    check(program, evicts=False)


def test_graphs_in_cycles_and_a_busy_collector():
    def program():
        model = tanh_layers()
        for step in range(6):
            loss = F.dropout(model(rows_of(step)), 0.1).square().mean()
            knot = [loss]
            knot.append(knot)  # only the collector can free this graph
            if step % 2:
                loss.backward()
            del loss, knot
        return [p.grad for p in model.parameters()]

    before = gc.get_threshold()
    gc.set_threshold(3, 2, 2)
    try:
        check(program)
    finally:
        gc.set_threshold(*before)


def test_a_long_chain_under_a_tiny_budget():
    def program():
        weight = torch.ones(WIDTH, requires_grad=True)
        x = rows_of() * weight
        for _ in range(1500):
            x = x.sin()
        x.sum().backward()
        return [weight.grad]

    statistics = check(program, shares=(0.1, 0.01))
    assert statistics.longest_chain > 100


# -- what is never run again --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def counted():
    """A custom operator that counts its calls."""
    calls = []

    @torch.library.custom_op("windtunnel_tests::counted", mutates_args=())
    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return x * 2 + len(calls)

    counted.register_autograd(lambda ctx, gradient: gradient * 2)
    return counted, calls


def test_custom_operators_run_once(counted):
    operator, calls = counted

    def program():
        calls.clear()
        model = linear_layers()
        x = rows_of()
        for layer in model:
            x = operator(layer(x)).sin()
        x.square().mean().backward()
        assert len(calls) == 5
        return [p.grad for p in model.parameters()]

    check(program)


NEVER_AGAIN = {
    "own_generator": lambda x: torch.rand(x.shape, generator=GENERATOR) * x,
    "dropout_by_own_generator": lambda x: x * torch.empty_like(x).bernoulli_(0.5, generator=GENERATOR),
    "data_dependent": lambda x: F.pad(x[x > 0], (0, int((x <= 0).sum()))).view(ROWS, WIDTH),
    "nonzero": lambda x: x * (x > 0).nonzero().float().mean(),
    "factories": lambda x: x * torch.linspace(0, 1, WIDTH) + torch.eye(ROWS, WIDTH) + torch.full_like(x, 2.0),
    "uninitialised": lambda x: torch.empty(ROWS, WIDTH).numpy() is not None and x + _filled_outside(),
    "item": lambda x: x * x.detach().sum().item() / 100,
    "repeat_interleave": lambda x: x.repeat_interleave(torch.ones(ROWS, dtype=torch.long), 0),
}
GENERATOR = torch.Generator()


def _filled_outside():
    y = torch.empty(ROWS, WIDTH)
    y.numpy()[:] = 3
    return y * 2


@pytest.mark.parametrize("name", NEVER_AGAIN)
def test_what_cannot_be_computed_again_is_not(name):
    def forward(model, x):
        for layer in model:
            x = torch.tanh(NEVER_AGAIN[name](layer(x)))
        return x

    def program():
        GENERATOR.manual_seed(5)
        return train_briefly(linear_layers(), forward)

    check(program)


def test_values_below_the_minimum_size_are_left_alone():
    n_bytes = ROWS * WIDTH * 4
    for minimum, is_evicted in ((n_bytes, True), (n_bytes + 1, False)):
        with runtime(live_bytes() + 4 * n_bytes, minimum_size=minimum) as live:
            run(lambda: train_briefly(tanh_layers()))
        assert (live.engine.statistics.evictions > 0) == is_evicted
    assert n_bytes > MINIMUM


# -- when the device has no room ----------------------------------------------------------------------------------


def _full_device(asked: str, fails: int):
    """An operator whose allocation fails so many times."""
    left = [fails]

    def call():
        if left[0]:
            left[0] -= 1
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity"
            )
        return "done"

    return call


def test_a_failed_allocation_evicts_what_it_asked_for_and_tries_again():
    n_bytes = ROWS * WIDTH * 4
    expected = run(lambda: train_briefly(tanh_layers(), steps=1))
    with runtime(1 << 40) as live:
        torch.manual_seed(0)
        model = tanh_layers()
        loss = model(rows_of(0)).square().mean()
        assert live.host.retrying(_full_device("96.00 KiB", 1)) == "done"
        assert live.engine.statistics.evictions == 3
        assert live.engine.statistics.evicted_bytes == 3 * n_bytes
        assert live.host.retrying(_full_device("1.00 GiB", 1)) == "done"  # all there is
        assert live.engine.candidates() == []
        assert live.engine.statistics.failed_allocations == 2
        with pytest.raises(
            torch.OutOfMemoryError, match=r"Tried to allocate 32.00 KiB.*in use, of which 0 B could be"
        ):
            live.host.retrying(_full_device("32.00 KiB", 1))
        loss.backward()
    assert bits([loss, *(p.grad for p in model.parameters())]) == expected[: 1 + 12]
