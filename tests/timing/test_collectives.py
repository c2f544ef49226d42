"""Times of collectives: closed forms on networks made by hand, properties on all, and published measurements."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.published.nccl_points import errors
from windtunnel.devices import find_device, known_devices
from windtunnel.errors import UsageError
from windtunnel.events.model import Signature, TensorSpec
from windtunnel.timing.network.collectives import collective_bytes, collective_seconds
from windtunnel.timing.network.library import Library, Protocol, SwitchSum
from windtunnel.timing.network.links import Network, host_network, network_of

# One protocol that adds nothing: bandwidths and latencies are those of the wires.
PLAIN = (Protocol("plain"),)
MB = 10**6
KINDS = (
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "gather", "scatter",
    "send", "recv", "barrier",
)  # fmt: skip


def _network(algorithms=("ring",), protocols=PLAIN, **fields):
    """8 ranks a node; a link of 100 GB/s and 1 us; 4 NICs of 10 GB/s and 5 us, so 5 GB/s a rank."""
    return Network(8, 100.0, 1.0, 4, 10.0, 5.0, Library("hand", algorithms, protocols), **fields)


def _us(kind, n_bytes, ranks, network):
    return collective_seconds(kind, n_bytes, ranks, network).seconds * 1e6


def test_a_ring_inside_a_node():
    network = _network()
    assert _us("all_reduce", 80 * MB, range(8), network) == pytest.approx(14 * 1 + 14 / 8 * 800)
    assert _us("all_gather", 80 * MB, range(8), network) == pytest.approx(7 * 1 + 7 / 8 * 800)
    assert _us("reduce_scatter", 80 * MB, range(8), network) == pytest.approx(7 * 1 + 7 / 8 * 800)
    time = collective_seconds("all_reduce", 80 * MB, range(8), network)
    assert (time.algorithm, time.is_across_nodes, time.note) == ("ring plain", False, "")


def test_a_ring_of_whole_nodes_has_all_nics():
    # 40 GB/s leave a node; 30 steps in all, 2 of them across.
    assert _us("all_reduce", 80 * MB, range(16), _network()) == pytest.approx(28 * 1 + 2 * 5 + 30 / 16 * 2000)
    assert collective_seconds("all_reduce", 1, range(16), _network()).is_across_nodes


def test_a_group_of_one_rank_a_node_has_its_part_of_the_nics():
    ranks = [3, 11, 19, 27]
    assert _us("all_reduce", 80 * MB, ranks, _network()) == pytest.approx(6 * 5 + 6 / 4 * 80e6 / 5e9 * 1e6)


def test_a_group_of_half_a_node_has_half_of_the_nics():
    ranks = [0, 1, 2, 3, 8, 9, 10, 11]
    expected = 12 * 1 + 2 * 5 + 14 / 8 * 80e6 / 20e9 * 1e6
    assert _us("all_reduce", 80 * MB, ranks, _network()) == pytest.approx(expected)


def test_a_slow_link_bounds_a_ring_across_nodes():
    network = replace(_network(), link_gbs=10.0)
    assert _us("all_gather", 80 * MB, range(16), network) == pytest.approx(14 + 5 + 15 / 16 * 8000)


def test_an_uneven_group_is_bound_by_the_node_with_fewest_ranks():
    ranks = [0, 1, 2, 8]  # one rank of the second node: 5 GB/s
    assert _us("all_gather", 80 * MB, ranks, _network()) == pytest.approx(2 * 1 + 5 + 3 / 4 * 16000)


def test_a_tree_passes_few_hops():
    network = _network(("tree",))
    # Chain of 8 and 3 levels, up and down; more than two nodes: half of 40 GB/s.
    assert _us("all_reduce", 80 * MB, range(64), network) == pytest.approx(
        2 * (7 + 3 * 5) + 80e6 / 20e9 * 1e6
    )
    assert _us("all_reduce", 80 * MB, range(16), network) == pytest.approx(2 * (7 + 5) + 80e6 / 40e9 * 1e6)


def test_a_tree_inside_nodes_moves_bytes_up_and_down_the_same_link():
    network = replace(_network(("tree",)), link_gbs=20.0)
    assert _us("all_reduce", 80 * MB, range(16), network) == pytest.approx(2 * (7 + 5) + 80e6 / 10e9 * 1e6)


def test_hierarchical_is_inside_then_across_with_a_part_of_the_bytes():
    network = _network(("hierarchical",))
    inside, across = 7 * (1 + 10e6 / 100e9 * 1e6), 1 * (5 + 5e6 / 5e9 * 1e6)
    assert _us("all_reduce", 80 * MB, range(16), network) == pytest.approx(2 * (inside + across))


def test_sums_in_the_switch_cross_each_link_once():
    library = Library("hand", ("ring", "switch"), PLAIN, switch=SwitchSum(5, 20.0, 10.0, 0.8))
    network = replace(_network(), library=library, switch_share=0.6)
    time = collective_seconds("all_reduce", 600 * MB, range(8), network)
    assert time.seconds * 1e6 == pytest.approx(20 + 600e6 / 60e9 * 1e6)
    assert time.algorithm == "switch"
    # Two nodes: 0.8 of 40 GB/s; 4 ranks are too few for the switch.
    assert _us("all_reduce", 600 * MB, range(16), network) == pytest.approx(20 + 2 * 15 + 600e6 / 32e9 * 1e6)
    assert collective_seconds("all_reduce", 600 * MB, range(4), network).algorithm == "ring plain"


def test_the_quickest_algorithm_and_protocol_is_taken():
    quick = Protocol("quick", link_share=0.1)
    long = Protocol("long", base_us=100.0, link_us=1.0)
    network = _network(("ring", "tree"), (quick, long))
    names = [collective_seconds("all_reduce", n, range(8), network).algorithm for n in (8, 800 * MB)]
    assert names == ["ring quick", "ring long"]
    names = [collective_seconds("all_reduce", n, range(64), network).algorithm for n in (8, 8000 * MB)]
    assert names == ["tree quick", "ring long"]


def test_a_protocol_of_other_links_is_left_out():
    protocols = (Protocol("any", base_us=9.0), Protocol("special", links="NVLink"))
    assert collective_seconds("send", 1, (0, 1), _network(protocols=protocols)).algorithm == "pair any"
    special = _network(protocols=protocols, link="NVLink 3")
    assert collective_seconds("send", 1, (0, 1), special).algorithm == "pair special"


def test_what_a_protocol_adds_stands_in_the_time():
    protocol = Protocol("p", base_us=7.0, link_us=2.0, nic_us=3.0, tree_us=4.0, post_us=6.0)
    ring, tree = (_network((name,), (protocol,)) for name in ("ring", "tree"))
    assert _us("all_reduce", 0, range(8), ring) == pytest.approx(7 + 14 * 3)
    assert _us("all_reduce", 0, range(16), ring) == pytest.approx(
        7 + 28 * 6 + 2 * 8
    )  # at least a post a step
    assert _us("all_reduce", 0, range(16), tree) == pytest.approx(7 + 2 * (7 * 3 + 8 + 4))


def test_a_pair_has_the_link_or_its_part_of_the_nics():
    assert _us("send", 80 * MB, (0, 1), _network()) == pytest.approx(1 + 800)
    assert _us("recv", 80 * MB, (0, 8), _network()) == pytest.approx(5 + 16000)


def test_in_a_mesh_a_pair_has_one_wire():
    mesh = _network(link_wires=4)
    assert _us("send", 80 * MB, (0, 1), mesh) == pytest.approx(1 + 3200)
    assert _us("all_gather", 80 * MB, (0, 1), mesh) == pytest.approx(1 + 1 / 2 * 3200)
    assert _us("all_gather", 80 * MB, range(3), mesh) == pytest.approx(2 + 2 / 3 * 1600)
    assert _us("all_gather", 80 * MB, range(8), mesh) == pytest.approx(7 + 7 / 8 * 800)  # all wires, no more


def test_a_broadcast_is_passed_on_in_pieces():
    for kind in ("broadcast", "reduce"):
        assert _us(kind, 80 * MB, range(8), _network()) == pytest.approx(7 + 800)
        assert _us(kind, 80 * MB, range(16), _network()) == pytest.approx(14 + 5 + 2000)


def test_all_to_all_stays_and_leaves_at_once():
    assert _us("all_to_all", 80 * MB, range(8), _network()) == pytest.approx(1 + 7 / 8 * 800)
    # Half of the bytes leave, at 5 GB/s a rank.
    assert _us("all_to_all", 80 * MB, range(16), _network()) == pytest.approx(5 + 40e6 / 5e9 * 1e6)


def test_partners_cost_each():
    library = Library("hand", ("ring",), PLAIN, peer_us=0.5, nic_peer_us=2.0)
    network = replace(_network(), library=library)
    for kind in ("all_to_all", "gather", "scatter"):
        assert _us(kind, 0, range(16), network) == pytest.approx(5 + 7 * 0.5 + 8 * 2)


def test_a_barrier_is_an_all_reduce_of_nothing():
    assert _us("barrier", 0, range(8), _network()) == pytest.approx(14)


def test_an_unknown_kind_is_priced_as_a_message_and_said():
    time = collective_seconds("c10d.all_shuffle", 80 * MB, range(8), _network())
    assert time.seconds * 1e6 == pytest.approx(1 + 800)
    assert (
        time.note == "there is no time model of all_shuffle: it is timed as 80000000 bytes sent to one peer"
    )


def test_missing_figures_are_refused_where_they_are_needed():
    network = replace(_network(), nic_gbs=0.0, device="mine")
    assert _us("all_reduce", 8, range(8), network) > 0
    with pytest.raises(UsageError, match="device mine has no nic_gbs"):
        collective_seconds("all_reduce", 8, range(16), network)


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "expected"),
    [
        ("all_reduce", [(8, "float32")], [(8, "float32")], 32),
        ("all_reduce", [(8, "float32"), (4, "bfloat16")], [(8, "float32"), (4, "bfloat16")], 40),
        ("all_gather", [(8, "bfloat16")], [(32, "bfloat16")], 64),
        ("all_gather", [(8, "bfloat16")], [], 64),  # a list of results is not recorded
        ("reduce_scatter", [(32, "float32")], [(8, "float32")], 128),
        ("reduce_scatter", [], [(8, "float32")], 128),
        ("all_to_all", [(32, "float8_e4m3fn")], [(32, "float8_e4m3fn")], 32),
        ("gather", [(8, "int64")], [], 256),
        ("scatter", [], [(8, "bool")], 32),
        ("broadcast", [(3, "complex64")], [(3, "complex64")], 24),
        ("send", [(8, "float16")], [], 16),
        ("recv", [], [(8, "float16")], 16),
        ("barrier", [], [], 0),
    ],
)
def test_bytes_of_a_recorded_collective(kind, inputs, outputs, expected):
    def specs(tensors):
        return tuple(TensorSpec((size,), (1,), dtype) for size, dtype in tensors)

    signature = Signature(f"c10d.{kind}", specs(inputs), specs(outputs), "")
    assert collective_bytes(signature, 4) == expected


NETWORKS = st.builds(
    network_of, st.sampled_from(sorted(known_devices())).map(find_device), st.sampled_from([1, 2, 4, 8])
)
GROUPS = st.builds(
    lambda start, n, stride: tuple(start + i * stride for i in range(n)),
    st.integers(0, 64), st.integers(2, 64), st.sampled_from([1, 2, 8, 16]),
)  # fmt: skip
SIZES = st.integers(0, 1 << 36)


@given(NETWORKS, GROUPS, st.sampled_from(KINDS), SIZES, SIZES)
@settings(max_examples=150, deadline=None)
def test_more_bytes_never_take_less_time(network, ranks, kind, some, more):
    less, most = sorted((some, more))
    first, second = (collective_seconds(kind, n, ranks, network).seconds for n in (less, most))
    assert 0 < first <= second


@given(NETWORKS, st.integers(0, 99), st.sampled_from(KINDS), SIZES)
@settings(max_examples=50, deadline=None)
def test_alone_nothing_takes_time(network, rank, kind, n_bytes):
    assert collective_seconds(kind, n_bytes, (rank,), network).seconds == 0


@given(NETWORKS, GROUPS, SIZES)
@settings(max_examples=100, deadline=None)
def test_gathering_takes_as_long_as_scattering_sums_and_less_than_both(network, ranks, n_bytes):
    gather, scatter, both = (
        collective_seconds(kind, n_bytes, ranks, network).seconds
        for kind in ("all_gather", "reduce_scatter", "all_reduce")
    )
    assert gather == scatter
    assert both <= gather + scatter


@given(NETWORKS, GROUPS, st.sampled_from(KINDS), SIZES, st.floats(1, 100))
@settings(max_examples=150, deadline=None)
def test_a_faster_wire_is_never_slower(network, ranks, kind, n_bytes, factor):
    seconds = collective_seconds(kind, n_bytes, ranks, network).seconds
    for field in ("link_gbs", "nic_gbs", "nics"):
        faster = replace(network, **{field: getattr(network, field) * factor})
        assert collective_seconds(kind, n_bytes, ranks, faster).seconds <= seconds
    for field in ("link_latency_us", "nic_latency_us"):
        quicker = replace(network, **{field: getattr(network, field) / factor})
        assert collective_seconds(kind, n_bytes, ranks, quicker).seconds <= seconds


@given(st.sampled_from(sorted(known_devices())), st.sampled_from([2, 4, 8]), st.sampled_from(KINDS), SIZES)
@settings(max_examples=100, deadline=None)
def test_leaving_the_node_is_never_faster(id, n_ranks, kind, n_bytes):
    """Where a rank's link is at least as fast as its NIC, as everywhere but in hand-made networks."""
    device = find_device(id)
    network = replace(network_of(device, 8), ranks_per_node=8)
    if network.link_gbs * network.link_share / (network.link_wires or 1) < network.nics * network.nic_gbs / 8:
        return
    near = collective_seconds(kind, n_bytes, range(n_ranks), network).seconds
    far = collective_seconds(kind, n_bytes, range(0, 8 * n_ranks, 8), network).seconds
    assert near <= far


def test_gloo_on_one_host_costs_what_it_did_when_it_was_measured():
    """Best of 20 calls between two processes of a host with 2 cores."""
    network = host_network(2)
    assert 40 < _us("all_reduce", 4, (0, 1), network) < 110
    assert 250 < _us("all_reduce", 1 << 20, (0, 1), network) < 800
    assert 200 < _us("broadcast", 1 << 20, (0, 1), network) < 600


def test_the_model_is_near_what_others_measured():
    assert median(map(abs, errors(is_fit=True))) < 0.05
    assert median(map(abs, errors(is_fit=False))) < 0.10
