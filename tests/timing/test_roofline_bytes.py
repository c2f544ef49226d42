"""Bytes that operators move: by hand."""

from __future__ import annotations

import pytest

from tests.timing.signatures import spec
from windtunnel.events.model import Signature, TensorSpec
from windtunnel.timing.roofline.moved_bytes import bytes_moved, bytes_of, is_strided

K = 1 << 10


def _op(name: str, inputs, outputs=(), scalars="_") -> int:
    return bytes_moved(Signature(f"aten.{name}", tuple(inputs), tuple(outputs), scalars))


def test_a_result_is_written_and_operands_are_read():
    assert _op("add.Tensor", [spec(K), spec(K)], [spec(K)]) == 3 * 2 * K


def test_in_place_writes_what_it_read():
    assert _op("add_.Tensor", [spec(K), spec(K)]) == 3 * 2 * K


@pytest.mark.parametrize(
    ("name", "n"), [("zero_.default", 2 * K), ("fill_.Scalar", 2 * K), ("uniform_.default", 2 * K)]
)
def test_what_is_overwritten_is_not_read(name, n):
    assert _op(name, [spec(K)]) == n


def test_a_copy_reads_its_source_only():
    assert _op("copy_.default", [spec(K), spec(K, dtype="float32")]) == 2 * K + 4 * K


def test_what_is_expanded_is_read_once():
    assert _op("neg.default", [spec(K, K, strides=(0, 1))], [spec(K, K)]) == 2 * (K + K * K)


def test_a_lookup_reads_rows_not_the_table():
    table, rows = spec(50_000, 64), spec(8, dtype="int64")
    assert _op("embedding.default", [table, rows], [spec(8, 64)]) == 2 * 8 * 64 * 2 + 8 * 8


def test_an_indexed_write_touches_the_rows_it_names():
    target, at, value = spec(2, 1024, 64), spec(100, dtype="int64"), spec()
    assert (
        _op("index_put_.default", [target, at, at, value], scalars="_,[_,_],_")
        == 2 * 100 * 64 * 2 + 2 * 800 + 2
    )


def test_the_gradient_of_a_table_is_all_of_it():
    gradient, rows = spec(8, 64), spec(8, dtype="int64")
    inputs = [gradient, rows]
    assert _op("embedding_dense_backward.default", inputs, [spec(500, 64)]) == (8 * 64 + 500 * 64) * 2 + 64


def test_a_kernel_over_lists_writes_the_first_list():
    tensors = [spec(K), spec(2 * K), spec(K), spec(2 * K)]
    assert _op("_foreach_add_.List", tensors, scalars="[_,_],[_,_]") == (6 + 3) * 2 * K


def test_views_move_nothing():
    assert _op("view.default", [spec(K)], [spec(K)]) == 0


def test_an_unknown_type_is_a_byte_wide():
    assert bytes_of(TensorSpec((10,), (1,), "float8_e4m3fn")) == 10


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [((4, 8), (8, 1), False), ((4, 8), (1, 4), True), ((4, 1), (1, 4), False), ((4, 8), (0, 1), False), ((), (), False),
     ((2, 4, 8), (8, 16, 1), False), ((8,), (3,), False)],
)  # fmt: skip
def test_a_turned_tensor_is_one_whose_last_dimension_is_not_the_dense_one(shape, strides, expected):
    assert is_strided(TensorSpec(shape, strides, "float16")) is expected
