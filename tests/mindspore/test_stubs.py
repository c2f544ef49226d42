"""The installed MindSpore on our loader stubs: its own Ascend plugin starts, dry-runs and prints its five facts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from windtunnel.capture.mindspore.cann import stub_cache as cann_stubs
from windtunnel.capture.mindspore.cann.elf_reader import read_library
from windtunnel.capture.mindspore.cann.stub_cache import CannStubs, stubs_for
from windtunnel.errors import NoToolchain
from windtunnel.frameworks import location_of

PYNATIVE = """
import csv, ctypes, os
import numpy as np
import mindspore as ms
from mindspore import Tensor, mint
from mindspore.communication import comm_func, create_group, init
ms.set_device("Ascend")
init()
marks = ctypes.CDLL(os.environ["MARKS"])
marks.windtunnel_tick.restype = ctypes.c_int64
first = marks.windtunnel_mark(b"windtunnel", b"begin", b"")
create_group("pair", [2, 3])
x = Tensor(np.ones((2048, 1024), np.float32))
w = Tensor(np.ones((1024, 1024), np.float32))
y = mint.matmul(x, w)
z = y + 1
small = Tensor(np.ones((64, 64), np.float32))
held = [comm_func.all_reduce(small)[0], comm_func.all_gather_into_tensor(small, group="pair")[0]]
held += [comm_func.reduce_scatter_tensor(small, group="pair")[0], comm_func.broadcast(small, 0)]
comm_func.send(small, 3)
held.append(comm_func.recv(small, 3))  # without the repair the process ends here
comm_func.barrier()
ms.runtime.synchronize()
tick = marks.windtunnel_tick()
last = marks.windtunnel_mark(b"windtunnel", b"end", b"")
print("shapes", [tuple(t.shape) for t in held])
print("marks", first, last, marks.windtunnel_snapshot(ctypes.c_ulong(2)))
rows = {row["node_name"]: row for row in csv.DictReader(open("tracked/rank_2/task.csv"))}
print("ticks", rows["begin"]["task_name"], int(rows["end"]["time_stamp"]) - tick)
"""

GRAPH = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn
from mindspore.communication import init
ms.set_context(mode=ms.GRAPH_MODE, jit_level="O0")
ms.set_device("Ascend")
init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Dense(1024, 2048, activation="relu"), nn.Dense(2048, 1024)
        self.one.matmul.shard(((2, 1), (4, 1)))
    def construct(self, x):
        return self.two(self.one(x))
net = Net()
step = nn.TrainOneStepCell(
    nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits()), nn.Momentum(net.trainable_params(), 0.1, 0.9)
).set_train()
loss = step(Tensor(np.ones((32, 1024), np.float32)), Tensor(np.zeros((32, 1024), np.float32)))
print("loss", loss.shape, ms.runtime.max_memory_allocated() > 0)
"""

FACTS = (
    r"Device \w+ memory size: (\d+)M\n",
    r"MindSpore Used memory size: (\d+)M\n",
    r"MindSpore memory base address: (0x[0-9a-f]+)\n",
    r"Used peak memory usage \(without fragments\): (\d+)M\n",
    r"Actual peak memory usage \(with fragments\): (\d+)M\n",
)


@pytest.fixture(scope="module")
def stubs() -> CannStubs:
    try:
        return stubs_for(location_of("mindspore"))
    except NoToolchain as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def runs(stubs, tmp_path_factory) -> dict[str, subprocess.CompletedProcess]:
    """Both scripts at once: most of their time is MindSpore's start."""
    started = {}
    for name, script, ranks, rank in (("pynative", PYNATIVE, 4, 2), ("graph", GRAPH, 8, 3)):
        folder = tmp_path_factory.mktemp(name)
        (folder / "train.py").write_text(script)
        variables = {
            "MARKS": str(stubs.marks),
            "MS_SIMULATION_LEVEL": "1",
            "RANK_SIZE": str(ranks),
            "RANK_ID": str(rank),
            "GLOG_v": "2",
            "MS_ALLOC_CONF": "memory_tracker:True,memory_tracker_path:tracked",
        }
        started[name] = subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=folder,
            env=os.environ | stubs.environment() | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    ended = {}
    for name, process in started.items():
        output, errors = process.communicate()
        ended[name] = subprocess.CompletedProcess(process.args, process.returncode, output, errors)
    return ended


@pytest.mark.parametrize("name", ["pynative", "graph"])
def test_it_runs_and_prints_its_five_facts(runs, name):
    run = runs[name]
    assert run.returncode == 0, run.stderr[-2000:]
    device, usable, _, used, actual = (_fact(pattern, run.stdout + run.stderr) for pattern in FACTS)
    assert (device, usable) == ("65536", "61430")
    assert int(used) <= int(actual)


def test_used_memory_in_pynative_is_that_of_the_tensors(runs):
    said = runs["pynative"].stdout + runs["pynative"].stderr
    assert _fact(FACTS[3], said) == "28"  # x, y, z of 8 MiB each, w of 4, and less than one for the rest


def test_collectives_have_the_shapes_of_their_groups(runs):
    shapes = [(64, 64), (128, 64), (32, 64), (64, 64), (64, 64)]
    assert f"shapes {shapes}\n" in runs["pynative"].stdout


def test_marks_are_rows_of_the_tracker_with_the_tick_foretold(runs):
    assert "marks 0 0 0\nticks windtunnel 0\n" in runs["pynative"].stdout


def test_a_sharded_graph_is_compiled_and_run(runs):
    assert "loss (32,) True\n" in runs["graph"].stdout


def test_whatever_mindspore_looks_up_by_name_is_there(runs):
    """It warns of each name it cannot find, and of each library it cannot open."""
    for run in runs.values():
        assert re.findall(r"[Ll]oad symbol (\w+) failed|undefined symbol: (\w+)", run.stderr) == []


def test_only_cann_is_stubbed(stubs):
    """A stub for a function of the system would be found by somebody."""
    made = read_library(stubs.folder / "lib" / "libascendcl.so").defined
    cann = re.compile(r"acl|Hccl|Hcom|Nnopbase|Msprof|(?:rt|hal|mm)[A-Z]|v?snprintf_s$")
    mangled = re.compile(r"_ZNK?(?:2ge|2fe|8optiling|9aclTensor)|_Z\d+(?:Nnopbase|CheckLogLevel|DlogInner)")
    assert [name for name in made if not (cann.match(name) or mangled.match(name))] == []
    assert {"aclInit", "aclrtMalloc", "HcclAllReduce", "_ZN2ge13StatusFactory8InstanceEv"} <= made


def test_a_second_use_builds_nothing(stubs, monkeypatch):
    monkeypatch.setattr(cann_stubs, "_build", None)  # building once more would fail
    assert stubs_for(location_of("mindspore")) == stubs


def test_the_wheel_is_found_without_importing_it():
    code = "import sys; from windtunnel.frameworks import location_of; print(location_of('mindspore')); "
    code += "print('mindspore' in sys.modules, location_of('no_such_package'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    folder, rest = done.stdout.splitlines()
    assert (Path(folder) / "version.py").exists()
    assert rest == "False None"


def _fact(pattern: str, text: str) -> str:
    found = re.findall(pattern, text)
    assert len(found) == 1, (pattern, text[-2000:])
    return found[0]
