"""seed_all: the same numbers again, and no dropout."""

from __future__ import annotations

import random

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.common.initializer import Normal, initializer

from windtunnel.errors import UsageError
from windtunnel.mindspore import seed_all

ONES = np.ones((2, 3, 4, 4), np.float32)


def _draw():
    return (
        random.random(),
        np.random.rand(3).tolist(),
        initializer(Normal(), [4], ms.float32).init_data().asnumpy().tolist(),
    )


def test_the_same_seed_gives_the_same_numbers():
    seed_all(99)
    first = _draw()
    seed_all(99)
    assert _draw() == first
    seed_all(100)
    assert _draw() != first


@pytest.fixture
def dropouts():
    """Put dropout back afterwards."""
    kinds = (ops.Dropout, ops.Dropout2D, ops.Dropout3D, mint.nn.Dropout)
    before = [kind.__init__ for kind in kinds]
    function = mint.nn.functional.dropout
    yield
    for kind, init in zip(kinds, before, strict=True):
        kind.__init__ = init
    mint.nn.functional.dropout = function


def test_the_five_dropouts_do_nothing(dropouts):
    early = ops.Dropout  # a name that was imported before
    assert (ops.Dropout(0.5)(Tensor(ONES))[0].asnumpy() != ONES).any()
    seed_all(1, rm_dropout=True)
    seed_all(1, rm_dropout=True)  # twice is as good as once
    x, x3 = Tensor(ONES), Tensor(ONES[..., None])
    for given in (early(0.1), early(keep_prob=0.1), ops.Dropout(0.5, 1, 2)):
        assert np.array_equal(given(x)[0].asnumpy(), ONES)
    assert np.array_equal(ops.Dropout2D(keep_prob=0.1)(x)[0].asnumpy(), ONES)
    assert np.array_equal(ops.Dropout3D(keep_prob=0.1)(x3)[0].asnumpy(), ONES[..., None])
    layer = nn.Dropout(p=0.9)
    layer.set_train()
    assert np.array_equal(layer(x).asnumpy(), ONES)
    assert mint.nn.Dropout(0.9).p == 0.0
    assert mint.nn.Dropout(p=0.9).p == 0.0


def test_the_function_of_mint_is_called_with_no_dropout(dropouts, monkeypatch):
    """Its kernel is not there on a CPU, so what it is called with is looked at."""
    seen = []
    monkeypatch.setattr(mint.nn.functional, "dropout", lambda *given: seen.append(given))
    seed_all(1, rm_dropout=True)
    mint.nn.functional.dropout(3, 0.9)
    assert seen == [(3, 0.0, True, False)]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [((-1,), "not a valid seed"), ((1, 2), "mode is 2"), ((1, True, 3), "rm_dropout is 3")],
)
def test_wrong_arguments_are_reported(arguments, said):
    with pytest.raises(UsageError, match=said):
        seed_all(*arguments)
