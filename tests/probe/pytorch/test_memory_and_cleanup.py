"""What the probe leaves behind after stop and step: nothing on torch, on the model, on its tensors, in memory."""

from __future__ import annotations

import copy
import gc
import io
import pickle
import threading
import weakref

import pytest
import torch
from torch import nn
from torch.optim import optimizer as optimizers

from tests.probe.models import build
from tests.probe.probing import make_debugger

LEVELS = {
    "L0": {"level": "L0", "task": "statistics"},
    "L1": {"level": "L1", "task": "statistics", "risk_level": "ALL"},
    "mix": {"level": "mix", "task": "tensor", "summary_mode": "md5"},
    "L2": {"level": "L2", "task": "statistics"},
    "structure": {"level": "mix", "task": "structure"},
    "overflow": {"level": "mix", "task": "overflow_check"},
}
PATCHED = (torch.Tensor, torch, torch.nn.functional, torch.autograd, torch.autograd.Function, nn.Module)


class _Token:
    """Dies with the node of the graph that holds it."""


class _Marked(torch.autograd.Function):
    """Hands its input on; its node can be watched by a token, which nodes of torch itself cannot."""

    @staticmethod
    def forward(ctx, x, token):
        ctx.token = token
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


def _surroundings(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, object]:
    """Everything a hook or a patch would show in."""
    seen: dict[str, object] = {
        f"{place.__name__}.{key}": value for place in PATCHED for key, value in vars(place).items()
    }
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if "hook" in key:
                seen[f"{name}.{key}"] = dict(value) if isinstance(value, dict) else value
        seen[f"{name}.forward"] = "forward" in vars(module)
        seen[f"{name}.class"] = type(module)
    for name, value in model.named_parameters():
        seen[f"{name} hooks"] = dict(value._backward_hooks or {})
        seen[f"{name} after"] = dict(value._post_accumulate_grad_hooks or {})
    seen["modes"] = torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()
    seen["optimizer"] = [dict(vars(optimizer)[key]) for key in vars(optimizer) if "hook" in key]
    for key in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        seen[key] = dict(getattr(optimizers, key))
    for key, value in vars(torch.nn.modules.module).items():
        if "hooks" in key and isinstance(value, dict):
            seen[key] = dict(value)
    seen["threads"] = {thread.name for thread in threading.enumerate() if "windtunnel" in thread.name}
    seen["thread run"] = threading.Thread.run, threading.Thread.start
    seen["saved"] = torch._C._autograd._top_saved_tensors_default_hooks(False)
    return seen


def _changes(before: dict, after: dict) -> list[str]:
    keys = [
        key for key in {**before, **after} if not key.endswith("__slotnames__")
    ]  # a cache of Python's copy
    return [
        key for key in keys if key not in before or key not in after or not _is_same(before[key], after[key])
    ]


def _is_same(one: object, other: object) -> bool:
    return one is other or one == other  # torch.nan is not equal to itself


def _train(model, loss, optimizer, step: int) -> None:
    optimizer.zero_grad()
    loss(step).backward()
    optimizer.step()


@pytest.mark.parametrize("way", LEVELS)
@pytest.mark.parametrize("name", ["transformer", "in_place"])
def test_nothing_is_left_after_the_last_step(tmp_path, way, name):
    model, loss = build(name)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    _train(model, loss, optimizer, 0)
    before = _surroundings(model, optimizer)
    plain = pickle.dumps(model.state_dict())
    debugger = make_debugger(tmp_path, **LEVELS[way])
    for step in range(2):
        debugger.start(model)
        loss(step).backward()
        debugger.stop()
        debugger.step()
    after = _surroundings(model, optimizer)
    assert _changes(before, after) == []
    assert pickle.dumps(model.state_dict()) == plain
    pickle.loads(pickle.dumps(model))
    copy.deepcopy(model)
    torch.save(model.state_dict(), io.BytesIO())
    debugger.close()
    after = _surroundings(model, optimizer)
    assert _changes(before, after) == []


@pytest.mark.parametrize("way", LEVELS)
def test_between_stop_and_step_only_the_graph_is_watched(tmp_path, way):
    model, loss = build("mlp")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    before = _surroundings(model, optimizer)
    debugger = make_debugger(tmp_path, **LEVELS[way])
    debugger.start(model)
    value = loss(0)
    debugger.stop()
    after = _surroundings(model, optimizer)
    assert [key for key in _changes(before, after) if not key.endswith(" hooks")] == []
    copy.deepcopy(model)
    pickle.dumps(model.state_dict())
    value.backward()
    debugger.step()
    assert _changes(before, _surroundings(model, optimizer)) == []


@pytest.mark.parametrize("way", LEVELS)
def test_a_model_can_be_copied_while_it_is_watched(tmp_path, way):
    model, loss = build("mlp")
    debugger = make_debugger(tmp_path, **LEVELS[way])
    debugger.start(model)
    loss(0).backward()
    twin = copy.deepcopy(model)
    twin(torch.ones(1, 12)).sum().backward()
    debugger.stop()
    debugger.step()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


@pytest.mark.parametrize("way", LEVELS)
def test_an_activation_dies_with_its_last_user(tmp_path, way):
    """No garbage collection is needed: nothing of the probe holds a value, and nothing of it makes a circle."""
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    debugger = make_debugger(tmp_path, **LEVELS[way])
    gc.collect()
    gc.disable()
    try:
        debugger.start(model)
        x = torch.randn(2, 8)
        token = _Token()
        hidden = _Marked.apply(model[1](model[0](x)), token)
        dead = [weakref.ref(hidden), weakref.ref(hidden.untyped_storage()), weakref.ref(x)]
        loss = model[2](hidden).square().sum()
        dead += [weakref.ref(loss), weakref.ref(token)]
        loss.backward()
        del hidden, x, loss, token
        assert [ref() for ref in dead] == [None] * len(dead)
        debugger.stop()
        debugger.step()
    finally:
        gc.enable()


@pytest.mark.parametrize("way", ["L0", "L1", "mix", "overflow"])
def test_a_graph_that_never_runs_backward_is_freed(tmp_path, way):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
    debugger = make_debugger(tmp_path, **LEVELS[way])
    gc.collect()
    gc.disable()
    try:
        debugger.start(model)
        token = _Token()
        loss = _Marked.apply(model(torch.randn(2, 8)), token).square().sum()
        dead = [weakref.ref(loss), weakref.ref(token)]
        del loss, token
        assert [ref() for ref in dead] == [None] * len(dead)
        debugger.step()
    finally:
        gc.enable()


@pytest.mark.parametrize("way", ["L0", "L1", "mix"])
def test_the_number_of_objects_does_not_grow_with_the_steps(tmp_path, way):
    model, loss = build("mlp")
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    debugger = make_debugger(tmp_path, **LEVELS[way])

    def steps(n: int) -> int:
        for step in range(n):
            debugger.start(model)
            _train(model, loss, optimizer, step)
            debugger.stop()
            debugger.step()
        gc.collect()
        return len(gc.get_objects())

    steps(3)
    first, second = steps(4), steps(4)
    assert abs(second - first) <= 40  # what Python itself keeps varies by a few


@pytest.mark.parametrize("way", ["L1", "mix"])
def test_modes_of_the_user_may_be_entered_and_left_around_start_and_stop(tmp_path, way):
    calls = []

    class Mine(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            calls.append(getattr(function, "__name__", ""))
            return function(*args, **(kwargs or {}))

    model = nn.Sequential(nn.Linear(4, 4))
    x = torch.ones(2, 4)
    debugger = make_debugger(tmp_path, **LEVELS[way])
    mine = Mine()
    debugger.start(model)
    mine.__enter__()
    model(x)
    debugger.stop()
    assert torch._C._len_torch_function_stack() == 1
    model(x)
    mine.__exit__(None, None, None)
    assert torch._C._len_torch_function_stack() == 0
    assert calls.count("linear") == 2
    with mine:
        debugger.start(model)
        model(x)
        debugger.stop()
    assert calls.count("linear") == 3
    debugger.step()
    assert torch._C._len_torch_function_stack() == 0
