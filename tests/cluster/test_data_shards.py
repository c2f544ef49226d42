"""Into how many parts a job cuts its data, told by what its ranks exchange."""

from __future__ import annotations

import numpy as np
import pytest

from windtunnel.cluster.data_shards import n_data_shards, shared_groups
from windtunnel.cluster.program_builder import Durations, program_of
from windtunnel.events.file import read_recording, record_events
from windtunnel.events.model import Alloc, Collective, Group, Mark, Phase, Role, Signature, TensorSpec

ACTIVATIONS, WEIGHTS, BUILT = 1, 2, 3  # storages
TP, DP = (0, 1, 2, 3), (0, 4)
WORLD = tuple(range(8))


def spec(*shape):
    return TensorSpec(shape, (1,) * len(shape), "bfloat16")


def call(name="all_reduce", shape=(512, 64), storage=ACTIVATIONS, group=0, phase=Phase.FORWARD, peer=-1):
    scalars = f"peer={peer}" if peer >= 0 else ""
    return Signature(f"c10d.{name}", (spec(*shape),), (), scalars), storage, group, phase


def world(tmp_path, calls, groups=(("mesh_tp", TP), ("mesh_dp", DP), ("default_pg", WORLD)), rank=0):
    """One rank's recording and program."""
    events = [
        *(Group(i, ranks, i) for i, (_, ranks) in enumerate(groups)),
        Alloc(ACTIVATIONS, 1 << 16),
        Alloc(WEIGHTS, 1 << 16),
        Alloc(BUILT, 1 << 16, phase=Phase.BUILD),
        Mark(WEIGHTS, Role.WEIGHT),
    ]
    for id, (_, storage, group, phase) in enumerate(calls):
        events.append(Collective(id, id, group, (storage,), (), phase=phase))
    record_events(
        tmp_path / "r", events, [name for name, _ in groups], [signature for signature, *_ in calls]
    )
    recording = read_recording(tmp_path / "r")
    nothing = np.zeros(len(recording))
    return recording, program_of(recording, rank, Durations(nothing, nothing, {}))


def shards(tmp_path, *calls, **more):
    recording, program = world(tmp_path, calls, **more)
    return n_data_shards({program.rank: program}, {program.rank: shared_groups(recording, program)}, 8)


def test_ranks_that_exchange_nothing_read_samples_of_their_own(tmp_path):
    assert shards(tmp_path) == 8


@pytest.mark.parametrize("name", ["all_reduce", "all_gather", "reduce_scatter"])
def test_ranks_that_exchange_activations_share_their_samples(tmp_path, name):
    recording, program = world(tmp_path, [call(name)])
    assert shared_groups(recording, program) == {TP}
    assert shards(tmp_path, call(name)) == 2


def test_gathering_weights_shares_no_samples(tmp_path):
    assert shards(tmp_path, call("all_gather", storage=WEIGHTS, group=1)) == 8
    assert shards(tmp_path, call("all_gather", storage=WEIGHTS, group=2)) == 8


def test_what_was_there_before_the_first_forward_is_no_activation(tmp_path):
    """DeepSpeed's shards of weights lie in a buffer of its own."""
    assert shards(tmp_path, call("all_gather", storage=BUILT, group=2)) == 8


def test_gradients_are_exchanged_in_backward(tmp_path):
    assert shards(tmp_path, call(group=2, phase=Phase.BACKWARD)) == 8


def test_a_loss_said_to_everybody_shares_nothing(tmp_path):
    assert shards(tmp_path, call(shape=(1,), group=2)) == 8
    assert shards(tmp_path, call(shape=(4095,), group=2)) == 8
    assert shards(tmp_path, call(shape=(4096,), group=2)) == 1


def test_stages_of_a_pipeline_share_their_samples(tmp_path):
    groups = (("mesh_pp", (0, 2, 4, 6)), ("mesh_dp", (0, 1)))
    assert shards(tmp_path, call("send", peer=2), groups=groups) == 2


def test_stages_of_tensor_parallel_ranks(tmp_path):
    groups = (("mesh_pp", (0, 4)), ("mesh_tp", (0, 1)), ("mesh_dp", (0, 2)))
    assert shards(tmp_path, call("send", peer=4), call(group=1), groups=groups) == 2


@pytest.mark.parametrize("name", ["mesh_cp", "EXPERT_MODEL_PARALLEL_GROUP"])
def test_ranks_that_exchange_tokens_have_tokens_of_their_own(tmp_path, name):
    groups = ((name, TP), ("mesh_dp", DP))
    assert shards(tmp_path, call("all_gather"), groups=groups) == 8
    assert shards(tmp_path, call("all_to_all"), groups=groups) == 8


def test_what_one_rank_shares_all_ranks_do(tmp_path):
    """The last stage alone gathers logits: its axis is shared by the whole job."""
    without, with_call = world(tmp_path, []), world(tmp_path, [call()])
    programs = {0: without[1], 4: with_call[1]}
    shared = {0: shared_groups(*without), 4: shared_groups(*with_call)}
    assert n_data_shards(programs, shared, 8) == 2


def test_a_single_rank_is_one_part(tmp_path):
    recording, program = world(tmp_path, [], groups=())
    assert n_data_shards({0: program}, {0: shared_groups(recording, program)}, 1) == 1
