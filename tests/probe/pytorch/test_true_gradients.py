"""The backward of a call is the gradients of its own inputs, in argument order, whatever the call is made of.

Each API is called on tensors that others use too, and what the probe wrote is compared with torch.autograd.grad of the
same call on its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from tests.probe.probing import make_debugger, probe, read_dump

Function = Callable[..., Any]


def _randn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=_GENERATOR)


_GENERATOR = torch.Generator().manual_seed(0)
X = _randn(4, 6)
SPD = _randn(4, 4) @ _randn(4, 4).T
SPD = SPD @ SPD.T + 4 * torch.eye(4)
INDEX = torch.tensor([[0, 1, 2, 0, 1, 2], [2, 1, 0, 2, 1, 0]])
LABELS = torch.tensor([1, 0, 5, 2])
MASK = X > 0

# name of the entry -> the call, its tensors that have a gradient
CASES: dict[str, tuple[Function, list[torch.Tensor]]] = {
    "Functional.linear": (F.linear, [X, _randn(5, 6), _randn(5)]),
    "Functional.linear 3-D": (F.linear, [_randn(2, 3, 6), _randn(5, 6), _randn(5)]),
    "Functional.linear 3-D no bias": (F.linear, [_randn(2, 3, 6), _randn(5, 6)]),
    "Functional.linear no bias": (F.linear, [X, _randn(5, 6)]),
    "Functional.linear 1-D": (F.linear, [_randn(6), _randn(5, 6), _randn(5)]),
    "Functional.bilinear": (F.bilinear, [X, _randn(4, 3), _randn(2, 6, 3), _randn(2)]),
    "Torch.matmul": (torch.matmul, [X, _randn(6, 3)]),
    "Torch.matmul batched": (torch.matmul, [_randn(2, 3, 4), _randn(2, 4, 5)]),
    "Torch.matmul folded": (torch.matmul, [_randn(2, 3, 4), _randn(4, 5)]),
    "Torch.matmul vector": (torch.matmul, [X, _randn(6)]),
    "Tensor.__matmul__": (lambda a, b: a @ b, [X, _randn(6, 3)]),
    "Torch.einsum": (lambda a, b: torch.einsum("ij,kj->ik", a, b), [X, _randn(3, 6)]),
    "Torch.bmm": (torch.bmm, [_randn(2, 3, 4), _randn(2, 4, 5)]),
    "Torch.addmm": (torch.addmm, [_randn(3), X, _randn(6, 3)]),
    "Torch.baddbmm": (torch.baddbmm, [_randn(2, 3, 5), _randn(2, 3, 4), _randn(2, 4, 5)]),
    "Torch.outer": (torch.outer, [_randn(3), _randn(4)]),
    "Functional.conv1d": (F.conv1d, [_randn(2, 3, 8), _randn(4, 3, 3), _randn(4)]),
    "Functional.conv2d": (F.conv2d, [_randn(2, 3, 6, 6), _randn(4, 3, 3, 3), _randn(4)]),
    "Functional.conv2d no bias": (F.conv2d, [_randn(2, 3, 6, 6), _randn(4, 3, 3, 3)]),
    "Functional.conv_transpose2d": (F.conv_transpose2d, [_randn(2, 3, 4, 4), _randn(3, 2, 3, 3), _randn(2)]),
    "Functional.batch_norm": (
        lambda x, w, b: F.batch_norm(x, torch.zeros(3), torch.ones(3), w, b, training=True),
        [_randn(4, 3, 5), _randn(3), _randn(3)],
    ),
    "Functional.layer_norm": (lambda x, w, b: F.layer_norm(x, (6,), w, b), [X, _randn(6), _randn(6)]),
    "Functional.group_norm": (
        lambda x, w, b: F.group_norm(x, 2, w, b),
        [_randn(2, 4, 3), _randn(4), _randn(4)],
    ),
    "Functional.instance_norm": (lambda x: F.instance_norm(x), [_randn(2, 4, 3)]),
    "Functional.rms_norm": (lambda x, w: F.rms_norm(x, (6,), w), [X, _randn(6)]),
    "Functional.normalize": (lambda x: F.normalize(x, dim=1), [X]),
    "Functional.scaled_dot_product_attention": (
        F.scaled_dot_product_attention,
        [_randn(1, 2, 4, 8), _randn(1, 2, 4, 8), _randn(1, 2, 4, 8)],
    ),
    "Functional.scaled_dot_product_attention causal": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        [_randn(1, 2, 4, 8), _randn(1, 2, 4, 8), _randn(1, 2, 4, 8)],
    ),
    "Functional.embedding": (lambda w: F.embedding(INDEX, w), [_randn(3, 4)]),
    "Functional.embedding_bag": (lambda w: F.embedding_bag(INDEX, w), [_randn(3, 4)]),
    "Functional.cross_entropy": (lambda x: F.cross_entropy(x, LABELS), [X]),
    "Functional.cross_entropy smooth": (
        lambda x: F.cross_entropy(x, LABELS, torch.arange(1.0, 7.0), label_smoothing=0.1),
        [X],
    ),
    "Functional.cross_entropy soft": (lambda x, y: F.cross_entropy(x, y), [X, _randn(4, 6).softmax(1)]),
    "Functional.nll_loss": (lambda x: F.nll_loss(x, LABELS), [X.log_softmax(1)]),
    "Functional.mse_loss": (F.mse_loss, [X, _randn(4, 6)]),
    "Functional.smooth_l1_loss": (F.smooth_l1_loss, [X, _randn(4, 6)]),
    "Functional.kl_div": (
        lambda a, b: F.kl_div(a, b, reduction="sum"),
        [X.log_softmax(1), _randn(4, 6).softmax(1)],
    ),
    "Functional.binary_cross_entropy_with_logits": (
        F.binary_cross_entropy_with_logits,
        [X, torch.rand(4, 6, generator=_GENERATOR)],
    ),
    "Functional.cosine_similarity": (F.cosine_similarity, [X, _randn(4, 6)]),
    "Functional.softmax": (lambda x: F.softmax(x, dim=-1), [X]),
    "Functional.gelu": (F.gelu, [X]),
    "Functional.silu": (F.silu, [X]),
    "Functional.glu": (F.glu, [X]),
    "Functional.pad": (lambda x: F.pad(x, (1, 2)), [X]),
    "Functional.interpolate": (lambda x: F.interpolate(x, scale_factor=2.0), [_randn(1, 2, 3, 3)]),
    "Functional.max_pool2d": (lambda x: F.max_pool2d(x, 2), [_randn(1, 2, 4, 4)]),
    "Tensor.__getitem__": (lambda x: x[1:3, ::2], [X]),
    "Tensor.__getitem__ by tensor": (lambda x: x[LABELS.remainder(4)], [X]),
    "Torch.cat": (lambda a, b: torch.cat([a, b]), [X, _randn(2, 6)]),
    "Torch.stack": (lambda a, b: torch.stack([a, b], 1), [X, _randn(4, 6)]),
    "Torch.split": (lambda x: torch.split(x, [1, 3]), [X]),
    "Torch.chunk": (lambda x: torch.chunk(x, 3, dim=1), [X]),
    "Tensor.unbind": (lambda x: x.unbind(1), [X]),
    "Torch.where": (lambda a, b: torch.where(MASK, a, b), [X, _randn(4, 6)]),
    "Torch.max": (lambda x: torch.max(x, dim=1), [X]),
    "Torch.topk": (lambda x: torch.topk(x, 2), [X]),
    "Torch.sort": (lambda x: torch.sort(x, dim=1), [X]),
    "Torch.cumsum": (lambda x: torch.cumsum(x, 1), [X]),
    "Torch.cumprod": (lambda x: torch.cumprod(x, 1), [X]),
    "Torch.scatter": (lambda a, b: torch.scatter(a, 0, INDEX, b), [X, _randn(2, 6)]),
    "Torch.gather": (lambda x: torch.gather(x, 0, INDEX), [X]),
    "Torch.index_select": (lambda x: torch.index_select(x, 1, LABELS), [X]),
    "Tensor.index_add": (lambda a, b: a.index_add(0, torch.tensor([2, 0]), b), [X, _randn(2, 6)]),
    "Tensor.masked_fill": (lambda x: x.masked_fill(MASK, 0.0), [X]),
    "Tensor.__mul__": (lambda a, b: a * b, [X, _randn(4, 6)]),
    "Tensor.__mul__ broadcast": (lambda a, b: a * b, [X, _randn(6)]),
    "Tensor.__sub__": (lambda a, b: a - b, [X, _randn(4, 1)]),
    "Tensor.__truediv__": (lambda a, b: a / b, [X, _randn(4, 6).abs() + 1]),
    "Tensor.__pow__": (lambda a, b: a**b, [X.abs() + 1, _randn(6)]),
    "Torch.lerp": (torch.lerp, [X, _randn(4, 6), _randn(4, 6)]),
    "Torch.addcmul": (torch.addcmul, [X, _randn(4, 6), _randn(4, 6)]),
    "Torch.dist": (torch.dist, [X, _randn(4, 6)]),
    "Torch.cdist": (torch.cdist, [X, _randn(3, 6)]),
    "Torch.norm": (lambda x: torch.norm(x), [X]),
    "Torch.logsumexp": (lambda x: torch.logsumexp(x, 1), [X]),
    "Torch.std": (lambda x: torch.std(x, 1), [X]),
    "Torch.var_mean": (lambda x: torch.var_mean(x, 1), [X]),
    "Torch.prod": (lambda x: torch.prod(x, 1), [X]),
    "Torch.cholesky": (torch.linalg.cholesky, [SPD]),
    "Torch.inv": (torch.linalg.inv, [SPD]),
    "Torch.solve": (torch.linalg.solve, [SPD, _randn(4, 2)]),
    "Torch.rfft": (torch.fft.rfft, [X]),
    "Torch.expit": (torch.special.expit, [X]),
    "Tensor.view": (lambda x: x.view(2, 12), [X]),
    "Tensor.transpose": (lambda x: x.transpose(0, 1), [X]),
    "Tensor.expand": (lambda x: x.expand(3, 4, 6), [X]),
    "Tensor.T": (lambda x: x.T, [X]),
    "Tensor.to": (lambda x: x.to(torch.float64), [X]),
    "Tensor.clone": (lambda x: x.clone(), [X]),
    "Tensor.neg": (lambda x: -x, [X]),
    "Functional.multi_head_attention_forward": (
        lambda q, k, v, w, b, ow, ob: F.multi_head_attention_forward(
            q, k, v, 6, 2, w, b, None, None, False, 0.0, ow, ob, need_weights=False
        )[0],
        [
            _randn(4, 1, 6),
            _randn(4, 1, 6),
            _randn(4, 1, 6),
            _randn(18, 6),
            _randn(18),
            _randn(6, 6),
            _randn(6),
        ],
    ),
}


def _leaves(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def _outputs(result: Any) -> list[torch.Tensor]:
    results = result if isinstance(result, (list, tuple)) else [result]
    return [tensor for tensor in results if tensor.grad_fn is not None]


def _backward(outputs: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients for the outputs, a different one for each element."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(o.shape, generator=generator, dtype=torch.float32).to(o.dtype) for o in outputs]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["leaf", "made"])
def test_gradients_of_an_api_are_those_of_autograd(tmp_path, name, kind):
    function, tensors = CASES[name]
    alone = _leaves(tensors)
    expected_outputs = _outputs(function(*alone))
    weights = _backward(expected_outputs)
    expected = torch.autograd.grad(expected_outputs, alone, weights)

    leaves = _leaves(tensors)
    inputs = leaves if kind == "leaf" else [leaf.clone() for leaf in leaves]

    def work() -> None:
        outputs = _outputs(function(*inputs))
        # The inputs are used elsewhere too: their full gradient is not this call's.
        others = [(tensor * 3).sum() for tensor in inputs]
        torch.autograd.backward([*outputs, *others], [*weights, *(torch.ones(()) for _ in others)])

    dump = probe(tmp_path, work, risk_level="ALL")
    entry = f"{name.split()[0]}.0.backward"
    got_outputs = dump.tensors(entry, "input")
    got = [gradient for gradient in dump.tensors(entry, "output") if gradient is not None]
    assert len(got_outputs) == len(weights)
    for actual, wanted in zip(got_outputs, weights, strict=True):
        assert torch.equal(actual, wanted)
    assert len(got) == len(expected)
    for actual, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(actual, wanted, rtol=1e-6, atol=1e-7)


# ------------------------------------------------------------------ calls whose gradients are easily mistaken


def _check(actual: list, wanted: list) -> None:
    """Gradients in order, with None where there is none."""
    assert [gradient is None for gradient in actual] == [gradient is None for gradient in wanted]
    for one, other in zip(actual, wanted, strict=True):
        if one is not None:
            torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-7)


def test_a_tensor_given_twice_has_a_gradient_for_each_place(tmp_path):
    x = X.clone().requires_grad_()
    dump = probe(tmp_path, lambda: (x * x).sum().backward())
    _check(dump.tensors("Tensor.__mul__.0.backward", "output"), [X, X])


def test_a_tensor_that_needs_no_gradient_has_a_place_without_one(tmp_path):
    x, w = X.clone(), _randn(5, 6).requires_grad_()
    dump = probe(tmp_path, lambda: F.linear(x, w, torch.zeros(5)).sum().backward())
    _check(dump.tensors("Functional.linear.0.backward", "output"), [None, X.sum(0).expand(5, 6), None])
    labels = torch.tensor([1, 0, 4])
    dump = probe(tmp_path / "2", lambda: F.embedding(labels, w).sum().backward(), risk_level="ALL")
    assert [gradient.shape for gradient in dump.tensors("Functional.embedding.0.backward", "output")] == [
        (5, 6)
    ]


def test_self_attention_puts_the_sum_in_the_first_place(tmp_path):
    x = _randn(4, 1, 6).requires_grad_()
    layer = torch.nn.MultiheadAttention(6, 2)
    (wanted,) = torch.autograd.grad(layer(x, x, x)[0].sum(), x)
    dump = probe(tmp_path, lambda: layer(x, x, x)[0].sum().backward())
    got = dump.tensors("Functional.multi_head_attention_forward.0.backward", "output")
    torch.testing.assert_close(got[0], wanted)
    assert got[1] is None
    assert got[2] is None


def test_an_output_that_is_not_used_has_no_gradient(tmp_path):
    x = X.clone().requires_grad_()

    def work() -> None:
        first, _ = torch.split(x, [1, 3])
        first.sum().backward()

    dump = probe(tmp_path, work, risk_level="ALL")
    wanted = torch.zeros(4, 6)
    wanted[0] = 1
    _check(dump.tensors("Torch.split.0.backward", "input"), [torch.ones(1, 6), None])
    _check(dump.tensors("Torch.split.0.backward", "output"), [wanted])


def test_one_of_two_nodes_of_a_call_is_used(tmp_path):
    """A node for each grid: the loss uses the first only, so the second never runs."""
    x, y = _randn(6).requires_grad_(), _randn(6).requires_grad_()

    def work() -> None:
        a, _ = torch.meshgrid(x, y, indexing="ij")
        (a * 2).sum().backward()

    dump = probe(tmp_path, work, risk_level="ALL")
    _check(dump.tensors("Torch.meshgrid.0.backward", "input"), [torch.full((6, 6), 2.0), None])
    _check(dump.tensors("Torch.meshgrid.0.backward", "output"), [torch.full((6,), 12.0), None])


@pytest.mark.parametrize("in_place", ["add_", "mul_", "copy_"])
def test_an_operation_in_place_has_the_gradients_of_its_inputs(tmp_path, in_place):
    x, y = X.clone().requires_grad_(), _randn(4, 6).requires_grad_()

    def call(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return getattr(a, in_place)(b)

    wanted = torch.autograd.grad(call(x.clone(), y).sum(), [x, y])
    made = x.clone()
    dump = probe(tmp_path, lambda: (call(made, y) * 1.0).sum().backward(), risk_level="ALL")
    _check(dump.tensors(f"Tensor.{in_place}.0.backward", "output"), list(wanted))


def test_operators_in_place_have_their_own_names_and_gradients(tmp_path):
    x, y = X.clone().requires_grad_(), _randn(4, 6).requires_grad_()
    made = x.clone()

    def work() -> None:
        nonlocal made
        made *= y
        made.sum().backward()

    dump = probe(tmp_path, work, risk_level="ALL")
    _check(dump.tensors("Tensor.__imul__.0.backward", "output"), [y.detach(), X])


def test_an_operation_in_place_on_a_view(tmp_path):
    """Autograd rewrites the history of the base; what is known is recorded, and nothing is recorded wrongly."""
    x, y = X.clone().requires_grad_(), _randn(6).requires_grad_()
    base = x.clone()

    def work() -> None:
        base[0].mul_(y)
        (base * 3).sum().backward()

    dump = probe(tmp_path, work, risk_level="ALL")
    first, second = dump.tensors("Tensor.mul_.0.backward", "output")
    torch.testing.assert_close(second, 3 * X[0])
    assert first is None or torch.equal(first, 3 * y.detach())
    assert torch.equal(x.grad[0], 3 * y.detach())
    assert torch.equal(x.grad[1:], torch.full((3, 6), 3.0))


def test_a_write_by_index_has_the_gradient_of_its_value(tmp_path):
    x, y = X.clone().requires_grad_(), _randn(6).requires_grad_()
    made = x.clone()

    def work() -> None:
        made[1] = y
        (made * 2).sum().backward()

    dump = probe(tmp_path, work, risk_level="ALL")
    assert torch.equal(y.grad, torch.full((6,), 2.0))
    assert torch.equal(dump.tensors("Tensor.__setitem__.0.forward", "output")[0], made)
    _check(dump.tensors("Tensor.__setitem__.0.backward", "output"), [x.grad, y.grad])


def test_a_relu_in_place_in_the_middle(tmp_path):
    x = X.clone().requires_grad_()
    (wanted,) = torch.autograd.grad((F.relu(x * 2) * 3).sum(), x)
    dump = probe(tmp_path, lambda: (F.relu(x * 2, inplace=True) * 3).sum().backward())
    (got,) = dump.tensors("Functional.relu.0.backward", "output")
    assert torch.equal(got * 2, wanted)


@pytest.mark.parametrize("layer", [torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN])
def test_recurrent_layers_have_the_gradients_of_inputs_and_weights(tmp_path, layer):
    net = layer(3, 4)
    x = _randn(5, 2, 3).requires_grad_()
    wanted = torch.autograd.grad(net(x)[0].sum(), [x, *net.parameters()])
    dump = probe(tmp_path, lambda: net(x)[0].sum().backward())
    (entry,) = dump.names("VF.", "backward")
    got = [gradient for gradient in dump.tensors(entry, "output") if gradient is not None]
    _check(got, list(wanted))
    dump = probe(tmp_path / "module", lambda: net(x)[0].sum().backward(), [net], level="L0")
    assert dump.names() == []  # the model itself is not collected


def test_custom_functions_are_seen_through_the_calls_around_them(tmp_path):
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * 10 * x

    class Layer(torch.nn.Module):
        def forward(self, x):
            return Square.apply(x)

    net = torch.nn.Sequential(Layer())
    x = X.clone().requires_grad_()
    dump = probe(tmp_path, lambda: net(x).sum().backward(), net, level="mix")
    _check(dump.tensors("Module.0.Layer.backward.0", "output"), [10 * X])
    assert torch.equal(x.grad, 10 * X)


# ------------------------------------------------------------------ ways to run a backward


def test_gradients_accumulated_over_two_batches_have_an_entry_each(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(6, 2))

    def work() -> None:
        net(X).sum().backward()
        net(X * 2).sum().backward()

    dump = probe(tmp_path, work, net, level="L0")
    assert dump.names("parameters_grad") == [f"Module.0.Linear.parameters_grad.{n}" for n in (0, 1)]
    first, second = (dump.tensor(dump[name]["weight"][0]) for name in dump.names("parameters_grad"))
    torch.testing.assert_close(second, 2 * first)  # what came, not what had added up


def test_autograd_grad_instead_of_backward(tmp_path):
    x, y = X.clone().requires_grad_(), _randn(4, 6).requires_grad_()

    def work() -> None:
        torch.autograd.grad((x * y).sum(), [x, y])

    dump = probe(tmp_path, work)
    _check(dump.tensors("Tensor.__mul__.0.backward", "output"), [y.detach(), X])


def test_autograd_grad_of_one_input_only(tmp_path):
    x, y = X.clone().requires_grad_(), _randn(4, 6).requires_grad_()
    dump = probe(tmp_path, lambda: torch.autograd.grad((x * y).sum(), [x]))
    (got, _) = dump.tensors("Tensor.__mul__.0.backward", "output")
    assert torch.equal(got, y)


def test_backward_into_chosen_inputs(tmp_path):
    x, y = X.clone().requires_grad_(), _randn(4, 6).requires_grad_()
    probe(tmp_path, lambda: (x * y).sum().backward(inputs=[x]))
    assert torch.equal(x.grad, y)
    assert y.grad is None


def test_a_backward_of_a_backward(tmp_path):
    x = X.clone().requires_grad_()

    def work() -> None:
        (slope,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
        slope.square().sum().backward()

    dump = probe(tmp_path, work)
    torch.testing.assert_close(x.grad, 36 * X**3)
    _check(dump.tensors("Tensor.square.0.backward", "output"), [6 * X**2])


def test_a_backward_after_stop_is_collected(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(6, 2))
    debugger = make_debugger(tmp_path, level="mix")
    debugger.start(net)
    loss = net(X).sum()
    debugger.stop()
    (loss * 1).backward()
    debugger.step()
    debugger.close()
    dump = read_dump(tmp_path)
    assert set(dump.names("backward")) == {
        "Tensor.sum.0.backward",
        "Functional.linear.0.backward",
        "Module.0.Linear.backward.0",
    }
    assert "Module.0.Linear.parameters_grad.0" in dump


@pytest.mark.parametrize("is_reentrant", [True, False])
def test_checkpointed_modules_have_their_backward(tmp_path, is_reentrant):
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Tanh())
    x = X.clone().requires_grad_()
    net(x).sum().backward()
    wanted = x.grad.clone(), net[0].weight.grad.clone()
    x.grad = None
    net.zero_grad()

    def work() -> None:
        torch.utils.checkpoint.checkpoint(net, x, use_reentrant=is_reentrant).sum().backward()

    dump = probe(tmp_path, work, net, level="mix")
    assert torch.equal(x.grad, wanted[0])
    assert torch.equal(net[0].weight.grad, wanted[1])
    (entry,) = dump.names("Module.0.Linear.backward")
    _check(dump.tensors(entry, "output"), [wanted[0]])
    assert len(dump.names("Module.0.Linear.forward")) == 2  # once more for the backward
    assert dump.names("parameters_grad") == ["Module.0.Linear.parameters_grad.0"]


# ------------------------------------------------------------------ modules, against torch's own full backward hooks


class _Two(torch.nn.Module):
    def forward(self, a, b):
        return a * b, (a + b).tanh()


class _Named(torch.nn.Module):
    def forward(self, *, left, right):
        return {"sum": left + right, "both": [left * right, 3]}


class _Root(torch.nn.Module):
    """Inputs of its layers are used outside of them too."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(6, 6)
        self.norm = torch.nn.LayerNorm(6)
        self.two = _Two()
        self.act = torch.nn.GELU()

    def forward(self, x):
        h = self.first(x)
        a, b = self.two(h, self.norm(h))
        return self.act(a) + h + self.act(b * h) + self.first(h)


def test_modules_have_the_gradients_that_full_backward_hooks_see(tmp_path):
    torch.manual_seed(0)
    net = _Root()
    x = X.clone().requires_grad_()
    seen: dict[str, list] = {}
    handles = [
        module.register_full_backward_hook(
            lambda _, inputs, outputs, name=name: seen.setdefault(name, []).append((inputs, outputs))
        )
        for name, module in net.named_modules()
        if name
    ]
    net(x).sum().backward()
    for handle in handles:
        handle.remove()
    dump = probe(tmp_path, lambda: net(x).sum().backward(), net, level="L0")
    counts = {"first": 2, "norm": 1, "two": 1, "act": 2}
    for name, n in counts.items():
        # torch sees the last call first
        for number, (inputs, outputs) in zip(range(n - 1, -1, -1), seen[name], strict=True):
            kind = type(getattr(net, name)).__name__
            entry = f"Module.{name}.{kind}.backward.{number}"
            _check(dump.tensors(entry, "input"), list(outputs))
            _check(dump.tensors(entry, "output"), list(inputs))


def test_layers_in_place_keep_their_backward(tmp_path):
    nn = torch.nn
    net = nn.Sequential(
        nn.Linear(6, 6),
        nn.ReLU(inplace=True),
        nn.Linear(6, 6),
        nn.Dropout(0.5, inplace=True),
        nn.Linear(6, 2),
    )
    x = X.clone().requires_grad_()
    dump = probe(tmp_path, lambda: net(x).sum().backward(), net, level="L0")
    assert sorted(dump.names("backward")) == sorted(
        f"Module.{index}.{type(layer).__name__}.backward.0" for index, layer in enumerate(net)
    )
    for index in range(4):  # what one layer hands down is what the one below receives
        upper, lower = net[index + 1], net[index]
        down = dump.tensors(f"Module.{index + 1}.{type(upper).__name__}.backward.0", "output")
        received = dump.tensors(f"Module.{index}.{type(lower).__name__}.backward.0", "input")
        _check(received, down)
    _check(dump.tensors("Module.0.Linear.backward.0", "output"), [x.grad])


def test_modules_that_take_only_keywords_and_return_a_dict(tmp_path):
    net = torch.nn.ModuleDict({"named": _Named()})
    a, b = X.clone().requires_grad_(), _randn(4, 6).requires_grad_()

    def work() -> None:
        result = net["named"](left=a, right=b)
        (result["sum"] + 2 * result["both"][0]).sum().backward()

    dump = probe(tmp_path, work, net, level="mix")
    forward = dump["Module.named._Named.forward.0"]
    assert forward["input_args"] == []
    assert list(forward["input_kwargs"]) == ["left", "right"]
    (output,) = forward["output"]
    assert output["both"][1] == {"type": "int", "value": 3}
    _check(
        dump.tensors("Module.named._Named.backward.0", "input"), [torch.ones(4, 6), torch.full((4, 6), 2.0)]
    )
    _check(dump.tensors("Module.named._Named.backward.0", "output"), [1 + 2 * b.detach(), 1 + 2 * X])


def test_a_frozen_layer_hands_its_gradient_down(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
    net[1].requires_grad_(False)
    dump = probe(tmp_path, lambda: net(X).sum().backward(), net, level="L0")
    assert dump.names("parameters_grad") == ["Module.0.Linear.parameters_grad.0"]
    wanted = net[1].weight.sum(0).expand(4, 6)
    _check(dump.tensors("Module.1.Linear.backward.0", "output"), [wanted])
    _check(dump.tensors("Module.0.Linear.backward.0", "input"), [wanted])


class _HandsOn(torch.nn.Module):
    def forward(self, x):
        return x * 2, x


def test_an_input_that_is_also_an_output_is_not_counted_twice(tmp_path):
    net = torch.nn.Sequential(_HandsOn())
    x = X.clone().requires_grad_()

    def work() -> None:
        double, same = net(x.clone())
        (double * 3 + same * 5).sum().backward()

    dump = probe(tmp_path, work, net, level="L0")
    assert torch.equal(x.grad, torch.full((4, 6), 11.0))
    _check(dump.tensors("Module.0._HandsOn.backward.0", "input"), [torch.full((4, 6), 3.0), None])
    _check(dump.tensors("Module.0._HandsOn.backward.0", "output"), [torch.full((4, 6), 6.0)])


def test_a_layer_that_does_nothing_hands_the_gradient_down(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Dropout(0.5), torch.nn.Identity()).eval()
    dump = probe(tmp_path, lambda: (net(X) * 3).sum().backward(), net, level="L0")
    for entry in ("Module.1.Dropout.backward.0", "Module.2.Identity.backward.0"):
        _check(dump.tensors(entry, "input"), [torch.full((4, 6), 3.0)])
        _check(dump.tensors(entry, "output"), [torch.full((4, 6), 3.0)])


def test_an_output_whose_gradient_comes_last_is_waited_for(tmp_path):
    class Layer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((6,), 2.0))

        def forward(self, x):
            scale = self.weight * 2
            return x * scale, scale

    net = torch.nn.Sequential(Layer())
    x = X.clone().requires_grad_()

    def work() -> None:
        y, scale = net(x.clone())
        (y.sum() + 7 * scale.sum()).backward()

    dump = probe(tmp_path, work, net, level="L0")
    _check(dump.tensors("Module.0.Layer.backward.0", "input"), [torch.ones(4, 6), 7 + X.sum(0)])
    _check(dump.tensors("Module.0.Layer.backward.0", "output"), [torch.full((4, 6), 4.0)])


def test_results_with_names_are_listed_one_by_one(tmp_path):
    dump = probe(tmp_path, lambda: torch.max(X, dim=1))
    values, indices = dump.tensors("Torch.max.0.forward", "output")
    assert torch.equal(values, X.max(dim=1).values)
    assert torch.equal(indices, X.max(dim=1).indices)
