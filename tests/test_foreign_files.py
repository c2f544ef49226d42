"""Only regular files are opened, and every limit names itself."""

from __future__ import annotations

import gzip
import os
import socket

import numpy as np
import pytest

from tests.commands.snapshots import write_blocks
from tests.probe.dumps import Call, write_dump
from windtunnel.commands.main import main
from windtunnel.devices import find_device
from windtunnel.errors import UsageError
from windtunnel.foreign_files import open_file, parse_json, parse_toml, read_at_most
from windtunnel.probe.files import json_stream


def _pipe(path):
    os.mkfifo(path)


def _socket(path):
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


KINDS = {
    "a pipe": (_pipe, "it is a pipe, not a regular file"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "it is a device, not a regular file"),
    "a folder": (lambda path: path.mkdir(), "it is a directory, not a regular file"),
    "a socket": (_socket, "No such device or address"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_regular_file_is_refused_at_once(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # the path of a socket may not be long
    make, reason = KINDS[kind]
    make(tmp_path / "f") if kind != "a socket" else make("f")
    with pytest.raises(OSError, match=reason):
        open_file(tmp_path / "f")


def test_a_link_to_a_regular_file_is_followed(tmp_path):
    (tmp_path / "a").write_text("text")
    (tmp_path / "b").symlink_to(tmp_path / "a")
    with open_file(tmp_path / "b", "r", encoding="utf-8") as file:
        assert file.read() == "text"


def test_a_file_longer_than_the_limit_is_refused_with_the_limit(tmp_path):
    (tmp_path / "f").write_bytes(bytes(4097))
    assert len(read_at_most(tmp_path / "f", 4097)) == 4097
    with pytest.raises(OSError, match=r"larger than 4\.00 KiB, the limit for such a file"):
        read_at_most(tmp_path / "f", 4096)


def test_a_path_with_a_nul_in_it_is_an_error_of_the_system(tmp_path):
    with pytest.raises(OSError, match="null byte"):
        open_file(f"{tmp_path}/a\0b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[" * 100_000, "nest too deeply"),
        ("9" * 5000, "digits"),
        ("{", "Expecting property name"),
        (b"\xff", "can't decode byte 0xff"),
    ],
)
def test_whatever_is_wrong_with_json_is_a_value_error(text, reason):
    with pytest.raises(ValueError, match=reason):
        parse_json(text)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"a = \xff", "codec can't decode"),
        (b"a = " + b"9" * 5000, "digits"),
        (b"a = 0x" + b"f" * 5000, "more than 64 bits"),
        (b"a = " + b"[" * 5000, "nest too deeply"),
        (b"a" + b".a" * 101 + b" = 1", "line 1 has more than 100 dots"),
        (b"[" + b"a." * 99 + b"a]\nb.b.b = 1", "nest more than 100 deep"),
        (b"#" * ((1 << 20) + 1), "the limit is 1,048,576"),
    ],
)
def test_whatever_is_wrong_with_toml_is_a_value_error(data, reason):
    with pytest.raises(ValueError, match=reason):
        parse_toml(data)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'name = "\xff"\n', "is not TOML"),
        (b'name = "x"\nkind = "cuda"\nmemory = ' + b"1" * 5000, "is not TOML"),
        (b'name = "x"\nkind = "cuda"\nmemory = "' + b"1" * 5000 + b'"', "a number of 5,000 digits"),
        (b'name = "x"\nkind = "cuda"\nmemory = 99999999999999999999', "is not TOML"),
        (b'name = "x"\nkind = ["cuda"]\nmemory = "1GB"', "kind is"),
        (b'name = "x"\nkind = "cuda"\nmemory = {a = 1}', "as a size"),
    ],
)
def test_a_device_file_that_is_none_is_one_sentence(tmp_path, content, reason):
    path = tmp_path / "d.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=reason) as caught:
        find_device(str(path))
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "argv",
    [
        ["replay", "PIPE"],
        ["remat", "--device", "a100-80gb", "PIPE"],
        ["run", "PIPE"],
        ["remat", "--device", "a100-80gb", "--costs", "PIPE", "r.arrows"],
        ["run", "--device", "PIPE.toml", "train.py"],
        ["compare", "PIPE", "PIPE"],
    ],
)
def test_a_command_does_not_wait_for_a_pipe(tmp_path, monkeypatch, capsys, argv):
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    os.mkfifo("pipe.toml")
    (tmp_path / "train.py").write_text("")
    assert main([word.replace("PIPE", "pipe") for word in argv]) == 2
    assert capsys.readouterr().err.startswith("windtunnel: ")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
        (lambda path: os.mkfifo(path), "it is a pipe"),
    ],
)
@pytest.mark.parametrize("name", ["stack.json", "journal.jsonl"])
def test_a_file_of_a_dump_that_never_ends_is_refused_or_passed_by(tmp_path, capsys, name, make, reason):
    x = np.ones(2, np.float32)
    for side in ("a", "b"):
        write_dump(tmp_path / side, [Call("Functional.relu.0.forward", [x], [x * (1 + (side == "b"))])])
        (tmp_path / side / name).unlink(missing_ok=True)
        make(tmp_path / side / name)
    code = main(["compare", str(tmp_path / "a"), str(tmp_path / "b")])
    err = capsys.readouterr().err
    # Not a regular file is no journal; a stack is wanted when there is something to show.
    assert (code == 2 and reason in err) if name == "stack.json" else code == 3


def test_an_entry_of_a_dump_that_does_not_end_is_refused_with_the_limit(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(json_stream, "_LARGEST_ENTRY", 1 << 20)
    monkeypatch.setattr(json_stream, "_WINDOW", 1 << 16)
    for side in ("a", "b"):
        (tmp_path / side).mkdir()
        text = '{"task": "statistics", "data": {"x.0.forward": {"input_args": [' + "1," * (1 << 20) + "1]}}}"
        (tmp_path / side / "dump.json").write_text(text)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 2
    assert "more than 1,048,576 characters, the limit for one call" in capsys.readouterr().err


def test_a_packed_table_that_unpacks_without_end_is_refused_with_the_limit(tmp_path, capsys):
    write_blocks(tmp_path / "b.csv")
    header, row, *_ = (tmp_path / "b.csv").read_bytes().splitlines(keepends=True)
    path = tmp_path / "b.csv.gz"
    path.write_bytes(gzip.compress(header + row * 40_000))
    assert main(["replay", str(path)]) == 2
    assert "it unpacks to more than 200 times its size" in capsys.readouterr().err
