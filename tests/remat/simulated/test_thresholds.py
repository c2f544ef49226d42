"""Thresholds as people write them, and the ones chosen for them."""

from __future__ import annotations

import re

import pytest

from windtunnel.errors import UsageError
from windtunnel.remat.simulated.thresholds import Thresholds, default_thresholds, parse_thresholds, write_size
from windtunnel.units import GIB, MIB, parse_bytes

CARD = 11011 * MIB


def _gib(*sizes):
    return tuple(int(size * GIB) for size in sizes)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("5GB", (5,)),
        ("2GB..5GB", (2, 2.5, 3, 3.5, 4, 4.5, 5)),
        ("2GB..5GB:1GB", (2, 3, 4, 5)),
        ("2GB..5GB:2GB", (2, 4)),
        ("6g, 4g,5GiB", (4, 5, 6)),
        ("4GB,4GB..6GB:1GB,4GB", (4, 5, 6)),
        ("3GB..3GB", (3,)),
    ],
)
def test_lists_and_ranges_are_read(text, sizes):
    assert parse_thresholds(text, CARD) == Thresholds(_gib(*sizes))


def test_percents_are_of_the_card():
    assert parse_thresholds("25%..75%:25%", 8 * GIB).sizes == _gib(2, 4, 6)
    assert parse_thresholds("50%", 8 * GIB).sizes == _gib(4)


def test_a_range_ends_at_the_card_and_says_what_it_left_out():
    assert parse_thresholds("9GB..12GB:1GB", CARD) == Thresholds(_gib(9, 10), _gib(11, 12))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("12GB", "a threshold of 12.00 GiB is above the 10.75 GiB of the device"),
        ("12GB..14GB", "a threshold of 12.00 GiB is above the 10.75 GiB of the device"),
        ("5GB..2GB", "runs from 5.00 GiB down to 2.00 GiB"),
        ("0", "contains a size of 0"),
        ("0..4GB", "contains a size of 0"),
        ("1GB..2GB:0", "contains a size of 0"),
        ("", "cannot read ''"),
        ("5GB,", "cannot read ''"),
        ("GB..2GB", "cannot read 'GB'"),
        ("..", "cannot read ''"),
        ("2GB-5GB", "cannot read '2GB-5GB'"),
        ("-2GB", "cannot read '-2GB'"),
        ("2GB..5GB:", "cannot read ''"),
        ("120%", "cannot read '120%'"),
        ("1GB..2GB:1MB", "gives 1,025 thresholds; the limit is 256"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_a_sentence(text, sentence):
    with pytest.raises(UsageError, match=re.escape(sentence)) as refused:
        parse_thresholds(text, CARD)
    assert refused.value.hint


@pytest.mark.parametrize(
    ("least", "most", "first", "last", "n"),
    [
        (2.3, 10.25, 3, 10, 8),
        (2, 10, 2, 10, 9),
        (30, 80, 32, 80, 7),
        (0.5, 1, 0.5, 1, 9),
    ],
)
def test_defaults_are_about_ten_round_numbers(least, most, first, last, n):
    found = default_thresholds(int(least * GIB), int(most * GIB))
    assert (found.sizes[0], found.sizes[-1], len(found.sizes)) == (*_gib(first, last), n)
    assert not found.left_out


def test_defaults_exist_even_where_there_is_no_room_to_choose():
    assert default_thresholds(9 * GIB, 8 * GIB).sizes == (8 * GIB,)
    assert default_thresholds(0, 100).sizes == (100,)


@pytest.mark.parametrize("n_bytes", [1, 1000, 1536, 5 * GIB, 15 * GIB // 2, 640 * MIB, GIB + 1, 9 * GIB // 4])
def test_a_size_is_written_so_that_it_reads_back(n_bytes):
    assert parse_bytes(write_size(n_bytes)) == n_bytes


def test_sizes_are_written_short():
    assert [write_size(n) for n in _gib(5, 7.5, 0.625)] == ["5GB", "7.5GB", "640MB"]
