"""Level L2 in static graphs: what is written for MindSpore's dump, and what it writes on a CPU."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

from tests.commands.warm import run_warm_python
from windtunnel.probe.config.merged_config import load_config
from windtunnel.probe.mindspore.graph.kernels import kernel_settings, statistics_table


def _config(path, **settings):
    file = path / "config.json"
    file.write_text(
        json.dumps({"dump_path": str(path / "dump"), "level": "L2", **settings}), encoding="utf-8"
    )
    return load_config("mindspore", str(file))


def test_filters_are_translated(tmp_path):
    config = _config(
        tmp_path,
        task="tensor",
        rank=[0, "2-3"],
        step=[1, "4-6"],
        tensor={"data_mode": ["input"], "list": ["MatMul"]},
    )
    settings = kernel_settings(config, "O0", "Ascend")
    assert settings["common_dump_settings"] == {
        "dump_mode": 1,
        "path": str(tmp_path / "dump"),
        "net_name": "Net",
        "iteration": "1|4-6",
        "saved_data": "tensor",
        "input_output": 1,
        "kernels": ["MatMul"],
        "support_device": [0, 2, 3],
        "statistic_category": [],
    }
    assert settings["e2e_dump_settings"] == {"enable": True, "trans_flag": True}


def test_statistics_are_mindspores_where_it_has_them(tmp_path):
    config = _config(tmp_path, task="statistics", statistics={"summary_mode": "md5", "data_mode": ["output"]})
    device = kernel_settings(config, "O1", "Ascend")["common_dump_settings"]
    assert (device["saved_data"], device["input_output"], device["iteration"]) == ("statistic", 2, "all")
    assert device["statistic_category"] == ["max", "min", "avg", "l2norm", "hash:md5"]
    assert device["support_device"] == list(range(8))
    assert kernel_settings(config, "O0", "CPU")["common_dump_settings"]["saved_data"] == "tensor"
    whole = kernel_settings(config, "O2", "Ascend")
    assert list(whole) == ["common_dump_settings"]
    assert whole["common_dump_settings"]["file_format"] == "npy"


def test_tensors_become_a_table(tmp_path):
    values = np.array([[3.0, -4.0]], np.float32)
    np.save(tmp_path / "MatMul.Default_fc-Dense_MatMul-op0.0.0.17.output.0.DefaultFormat.Float32.npy", values)
    np.save(
        tmp_path / "Cast.Default_Cast-op0.0.0.16.input.1.DefaultFormat.Int32.npy",
        np.arange(3, dtype=np.int32),
    )
    (tmp_path / "ReLU.Default_ReLU-op0.0.0.18.output.0.DefaultFormat.Float32.npy").write_bytes(b"half a file")
    table = statistics_table(tmp_path)
    cast, matmul = csv.DictReader(table.read_text(encoding="utf-8").splitlines())
    assert (cast["Op Type"], cast["IO"], cast["Slot"], cast["Shape"], cast["Data Type"]) == (
        *("Cast", "input", "1", "(3)", "int32"),
    )
    assert matmul["Op Name"] == "Default_fc-Dense_MatMul-op0"
    assert [float(matmul[f"{name} Value"]) for name in ("Max", "Min", "Avg", "L2Norm")] == [
        3.0,
        -4.0,
        -0.5,
        5.0,
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["statistic.csv"]
    assert statistics_table(tmp_path) is None


PROGRAM = """
import sys
import mindspore as ms, numpy as np
from mindspore import Tensor, nn
from windtunnel.mindspore import PrecisionDebugger
ms.set_context(mode=ms.GRAPH_MODE)
debugger = PrecisionDebugger(config_path=sys.argv[1])
debugger.start()
debugger.set_init_step(10)
network = nn.Dense(4, 2, weight_init="ones", bias_init="zeros")
for number in range(3):
    debugger.start()
    network(Tensor(np.full((1, 4), number), ms.float32))
    debugger.stop()
    debugger.step()
"""


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_mindspore_dumps_kernels_of_the_wanted_steps_on_a_cpu(tmp_path, task):
    config = _config(tmp_path, task=task, step=[11, 12])
    run_warm_python(["-c", PROGRAM, config.config_path], cwd=tmp_path).check_returncode()
    dump = tmp_path / "dump"
    assert json.loads((dump / "kernel_kbyk_dump.json").read_text(encoding="utf-8"))
    (net,) = dump.glob("rank_0/Net/*")
    assert sorted(path.name for path in net.iterdir()) == ["11", "12"]
    for step in (1, 2):
        folder = net / str(10 + step)
        if task == "tensor":
            (file,) = folder.glob("MatMul.*.output.0.*")
            np.testing.assert_array_equal(np.load(file), np.full((1, 2), 4.0 * step))
        else:
            rows = list(csv.DictReader((folder / "statistic.csv").read_text(encoding="utf-8").splitlines()))
            (row,) = (row for row in rows if (row["Op Type"], row["IO"]) == ("MatMul", "output"))
            assert (float(row["Max Value"]), float(row["L2Norm Value"])) == pytest.approx(
                (4 * step, 4 * step * 2**0.5)
            )
            assert not list(folder.glob("*.npy"))
