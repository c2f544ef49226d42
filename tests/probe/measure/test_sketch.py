"""The sketch: what it is, what it sees, and how well it measures a distance."""

from __future__ import annotations

import math

import numpy as np
import pytest

from windtunnel.probe.measure import statistics
from windtunnel.probe.measure.sketch import (
    FOLDS,
    NUMBERS,
    ROW,
    column_weights,
    distance,
    row_weights,
    row_weights_between,
)
from windtunnel.probe.measure.statistics import array_statistics

MASK = (1 << 64) - 1


def sketch(values: np.ndarray) -> tuple[float, ...]:
    return array_statistics(values).sketch


def by_hand(values: np.ndarray) -> np.ndarray:
    """The definition, in float64, element by element."""
    flat = np.asarray(values, np.float64).reshape(-1)
    places = np.arange(flat.size)
    rows, columns = row_weights(places[-1] // ROW + 1), column_weights()
    fold_of = np.arange(NUMBERS) // (NUMBERS // FOLDS)
    return np.array(
        [(rows[fold_of[k]][places // ROW] * columns[k][places % ROW] * flat).sum() for k in range(NUMBERS)]
    )


def test_weights_come_from_splitmix64():
    """The first row weight, by Python's integers."""
    z = (0x9E3779B97F4A7C15 + 0x77696E6474756E6E) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    z ^= z >> 31
    size = 0.5 + ((math.sqrt(45) - 1) / 4 - 0.5) * (z >> 12) * 2.0**-52
    assert row_weights(1)[0, 0] == np.float32(-size if z & 1 else size)


def test_weights_have_mean_zero_variance_one_and_none_is_near_zero():
    for weights in (row_weights(200_000), column_weights()):
        assert abs(weights.mean()) < 0.05
        assert weights.var() == pytest.approx(1.0, abs=0.01)
        assert np.abs(weights).min() >= 0.5


def test_weights_of_later_rows_are_those_of_the_long_table():
    assert np.array_equal(row_weights_between(5, 9), row_weights(9)[:, 5:])


@pytest.mark.parametrize("n", [1, 15, 16, 17, 1000, 1023, 1024, 1025, 4096, 5000, 65_536, 70_001, 140_000])
def test_sketch_is_the_weighted_sum_it_says(n):
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    expected = by_hand(values)
    assert np.allclose(sketch(values), expected, rtol=0, atol=2e-6 * np.linalg.norm(values))


@pytest.mark.skipif(statistics.fused is None, reason="the extension was not built")
@pytest.mark.parametrize("n", [1, 100, 1024, 3000])
def test_the_extension_has_the_same_weights_bit_by_bit(n):
    """One value of one, the others zero: the sketch is then a product of two weights."""
    for place in {0, n // 2, n - 1}:
        values = np.zeros(n)
        values[place] = 1.0
        rows, columns = row_weights(place // ROW + 1), column_weights()
        fold_of = np.arange(NUMBERS) // (NUMBERS // FOLDS)
        assert sketch(values) == tuple((rows[fold_of, place // ROW] * columns[:, place % ROW]).tolist())


def test_order_and_signs_change_the_sketch_though_nothing_else_changes():
    values = np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)
    norm = np.linalg.norm(values)
    flipped = values.copy()
    flipped[np.random.default_rng(2).random(values.shape) < 0.02] *= -1
    swapped = values.copy()
    swapped[[3, 40]] = swapped[[40, 3]]
    for changed in (values[::-1], values[:, ::-1], values.T.reshape(64, 256), flipped, swapped):
        true = np.linalg.norm(values - changed)
        assert distance(sketch(values), sketch(changed)) > 0.1 * true > 1e-3 * norm


def test_one_changed_element_shows_in_every_number():
    values = np.random.default_rng(3).standard_normal(50_000).astype(np.float32)
    changed = values.copy()
    changed[31_337] += 1
    assert min(abs(a - b) for a, b in zip(sketch(values), sketch(changed), strict=True)) > 0.2


def test_sketch_is_linear():
    a, b = np.random.default_rng(4).standard_normal((2, 9000))
    assert np.allclose(sketch(2 * a - b), 2 * np.array(sketch(a)) - np.array(sketch(b)), atol=1e-9)


def test_distance_estimates_the_norm_of_the_difference():
    """Random pairs, and the hard case: differences that are the same in every row."""
    random, rows = [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        shape = int(rng.integers(1, 40)), int(rng.integers(1, 3000))
        a = rng.standard_normal(shape).astype(np.float32)
        b = a + rng.standard_normal(shape).astype(np.float32) * np.float32(10.0 ** rng.integers(-3, 1))
        random.append(distance(sketch(a), sketch(b)) / np.linalg.norm(a - b))
        b = a + rng.standard_normal(shape[1]).astype(np.float32)
        rows.append(distance(sketch(a), sketch(b)) / np.linalg.norm(a - b))
    for found, low, high in ((random, 0.45, 1.75), (rows, 0.15, 2.6)):
        # Eight independent numbers would give 0.5 and 1.51; four and four share the weights of the rows.
        assert np.mean(np.square(found)) == pytest.approx(1.0, abs=0.15)
        assert low < np.quantile(found, 0.02)
        assert np.quantile(found, 0.98) < high
