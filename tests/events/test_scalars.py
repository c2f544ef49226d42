"""Arguments of operators, read back from their text."""

from __future__ import annotations

import pytest

from windtunnel.events.scalars import arguments_of, peer_of


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("", [""]),
        ("_,_,[1,1],False", ["_", "_", "[1,1]", "False"]),
        ("(_,(2,3)),{'a':[1,2]},None", ["(_,(2,3))", "{'a':[1,2]}", "None"]),
    ],
)
def test_commas_inside_brackets_do_not_divide(text, parts):
    assert arguments_of(text) == parts


def test_the_partner_of_a_call_is_named_or_is_nobody():
    assert peer_of("op=SUM peer=17") == 17
    assert peer_of("op=SUM") == peer_of("") == -1
