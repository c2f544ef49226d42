"""Columns of numbers in a page: what is read back is what was written, in Python and in a browser."""

from __future__ import annotations

import base64
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.browser import complaints, open_browser
from windtunnel.report.page.columns import pack
from windtunnel.report.page.source_lines import read_column
from windtunnel.report.page.web_page import page_bytes

COLUMNS = {
    "none": ([], False, "u1"),
    "one": ([7], True, "u1"),
    "small": ([0, 1, 255], False, "u1"),
    "medium": ([0, 65_535, 256], False, "u2"),
    "long": ([0, 2**32 - 1, 3], False, "u4"),
    "negative": ([-1, 5, -(2**31)], False, "i4"),
    "huge": ([2**32, 2**53 - 1, 0], False, "f8"),
    "hugely_negative": ([-(2**40), 2**40], True, "f8"),
    "rising": ([3, 3, 90, 70_000, 2**32 - 1], True, "u4"),
    "rising_and_falling": ([200, 3, 255, 0], True, "u1"),
    "rising_past_four_bytes": ([5, 2**32 + 5, 2**40], True, "f8"),
    "signed_leaps": ([-(2**31), 2**31 - 1, -1], True, "i4"),
    "fractions": ([0.5, -2.25, 1e300], False, "f8"),
    "flags": ([True, False, True], False, "u1"),
}


def read(column):
    """What columns.js does, in Python."""
    dtype = np.dtype(f"<{column['type']}")
    planes = np.frombuffer(zlib.decompress(base64.b64decode(column["data"])), np.uint8)
    values = np.ascontiguousarray(planes.reshape(dtype.itemsize, column["n"]).T).view(dtype).reshape(-1)
    return np.cumsum(values, dtype=dtype) if column["delta"] else values


@pytest.mark.parametrize("name", COLUMNS)
def test_a_column_comes_back_as_it_was_in_the_narrowest_type(name):
    values, is_rising, kind = COLUMNS[name]
    column = pack(np.array(values), is_rising=is_rising)
    assert column["type"] == kind
    assert read(column).tolist() == values


_EDGES = [
    sign * (2**power + off)
    for power in (0, 7, 8, 15, 16, 31, 32, 52)
    for off in (-1, 0, 1)
    for sign in (-1, 1)
]
_WHOLE = st.sampled_from(_EDGES) | st.integers(-(2**53) + 1, 2**53 - 1) | st.integers(0, 300)


@settings(max_examples=200, deadline=None)
@given(st.lists(_WHOLE, max_size=30), st.booleans(), st.booleans())
def test_any_whole_numbers_come_back(values, is_rising, is_sorted):
    values = sorted(values) if is_sorted else values
    column = pack(np.array(values, np.int64), is_rising=is_rising)
    assert read(column).tolist() == values
    assert read_column(column).tolist() == values  # what `view A B` reads of a page


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(), max_size=20))
def test_any_floats_come_back_bit_by_bit(values):
    assert read(pack(np.array(values, np.float64))).tobytes() == np.array(values, "<f8").tobytes()


@pytest.mark.parametrize("number", [2**53, -(2**53), 2**63 - 1, -(2**63), 2**63, 2**64 - 1, 10**30])
def test_a_number_that_a_page_cannot_hold_is_refused(number):
    with pytest.raises(ValueError, match="too large to be exact in a page"):
        pack(np.array([1, number], object))
    if 0 <= number < 2**64:
        with pytest.raises(ValueError, match="too large to be exact in a page"):
            pack(np.array([number], np.uint64))


def test_a_repeated_step_takes_little_room():
    step = np.cumsum(np.random.default_rng(0).integers(1, 9, 2000))
    rows = np.concatenate([step + k * 20_000 for k in range(100)])
    assert len(pack(rows, is_rising=True)["data"]) < 0.03 * rows.astype("<u4").nbytes


def test_a_browser_reads_the_same_numbers(tmp_path):
    columns = {
        name: pack(np.array(values), is_rising=rising) for name, (values, rising, _) in COLUMNS.items()
    }
    # `ranks` of a document are read before the page opens; this page has no view that needs more.
    (tmp_path / "page.html").write_bytes(
        page_bytes("run", {"title": "columns", "made_by": "", "ranks": columns})
    )
    with open_browser() as driver:
        driver.get(f"file://{tmp_path}/page.html")
        found = driver.execute_async_script(
            "const done = arguments[0]; const look = () => window.windtunnel"
            " ? done(Object.fromEntries(Object.entries(windtunnel.page.data.ranks).map(([name, c]) => [name, Array.from(c)])))"
            " : setTimeout(look, 5); look();"
        )
        assert found == {name: values for name, (values, _, _) in COLUMNS.items()}
        assert complaints(driver) == []
