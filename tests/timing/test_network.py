"""Networks: figures of the device, what --network changes, and what is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from windtunnel.devices import find_device, known_devices
from windtunnel.errors import UsageError
from windtunnel.timing.network.library import library_of, link_of
from windtunnel.timing.network.links import check_network, host_network, network_of

A100 = find_device("a100-80gb")


def test_a_device_brings_its_own_figures():
    network = network_of(A100, 8)
    assert (network.link_gbs, network.link_latency_us) == (A100.link_gbs, A100.link_latency_us)
    assert (network.nics, network.nic_gbs, network.nic_latency_us) == (8, 25.0, A100.nic_latency_us)
    assert network.library.name == "nccl"
    assert network.device == "a100-80gb"


@pytest.mark.parametrize("id", known_devices())
def test_every_known_device_has_a_network_of_many_nodes(id):
    check_network(network_of(find_device(id), 8), 4096)


def test_part_of_a_server_has_the_nics_near_its_devices():
    assert [network_of(A100, n).nics for n in (1, 2, 4, 8, 16)] == [1, 2, 4, 8, 16]
    assert network_of(find_device("l4"), 4).nics == 1  # half a NIC is one


def test_a_link_that_joins_racks_makes_one_node_of_them():
    network = network_of(find_device("gb200"), 4)
    assert (network.ranks_per_node, network.nics) == (72, 72)
    assert network_of(find_device("gb200"), 4, "nics=2").nics == 36
    assert network.node_of(71) == 0
    assert network.node_of(72) == 1


def test_the_text_changes_only_what_it_names():
    network = network_of(A100, 8, "latency=5us, bandwidth=400Gb/s,nics=4,link=600GB/s,link_latency=1.5us")
    figures = (
        network.nic_latency_us,
        network.nic_gbs,
        network.nics,
        network.link_gbs,
        network.link_latency_us,
    )
    assert figures == pytest.approx((5, 50, 4, 600, 1.5))
    assert network_of(A100, 8, "nics=4") == replace(network_of(A100, 8), nics=4)


@pytest.mark.parametrize(
    ("text", "gbs"),
    [("50GB/s", 50), ("400Gb/s", 50), ("400Gbit/s", 50), ("400Gbps", 50), ("50GBps", 50), ("1.6Tb/s", 200),
     ("500MB/s", 0.5), ("1e2 GB/s", 100), ("250000KB/s", 0.25)],
)  # fmt: skip
def test_bits_and_bytes_are_distinguished(text, gbs):
    assert network_of(A100, 8, f"bandwidth={text}").nic_gbs == pytest.approx(gbs)


@pytest.mark.parametrize(
    ("text", "us"), [("5us", 5), ("5µs", 5), ("500ns", 0.5), ("0.01ms", 10), ("1s", 1e6), ("0us", 0)]
)
def test_latencies_have_units(text, us):
    assert network_of(A100, 8, f"latency={text}").nic_latency_us == pytest.approx(us)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "cannot read ''"),
        ("fast", "cannot read 'fast'"),
        ("latency=", "cannot read 'latency='"),
        ("=5us", "cannot read '=5us'"),
        ("latency=5us,", "cannot read ''"),
        ("latency=5", "cannot read latency=5 in"),
        ("latency=5GB/s", "cannot read latency=5GB/s"),
        ("latency=-5us", "cannot read latency=-5us"),
        ("bandwidth=50", "write bandwidth=50GB/s"),
        ("bandwidth=50gb/s", "cannot read bandwidth=50gb/s"),  # a small g could be anything
        ("bandwidth=50GiB/s", "cannot read bandwidth"),
        ("bandwidth=0GB/s", "above 0"),
        ("bandwidth=infGB/s", "cannot read bandwidth"),
        ("nics=0", "a whole number above 0"),
        ("nics=1.5", "a whole number above 0"),
        ("nics=²", "a whole number above 0"),
        ("bandwith=50GB/s", "no 'bandwith' in --network .nearest: bandwidth"),
        ("topology=ring", "there is no 'topology'"),
        ("nics=4,nics=8", "gives nics twice"),
    ],
)
def test_a_wrong_text_is_refused(text, reason):
    with pytest.raises(UsageError, match=reason) as refusal:
        network_of(A100, 8, text)
    assert refusal.value.hint


def test_a_file_says_the_same_as_a_text(tmp_path):
    path = tmp_path / "net.toml"
    path.write_text('latency = "5us"\nbandwidth = "400Gb/s"\nnics = 4\n')
    assert network_of(A100, 8, str(path)) == network_of(A100, 8, "latency=5us,bandwidth=400Gb/s,nics=4")
    path.write_text('[mine]\nlink = "200GB/s"\n')
    assert network_of(A100, 8, str(path)).link_gbs == 200


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"latency 5us", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
        (b"latency = 5\n", "cannot read latency=5"),
        (b"nics = true\n", "cannot read nics=True"),
        (b"nics = [8]\n", "cannot read nics"),
        (b'lattency = "5us"\n', "no 'lattency'"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, content, reason):
    path = tmp_path / "net.toml"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=reason):
        network_of(A100, 8, str(path))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot read the network file"):
        network_of(A100, 8, str(tmp_path / "none.toml"))


def _bare(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('name = "X"\nkind = "cuda"\nmemory = "48GiB"\n')
    return find_device(str(path))


def test_missing_figures_are_named_with_the_way_to_give_them(tmp_path):
    network = network_of(_bare(tmp_path), 8)
    with pytest.raises(UsageError) as refusal:
        check_network(network, 16)
    assert refusal.value.message == (
        "device mine has no link_gbs, nic_gbs, nics, so 16 ranks with 8 per node cannot be timed"
    )
    assert "--network latency=5us,bandwidth=400Gb/s" in refusal.value.hint


def test_only_what_the_job_needs_must_be_there(tmp_path):
    device = _bare(tmp_path)
    check_network(network_of(device, 1), 1)
    check_network(network_of(device, 8, "link=300GB/s"), 8)
    check_network(network_of(device, 1, "bandwidth=50GB/s,nics=1"), 4)  # one rank a node: no link
    with pytest.raises(UsageError, match=r"no nic_gbs, nics, so 9 ranks"):
        check_network(network_of(device, 8, "link=300GB/s"), 9)


def test_a_host_group_has_the_network_of_the_host():
    network = host_network(8)
    assert (network.library.name, network.device) == ("gloo", "cpu")


def test_every_family_has_a_library_and_every_link_a_share():
    names = {family: library_of(family).name for family in ("nvidia", "amd", "ascend", "cpu")}
    assert names == {"nvidia": "nccl", "amd": "rccl", "ascend": "hccl", "cpu": "gloo"}
    for device in known_devices().values():
        assert 0 < link_of(device.link).share <= 1
    assert link_of("no such link") == link_of("default")


def test_only_switches_of_hopper_and_later_make_sums():
    summing = {device.id for device in known_devices().values() if link_of(device.link).switch_share}
    assert summing == {"h100-80gb", "h200-141gb", "h800-80gb", "b200-180gb", "gb200-186gb"}
