"""An error planted in one of two runs is found at its place; runs without one are equal. Through the real collector."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.commands.warm import run_warm_python
from tests.probe.compare.planted import LENGTH, WrongKernel, dump
from windtunnel.probe.compare.comparison import compare_dumps
from windtunnel.probe.compare.first_divergence import Findings
from windtunnel.probe.compare.tolerance import Tolerance
from windtunnel.pytorch import PrecisionDebugger, seed_all

GELU = "aten.gelu.default"
SAMPLES = Path(__file__).parents[4] / "shared" / "data" / "msprobe"
L0, CNN, TWO_STEPS = {"level": "L0"}, {"kind": "cnn"}, {"steps": 2}


def compare(a: Path, b: Path, **tolerance) -> Findings:
    findings = Findings()
    for found in compare_dumps(a, b, Tolerance(**tolerance)):
        findings.add(found)
    return findings


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small models are several times faster so."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """The run without an error, once per setting."""
    dumps: dict[str, Path] = {}

    def make(**settings) -> Path:
        key = "-".join(
            f"{name}_{getattr(value, '__name__', value)}" for name, value in sorted(settings.items())
        )
        if key not in dumps:
            dumps[key] = dump(tmp_path_factory.mktemp("good") / "a", **settings)
        return dumps[key]

    return make


def flip_some_signs(value: torch.Tensor) -> torch.Tensor:
    chosen = torch.rand(value.shape, generator=torch.Generator().manual_seed(0)) < 0.02
    return torch.where(chosen, -value, value)


def in_bfloat16(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.bfloat16).to(value.dtype)


def with_nan(value: torch.Tensor) -> torch.Tensor:
    value = value.clone()
    value.view(-1)[7] = float("nan")
    return value


def at(wanted: str, change):
    return lambda place, value: change(value) if place == wanted else value


def swap_weights(model: nn.Module) -> None:
    one, two = model.blocks[1].fc1.weight, model.blocks[2].fc1.weight
    one.data, two.data = two.data, one.data


def transpose_weight(model: nn.Module) -> None:
    weight = model.blocks[1].proj.weight
    weight.data = weight.data.t().contiguous()


def raise_eps(model: nn.Module) -> None:
    model.blocks[1].norm2.eps = 1e-3


def drop_residual(model: nn.Module) -> None:
    model.blocks[1].has_residual = False


def use_relu(model: nn.Module) -> None:
    model.blocks[1].act = nn.ReLU()


def use_tanh_gelu(model: nn.Module) -> None:
    model.blocks[1].act.approximate = "tanh"


class Bfloat16Linear(nn.Linear):
    def forward(self, x):
        low = torch.bfloat16
        return F.linear(x.to(low), self.weight.to(low), self.bias.to(low)).float()


def lower_one_linear(model: nn.Module) -> None:
    model.blocks[1].proj.__class__ = Bfloat16Linear


def keep_old_weight(model: nn.Module) -> None:
    weight = model.blocks[1].fc2.weight
    old = getattr(model, "old", None)
    if old is not None:
        weight.data.copy_(old)


def remember_weight(model: nn.Module) -> None:
    model.old = model.blocks[1].fc2.weight.detach().clone()


def freeze_head(model: nn.Module) -> None:
    model.head.weight.requires_grad_(False)


def unscale(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad.mul_(0.125)


def times_8(loss: torch.Tensor) -> torch.Tensor:
    return loss * 8.0


def times_9(loss: torch.Tensor) -> torch.Tensor:
    return loss * 9.0


ROWS_1 = torch.arange(LENGTH) + 1
WRONG_MASK = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(2)

# What A and B share, what is wrong with B, the item to be named, what the explanation has to say.
PLANTED = {
    "x1.001": ({}, {"kernel": (GELU, 1, lambda x: x * 1.001)}, "Functional.gelu.1.forward.output.0", "1.001 times A"),
    "x1.02": ({}, {"kernel": (GELU, 1, lambda x: x * 1.02)}, "Functional.gelu.1.forward.output.0", "1.02 times A"),
    "x1.3": ({}, {"kernel": (GELU, 1, lambda x: x * 1.3)}, "Functional.gelu.1.forward.output.0", "1.3 times A"),
    "negated": ({}, {"kernel": (GELU, 1, torch.neg)}, "Functional.gelu.1.forward.output.0", "sign changed"),
    "rows permuted": (
        {}, {"kernel": (GELU, 1, lambda x: x.flip(1))}, "Functional.gelu.1.forward.output.0", "another order",
    ),
    "2 % of signs flipped": (
        {}, {"kernel": ("aten.addmm.default", 6, flip_some_signs)}, "Functional.linear.6.forward.output.0", "inputs are equal",
    ),
    "bfloat16 inside a matmul": (
        {}, {"kernel": ("aten.addmm.default", 6, in_bfloat16)}, "Functional.linear.6.forward.output.0", "inputs are equal",
    ),
    "bfloat16 linear": ({}, {"prepare": lower_one_linear}, "Functional.linear.5.forward.input.0", "torch.bfloat16 in B"),
    "dropped residual": ({}, {"prepare": drop_residual}, "Tensor.__add__.3.forward", "B does not"),
    "dropped residual, L0": (L0, {"prepare": drop_residual}, "Module.blocks.1.norm2.LayerNorm.forward.0.input.0",
                             "in B it is Module.blocks.1.drop.Dropout.forward.0.output.0 unchanged"),
    "swapped weights": ({}, {"prepare": swap_weights}, "Functional.linear.6.forward.input.1", "no recorded call produced it"),
    "swapped weights, L0": (
        L0, {"prepare": swap_weights}, "Module.blocks.1.fc1.Linear.forward.0.parameters.weight", "this parameter",
    ),
    "transposed weight": ({}, {"prepare": transpose_weight}, "Functional.linear.5.forward.input.1", "another order"),
    "NaN in one gradient": (
        {}, {"kernel": ("aten.gelu_backward.default", 1, with_nan)}, "Functional.gelu.1.backward.output.0", "B has 1 NaN",
    ),
    "an extra call": (
        {}, {"plant": at("blocks.1.act", lambda x: (F.gelu(x), x)[1])}, "Functional.gelu.2.forward", "A does not",
    ),
    "another activation": ({}, {"prepare": use_relu}, "Functional.gelu.1.forward", "B calls Functional.relu.0.forward instead"),
    "another approximation": ({}, {"prepare": use_tanh_gelu}, "Functional.gelu.1.forward.input.approximate", '"tanh" in B'),
    "wrong dropout seed": ({}, {"seed": 5}, "Functional.dropout.0.forward.output.0", "inputs are equal"),
    "eps of a layer norm": ({}, {"prepare": raise_eps}, "Functional.layer_norm.3.forward.input.4", "1e-05 in A and 0.001 in B"),
    "eps of a layer norm, L0": (
        L0, {"prepare": raise_eps}, "Module.blocks.1.norm2.LayerNorm.forward.0.output.0", "inputs are equal",
    ),
    "stale weight": (
        TWO_STEPS | {"prepare": remember_weight}, {"between_steps": keep_old_weight},
        "Functional.linear.7.forward.input.1", "the optimizer of step 0",
    ),
    "wrong mask": (
        {}, {"plant": at("blocks.2.mask", lambda mask: WRONG_MASK)}, "Tensor.masked_fill.2.forward.input.1", "differs on entry",
    ),
    "off by one position ids": ({}, {"plant": at("positions", lambda p: ROWS_1)}, "Functional.embedding.1.forward.input.0", ""),
    "loss scaled": ({"scale": times_8}, {"scale": times_9}, "Tensor.__mul__.0.forward.input.1", "8 in A and 9 in B"),
    "missing gradient unscaling": (
        {"scale": times_8, "after_backward": unscale}, {"after_backward": lambda model: None},
        "Tensor.mul_.0.forward", "B does not",
    ),
    "wrong learning rate": ({}, {"lr": 0.11}, "Tensor.add_.0.forward.input.alpha", "-0.1 in A and -0.11 in B"),
    "wrong learning rate, L0": (
        L0 | TWO_STEPS, {"lr": 0.11}, "Module.embed.Embedding.forward.0.parameters.weight", "the optimizer of step 0",
    ),
    "frozen weight": ({}, {"prepare": freeze_head}, "Functional.linear.12.backward.output.1", "no gradient"),
    "x1.001 in a convolution": (
        CNN, {"kernel": ("aten.convolution.default", 1, lambda x: x * 1.001)}, "Functional.conv2d.1.forward.output.0", "1.001",
    ),
    "channels permuted": (
        CNN, {"kernel": ("aten.max_pool2d_with_indices.default", 0, lambda x: x.flip(1))},
        "Functional.max_pool2d.0.forward.output.0", "another order",
    ),
    "batch norm in eval mode": (
        CNN, {"prepare": lambda model: model.bn2.eval()}, "Tensor.add_.1.forward", "B does not",
    ),
    "x1.001, mix": (
        {"level": "mix"}, {"kernel": (GELU, 1, lambda x: x * 1.001)}, "Functional.gelu.1.forward.output.0", "1.001 times A",
    ),
    "x1.001, L0": (L0, {"kernel": (GELU, 1, lambda x: x * 1.001)}, "Module.blocks.1.act.GELU.forward.0.output.0", "1.001"),
    "x1.001, tensors": (
        L0 | {"task": "tensor"}, {"kernel": (GELU, 1, lambda x: x * 1.001)},
        "Module.blocks.1.act.GELU.forward.0.output.0", "0.001",
    ),
    "rows permuted, tensors": (
        L0 | {"task": "tensor"}, {"kernel": (GELU, 1, lambda x: x.flip(1))},
        "Module.blocks.1.act.GELU.forward.0.output.0", "another order",
    ),
    "x1.001, md5": (
        {"summary": "md5"}, {"kernel": (GELU, 1, lambda x: x * 1.001)}, "Functional.gelu.1.forward.output.0", "1.001 times A",
    ),
    "gradient of one operator": (
        {}, {"kernel": ("aten._softmax_backward_data.default", 1, lambda x: x * 1.01)},
        "Functional.softmax.1.backward.output.0", "1.01 times A",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_error_is_found_at_its_place(name, good, tmp_path):
    shared, wrong, item, words = PLANTED[name]
    wrong = dict(wrong)
    if "kernel" in wrong:
        wrong["kernel"] = WrongKernel(*wrong["kernel"])
    findings = compare(good(**shared), dump(tmp_path / "b", **shared | wrong))
    first = findings.first
    assert first is not None
    assert (first.item, first.step) == (item, shared.get("steps", 1) - 1)
    assert words in " ".join(first.sentences)


def test_the_same_run_twice_is_equal(good, tmp_path):
    findings = compare(good(), dump(tmp_path / "b"), exact=True)
    assert (findings.first, findings.n_equal) == (None, findings.n_compared)
    assert findings.n_compared > 300


@pytest.mark.parametrize("settings", [{"steps": 2}, CNN, {"level": "mix"}])
def test_another_number_of_threads_is_equal(settings, good, tmp_path):
    torch.set_num_threads(2)
    try:
        b = dump(tmp_path / "b", **settings)
    finally:
        torch.set_num_threads(1)
    assert compare(good(**settings), b).first is None


def test_another_process_is_equal(good, tmp_path):
    code = f"from pathlib import Path; from tests.probe.compare.planted import dump; dump(Path({str(tmp_path / 'b')!r}))"
    done = run_warm_python(["-c", code])
    assert done.returncode == 0, done.stderr
    findings = compare(good(), tmp_path / "b")
    assert findings.first is None


@pytest.mark.parametrize("settings", [{"summary": "md5"}, {"task": "tensor"}])
def test_another_way_to_collect_is_equal(settings, good):
    findings = compare(good(), good(**settings))
    assert (findings.first, findings.n_equal) == (None, findings.n_compared)


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="the sample dumps of msProbe are not here")
@pytest.mark.parametrize(
    "sample", ["torch_mix_statistics_md5", "torch_L1_statistics_statistics", "torch_L0_statistics_md5"]
)
def test_msprobes_dump_of_the_same_script_is_equal(sample, tmp_path):
    """The program of gen_torch_sample.py, under our probe; msProbe ran it on another machine."""
    config = tmp_path / "config.json"
    config.write_text(f'{{"task": "statistics", "level": "mix", "dump_path": "{tmp_path / "b"}"}}')
    seed_all(1234)
    debugger = PrecisionDebugger(config_path=str(config))
    net = SampleNet()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(2):
        x, y = torch.randn(2, 1, 4, 4), torch.tensor([0, 2])
        debugger.start(model=net)
        F.cross_entropy(net(x, scale=2.0), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        debugger.stop()
        debugger.step()
    debugger.close()
    findings = compare(SAMPLES / sample, tmp_path / "b")
    assert (findings.first, findings.only_a) == (None, 0)
    assert findings.n_compared > 30
    assert findings.max_rounding < 1e-6


class SampleNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 2, 3, padding=1)
        self.relu = nn.ReLU()
        self.fc = nn.Linear(2 * 4 * 4, 3)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        x = self.relu(self.conv1(x))
        return self.fc(x.flatten(1) * scale)


def test_a_difference_by_rounding_is_none_unless_it_is_asked_for(good, tmp_path):
    def nudge(value):
        return torch.nextafter(value, torch.full_like(value, float("inf")))

    b = dump(tmp_path / "b", kernel=WrongKernel(GELU, 1, nudge))
    findings = compare(good(), b)
    assert findings.first is None
    assert findings.n_rounding > 50
    assert compare(good(), b, exact=True).first.item == "Functional.gelu.1.forward.output.0"
    assert compare(good(), b, fail_over=1e-4).first is None


def test_a_level_with_less_is_compared_as_far_as_both_go(good):
    findings = compare(good(level="mix"), good())
    assert findings.first is None
    assert findings.n_equal == findings.n_compared
    assert findings.only_a > 50
    assert "only what both contain" in findings.notes[0]
