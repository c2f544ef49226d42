"""Text of others on a terminal and in a spreadsheet: shown, never obeyed."""

from __future__ import annotations

import csv
import io
import json
import pickle

import numpy as np
import pytest
from rich.table import Table
from rich.text import Text

from tests.commands.snapshots import write_torch_snapshot
from tests.probe.dumps import Call, write_dump
from windtunnel.commands.main import main
from windtunnel.commands.screen import harmless
from windtunnel.report.terminal.plain_console import PlainConsole
from windtunnel.terminal_text import plain_json, plain_text

TITLE = "\x1b]0;owned\x07"


def _shown(renderable, width=80):
    out = io.StringIO()
    PlainConsole(file=out, width=width, force_terminal=False).print(renderable)
    return out.getvalue()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("layers.0", "layers.0"),
        ("größe 3 × 4 …", "größe 3 × 4 …"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        (TITLE, "\\x1b]0;owned\\x07"),
        ("a\rb\x08\x7f", "a\\x0db\\x08\\x7f"),
        ("\x9b31m", "\\x9b31m"),
        ("a\u202eb", "a\\u202eb"),
    ],
)
def test_control_characters_are_spelled_out(text, expected):
    assert plain_text(text) == expected


def test_json_stays_json_and_holds_no_control_character():
    text = json.dumps({"name": "\x1b\x7f\x9b\u202e é"}, ensure_ascii=False)
    shown = plain_json(text)
    assert json.loads(shown) == json.loads(text)
    assert shown == '{"name": "\\u001b\\u007f\\u009b\\u202e é"}'


def test_a_console_shows_escapes_and_markup_as_text():
    table = Table(box=None, show_header=False)
    table.add_row(TITLE, "[bold]x[/bold]")
    assert _shown(table).split() == ["\\x1b]0;owned\\x07", "[bold]x[/bold]"]
    assert _shown(Text(TITLE)) == "\\x1b]0;owned\n"  # rich itself drops the bell
    assert _shown(f"[/red]{TITLE}") == "[/red]\\x1b]0;owned\\x07\n"


def test_what_is_spelled_out_is_broken_into_lines_and_not_cut_off():
    shown = _shown(Text("ab " + "\x1b" * 3 + " cd ef"), width=10)
    assert "".join(shown.split()) == "ab\\x1b\\x1b\\x1bcdef"


def test_colours_of_our_own_stay():
    out = io.StringIO()
    PlainConsole(file=out, force_terminal=True, color_system="standard").print(Text("x", style="red"))
    assert out.getvalue() == "\x1b[31mx\x1b[0m\n"


@pytest.mark.parametrize(
    ("line", "expected"),
    [("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"), ("end\x1b", "end?"), ("\x9b2J", "?2J"), ("\x1b[2Jx", "x")],
)
def test_of_a_script_only_colours_reach_the_terminal(line, expected):
    assert harmless(line) == expected


def test_a_frame_of_a_snapshot_cannot_set_the_title_of_the_terminal(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    path = write_torch_snapshot(tmp_path / "s.pickle")
    value = pickle.loads(path.read_bytes())
    for entry in value["device_traces"][0]:
        entry["frames"] = [{"filename": "x.py", "line": 3, "name": TITLE}]
    path.write_bytes(pickle.dumps(value))
    assert main(["replay", str(path), "--device", "a100-80gb:mem=550MiB"]) == 4
    out = capsys.readouterr().out
    assert "(x.py:3 in \\x1b]0;owned)" in out
    assert "\x1b" not in out


def test_an_error_message_is_shown_and_not_obeyed(tmp_path, capsys):
    assert main(["replay", f"{tmp_path}/{TITLE}"]) == 2
    err = capsys.readouterr().err
    assert "\\x1b]0;owned\\x07" in err
    assert "\x1b" not in err


def test_no_cell_of_a_csv_is_a_formula(tmp_path, capsysbinary):
    x = np.array([-3.0, 2.0], np.float32)
    for side in ("a", "b"):
        names = [
            "=cmd|' /C calc'!A0.0.forward",
            "+x.0.forward",
            "-x.0.forward",
            "@x.0.forward",
            "\tx.0.forward",
        ]
        write_dump(tmp_path / side, [Call(name, [x], [x]) for name in names])
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b"), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsysbinary.readouterr().out.decode())))
    cells = [cell for row in rows for cell in row.values()]
    starting = [cell for cell in cells if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert {float(cell) for cell in starting} == {-3.0, -0.5}  # a number stays a number
    assert sum(cell.startswith("'=cmd") for cell in cells) == 4  # two values, each named on both sides
