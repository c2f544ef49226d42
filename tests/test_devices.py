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
    assert device.family in ("nvidia", "amd", "ascend", "cpu")
    assert device.source
    assert (
        min(device.link_gbs, device.link_latency_us, device.nic_gbs, device.nics, device.nic_latency_us) > 0
    )
    if device.kind != "cpu":
        assert device.link
        assert min(device.fp16_tflops, device.fp32_tflops, device.l2_mib, device.launch_us) > 0
        assert device.fp16_tflops >= device.bf16_tflops >= device.fp32_tflops


def test_what_has_no_bf16_units_runs_it_at_the_rate_of_fp32():
    old = [device for device in known_devices().values() if (0, 0) < device.capability < (8, 0)]
    assert {device.id for device in old} >= {"v100-16gb", "v100-32gb", "t4-16gb", "2080ti-11gb"}
    assert all(device.bf16_tflops == device.fp32_tflops < device.fp16_tflops for device in old)


def test_torch_calls_an_amd_device_cuda():
    device = find_device("mi300x")
    assert (device.kind, device.family, device.allocator) == ("cuda", "amd", "cuda")
    assert {find_device(name).family for name in ("h100", "v100-16gb")} == {"nvidia"}
    assert (find_device("ascend-910b").family, find_device("cpu").family) == ("ascend", "cpu")


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


def test_a_card_of_another_size_keeps_what_its_framework_leaves_free():
    """The real card of a published run: 62,420 MiB in all, of which MindSpore had 58,178."""
    device = find_device("ascend-910b-64gb:mem=62420MiB")
    assert (device.memory_bytes, device.usable_bytes) == (62420 * MIB, (62420 - 65536 + 61430) * MIB)
    device = find_device("ascend-910b-64gb:mem=62420MiB,usable=58178MiB")
    assert (device.memory_bytes, device.usable_bytes) == (62420 * MIB, 58178 * MIB)


def test_a_tiny_device_has_nothing_usable_rather_than_less():
    assert find_device("t4:mem=1MiB").usable_bytes == 0


def test_figures_can_be_changed():
    device = find_device("a100:mem=40GiB,bf16_tflops=280.5,bandwidth=1800,link_gbs=200,nics=4")
    assert (device.memory_bytes, device.bf16_tflops, device.bandwidth_gbs) == (40 * GIB, 280.5, 1800.0)
    assert (device.link_gbs, device.nics, type(device.nics)) == (200.0, 4, int)
    assert device.nic_gbs == find_device("a100").nic_gbs


@pytest.mark.parametrize(
    "text",
    [
        "a100:mem", "a100:mem=", "a100:mem=-1", "a100:cores=3", "a100:mem=40GiB,x", "a100:link_gbs=fast",
        "a100:link_gbs=-1", "a100:link_gbs=nan", "a100:link_gbs=inf", "a100:nics=1.5", "a100:bandwidth=0",
        "a100:name=X", "a100:memory_bytes=7", "a100:usable=", "a100:usable=90GiB", "a100:usable",
    ],
)  # fmt: skip
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
    assert (device.family, device.link_gbs, device.nics, device.fp16_tflops) == ("nvidia", 0.0, 0, 0.0)


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
        ('name = "X"\nkind = "cuda"\nmemory = 1\nlink_gb = 3\n', "unknown key 'link_gb' .nearest: link_gbs"),
        ('name = "X"\nkind = "cuda"\nmemory = 1\nlink_gbs = "3"\n', "link_gbs is '3'"),
        ('name = "X"\nkind = "cuda"\nmemory = 1\nlink = 3\n', "link is 3"),
        ('name = "X"\nkind = "cuda"\nmemory = 1\ncapability = [8]\n', "capability is"),
        ('name = "X"\nkind = "cuda"\nmemory = 1\nfamily = "intel"\n', "family is 'intel'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, text, reason):
    with pytest.raises(UsageError, match=reason):
        find_device(_file(tmp_path, text))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read the device file"):
        find_device(str(tmp_path / "none.toml"))
