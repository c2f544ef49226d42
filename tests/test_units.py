"""Sizes as people write them: everything documented is read, everything else is refused."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windtunnel.errors import UsageError
from windtunnel.units import GIB, KIB, MIB, format_bytes, format_us, parse_bytes

READ = {
    "0": 0,
    "1024": 1024,
    "1b": 1,
    "5GB": 5 * GIB,
    "5gb": 5 * GIB,
    "5GiB": 5 * GIB,
    "5G": 5 * GIB,
    "2g": 2 * GIB,
    "512MiB": 512 * MIB,
    "512 MB": 512 * MIB,
    " 1 KiB ": KIB,
    "1.5GB": 3 * GIB // 2,
    "0.5k": 512,
    "1T": 1024 * GIB,
}
REFUSED = [
    "", " ", "-1", "-5GB", ".5e1GB", ".5GB", "1e9", "5.GB", "5GB!", "5 GB extra", "GB", "5XB", "5GBB", "5iB5",
    "0x10", "1,5GB", "५GB?", "nan", "inf", "5 G B", "5\nGB\n5", "101%", "-1%", "0%", "x%", "nan%", "80%",
]  # fmt: skip


@pytest.mark.parametrize("text", READ)
def test_documented_spellings_are_read(text):
    assert parse_bytes(text) == READ[text]


@pytest.mark.parametrize("text", REFUSED)
def test_anything_else_is_refused_with_the_text_quoted(text):
    with pytest.raises(UsageError) as refusal:
        parse_bytes(text)
    assert repr(text) in refusal.value.message or repr(text.strip()) in refusal.value.message


def test_numbers_are_bytes_and_never_negative():
    assert parse_bytes(0) == 0
    assert parse_bytes(2**60) == 2**60
    for n in (-1, 2**60 + 1):
        with pytest.raises(UsageError, match="between 0 and an exabyte"):
            parse_bytes(n)


@pytest.mark.parametrize("value", [True, False, None, [5]])
def test_what_is_neither_a_number_nor_text_is_refused(value):
    with pytest.raises(UsageError):
        parse_bytes(value)


def test_a_share_needs_a_device():
    assert parse_bytes("80%", 1000) == 800
    assert parse_bytes("100%", 1000) == 1000
    assert parse_bytes("0.5%", 1000) == 5
    with pytest.raises(UsageError, match="unknown here"):
        parse_bytes("80%")


@given(st.integers(0, 2**50))
def test_whole_bytes_are_exact(n):
    assert parse_bytes(str(n)) == parse_bytes(f"{n}B") == n
    assert parse_bytes(f"{n}KiB") == n * KIB


@given(st.text(max_size=12))
def test_no_text_does_anything_but_parse_or_refuse(text):
    with suppress(UsageError):
        assert parse_bytes(text, 1000) >= 0


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (100 * KIB, "100.0 KiB"),
        (5 * GIB, "5.00 GiB"),
        (-5 * GIB, "-5.00 GiB"),
        (2048 * GIB, "2.00 TiB"),
    ],
)
def test_bytes_are_written_for_people(n_bytes, text):
    assert format_bytes(n_bytes) == text


@pytest.mark.parametrize(
    ("us", "text"), [(0, "0 us"), (999, "999 us"), (1500, "1.5 ms"), (2_500_000, "2.50 s")]
)
def test_times_are_written_for_people(us, text):
    assert format_us(us) == text
