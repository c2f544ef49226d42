"""Random programs: the same results with the probe, and every backward entry follows from its forward entry.

seed ──> random graph of calls ──> dump ──> each API called again on its saved inputs ──> autograd.grad ──> equal
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.probe.probing import Dump, probe


def _write_into(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    copy = a.clone()
    copy[1] = b[0]
    copy[2].mul_(b[1])
    return copy


def _add_to(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    double = a * 2
    double += b
    return double


# number of tensors, what is done with them; all are 4 x 4
CALLS = [
    (2, lambda a, b: a + b),
    (2, lambda a, b: a * b),
    (2, torch.matmul),
    (2, F.linear),
    (2, lambda a, b: torch.cat([a, b])[:4]),
    (2, lambda a, b: torch.where(a.detach() > 0, a, b)),
    (2, lambda a, b: checkpoint(lambda x, y: (x * y).sin() + x, a, b, use_reentrant=False)),
    (2, _write_into),
    (2, _add_to),
    (3, lambda a, b, c: F.scaled_dot_product_attention(a[None], b[None], c[None])[0]),
    (1, F.gelu),
    (1, lambda a: a.tanh()),
    (1, lambda a: F.softmax(a, -1)),
    (1, lambda a: a.transpose(0, 1)),
    (1, lambda a: F.layer_norm(a, (4,))),
    (1, lambda a: a.reshape(2, 8).reshape(4, 4)),
    (1, lambda a: a[:1].expand(4, 4)),
    (1, lambda a: (a * 1.0).relu_()),
    (1, lambda a: F.dropout(a, 0.3)),
    (1, lambda a: a.split(2)[0].repeat(2, 1)),
    (1, lambda a: a.max(0).values.expand(4, 4)),
    (1, lambda a: a.cumsum(0)),
    (1, lambda a: a.detach() * 2),
]
# Called again they would do something else: random ones, and those that change their input.
NOT_REPEATED = {"dropout", "relu_", "mul_", "__iadd__", "__setitem__"}
HOMES = {"Functional": F, "Torch": torch, "Tensor": torch.Tensor}


def _run(seed: int) -> list[torch.Tensor | None]:
    choose = random.Random(seed)
    torch.manual_seed(seed)
    leaves = [torch.randn(4, 4, requires_grad=True) for _ in range(3)]
    values = list(leaves)
    for _ in range(choose.randint(3, 14)):
        n, call = choose.choice(CALLS)
        values.append(call(*[choose.choice(values) for _ in range(n)]))
    picked = choose.sample(values, 4)
    loss = sum((value * (index + 1)).sum() for index, value in enumerate(picked))
    if loss.requires_grad:
        loss.backward()
    return [leaf.grad for leaf in leaves]


@pytest.mark.parametrize(
    "seed", [*range(8), *(pytest.param(n, marks=pytest.mark.thorough) for n in range(8, 200))]
)
def test_random_programs(tmp_path, seed):
    alone = _run(seed)
    for level in ("L1", "L2"):
        watched: list = []
        dump = probe(
            tmp_path / level, lambda found=watched: found.extend(_run(seed)), level=level, risk_level="ALL"
        )
        assert [gradient is None for gradient in watched] == [gradient is None for gradient in alone]
        assert all(a is None or torch.equal(a, b) for a, b in zip(alone, watched, strict=True))
        assert not (dump.folder / "dump_error_info.log").exists()
        if level == "L1":
            _check_entries(dump)


def _check_entries(dump: Dump) -> None:
    for entry in dump.names("backward"):
        prefix, api, _, _ = entry.split(".")
        if api in NOT_REPEATED:
            continue
        forward = dump[entry.replace("backward", "forward")]
        args = [_value(dump, item) for item in forward["input_args"]]
        kwargs = {key: _value(dump, item) for key, item in forward["input_kwargs"].items()}
        result = getattr(HOMES[prefix], api)(*args, **kwargs)
        outputs = [o for o in (result if isinstance(result, tuple) else [result]) if o.requires_grad]
        inputs = [x for x in _flat([args, *kwargs.values()]) if x.requires_grad]
        given = [(o, g) for o, g in zip(outputs, dump.tensors(entry, "input"), strict=True) if g is not None]
        wanted = torch.autograd.grad([o for o, _ in given], inputs, [g for _, g in given], allow_unused=True)
        wanted = [gradient for gradient in wanted if gradient is not None]
        got = [gradient for gradient in dump.tensors(entry, "output") if gradient is not None]
        if len(got) < len(
            wanted
        ):  # one tensor in two places of a call of several nodes: their sum in the first
            got, wanted = [sum(x.sum() for x in got)], [sum(x.sum() for x in wanted)]
        assert len(got) == len(wanted), entry
        for one, other in zip(got, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5, msg=entry)


def _value(dump: Dump, element: Any) -> Any:
    if isinstance(element, list):
        return tuple(_value(dump, item) for item in element)
    if not isinstance(element, dict):
        return element
    if "data_name" in element:
        return dump.tensor(element).requires_grad_(element["requires_grad"])
    return slice(*element["value"]) if element["type"] == "slice" else element["value"]


def _flat(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    return [x for item in value for x in _flat(item)] if isinstance(value, (list, tuple)) else []
