"""The command line as a whole: verbs and options are frozen, and no error reaches a user as a traceback."""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.cli import PATIENCE_S
from windtunnel import __version__
from windtunnel.commands import command_line as door
from windtunnel.commands import view
from windtunnel.commands.main import main
from windtunnel.errors import (
    CorruptFile,
    MissingFramework,
    PredictedOutOfMemory,
    ScriptError,
    UsageError,
    WindtunnelError,
)

DOCS = Path(__file__).parents[2] / "docs"

# A new option is a promise: add it here, in the docs of its verb, and in the changelog.
OPTIONS = {
    "run": [
        "--advise", "--allocator", "--batch-factor", "--checkpoint", "--chunk-loss", "--device", "--executor",
        "--force", "--framework", "--isolation", "--jobs", "--json", "--keep-files", "--level", "--library-buffers",
        "--measure", "--memory-tracker", "--network", "--network-access", "--nnodes", "--no-advise", "--no-html",
        "--nproc-per-node", "--out", "--rank", "--ranks", "--routing", "--snapshot", "--steps", "--tokens-per-step",
        "--trace-ranks", "--verbose", "--workspace", "--world-size", "-m", "-v", "script", "arguments",
    ],
    "remat": [
        "--advise", "--allocator", "--costs", "--device", "--force", "--json", "--minimum-size", "--network-access",
        "--no-html", "--nproc-per-node", "--out", "--policy", "--rank", "--sampling", "--steps", "--thresholds",
        "--verbose", "--world-size", "-m", "-v", "script", "arguments",
    ],
    "replay": ["--allocator", "--device", "--json", "files"],
    "compare": ["--csv", "--exact", "--fail-over", "--html", "--json", "--mapping", "--out", "a", "b"],
    "recover": ["--json", "directory"],
    "view": ["--no-open", "--text", "directory", "other"],
    "devices": ["--json", "--toml"],
}  # fmt: skip


def _parsers():
    return door.parser_of()[1]


def test_the_verbs_are_frozen():
    assert list(_parsers()) == list(OPTIONS)


@pytest.mark.parametrize("verb", OPTIONS)
def test_the_options_of_a_verb_are_frozen(verb):
    actions = [a for a in _parsers()[verb]._actions if not isinstance(a, argparse._HelpAction)]
    options = sorted(text for action in actions for text in action.option_strings)
    assert options + [a.dest for a in actions if not a.option_strings] == OPTIONS[verb]


@pytest.mark.parametrize("verb", ["run", "remat", "replay", "compare", "recover", "view"])
def test_the_page_of_a_verb_names_every_option(verb):
    page = (DOCS / f"{'report' if verb == 'view' else verb}.md").read_text(encoding="utf-8")
    assert [option for option in OPTIONS[verb] if option.startswith("-") and option not in page] == []


def test_pages_link_only_to_pages_that_are_there():
    pages = [*DOCS.glob("*.md"), *DOCS.parent.glob("*.md")]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)#:]+\.md)\)", page.read_text(encoding="utf-8"))
    ]
    assert links
    assert [f"{page.name}: {link}" for page, link in links if not (page.parent / link).is_file()] == []


@pytest.mark.parametrize("verb", OPTIONS)
def test_every_verb_explains_itself(verb, capsys):
    with pytest.raises(SystemExit) as exit:
        main([verb, "--help"])
    assert exit.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 4
    assert all(action.help for action in _parsers()[verb]._actions)


def test_the_version_is_printed(capsys):
    with pytest.raises(SystemExit) as exit:
        main(["--version"])
    assert exit.value.code == 0
    assert capsys.readouterr().out == f"windtunnel {__version__}\n"


def test_python_m_windtunnel_is_the_same_program():
    done = subprocess.run(
        [sys.executable, "-m", "windtunnel", "--version"], capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stdout) == (0, f"windtunnel {__version__}\n")


@pytest.mark.parametrize(
    "argv", [[], ["fly"], ["replay"], ["devices", "--nope"], ["devices", "--json", "--toml", "x"]]
)
def test_wrong_usage_exits_2(argv, capsys):
    with pytest.raises(SystemExit) as exit:
        main(argv)
    assert exit.value.code == 2
    assert capsys.readouterr().err.startswith("usage: windtunnel")


@pytest.mark.parametrize(
    ("argv", "sentence", "hint"),
    [
        (["rum", "train.py"], "unknown command 'rum'", "did you mean `windtunnel run`?"),
        (["train.py"], "unknown command 'train.py'", "windtunnel run train.py"),
        (["fly"], "unknown command 'fly'", "use one of run, remat, replay, compare, recover, view, devices"),
        (
            ["run", "--devcie", "h100", "train.py"],
            "unknown option --devcie",
            "did you mean --device? all options: windtunnel run --help",
        ),
        (["compare", "--fail_ovr=1", "a", "b"], "unknown option --fail_ovr", "--fail-over"),
        (["run", "--qqqq", "train.py"], "unknown option --qqqq", "all options: windtunnel run --help"),
        (["run", "--wor", "2", "train.py"], "unknown option --wor", "--world-size or --workspace"),
    ],
)
def test_a_mistyped_name_is_answered_with_the_nearest(capsys, argv, sentence, hint):
    with pytest.raises(SystemExit) as exit:
        main(argv)
    assert exit.value.code == 2
    usage, *_, said, next_step = capsys.readouterr().err.splitlines()
    assert usage.startswith("usage: windtunnel")
    assert said == f"windtunnel: {sentence}"
    assert hint in next_step


def _read(*argv):
    parser, verbs = door.parser_of(argv[:1])
    return parser.parse_args([argv[0], *door.with_known_options(list(argv[1:]), verbs[argv[0]])])


def test_underscores_are_read_as_dashes_before_the_script_only():
    args = _read("run", "--nproc_per_node", "4", "--world_size=8", "train.py", "--batch_size", "--world_size")
    assert (args.nproc_per_node, args.world_size) == (4, 8)
    assert (args.script, args.arguments) == ("train.py", ["--batch_size", "--world_size"])


def test_a_value_that_looks_like_an_option_stays_a_value():
    args = _read("run", "--out", "my_out", "-m", "-v", "my_package.train", "--no_such")
    assert (args.out, args.script, args.arguments) == ("my_out", "my_package.train", ["--no_such"])
    assert _read("compare", "a_b", "c_d", "--fail_over", "1e-3").a == Path("a_b")


def test_an_abbreviated_option_still_works():
    assert _read("run", "--nproc", "2", "train.py").nproc_per_node == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (WindtunnelError("fact"), 1),
        (UsageError("fact"), 2),
        (MissingFramework("fact"), 2),
        (CorruptFile("fact"), 2),
        (ScriptError("fact"), 3),
        (PredictedOutOfMemory("fact"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_an_error_is_one_sentence_and_an_exit_code(monkeypatch, capsys, error, code):
    def fail(args):
        raise error

    monkeypatch.setattr(view, "run", fail)
    assert main(["view"]) == code
    assert capsys.readouterr().err in ("windtunnel: fact\n", "windtunnel: interrupted\n")


def test_a_hint_is_the_second_line(monkeypatch, capsys):
    def fail(args):
        raise UsageError("fact", hint="do this")

    monkeypatch.setattr(view, "run", fail)
    assert main(["view"]) == 2
    assert capsys.readouterr().err == "windtunnel: fact\n  next: do this\n"


def test_a_terminal_with_a_small_character_set_is_written_to_anyway():
    code = "import sys; from windtunnel.commands.main import main; sys.exit(main(['devices']))"
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "COLUMNS": "60"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, env=os.environ | ascii_only, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"a100-80gb" in done.stdout
    assert done.stdout.isascii()
    assert b"?" in done.stdout  # for the line under the head of the table


def test_starting_up_imports_no_framework():
    """A table of devices must not cost the seconds that importing torch takes."""
    code = (
        "import sys; from windtunnel.commands.main import main; main(['devices']);"
        "sys.exit(any(name in sys.modules for name in ('torch', 'mindspore', 'matplotlib')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
