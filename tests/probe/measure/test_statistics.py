"""Statistics of numpy arrays, by the extension and by numpy, against float64."""

from __future__ import annotations

import json
import math
import zlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windtunnel.probe.files import checksum
from windtunnel.probe.files.checksum import crc_text, xor_text, xor_words
from windtunnel.probe.measure import statistics
from windtunnel.probe.measure.array_totals import c_order_blocks
from windtunnel.probe.measure.statistics import (
    Statistics,
    array_statistics,
    array_xor,
    in_own_type,
    memory_statistics,
    statistics_json,
)

DTYPES = ["f4", "f8", "f2", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "?", "c8", "c16"]


@pytest.fixture(params=["extension", "numpy"], autouse=True)
def _way(request, monkeypatch):
    """Every test twice: with the extension and without."""
    if request.param == "numpy":
        monkeypatch.setattr(statistics, "fused", None)
    elif statistics.fused is None:
        pytest.skip("the extension was not built")


def check(array: np.ndarray) -> Statistics:
    """Compare with float64 and return what was found."""
    found = array_statistics(array, crc=True)
    is_complex = array.dtype.kind == "c"
    sizes = np.abs(array) if is_complex else array
    wide = sizes.astype(np.float64)
    kind = {"b": bool, "i": int, "u": int}.get(array.dtype.kind, float)
    assert found.max == kind(sizes.max())
    assert found.min == kind(sizes.min())
    assert type(found.max) is type(found.min) is kind
    assert (found.nan_count, found.inf_count) == (0, 0)
    assert found.zero_count == np.count_nonzero(sizes == 0)
    if array.dtype.kind == "b":
        assert found.mean is None
        assert found.norm is None
    else:
        assert found.mean == pytest.approx(wide.mean(), rel=0, abs=1e-6 * np.abs(wide).mean())
        assert found.norm == pytest.approx(np.sqrt(np.square(wide).sum()), rel=1e-6)
    data = np.ascontiguousarray(array)
    assert found.crc == f"{zlib.crc32(data):08x}"
    parts = data.reshape(-1).view(data.real.dtype) if is_complex else data
    assert np.allclose(
        found.sketch, array_statistics(parts).sketch, rtol=1e-6, atol=1e-6 * found.norm if found.norm else 0
    )
    return found


def sample(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.asarray(_sample(dtype, shape or (1,), seed)).reshape(shape)


def _sample(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype).kind
    if kind == "b":
        return rng.random(shape) < 0.5
    if kind in "iu":
        info = np.iinfo(dtype)
        return rng.integers(info.min, info.max, shape, dtype, endpoint=True)
    values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4)
    values[rng.random(shape) < 0.1] = 0
    return (values + 1j * rng.standard_normal(shape) if kind == "c" else values).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 7, 16, 1024, 1025, 5000, 65_536, 200_003])
def test_figures_are_those_of_float64(dtype, n):
    check(sample(dtype, (n,), n))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(1, 40), min_size=0, max_size=4).map(tuple),
    order=st.randoms(use_true_random=False),
    steps=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    seed=st.integers(0, 99),
)
def test_any_shape_and_strides_give_what_the_contiguous_copy_gives(dtype, shape, order, steps, seed):
    array = sample(dtype, shape, seed)
    axes = list(range(array.ndim))
    order.shuffle(axes)
    array = array.transpose(axes)[tuple(slice(None, None, step) for step in steps[: array.ndim])]
    array = np.asarray(array)
    found = check(array)
    assert found == array_statistics(np.array(array, order="C"), crc=True)


@pytest.mark.parametrize(
    "shape", [(300, 700), (700, 300), (3, 90_000), (90_000, 3), (5, 70, 401), (64, 1, 2048)]
)
@pytest.mark.parametrize("dtype", ["f4", "f8", "f2", "u1"])
def test_large_transposed_arrays(shape, dtype):
    array = sample(dtype, shape, 5)
    for axes in ((1, 0), (0, 2, 1), (2, 1, 0), (1, 0, 2)):
        if len(axes) == array.ndim:
            turned = array.transpose(axes)
            assert array_statistics(turned, crc=True) == array_statistics(
                np.ascontiguousarray(turned), crc=True
            )


def test_an_expanded_array_is_measured_without_being_made():
    wide = np.broadcast_to(np.float32([1.5, -2.0, 0.0]), (4_000_000, 3))
    found = array_statistics(wide)
    assert (found.max, found.min, found.zero_count) == (1.5, -2.0, 4_000_000)
    assert found.mean == pytest.approx(-0.5 / 3, rel=1e-6)
    assert found.norm == pytest.approx(math.sqrt(6.25 * 4_000_000), rel=1e-6)


@pytest.mark.parametrize("value", [0.1, 1.1754, -3.3, 1e-3])
@pytest.mark.parametrize("n", [32_768, 262_144, 1_000_000])
def test_equal_values_do_not_add_up_their_rounding(value, n):
    array = np.full(n, value, np.float32)
    found = array_statistics(array)
    assert found.mean == pytest.approx(float(array[0]), rel=1e-6)
    assert found.norm == pytest.approx(abs(float(array[0])) * math.sqrt(n), rel=1e-6)


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_nan_and_infinity_are_counted_and_left_out_of_the_sketch(dtype):
    array = np.ones(3000, dtype)
    array[[5, 2000]] = np.nan
    array[[7, 8, 2999]] = np.inf, -np.inf, np.inf
    array[9] = 0
    found = array_statistics(array)
    assert (found.nan_count, found.inf_count, found.zero_count) == (2, 3, 1)
    assert all(map(math.isnan, (found.max, found.min, found.mean, found.norm)))
    assert np.allclose(found.sketch, array_statistics(np.where(np.isfinite(array), array, 0)).sketch)


def test_infinity_alone_is_the_maximum():
    found = array_statistics(np.float32([1, np.inf, 2]))
    assert (found.max, found.min, found.mean, found.norm) == (math.inf, 1.0, math.inf, math.inf)
    assert (found.nan_count, found.inf_count) == (0, 1)
    found = array_statistics(np.float32([-np.inf, np.inf]))
    assert (found.max, found.min, found.norm) == (math.inf, -math.inf, math.inf)
    assert math.isnan(found.mean)


@pytest.mark.parametrize(
    ("dtype", "value"),
    [("f4", 3e38), ("f4", 1e-30), ("f4", 1e-44), ("f4", 1e25), ("f8", 1e200), ("f8", 1e-200), ("f2", 6e4)],
)
@pytest.mark.parametrize("n", [9, 5000])
def test_squares_neither_overflow_nor_vanish(dtype, value, n):
    array = np.full(n, value, dtype)
    found = array_statistics(array)
    assert found.mean == pytest.approx(float(array[0]), rel=1e-6)
    assert found.norm == pytest.approx(float(array[0]) * math.sqrt(n), rel=1e-6)
    ones = array_statistics(np.ones(n)).sketch
    assert np.allclose(np.array(found.sketch) / float(array[0]), ones, rtol=1e-5, atol=1e-5 * math.sqrt(n))


def test_both_zeros_are_zeros():
    assert array_statistics(np.float32([0.0, -0.0, 1.0, -1.0] * 500)).zero_count == 1000


def test_extreme_integers_are_exact():
    found = array_statistics(np.array([2**63 - 1, -(2**63), 2**53 + 1], np.int64))
    assert (found.max, found.min) == (2**63 - 1, -(2**63))
    found = array_statistics(np.array([2**64 - 1, 1], np.uint64))
    assert (found.max, found.min, found.zero_count) == (2**64 - 1, 1, 0)


def test_bfloat16_is_measured_from_its_bits():
    values = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    exact = (bits.astype(np.uint32) << 16).view(np.float32)
    found = array_statistics(bits.view(np.int16), bfloat16=True, crc=True)
    assert found.crc == f"{zlib.crc32(bits):08x}"
    found.crc = None
    assert found == array_statistics(exact)


@pytest.mark.parametrize(
    "array", [np.empty(0), np.empty((3, 0), np.int8), np.array(["a"]), np.array([None], object)]
)
def test_what_has_no_numbers_has_no_figures(array):
    assert array_statistics(array) == Statistics()


def test_empty_bytes_have_the_checksum_of_nothing():
    assert array_statistics(np.empty(0), crc=True).crc == "00000000"


def test_blocks_are_the_c_order_cut_in_equal_parts():
    array = np.arange(210).reshape(5, 6, 7).transpose(2, 0, 1)[:, ::2]
    blocks = [block.copy() for block in c_order_blocks(array, 16)]
    assert [block.size for block in blocks] == [16] * 7 + [14]
    assert np.concatenate(blocks).tolist() == array.ravel().tolist()


def test_crc_of_the_library_is_that_of_zlib():
    data = bytes(range(256)) * 50
    assert checksum.crc32(data) == zlib.crc32(data)
    assert crc_text(0xABC) == "00000abc"


def test_xor_folds_little_endian_words_and_pads_the_last():
    data = np.arange(1, 12, dtype=np.uint8)
    expected = int.from_bytes(bytes(range(1, 9)), "little") ^ int.from_bytes(bytes([9, 10, 11]), "little")
    assert xor_words(data) == expected
    assert array_xor(data).crc == xor_text(expected) == f"0x{expected:016x}"
    long = np.random.default_rng(0).integers(0, 255, (300, 1001)).astype(np.uint8).T
    assert array_xor(long).crc == xor_text(xor_words(np.ascontiguousarray(long)))


def test_json_is_what_msprobe_writes_then_ours():
    found = Statistics(1.5, -2.0, 0.25, 3.0, 0, 0, 4, (1.0,) * 8)
    head, tail = statistics_json(found)
    assert head == '"Max": 1.5, "Min": -2.0, "Mean": 0.25, "Norm": 3.0'
    assert tail == '"zero_count": 4, "sketch": [' + ", ".join(["1.0000000e+00"] * 8) + "]"
    assert json.loads(f"{{{head}, {tail}}}")["sketch"] == [1.0] * 8


def test_json_of_numbers_json_does_not_know():
    found = Statistics(math.nan, -math.inf, None, math.inf, 1, 2, 0)
    assert statistics_json(found) == (
        '"Max": NaN, "Min": -Infinity, "Mean": null, "Norm": Infinity',
        '"nan_count": 1, "inf_count": 2',
    )
    head, tail = statistics_json(found, strict=True)
    assert json.loads(f"{{{head}, {tail}}}", parse_constant=lambda name: pytest.fail(name))["Max"] == "NaN"
    assert statistics_json(Statistics(True, False))[0].startswith('"Max": true, "Min": false, "Mean": null')
    assert statistics_json(Statistics(7, -7, 1.0, 2.0))[0].startswith('"Max": 7, "Min": -7, "Mean": 1.0')


def test_json_of_the_sketch_keeps_eight_digits():
    numbers = tuple(np.random.default_rng(0).standard_normal(8) * 10.0 ** np.arange(-20, 20, 5))
    _, tail = statistics_json(Statistics(1.0, 1.0, 1.0, 1.0, 0, 0, 0, numbers))
    assert json.loads(f"{{{tail}}}")["sketch"] == pytest.approx(numbers, rel=1e-7)


def test_memory_that_is_not_there_is_refused():
    if statistics.fused is None:
        pytest.skip("numpy reads arrays only")
    array = np.ones(100, np.float32)
    address = array.__array_interface__["data"][0]
    assert memory_statistics(address, 400, "f", (10, 10), (10, 1), False).mean == 1.0
    for n_bytes, shape, strides in (
        (396, (10, 10), (10, 1)),
        (400, (10, 10), (11, 1)),
        (400, (4,), (-1,)),
        (400, (0,), (1,)),
    ):
        with pytest.raises(ValueError, match="nothing to measure"):
            memory_statistics(address, n_bytes, "f", shape, strides, False)
    with pytest.raises(ValueError, match="type must be"):
        memory_statistics(address, 400, "x", (2,), (1,), False)


@pytest.mark.parametrize(
    ("type_name", "mean", "norm"),
    [
        ("torch.bfloat16", 0.388671875, 45.0),
        ("torch.float16", 0.388916015625, 45.09375),
        ("torch.float32", float(np.float32(0.38881521206349134)), float(np.float32(45.091781070944556))),
        ("torch.float64", 0.38881521206349134, 45.091781070944556),
        ("torch.int64", 0.38881521206349134, 45.091781070944556),
        ("torch.float8_e4m3fn", 0.38881521206349134, 45.091781070944556),
        ("BFloat16", 0.388671875, 45.0),
    ],
)
def test_mean_and_norm_in_the_own_type(type_name, mean, norm):
    exact = Statistics(3.5, 0.0, 0.38881521206349134, 45.091781070944556)
    found = in_own_type(exact, type_name)
    assert (found.max, found.min, found.mean, found.norm) == (3.5, 0.0, mean, norm)


@pytest.mark.parametrize(
    ("value", "rounded"),
    [
        (1.00390625, 1.0),
        (1.01171875, 1.015625),
        (-1.0039064, -1.0078125),
        (3.4e38, math.inf),
        (math.nan, math.nan),
    ],
)
def test_rounding_to_bfloat16_is_to_the_nearest_and_ties_to_even(value, rounded):
    found = in_own_type(Statistics(mean=value, norm=abs(value)), "bfloat16")
    np.testing.assert_equal([found.mean, found.norm], [rounded, abs(rounded)])
