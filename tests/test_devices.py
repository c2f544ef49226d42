"""Devices: the built-in table, overrides, files of the user, and names that do not exist."""

from __future__ import annotations

import pytest

from windtunnel.devices import DEFAULT_DEVICE, find_device, known_devices
from windtunnel.errors import UsageError
from windtunnel.memory import Allocator

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize("id", known_devices())
def test_every_device_is_complete_and_its_allocator_exists(id):
    device = find_device(id)
    assert device.id == id
    assert 0 < device.usable_bytes <= device.memory_bytes
    assert device.bf16_tflops > 0
    assert device.bandwidth_gbs > 0
    assert device.allocator in Allocator.names()
    assert (device.capability > (0, 0)) == (device.kind == "cuda")


def test_the_default_exists():
    assert DEFAULT_DEVICE in known_devices()


def test_a_family_name_means_its_largest_variant():
    assert find_device("a100").id == "a100-80gb"
    assert find_device("H100").id == "h100-80gb"


def test_the_context_is_not_usable():
    assert find_device("a100-80gb").memory_bytes - find_device("a100-80gb").usable_bytes == 500 * MIB


def test_the_ascend_figures_are_those_of_the_tool_it_replaces():
    device = find_device("ascend-910b-64gb")
    assert (device.memory_bytes // MIB, device.usable_bytes // MIB) == (65536, 61430)


@pytest.mark.parametrize(
    ("text", "memory"),
    [("a100-80gb:mem=40GiB", 40 * GIB), ("a100:mem=40g", 40 * GIB), ("a100-80gb:mem=50%", 81153 * MIB // 2)],
)
def test_memory_can_be_changed(text, memory):
    device = find_device(text)
    assert device.memory_bytes == memory
    assert device.usable_bytes == memory - 500 * MIB


def test_a_tiny_device_has_nothing_usable_rather_than_less():
    assert find_device("t4:mem=1MiB").usable_bytes == 0


@pytest.mark.parametrize("text", ["a100:mem", "a100:mem=", "a100:mem=-1", "a100:cores=3", "a100:mem=40GiB,x"])
def test_a_wrong_override_is_refused(text):
    with pytest.raises(UsageError):
        find_device(text)


@pytest.mark.parametrize("text", ["", "h101", "nvidia", "a100-8gb", "../a100"])
def test_an_unknown_device_is_refused_with_the_nearest(text):
    with pytest.raises(UsageError) as refusal:
        find_device(text)
    assert repr(text) in refusal.value.message
    assert "windtunnel devices" in refusal.value.hint


def _file(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return str(path)


def test_a_file_of_the_user_needs_three_fields(tmp_path):
    device = find_device(_file(tmp_path, 'name = "X"\nkind = "cuda"\nmemory = "48GiB"\n'))
    assert (device.id, device.name, device.kind) == ("mine", "X", "cuda")
    assert (device.memory_bytes, device.allocator) == (48 * GIB, "cuda")


def test_a_file_may_have_its_fields_in_one_table(tmp_path):
    text = '[mine]\nname = "X"\nkind = "npu"\nmemory = 1024\nusable = 512\n'
    device = find_device(_file(tmp_path, text))
    assert (device.memory_bytes, device.usable_bytes, device.allocator) == (1024, 512, "npu")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('name = "X"\nkind = "cuda"\n', "lacks memory"),
        ("not toml at all", "is not TOML"),
        ('name = "X"\nkind = "tpu"\nmemory = 1\n', "kind is 'tpu'"),
        ('name = "X"\nkind = "cuda"\nmemory = "lots"\n', "cannot read 'lots'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, reason):
    with pytest.raises(UsageError, match=reason):
        find_device(_file(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read the device file"):
        find_device(str(tmp_path / "none.toml"))
