"""Collectives: two real processes over gloo, each under the probe. One launch serves every test here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands.warm import run_warm_ranks
from tests.probe.probing import Dump

PROGRAM = Path(__file__).parents[1] / "programs" / "two_ranks.py"
SAMPLE = Path(__file__).parents[4] / "shared" / "data" / "msprobe" / "torch_dist_L1_statistics" / "step0"
GROUP = {"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "77849d8c"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    for rank in run_warm_ranks([["-W", "error", PROGRAM, rank, folder] for rank in range(2)]):
        assert rank.returncode == 0, rank.stderr
    return folder


def _result(folder: Path, rank: int) -> dict:
    return json.loads((folder / f"result{rank}.json").read_text())


def _dump(folder: Path, program: str, rank: int) -> Dump:
    dump = Dump(folder / program / "step0" / f"rank{rank}")
    assert not (dump.folder / "dump_error_info.log").exists()
    return dump


def _brief(value):
    """A tensor as its one value, everything else as it is."""
    if isinstance(value, dict) and "dtype" in value:
        return value["Max"] if value["Max"] == value["Min"] else [value["Min"], value["Max"]]
    if isinstance(value, dict):
        return {key: _brief(item) for key, item in value.items()}
    return [_brief(item) for item in value] if isinstance(value, list) else value


def _int(value: int) -> dict:
    return {"type": "int", "value": value}


def test_each_collective_has_what_went_in_and_what_arrived(folder):
    dump = _dump(folder, "calls", 0)
    assert {name: _brief(dump[name]) for name in dump.names("Distributed.all_reduce")} == {
        "Distributed.all_reduce.0.forward": {
            "input_args": [0.0],
            "input_kwargs": {"op": {"type": "torch.distributed.ReduceOp", "value": "RedOpType.MAX"}},
            "output": [1.0, {"type": "torch.distributed.ReduceOp", "value": "RedOpType.MAX"}],
        },
        "Distributed.all_reduce.1.forward": {
            "input_args": [],
            "input_kwargs": {"tensor": 0.0, "group": GROUP},
            "output": [1.0, GROUP],
        },
        "Distributed.all_reduce.2.forward": {
            "input_args": [0.0],
            "input_kwargs": {"async_op": {"type": "bool", "value": True}},
            "output": [1.0, {"type": "bool", "value": True}],
        },
    }
    expected = {
        "broadcast.0": ([0.0], {"src": _int(1)}, [1.0, _int(1)]),
        "all_gather.0": ([None, 0.0], {}, [[0.0, 1.0], 0.0]),
        "all_gather_into_tensor.0": ([None, 0.0], {}, [[0.0, 1.0], 0.0]),
        "reduce.0": ([0.0], {"dst": _int(0)}, [1.0, _int(0)]),
        "reduce_scatter.0": ([None, [0.0, 0.0]], {}, [1.0, [0.0, 0.0]]),
        "reduce_scatter_tensor.0": ([None, 0.0], {}, [1.0, 0.0]),
        "gather.0": ([0.0], {"gather_list": None, "dst": _int(0)}, [0.0, [0.0, 1.0], _int(0)]),
        "scatter.0": ([None, [0.0, 0.0]], {"src": _int(0)}, [0.0, [0.0, 0.0], _int(0)]),
        "all_to_all_single.0": ([None, 0.0], {}, [[0.0, 1.0], 0.0]),
        "all_to_all.0": ([None, [0.0, 0.0]], {}, [[0.0, 1.0], [0.0, 0.0]]),
        "send.0": ([0.0, _int(1)], {}, [0.0, _int(1)]),
        "isend.0": ([0.0, _int(1)], {}, [None, _int(1)]),
    }
    for call, (args, kwargs, output) in expected.items():
        found = _brief(dump[f"Distributed.{call}.forward"])
        assert found == {"input_args": args, "input_kwargs": kwargs, "output": output}, call
    keywords = _brief(dump["Distributed.all_gather.1.forward"])
    assert keywords["input_kwargs"]["tensor_list"] is None
    assert keywords["output"][0] == [0.0, 1.0]


def test_the_other_rank_receives(folder):
    dump = _dump(folder, "calls", 1)
    assert _brief(dump["Distributed.recv.0.forward"]) == {
        "input_args": [None],
        "input_kwargs": {"src": _int(0)},
        "output": [0.0, _int(0)],
    }
    assert _brief(dump["Distributed.irecv.0.forward"]["output"]) == [0.0, _int(0)]
    assert "Distributed.send.0.forward" not in dump  # it was sent after the step


def test_a_batch_of_sends_and_receives_names_its_peers(folder):
    (operations,) = _dump(folder, "calls", 0)["Distributed.batch_isend_irecv.0.forward"]["output"]
    kind = "torch.distributed.P2POp"
    assert _brief(operations) == [
        {"class_type": kind, "tensor": 0.0, "op": "isend", "peer": 1, "tag": 0, "group_id": "77849d8c"},
        {"class_type": kind, "tensor": 1.0, "op": "irecv", "peer": 1, "tag": 0, "group_id": "77849d8c"},
    ]
    (inputs,) = _dump(folder, "calls", 0)["Distributed.batch_isend_irecv.0.forward"]["input_args"]
    assert [operation["tensor"] is None for operation in inputs] == [False, True]


def test_a_call_nobody_waited_for_is_written_without_an_output(folder):
    assert _brief(_dump(folder, "calls", 0)["Distributed.irecv.0.forward"]) == {
        "input_args": [None, _int(1)],
        "input_kwargs": {},
    }
    assert _result(folder, 0)["late"] == [True, "instancemethod"]  # watched until the step ended, not longer


def test_names_and_shapes_are_those_of_msprobe(folder):
    if not SAMPLE.exists():
        pytest.skip("no samples of msProbe here")
    sample = json.loads((SAMPLE / "rank0" / "dump.json").read_text())["data"]
    ours = _dump(folder, "calls", 0)
    for name in ("all_gather.0", "all_reduce.2", "send.0"):
        theirs = sample[f"Distributed.{name.replace('reduce.2', 'reduce.1')}.forward"]
        assert _shape(ours[f"Distributed.{name}.forward"]) == _shape(theirs)


def _shape(value):
    if isinstance(value, dict) and "type" in value:
        return value["type"]
    if isinstance(value, dict):
        return {key: _shape(item) for key, item in value.items()}
    return [_shape(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("rank", [0, 1])
def test_training_is_bit_for_bit_the_same_and_nothing_is_left(folder, rank):
    result = _result(folder, rank)
    assert {name: result[name] for name in ("ddp", "fsdp", "kernels")} == {
        "ddp": [True, 10],
        "fsdp": [True, 10],
        "kernels": [True, 10],
    }
    assert result["clean"] is True


def test_ddp_is_collected_below_its_wrapper(folder):
    for rank in range(2):
        names = set(_dump(folder, "ddp", rank).data)
        assert {
            "Module.module.0.Linear.forward.0",
            "Module.module.0.Linear.backward.0",
            "Module.module.0.Linear.parameters_grad.0",
            "Functional.linear.1.backward",
        } <= names
    own = [_dump(folder, "ddp", rank)["Module.module.0.Linear.parameters_grad.0"] for rank in range(2)]
    assert own[0]["weight"][0]["Norm"] != own[1]["weight"][0]["Norm"]  # before they are reduced


def test_fsdp_shows_its_gathers_and_scatters(folder):
    names = set(_dump(folder, "fsdp", 0).data)
    assert {"Module.0.FSDPLinear.forward.0", "Module.0.FSDPLinear.backward.0"} <= names
    parameters = _dump(folder, "fsdp", 0)["Module.0.FSDPLinear.forward.0"]["parameters"]
    assert (parameters["weight"]["type"], parameters["weight"]["shape"]) == ("DTensor", [8, 4])
    gathers = {name.split(".")[1] for name in names if name.startswith("Distributed.")}
    assert any(name.startswith("all_gather") for name in gathers)
    assert any(name.startswith("reduce_scatter") for name in gathers)


def test_at_l2_even_the_gradients_ddp_reduces_by_itself_are_seen(folder):
    entry = _dump(folder, "kernels", 1)["c10d.allreduce_.0.backward"]
    assert entry.keys() == {"input"}  # it had not arrived when the kernel returned
    assert entry["input"][0][0]["shape"] == [58]
