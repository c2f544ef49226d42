"""Values a simulated device cannot know: defaults, said once for each line; small known values stay exact."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

import windtunnel
from tests.capture.pytorch.simulated import simulate
from windtunnel.capture.values_set_by_user import values_set_by_user
from windtunnel.errors import UsageError

SCALAR = "the value of a device tensor (.item(), float(), int(), bool(), if)"


def _unknown(*shape):
    return torch.randn(*shape, device="cuda")


READS = [
    ("item", lambda: _unknown(1).item(), 1.0, SCALAR),
    ("float", lambda: float(_unknown(1).sum()), 1.0, SCALAR),
    ("int", lambda: int(_unknown(1)), 1, SCALAR),
    ("bool", lambda: bool(_unknown(1) > 0), True, SCALAR),
    ("if", lambda: "yes" if (_unknown(3) > 0).any() else "no", "yes", SCALAR),
    ("complex", lambda: complex(torch.randn(1, dtype=torch.complex64, device="cuda")), 1 + 0j, SCALAR),
    ("round", lambda: round(_unknown(1).item(), 2), 1.0, SCALAR),
    ("format", lambda: f"{_unknown(1).sum():.2f}", "1.00", SCALAR),
    ("tolist", lambda: _unknown(2).tolist(), [1.0, 1.0], "tensor.tolist()"),
    ("numpy", lambda: _unknown(2).cpu().numpy().tolist(), [1.0, 1.0], "tensor.numpy()"),
    (
        "print",
        lambda: str(_unknown(2)),
        "tensor(…, device='cuda:0', size=(2,), dtype=torch.float32)",
        "printing a device tensor",
    ),
    (
        "nonzero",
        lambda: tuple(_unknown(3, 4).nonzero().shape),
        (12, 2),
        "how many elements are nonzero (nonzero, boolean mask)",
    ),
    (
        "where",
        lambda: [tuple(t.shape) for t in torch.where(_unknown(3, 4) > 0)],
        [(12,)] * 2,
        "how many elements are nonzero (nonzero, boolean mask)",
    ),
    (
        "masked_select",
        lambda: tuple(_unknown(5).masked_select(_unknown(5) > 0).shape),
        (5,),
        "how many elements a mask selects",
    ),
    (
        "mask index",
        lambda: tuple((x := _unknown(5, 2))[x[:, 0] > 0].shape),
        (5, 2),
        "how many elements are nonzero (nonzero, boolean mask)",
    ),
    (
        "unique",
        lambda: tuple(_unknown(5).unique().shape),
        (5,),
        "how many distinct values there are (unique)",
    ),
    ("equal", lambda: torch.equal(_unknown(2), _unknown(2)), True, "torch.equal of device tensors"),
    ("allclose", lambda: torch.allclose(_unknown(2), _unknown(2)), True, SCALAR),
    ("argmax", lambda: _unknown(5).argmax().item(), 1, SCALAR),
]


@pytest.mark.parametrize(("read", "value", "what"), [r[1:] for r in READS], ids=[r[0] for r in READS])
def test_each_way_of_reading_gives_a_default_and_is_reported(read, value, what):
    run = simulate(lambda: [read() for _ in range(3)])
    assert run.answer == [value] * 3
    assert [(u["what"], u["count"]) for u in run.unknown_values] == [(what, 3)]
    assert run.unknown_values[0]["where"].startswith("test_unknown_values.py:")


def test_each_line_is_reported_once_with_its_count():
    def program():
        loss = torch.randn(1, device="cuda")
        for _ in range(4):
            loss.item()
        float(loss)

    run = simulate(program)
    first = inspect.getsourcelines(program)[1]
    assert [(u["where"], u["count"], u["value"]) for u in run.unknown_values] == [
        (f"test_unknown_values.py:{first + 3}", 4, 1.0),
        (f"test_unknown_values.py:{first + 4}", 1, 1.0),
    ]


def test_known_values_are_exact_and_not_reported():
    def program():
        x = torch.arange(6, device="cuda").reshape(2, 3)
        mask = torch.tril(torch.ones(3, 3, device="cuda")).bool()
        lengths = torch.tensor([2, 3], device="cuda")
        return {
            "tolist": x.tolist(),
            "sum": (x * 2 + 1).sum().item(),
            "max": int(x.max()),
            "compare": bool((x[0] < x[1]).all()),
            "slice": x[:, 1].tolist(),
            "mask": mask.sum().item(),
            "nonzero": mask.nonzero().shape[0],
            "masked": x[x > 2].tolist(),
            "unique": torch.tensor([3, 1, 3], device="cuda").unique().tolist(),
            "repeat": torch.repeat_interleave(lengths).tolist(),
            "cumsum": lengths.cumsum(0).tolist(),
            "float": torch.full((2,), 0.5, device="cuda").mean().item(),
            "cat": torch.cat([x[0], x[1]]).tolist(),
            "where": torch.where(x > 2, x, 0).tolist(),
            "in place": x.clone().add_(1).tolist(),
            "index put": x.clone().index_fill_(0, torch.tensor([0], device="cuda"), 9).tolist(),
            "setitem": _set(x.clone()).tolist(),
            "print": str(x[0]),
            "bincount": torch.bincount(lengths).tolist(),
            "argsort": lengths.argsort(descending=True).tolist(),
            "gather": x.gather(1, torch.tensor([[2], [0]], device="cuda")).tolist(),
            "cpu": x.cpu().numpy().tolist(),
            "zeros": torch.zeros(3, device="cuda").tolist(),
            "empty fill": torch.empty(3, device="cuda").fill_(2).tolist(),
            "new": x.new_full((2,), 4).tolist(),
            "eye": torch.eye(2, device="cuda").tolist(),
            "len": len(x[x > 3]),
            "scalar": torch.tensor(3.5, device="cuda").item(),
        }

    def _set(t):
        t[0] = 7
        t[1, 2] = 8
        return t

    run = simulate(program)
    assert run.answer == {
        "tolist": [[0, 1, 2], [3, 4, 5]],
        "sum": 36,
        "max": 5,
        "compare": True,
        "slice": [1, 4],
        "mask": 6,
        "nonzero": 6,
        "masked": [3, 4, 5],
        "unique": [1, 3],
        "repeat": [0, 0, 1, 1, 1],
        "cumsum": [2, 5],
        "float": 0.5,
        "cat": [0, 1, 2, 3, 4, 5],
        "where": [[0, 0, 0], [3, 4, 5]],
        "in place": [[1, 2, 3], [4, 5, 6]],
        "index put": [[9, 9, 9], [3, 4, 5]],
        "setitem": [[7, 7, 7], [3, 4, 8]],
        "print": "tensor([0, 1, 2], device='cuda:0')",
        "bincount": [0, 0, 1, 1],
        "argsort": [1, 0],
        "gather": [[2], [3]],
        "cpu": [[0, 1, 2], [3, 4, 5]],
        "zeros": [0.0] * 3,
        "empty fill": [2.0] * 3,
        "new": [4, 4],
        "eye": [[1.0, 0.0], [0.0, 1.0]],
        "len": 2,
        "scalar": 3.5,
    }
    assert run.unknown_values == []


def test_a_known_tensor_becomes_unknown_when_something_unknown_touches_it():
    def program():
        x = torch.zeros(3, device="cuda")
        x.add_(torch.randn(3, device="cuda"))
        y = torch.zeros(3, device="cuda")
        y[1] = torch.randn((), device="cuda")
        z = torch.zeros(3, device="cuda")
        z.copy_(torch.randn(3, device="cuda"))
        w = torch.zeros(3, device="cuda").normal_()
        return [t.tolist() for t in (x, y, z, w)]

    run = simulate(program)
    assert run.answer == [[1.0] * 3] * 4
    assert sum(u["count"] for u in run.unknown_values) == 4


def test_random_numbers_of_the_device_are_unknown_and_of_the_host_real():
    def program():
        return torch.rand(3, device="cuda").tolist(), torch.rand(3).cuda().tolist()

    run = simulate(program)
    device, host = run.answer
    assert device == [1.0] * 3
    assert all(0 <= v < 1 for v in host)


def test_indices_of_unknown_scores_are_valid():
    """An index read from the device must not break the next lookup."""

    def program():
        scores = torch.randn(4, 1, device="cuda")
        best = scores.argmax(-1)
        names = ["only"]
        return names[best[0].item()] if best[0].item() < len(names) else "out of range"

    run = simulate(program)
    assert run.status == "ok"


def test_mock_sets_a_value():
    def program():
        n = windtunnel.mock(4096, lambda: torch.randn(1, device="cuda").item())
        return n, windtunnel.mock(3, 5), windtunnel.is_dry_run()

    run = simulate(program)
    assert run.answer == (4096, 3, True)
    assert run.unknown_values == []
    assert (windtunnel.mock(3, lambda n: n + 1, 5), windtunnel.mock(3, 5), windtunnel.is_dry_run()) == (
        6,
        5,
        False,
    )


def test_a_loss_curve_does_not_stop_a_program():
    def program():
        model = nn.Linear(4, 1).cuda()
        best, history = float("inf"), []
        for _ in range(3):
            loss = model(torch.randn(2, 4, device="cuda")).pow(2).mean()
            if torch.isnan(loss):
                raise RuntimeError("nan")
            history.append(loss.item())
            best = min(best, history[-1])
        return history, best

    run = simulate(program, is_ok=False)
    assert run.status == "ok", run.error
    assert run.answer == ([1.0] * 3, 1.0)


@pytest.mark.parametrize(
    "check",
    [
        lambda x: bool(torch.isnan(x).any()),
        lambda x: bool(torch.isinf(x).any()),
        lambda x: not bool(torch.isfinite(x).all()),
        lambda x: bool((x.isnan() | x.isinf()).any()),
    ],
    ids=["isnan", "isinf", "isfinite", "either"],
)
def test_simulated_numbers_are_finite(check):
    assert simulate(lambda: check(torch.randn(4, device="cuda"))).answer is False


def test_a_line_reads_what_the_user_set_for_it(monkeypatch):
    def program():
        norm = nn.Linear(512, 512).cuda()(torch.rand(256, 512).cuda()).norm()
        first = norm.item()
        return first, norm.item(), (norm > 0.5).item()

    line = program.__code__.co_firstlineno + 2
    place = f"test_unknown_values.py:{line}"
    monkeypatch.setenv("WINDTUNNEL_VALUES", f"{place}=0.25, train.py:7=3")
    result = simulate(program)
    assert result.answer == (0.25, 1.0, True)
    assert (place, 0.25) in [(u["where"], u["value"]) for u in result.unknown_values]
    assert "WINDTUNNEL_VALUES sets train.py:7, but that line read no unknown value" in result.notices


def test_a_wrong_assumption_is_a_sentence(monkeypatch):
    monkeypatch.setenv("WINDTUNNEL_VALUES", "train.py=3")
    with pytest.raises(UsageError, match=r"'train\.py=3', which is not FILE:LINE=NUMBER"):
        values_set_by_user()


def test_which_token_goes_to_which_expert_is_known_when_it_is_computed_from_known_numbers():
    def program():
        n_tokens, n_experts, top = 4096, 128, 8
        slots = torch.arange(n_tokens * top, device="cuda").view(n_tokens, top) % n_experts
        routing = torch.zeros(n_tokens, n_experts, dtype=torch.bool, device="cuda").scatter_(1, slots, True)
        return routing.sum(dim=0).tolist()

    result = simulate(program)
    assert result.answer == [256] * 128
    assert result.unknown_values == []


def test_distributions_accept_unknown_arguments():
    def program():
        probabilities = torch.zeros(4, 2, device="cuda").uniform_().softmax(1)
        chosen = torch.distributions.Categorical(probabilities)
        return tuple(chosen.log_prob(chosen.sample()).shape)

    assert simulate(program).answer == (4,)
