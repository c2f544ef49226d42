"""windtunnel devices: the table, as text, as JSON and as a file to start from."""

from __future__ import annotations

import json

from windtunnel.commands.main import main
from windtunnel.devices import find_device, known_devices


def test_the_table_lists_every_device_and_the_next_command(capsys):
    assert main(["devices"]) == 0
    out = capsys.readouterr().out
    assert all(id in out for id in known_devices())
    assert out.splitlines()[-1].startswith("next: windtunnel run --device ")


def test_the_links_are_listed(capsys):
    assert main(["devices"]) == 0
    row = next(
        line for line in capsys.readouterr().out.splitlines() if "a100-80gb" in line and "NVLink 3" in line
    )
    assert row.split() == ["a100-80gb", "300", "0.6", "8", "25", "2.7", "NVLink", "3"]


def test_json_holds_the_same_figures(capsys):
    assert main(["devices", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found.keys() == known_devices().keys()
    assert found["ascend-910b-64gb"]["memory_bytes"] == 64 << 30


def test_a_printed_device_file_reads_back_as_the_same_device(tmp_path, capsys):
    for id, device in known_devices().items():
        assert main(["devices", "--toml", id]) == 0
        path = tmp_path / f"{id}.toml"
        path.write_text(capsys.readouterr().out)
        assert find_device(str(path)) == device


def test_a_changed_device_can_be_printed_too(capsys):
    assert main(["devices", "--toml", "h100:mem=40GiB"]) == 0
    assert f'memory = "{40 << 30}"' in capsys.readouterr().out


def test_an_unknown_name_gets_the_nearest(capsys):
    assert main(["devices", "--toml", "a100-80gbb"]) == 2
    assert "nearest: a100-80gb" in capsys.readouterr().err
