"""An option that our tables do not have is looked up in the launcher's own parser; ours agree with it."""

from __future__ import annotations

import pytest

from windtunnel.errors import UsageError
from windtunnel.session.launchers import deepspeed, torchrun
from windtunnel.session.launchers.options import Table, own_options, read_options

TABLE = Table(
    "launcher", frozenset(("--one", "-n")), frozenset(("--flag",)), parser="x", glued=frozenset(("-n",))
)


def test_options_end_where_the_script_begins():
    parsed = read_options("--one 1 -n8 --flag --one=2 a.py --one 3".split(), TABLE)
    assert (parsed.values, parsed.flags) == ({"--one": "2", "-n": "8"}, {"--flag"})
    assert parsed.rest == ("a.py", "--one", "3")
    assert parsed.every["--one"] == ("1", "2")
    assert read_options(["--", "--one"], TABLE).rest == ("--one",)


def test_an_unknown_option_is_asked_of_the_launcher_itself():
    parsed = read_options("--new 7 --sort-of a.py".split(), TABLE, lambda name: {"--new": 1, "--sort_of": 0})
    assert parsed.rest == ("a.py",)
    assert parsed.notes == ("--new of launcher is not simulated", "--sort-of of launcher is not simulated")
    with pytest.raises(UsageError, match="launcher has no option --new"):
        read_options(["--new", "a.py"], TABLE, lambda name: {})
    with pytest.raises(
        UsageError, match="unknown option --new of launcher, and launcher is not installed here"
    ):
        read_options(["--new", "a.py"], TABLE, lambda name: None)


@pytest.mark.parametrize(("name", "module"), [("torchrun", torchrun), ("deepspeed", deepspeed)])
def test_our_table_agrees_with_the_installed_launcher(name, module):
    theirs = own_options(name)
    if theirs is None:
        pytest.skip(f"{name} is not installed here")
    for option in module._WITH_VALUE | module._FLAGS:
        spellings = [word for word in (option, "--" + option[2:].replace("-", "_")) if word in theirs]
        assert all(theirs[word] == (option in module._WITH_VALUE) for word in spellings), option
    missing = {"--" + word[2:].replace("_", "-") for word in theirs if word.startswith("--")}
    assert missing - module._WITH_VALUE - module._FLAGS == set()
