"""Dense or not, from shape and strides."""

from __future__ import annotations

import pytest

from windtunnel.events.geometry import is_dense


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((2, 3), (3, 1), True),
        ((2, 3), (1, 2), True),  # transposed
        ((2, 3), (4, 1), False),  # holes
        ((2, 3), (0, 1), False),  # expanded
        ((4,), (2,), False),  # every second element
        ((1, 5), (99, 1), True),  # the stride of a single element means nothing
        ((), (), True),
    ],
)
def test_dense(shape, strides, expected):
    assert is_dense(shape, strides) is expected
