"""Inside vmap, grad, jvp and their like a program sees wrappers: it goes on as before, and the values are collected."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.probe.probing import probe
from windtunnel.probe.pytorch.eager.tensor_memory import tensor_with_bytes

X = torch.linspace(-1, 1, 12).view(4, 3)
NET = nn.Sequential(nn.Linear(3, 3), nn.Tanh())

with torch.no_grad():
    NET[0].weight.copy_(torch.linspace(-1, 2, 9).view(3, 3))
    NET[0].bias.fill_(0.5)


def _loss(values: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return torch.func.functional_call(NET, values, (x,)).sum()


PROGRAMS = {
    "gradients of every sample": lambda: torch.func.vmap(torch.func.grad(_loss), in_dims=(None, 0))(
        dict(NET.named_parameters()), X
    )["0.weight"],
    "a batch that is not in front": lambda: torch.func.vmap(NET, in_dims=1, out_dims=1)(X.T.contiguous()),
    "vmap in vmap": lambda: torch.func.vmap(torch.func.vmap(NET))(X.view(2, 2, 3)),
    "written in place": lambda: torch.func.vmap(lambda x: NET(x.clone().add_(1)).mul_(2))(X),
    "hessian": lambda: torch.func.hessian(lambda x: (torch.sin(x) ** 3).sum())(X[0]),
    "jvp": lambda: torch.func.jvp(NET, (X,), (X,))[1],
    "vjp": lambda: torch.func.vjp(NET, X)[1](X)[0],
    "jacrev": lambda: torch.func.jacrev(NET)(X),
    "functionalize": lambda: torch.func.functionalize(lambda x: NET(x).add_(1))(X),
    "complex numbers": lambda: torch.func.vmap(lambda x: torch.complex(x, x).conj() * 2)(X),
    "half precision": lambda: torch.func.vmap(lambda x: F.gelu(x.to(torch.bfloat16)))(X),
}
TASKS = {
    "statistics": {"task": "statistics"},
    "md5": {"task": "statistics", "summary_mode": "md5"},
    "xor": {"task": "statistics", "summary_mode": "xor"},
    "tensor": {"task": "tensor", "summary_mode": "md5"},
    "sliced": {"task": "tensor", "slice": [{"dim": 0, "begin": 0, "end": 1}]},
    "later": {"task": "tensor", "async_dump": True},
    "overflow_check": {"task": "overflow_check"},
}


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("level", ["L0", "L1", "mix", "L2"])
def test_transforms_of_functions_go_on_working(tmp_path, level, task):
    def compute() -> list[torch.Tensor]:
        return [program() for program in PROGRAMS.values()]

    wanted, results = compute(), []
    dump = probe(
        tmp_path, lambda: results.extend(compute()), NET, level=level, risk_level="ALL", **TASKS[task]
    )
    assert all(torch.equal(one, other) for one, other in zip(results, wanted, strict=True))
    assert not (dump.folder / "dump_error_info.log").exists()
    assert len(dump.data) > 0 or task == "overflow_check"


def test_of_a_sample_in_vmap_the_whole_batch_is_collected(tmp_path):
    dump = probe(tmp_path, lambda: torch.func.vmap(F.relu)(X), summary_mode="md5")
    entry = dump["Functional.relu.0.forward"]
    (given,), (got,) = entry["input_args"], entry["output"]
    assert (given["type"], given["shape"], given["Max"], given["Min"]) == ("BatchedTensor", [4, 3], 1.0, -1.0)
    assert torch.equal(dump.tensor(given), X)
    assert torch.equal(dump.tensor(got), X.relu())
    plain = probe(tmp_path / "plain", lambda: F.relu(X), summary_mode="md5")["Functional.relu.0.forward"]
    assert [given["md5"], got["md5"]] == [plain["input_args"][0]["md5"], plain["output"][0]["md5"]]


def test_the_batch_of_every_vmap_stands_in_front(tmp_path):
    values = torch.arange(24.0).view(2, 3, 4)
    dump = probe(tmp_path, lambda: torch.func.vmap(torch.func.vmap(torch.relu, in_dims=1), in_dims=2)(values))
    (given,) = dump.tensors("Torch.relu.0.forward", "input_args")
    assert torch.equal(given, values.permute(2, 1, 0))


def test_a_tracked_tensor_is_the_value_it_tracks(tmp_path):
    dump = probe(tmp_path, lambda: torch.func.grad(lambda x: (x**3).sum())(X))
    (element, _) = dump["Tensor.__pow__.0.forward"]["input_args"]
    assert (element["type"], element["requires_grad"]) == ("GradTrackingTensor", True)
    assert torch.equal(dump.tensor(element), X)
    (gradient,) = dump.tensors("Tensor.__pow__.0.backward", "output")
    torch.testing.assert_close(gradient, 3 * X**2)


def test_gradients_of_every_sample_are_collected(tmp_path):
    wanted = torch.func.vmap(torch.func.grad(lambda x: NET(x).sum()))(X)
    dump = probe(
        tmp_path, lambda: torch.func.vmap(torch.func.grad(lambda x: NET(x).sum()))(X), NET, level="L0"
    )
    (gradient,) = dump.tensors("Module.0.Linear.backward.0", "output")
    assert dump["Module.0.Linear.backward.0"]["output"][0]["shape"] == [4, 3]
    torch.testing.assert_close(gradient, wanted)


def test_what_functionalize_holds_back_has_a_shape_and_no_figures(tmp_path):
    dump = probe(tmp_path, lambda: torch.func.functionalize(torch.relu)(X))
    (element,) = dump["Torch.relu.0.forward"]["output"]
    assert (element["shape"], element["Max"]) == ([4, 3], None)
    assert "data_name" not in element


def test_zeros_without_memory_are_zeros(tmp_path):
    zeros = torch._efficientzerotensor(2, 3)
    dump = probe(tmp_path, lambda: torch.relu(zeros), summary_mode="md5")
    (element,) = dump["Torch.relu.0.forward"]["input_args"]
    assert (element["Max"], element["Norm"], element["zero_count"]) == (0.0, 0.0, 6)
    assert torch.equal(dump.tensor(element), torch.zeros(2, 3))


def test_a_tensor_whose_memory_was_freed_has_no_bytes():
    tensor = torch.ones(8)[4:]  # not at the start of its storage: its address is not null afterwards
    assert tensor_with_bytes(tensor) is tensor
    tensor.untyped_storage().resize_(0)
    assert tensor_with_bytes(tensor) is None
