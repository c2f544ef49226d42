"""Hard cases of the live runtime: random numbers, writes in place, views, changes autograd does not see."""

from __future__ import annotations

import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.remat.pytorch.training import check
from tests.remat.small_programs import ROWS, WIDTH, linear_layers, rows_of, tanh_layers, train_briefly

# -- random numbers ---------------------------------------------------------------------------------------------


RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "dropout_in_place": lambda x: F.dropout(x * 1.5, 0.3, inplace=True),
    "feature_dropout": lambda x: F.dropout2d(x.view(8, 8, 8, 16), 0.5).view(ROWS, WIDTH),
    "alpha_dropout": lambda x: F.alpha_dropout(x, 0.2, training=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel_softmax": lambda x: F.gumbel_softmax(x),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn": lambda x: x + torch.randn(ROWS, WIDTH),
    "bernoulli_of_a_tensor": lambda x: x * torch.bernoulli(torch.sigmoid(x.detach())),
    "normal_of_a_tensor": lambda x: x * torch.normal(x.detach(), 1.0),
    "normal_in_place": lambda x: x * torch.empty_like(x).normal_(),
    "multinomial": lambda x: x[:, torch.multinomial(torch.ones(WIDTH), WIDTH)],
    "randperm": lambda x: x[torch.randperm(ROWS)],
    "poisson": lambda x: x * torch.poisson(x.detach().abs()),
    "own_generator": lambda x: x * torch.rand(x.shape, generator=torch.Generator().manual_seed(3)),
    "attention_dropout": lambda x: F.scaled_dot_product_attention(
        *[x.view(4, 16, 4, 32).transpose(1, 2)] * 3, dropout_p=0.2
    ).reshape(ROWS, WIDTH),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_drawn_as_before(name):
    def forward(model, x):
        for layer in model:
            x = torch.tanh(RANDOM[name](layer(x)))
        return x

    check(lambda: train_briefly(linear_layers(), forward))


def test_a_seed_set_amid_a_step_is_kept():
    def forward(model, x):
        for i, layer in enumerate(model):
            torch.manual_seed(i)
            x = F.dropout(layer(x), 0.2)
        return x

    check(lambda: train_briefly(tanh_layers(), forward))


# -- writing in place, views, aliases ---------------------------------------------------------------------------


def _slice_assigned(x):
    y = torch.zeros_like(x)
    y[:, : WIDTH // 2] = x[:, WIDTH // 2 :]
    y[::2] += x[::2].sin()
    return y


def _view_written(x):
    y = x.clone()
    y[:, :40].mul_(2)
    y.t()[5:20].add_(1)
    return y.view(-1, 16).sin_().view(ROWS, WIDTH)


def _masked(x):
    y = x * 2
    y.masked_fill_(y > 1, 0.5)
    y[y < -1] = -0.5
    y.clamp_(-2, 2)
    return y


def _swish(x):
    y = x * 1.0
    return y.mul_(torch.sigmoid(y.detach()))


def _copied_into(x):
    y = torch.empty(ROWS, 2 * WIDTH)
    y[:, :WIDTH] = x
    y[:, WIDTH:].copy_(x.cos())
    return y[:, ::2] + y[:, 1::2]


def _out_given(x):
    buffer = torch.empty_like(x)
    with torch.no_grad():
        torch.sin(x, out=buffer)
    return x * buffer


def _as_strided(x):
    y = x.sin()
    windows = y.as_strided((ROWS - 4, 5, WIDTH), (WIDTH, WIDTH, 1))
    return torch.cat([windows.mean(1), y[:4]])


def _conjugate(x):
    z = torch.view_as_complex(x.reshape(ROWS, -1, 2))
    return torch.view_as_real(z * z.conj() + z.conj()).reshape(ROWS, WIDTH)


CHANGES = {
    "relu_": lambda x: F.relu(x, inplace=True),
    "sigmoid_": lambda x: x.sigmoid_(),
    "add_mul_": lambda x: (x * 2).add_(1).mul_(0.5),
    "iadd_of_an_older_value": lambda x: x.sin().add_(x),
    "swish_in_place": _swish,
    "masked": _masked,
    "slice_assigned": _slice_assigned,
    "view_written": _view_written,
    "copied_into": _copied_into,
    "out_given": _out_given,
    "index_put": lambda x: x.index_put((torch.arange(5),), x[5:10].sin()),
    "index_add": lambda x: (x * 1).index_add_(0, torch.arange(5), x[5:10]),
    "scatter": lambda x: x.scatter_add(0, torch.zeros(3, WIDTH, dtype=torch.long), x[:3]),
    "chunks": lambda x: torch.cat([each.sin() for each in x.chunk(4, 1)][::-1], 1),
    "unbind": lambda x: torch.stack([each * i for i, each in enumerate(x.unbind(0))]),
    "transposed": lambda x: (x.t().contiguous() @ x).sin().t()[:ROWS],
    "flip_roll": lambda x: x.flip(0).roll(3, 1).sin(),
    "expand": lambda x: x + x.mean(0, keepdim=True).expand(ROWS, WIDTH).sin(),
    "unfold": lambda x: x.unfold(0, 8, 8).sin().transpose(1, 2).reshape(ROWS, WIDTH),
    "as_strided": _as_strided,
    "topk": lambda x: torch.cat([*(each[0] for each in (x.topk(WIDTH // 2, 1), x.sort(1))), x], 1)[:, :WIDTH],
    "var_mean": lambda x: (
        (x - torch.var_mean(x, 1, keepdim=True)[1]) / torch.var_mean(x, 1, keepdim=True)[0].sqrt()
    ),
    "where": lambda x: torch.where(x > 0, x.sin(), x.cos()),
    "complex": _conjugate,
    "to_double_and_back": lambda x: x.double().sin().float(),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x).softmax(1) @ x,
    "cumsum": lambda x: x.cumsum(1) / WIDTH,
    "norms": lambda x: F.group_norm(F.layer_norm(x, (WIDTH,)), 8),
    "max_pool": lambda x: F.max_pool1d(x[None], 2)[0].repeat(1, 2),
}


@pytest.mark.parametrize("name", CHANGES)
def test_writes_views_and_aliases(name):
    def forward(model, x):
        for layer in model:
            x = torch.tanh(CHANGES[name](layer(x)))
        return x

    check(lambda: train_briefly(linear_layers(), forward))


def test_a_chain_of_writes_into_one_tensor_between_saves():
    def forward(model, x):
        for layer in model:
            x = layer(x)
            y = x.sin()
            y.add_(x)
            y.mul_(2)
            y[:, ::2].neg_()
            y.exp_()
            x = torch.tanh(y)
        return x

    check(lambda: train_briefly(linear_layers(), forward))


# -- mutations autograd does not see, or allows -------------------------------------------------------------------


def test_batch_norm_updates_its_statistics_once():
    def program():
        layers = [
            each
            for _ in range(4)
            for each in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(True))
        ]
        return train_briefly(nn.Sequential(*layers), lambda model, x: model(x.view(4, 8, 16, 16)))

    check(program)


@pytest.mark.parametrize("has_gradients", [True, False])
def test_batch_norm_read_in_evaluation_then_updated_in_training(has_gradients):
    def program():
        layers = [
            each for _ in range(4) for each in (nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Tanh())
        ]
        model = nn.Sequential(*layers)
        x = rows_of().view(4, 8, 16, 16)
        first = model.eval()(x)
        with torch.set_grad_enabled(has_gradients):
            second = model.train()(x.sin())
        loss = (first * second).square().mean()
        loss.backward()
        return [loss, *model.state_dict().values(), *(p.grad for p in model.parameters())]

    check(program, shares=(0.6, 0.4))


def test_a_bias_changed_between_forward_and_backward():
    def program():
        model = tanh_layers()
        loss = model(rows_of()).square().mean()
        with torch.no_grad():
            for layer in model[::2]:
                layer.bias.add_(1)
        loss.backward()
        return [p.grad for p in model.parameters()]

    check(program)


def test_data_of_an_activation_changed_behind_autograd():
    def program():
        model = tanh_layers()
        x = rows_of()
        kept = []
        for layer in model:
            x = layer(x)
            kept.append(x)
        y = (x.sin() * x.cos()).exp()
        loss = y.square().mean()
        kept[2].data.mul_(2)
        kept[7].data.add_(1)
        x.data.mul_(3)
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program, evicts=False)


def test_a_weight_given_other_data_between_forward_and_backward():
    def program():
        model = tanh_layers()
        loss = model(rows_of()).square().mean()
        for layer in model[::2]:
            layer.bias.data = torch.full((WIDTH,), 3.0)
            layer.weight.data = layer.weight.data * 2
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


class _Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(ROWS, WIDTH))

    def forward(self, x):
        return x * self.weight


def test_weights_that_are_gathered_and_freed_as_deepspeed_does():
    """Stage 3 gives each weight its full data for its layer only; no recipe may keep that data alive."""

    def program():
        model = nn.Sequential(*[each for _ in range(6) for each in (_Scale(), nn.Tanh())])
        shards, gathered = {}, []

        def free(layer, *_):
            shards[layer] = layer.weight.detach().numpy().copy()
            layer.weight.data = torch.empty(0)

        def gather(layer, *_):
            layer.weight.data = torch.zeros(ROWS, WIDTH)
            layer.weight.detach().numpy()[:] = shards[layer]
            gathered.append(weakref.ref(layer.weight.untyped_storage()))

        for i, layer in enumerate(model[::2]):
            layer.weight.ds_id = i
            free(layer)
            layer.register_forward_pre_hook(gather)
            layer.register_forward_hook(free)
            layer.register_full_backward_pre_hook(gather)
        loss = model(rows_of().requires_grad_()).square().mean()
        assert [each for each in gathered if each() is not None] == []
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program, evicts=False)


def test_inputs_changed_in_place_after_use():
    def program():
        model = tanh_layers()
        x, noise = rows_of(), rows_of(5)
        loss = (model(x + noise) * noise.sin()).square().mean()
        x.zero_()
        noise.mul_(2)
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


def test_writes_after_writes_to_what_was_read():
    """The input is gone, so what was computed from it is kept; then that is overwritten too."""

    def forward(model, h):
        scale = torch.ones(WIDTH, requires_grad=True)
        for i, layer in enumerate(model):
            data = rows_of(i)
            x = data + scale
            data.zero_()
            y = x * 3
            z = y.sin()
            x.add_(1)
            h = torch.tanh(layer(h) * z + x)
        return h

    check(lambda: train_briefly(linear_layers(), forward))


def test_sparse_tensors_among_others():
    def program():
        table = nn.Embedding(100, WIDTH, sparse=True)
        model = tanh_layers()
        optimizer = torch.optim.SGD(table.parameters(), lr=0.1)
        for _ in range(2):
            x = model(table(torch.arange(ROWS)))
            loss = (x.to_sparse() * 2).to_dense().square().mean()
            loss.backward()
            optimizer.step()
        return [loss, table.weight, table.weight.grad.to_dense(), *(p.grad for p in model.parameters())]

    check(program)


@pytest.mark.parametrize("read", [lambda array: torch.from_numpy(array) * 2, torch.tensor])
def test_memory_of_numpy_is_read_once(read):
    """A buffer that is filled again before backward: what came from it is kept, not computed again."""

    def program():
        model = linear_layers(4)
        array = np.empty((ROWS, WIDTH), dtype=np.float32)
        x = rows_of()
        for i, layer in enumerate(model):
            array[:] = rows_of(i).numpy()
            x = torch.tanh(layer(x) * read(array))
        array[:] = 0
        loss = x.square().mean()
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


def test_set_and_resize_of_what_was_read():
    def program():
        model = tanh_layers()
        x, y = rows_of(), rows_of(5)
        z = x + y
        loss = model(z).square().mean()
        x.set_(torch.zeros(4))
        y.resize_(3)
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    check(program)


def test_an_embedding_that_renormalises_its_rows():
    def program():
        table = nn.Embedding(50, WIDTH, max_norm=1.0)
        model = tanh_layers()
        ids = torch.randint(50, (ROWS,), generator=torch.Generator().manual_seed(2))
        loss = (model(table(ids)) + model(table(ids + 0))).square().mean()
        loss.backward()
        return [loss, table.weight, table.weight.grad, *(p.grad for p in model.parameters())]

    check(program)


def test_spectral_and_weight_norm():
    def program():
        layers = [
            nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh(),
            nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)), nn.Tanh(),
        ]  # fmt: skip
        return train_briefly(nn.Sequential(*layers, *tanh_layers(3)))

    check(program)


def test_a_buffer_that_follows_activations():
    class Follower(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = tanh_layers()
            self.register_buffer("mean", torch.zeros(ROWS, WIDTH))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
                with torch.no_grad():
                    self.mean.lerp_(x, 0.1)
                x = x + self.mean
            return x

    statistics = check(lambda: train_briefly(Follower()))
    assert (
        statistics.guarded_rounds == 0
    )  # what is had again for a write amid the forward does not end the round
