"""Optimizers on the simulated device: their state, their temporaries, their variants."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from tests.capture.pytorch.simulated import simulate
from windtunnel.events.model import Op, Step

N = 1 << 20  # floats in each of four weights: 4 MiB
WEIGHT = 4 * N


def _steps(make, n_steps=3):
    def program():
        weights = [nn.Parameter(torch.zeros(N, device="cuda")) for _ in range(4)]
        optimizer = make(weights)
        after = []
        for _ in range(n_steps):
            for w in weights:
                w.grad = torch.ones(N, device="cuda")
            optimizer.step()
            optimizer.zero_grad()
            after.append(torch.cuda.memory_allocated())
        return after

    return program


# name, optimizer, weight-sized state tensors for each weight
STATES = [
    ("SGD", lambda p: torch.optim.SGD(p, lr=0.1), 0),
    ("SGD momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), 1),
    ("SGD fused", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=True), 1),
    ("Adam", lambda p: torch.optim.Adam(p), 2),
    ("Adam amsgrad", lambda p: torch.optim.Adam(p, amsgrad=True), 3),
    ("AdamW", lambda p: torch.optim.AdamW(p), 2),
    ("AdamW fused", lambda p: torch.optim.AdamW(p, fused=True), 2),
    ("AdamW for-loop", lambda p: torch.optim.AdamW(p, foreach=False), 2),
    ("AdamW capturable", lambda p: torch.optim.AdamW(p, capturable=True), 2),
    ("AdamW tensor lr", lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3)), 2),
    ("Adagrad", lambda p: torch.optim.Adagrad(p), 1),
    ("RMSprop", lambda p: torch.optim.RMSprop(p), 1),
    ("RMSprop centered", lambda p: torch.optim.RMSprop(p, centered=True, momentum=0.9), 3),
    ("Adadelta", lambda p: torch.optim.Adadelta(p), 2),
    ("Adamax", lambda p: torch.optim.Adamax(p), 2),
    ("NAdam", lambda p: torch.optim.NAdam(p), 2),
    ("RAdam", lambda p: torch.optim.RAdam(p), 2),
    ("Rprop", lambda p: torch.optim.Rprop(p), 2),
    ("ASGD", lambda p: torch.optim.ASGD(p), 1),
]


@pytest.mark.parametrize(("make", "n_states"), [s[1:] for s in STATES], ids=[s[0] for s in STATES])
def test_state_of_each_optimizer(make, n_states):
    run = simulate(_steps(make))
    assert run.recording.footer["steps"] == 3
    small = 64 * 512  # step counters and the like
    for allocated in run.answer:
        assert 0 <= allocated - (1 + n_states) * 4 * WEIGHT <= small


def test_foreach_is_the_default_and_its_temporaries_show():
    foreach = simulate(_steps(lambda p: torch.optim.AdamW(p)))
    explicit = simulate(_steps(lambda p: torch.optim.AdamW(p, foreach=True)))
    loop = simulate(_steps(lambda p: torch.optim.AdamW(p, foreach=False)))
    fused = simulate(_steps(lambda p: torch.optim.AdamW(p, fused=True)))
    assert "aten._foreach_addcdiv_.ScalarList" in foreach.op_names
    assert foreach.peak_bytes == explicit.peak_bytes
    base = 4 * 4 * WEIGHT  # weights, gradients, two states
    assert fused.peak_bytes - base < WEIGHT
    assert "aten._fused_adamw_.default" in fused.op_names
    assert (
        loop.peak_bytes - base == 3 * WEIGHT
    )  # the denominator of the weight before, its root, its quotient
    assert foreach.peak_bytes - base == 4 * WEIGHT  # the roots of all weights at once, divided in place


def test_adafactor_keeps_rows_and_columns():
    def program():
        w = nn.Parameter(torch.zeros(1024, 1024, device="cuda"))
        optimizer = torch.optim.Adafactor([w])
        for _ in range(2):
            w.grad = torch.ones_like(w)
            optimizer.step()
            w.grad = None
        state = optimizer.state[w]
        return {
            k: tuple(v.shape) for k, v in state.items() if isinstance(v, torch.Tensor)
        }, torch.cuda.memory_allocated()

    shapes, allocated = simulate(program).answer
    assert shapes["row_var"] == (1024, 1)
    assert shapes["col_var"] == (1, 1024)
    assert allocated == (4 << 20) + 2 * 4096


def test_lbfgs_runs_its_closure():
    def program():
        w = nn.Parameter(torch.zeros(100, device="cuda"))
        optimizer = torch.optim.LBFGS([w], max_iter=3)
        calls = []

        def closure():
            calls.append(1)
            optimizer.zero_grad()
            loss = (w - 1).pow(2).sum()
            loss.backward()
            return loss

        for _ in range(2):
            optimizer.step(closure)
        return len(calls)

    run = simulate(program)
    assert run.answer >= 2
    assert run.recording.footer["steps"] == 2


def test_optimizer_state_is_known_by_role_and_name():
    def program():
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 8)).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for _ in range(3):
            model(torch.ones(4, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()

    memory = simulate(program).memory
    weights = 64 * 64 * 4 + 512 + 64 * 8 * 4 + 512
    assert memory.at_peak.weights == weights
    assert memory.at_peak.optimizer == 2 * weights


def test_state_dicts_round_trip():
    def program():
        def build():
            model = nn.Linear(100, 100).cuda()
            return model, torch.optim.AdamW(model.parameters(), lr=0.5)

        model, optimizer = build()
        model(torch.ones(1, 100, device="cuda")).sum().backward()
        optimizer.step()
        again, optimizer_again = build()
        again.load_state_dict(model.state_dict())
        optimizer_again.load_state_dict(optimizer.state_dict())
        state = next(iter(optimizer_again.state.values()))
        is_shared = state["exp_avg"].data_ptr() == next(iter(optimizer.state.values()))["exp_avg"].data_ptr()
        optimizer_again.step()
        return float(state["step"]), str(state["exp_avg"].device), is_shared, str(state["step"].device)

    assert simulate(program).answer == (1.0, "cuda:0", True, "cpu")


def test_schedulers_and_clipping():
    def program():
        model = nn.Linear(10, 10).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        warm = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (step + 1) / 10)
        rates = []
        for _ in range(3):
            model(torch.ones(1, 10, device="cuda")).sum().backward()
            total = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            nn.utils.clip_grad_value_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            warm.step()
            rates.append(round(optimizer.param_groups[0]["lr"], 6))
        return rates, str(total.device), tuple(total.shape)

    rates, device, shape = simulate(program).answer
    assert len(set(rates)) == 3
    assert (device, shape) == ("cuda:0", ())


def test_averaged_models():
    def program():
        model = nn.Linear(10, 10).cuda()
        average = torch.optim.swa_utils.AveragedModel(
            model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
        )
        for _ in range(2):
            average.update_parameters(model)
        return int(average.n_averaged), {str(p.device) for p in average.parameters()}

    assert simulate(program).answer == (2, {"cuda:0"})


def test_steps_stop_where_asked():
    def program():
        w = nn.Parameter(torch.zeros(10, device="cuda"))
        optimizer = torch.optim.SGD([w], lr=0.1)
        while True:
            w.sum().backward()
            optimizer.step()

    run = simulate(program, steps=5)
    assert run.recording.footer["steps"] == 5


def test_optimizers_called_by_hooks_of_backward_take_one_step_for_each_backward():
    def program():
        model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64)).cuda()
        own = {p: torch.optim.AdamW([p], fused=True) for p in model.parameters()}

        def update(p):
            own[p].step()
            own[p].zero_grad()

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        for _ in range(5):
            model(torch.randn(8, 64, device="cuda")).sum().backward()

    run = simulate(program, steps=2)
    events = run.events
    assert run.status == "ok"
    ends = [i for i, event in enumerate(events) if isinstance(event, Step)]
    assert len(ends) == 2
    updates = [
        e
        for e in events[: ends[0]]
        if isinstance(e, Op) and "fused_adamw" in run.recording.signatures[e.signature].name
    ]
    assert len(updates) == 4  # one for each weight, all before the step ends
