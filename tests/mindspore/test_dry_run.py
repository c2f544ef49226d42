"""`windtunnel run` of MindSpore scripts where no CANN is: our figures beside those that MindSpore prints itself."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from windtunnel.events.file import read_recording
from windtunnel.events.model import Alloc, Free, Kind, Phase, Recording

EXAMPLES = Path(__file__).parents[2] / "examples" / "mindspore"
MIB = 1 << 20

PYNATIVE = """
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.mint.optim import AdamW

ms.set_device("Ascend")
class Block(nn.Cell):
    def __init__(self, size):
        super().__init__()
        self.up, self.down = nn.Dense(size, 4 * size), nn.Dense(2 * size, size)
    def construct(self, x):
        return self.down(ops.swiglu(self.up(x))) + x
class Net(nn.Cell):
    def __init__(self, size=256):
        super().__init__()
        self.blocks, self.head = nn.CellList([Block(size), Block(size)]), nn.Dense(size, 10)
    def construct(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
net, loss_of = Net(), nn.CrossEntropyLoss()
net.blocks[0].recompute()
optimizer = AdamW(net.trainable_params(), lr=1e-3)
step = ms.value_and_grad(lambda x, y: loss_of(net(x), y), None, optimizer.parameters)
for number in range(3):
    loss, gradients = step(Tensor(np.ones((512, 256), np.float32)), Tensor(np.zeros(512, np.int32)))
    optimizer(gradients)
    if float(loss) > 1e9:
        raise SystemExit("diverged")
print("MAX", ms.runtime.max_memory_allocated())
"""

INTERRUPTED = """
import time
from mindspore import mint, set_device
set_device("Ascend")
held = mint.zeros((1024, 1024))
print("ready", flush=True)
time.sleep(300)
"""

MISMATCH = """
import os
from mindspore import mint, set_device
from mindspore.mint import distributed
set_device("Ascend")
distributed.init_process_group()
distributed.all_reduce(mint.zeros(8))
distributed.all_reduce(mint.zeros(7 if distributed.get_rank() == 1 else 8))
os._exit(0)  # some launchers leave so: what ran is known all the same
"""


SUMMARY = """
import mindspore as ms
from mindspore import Tensor, mint
ms.set_device("Ascend")
with ms.SummaryRecord("summary") as record:
    for step in (1, 2):
        record.add_value("scalar", "loss", mint.ones(()) * step)
        record.record(step)
"""


WHOLE_GRAPHS = """
import mindspore as ms
from mindspore import mint, nn
ms.set_device("Ascend")
ms.set_context(mode=ms.GRAPH_MODE, jit_config={"jit_level": "O2"})
nn.Dense(4, 4)(mint.ones((2, 4)))
"""


@dataclass(frozen=True)
class Ran:
    code: int
    text: str
    folder: Path

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.folder / "report.json").read_text())

    def recording(self, rank: int = 0) -> Recording:
        return read_recording(self.folder / f"rank{rank}" / "recording.arrows")


def windtunnel(folder: Path, *arguments: object) -> Ran:
    command = [sys.executable, "-m", "windtunnel.commands.main", "run", "--out", folder / "out", *arguments]
    done = subprocess.run(
        list(map(str, command)), cwd=folder, capture_output=True, text=True, timeout=900, errors="replace"
    )
    return Ran(done.returncode, done.stdout + done.stderr, folder / "out")


def assert_as_mindspore_says(ran: Ran, n_ranks: int) -> None:
    """Used peak to the MiB it prints, actual peak within a hundredth."""
    ranks = ran.report["ranks"]
    assert len(ranks) == n_ranks
    for rank in ranks:
        said = ran.recording(rank["rank"]).footer["mindspore_facts"]
        assert rank["peak_bytes"] // MIB == said["used_peak_mib"]
        assert rank["peak_with_fragments_bytes"] / MIB == pytest.approx(
            said["actual_peak_mib"], rel=0.01, abs=1
        )


def used_peak(recording: Recording) -> int:
    """The most bytes alive, each allocation as MindSpore's pool rounds it."""
    sizes: dict[int, int] = {}
    used = peak = 0
    for event in recording.events():
        if isinstance(event, Alloc):
            sizes[event.storage] = (event.n_bytes + 512 + 31) // 512 * 512
            used += sizes[event.storage]
            peak = max(peak, used)
        elif isinstance(event, Free):
            used -= sizes.pop(event.storage)
    return peak


def modules_of(recording: Recording, operator: str) -> set[tuple[str, str]]:
    """Phases and modules in which an operator ran."""
    columns = recording.columns
    wanted = {i for i, signature in enumerate(recording.signatures) if signature.name == operator}
    return {
        (Phase(columns["phase"][row]).name, recording.name(int(columns["module"][row])))
        for row in range(len(recording))
        if columns["kind"][row] == Kind.OP and columns["value"][row] in wanted
    }


# -- PyNative ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pynative(tmp_path_factory) -> Ran:
    folder = tmp_path_factory.mktemp("pynative")
    (folder / "train.py").write_text(PYNATIVE)
    return windtunnel(folder, "--level", 3, "--memory-tracker", "train.py")


def test_a_pynative_script_has_mindspore_s_own_figures_to_the_byte(pynative):
    assert pynative.code == 0, pynative.text
    (rank,) = pynative.report["ranks"]
    own = int(re.search(r"MAX (\d+)", pynative.text).group(1))
    said = pynative.recording().footer["mindspore_facts"]
    assert own == used_peak(pynative.recording())
    assert own // MIB == said["used_peak_mib"]
    at_peak = rank["at_peak_bytes"]
    assert at_peak["workspace"] > 0  # level 2 adds it
    assert rank["peak_bytes"] - at_peak["workspace"] <= own < rank["peak_bytes"]
    assert said["device_mib"] == 65536


def test_allocations_stand_under_the_operator_that_made_them(pynative):
    """MindSpore itself books SwigluGrad's result to the operator before it."""
    with (pynative.folder / "rank0" / "memory_block.csv").open() as file:
        rows = list(csv.DictReader(file))
    made = [row for row in rows if row["node_name"] == "SwigluGrad" and row["type"] != "WorkSpace"]
    assert [int(row["size"]) for row in made] == [512 * 1024 * 4 + 512] * 6  # two blocks, three steps
    assert all("train.py" in row["python_stack"] for row in made)


def test_operators_know_their_cells_in_both_directions_and_when_computed_again(pynative):
    recording = pynative.recording()
    assert modules_of(recording, "ms.SwigluGrad") == {("BACKWARD", "blocks.0"), ("BACKWARD", "blocks.1")}
    forward = {("FORWARD", "blocks.0"), ("FORWARD", "blocks.1"), ("BACKWARD", "blocks.0")}
    assert modules_of(recording, "ms.Swiglu") == forward
    again = {
        recording.name(int(recording.columns["subject"][row]))
        for row in range(len(recording))
        if recording.columns["kind"][row] == Kind.MODULE_ENTER and recording.columns["extra"][row] == 1
    }
    assert again == {"blocks.0", "blocks.0.up", "blocks.0.down"}


def test_steps_end_behind_their_optimizer(pynative):
    columns = pynative.recording().columns
    order = [
        "step" if kind == Kind.STEP else Phase(phase).name
        for kind, phase in zip(columns["kind"], columns["phase"], strict=True)
        if kind in (Kind.STEP, Kind.OP)
    ]
    changes = [word for word, before in zip(order, ["", *order], strict=False) if word != before]
    assert changes.count("step") == 3
    assert [changes[i - 1] for i, word in enumerate(changes) if word == "step"] == ["OPTIMIZER"] * 3
    assert pynative.report["ranks"][0]["steps"] == 3


def test_weights_and_state_of_the_optimizer_are_distinguished(pynative):
    held = pynative.report["ranks"][0]["at_peak_bytes"]
    n_weights = 2 * (256 * 1024 + 1024 + 512 * 256 + 256) + 256 * 10 + 10
    assert held["weights"] == pytest.approx(4 * n_weights, rel=0.02)
    assert held["optimizer"] == pytest.approx(8 * n_weights, rel=0.02)


def test_values_that_were_read_are_listed_with_their_line(pynative):
    (value,) = pynative.report["ranks"][0]["unknown_values"]
    line = PYNATIVE.splitlines().index("    if float(loss) > 1e9:") + 1
    assert (value["where"], value["count"]) == (f"train.py:{line}", 3)


def test_level_3_has_a_step_time_workspace_and_files_that_agree(pynative):
    (rank,) = pynative.report["ranks"]
    assert rank["step_time_us"] > 0
    folder = pynative.folder / "rank0"
    trace = json.loads((folder / "trace_view.json").read_text())
    assert any(event.get("ph") == "X" and "MatMul" in event["name"] for event in trace)
    with (folder / "memory_block.csv").open() as file:
        used = max(int(row["actual_used_memory"]) for row in csv.DictReader(file))
    assert used == rank["peak_bytes"]
    recording = pynative.recording()
    assert any(signature.name == "ms.Swiglu" for signature in recording.signatures)


def test_nothing_is_left_in_the_working_folder(pynative):
    assert sorted(path.name for path in pynative.folder.parent.iterdir()) == ["out", "train.py"]


def test_a_summary_does_not_wait_for_what_a_simulated_device_would_send(tmp_path):
    (tmp_path / "train.py").write_text(SUMMARY)
    ran = windtunnel(tmp_path, "train.py")
    assert ran.code == 0, ran.text
    assert "SummaryRecord: a simulated device sends no values" in ran.text


def test_graphs_for_cann_are_refused_in_a_sentence(tmp_path):
    (tmp_path / "train.py").write_text(WHOLE_GRAPHS)
    ran = windtunnel(tmp_path, "train.py")
    assert ran.code == 3, ran.text
    assert "asks for jit_level O2, which hands whole graphs to CANN" in " ".join(ran.text.split())


def test_what_does_not_fit_ends_with_code_4_and_the_same_need(tmp_path):
    ran = windtunnel(
        tmp_path,
        "--device",
        "ascend-910b-64gb:mem=200MiB",
        EXAMPLES / "mlp.py",
        "--hidden",
        1024,
        "--steps",
        2,
    )
    assert ran.code == 4, ran.text
    assert "Does not fit" in ran.text
    said = ran.recording().footer["mindspore_facts"]
    assert ran.report["fits"] is False
    assert said["used_peak_mib"] > 0


def test_an_interrupted_script_leaves_what_it_did_before(tmp_path):
    """MindSpore makes a SIGTERM of a SIGINT, which ends a process without a word."""
    (tmp_path / "train.py").write_text(INTERRUPTED)
    command = [sys.executable, "-m", "windtunnel.commands.main", "run", "--out", "out", "train.py"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as run:
        assert any("ready" in line for line in run.stdout)
        os.killpg(run.pid, signal.SIGINT)
        text = run.stdout.read()
    assert run.returncode == 130
    assert "interrupted" in text
    assert used_peak(read_recording(tmp_path / "out" / "rank0" / "recording.arrows")) == 4 * MIB + 512


# -- graphs and worlds -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def semi_auto(tmp_path_factory) -> Ran:
    folder = tmp_path_factory.mktemp("semi_auto")
    return windtunnel(folder, "--world-size", 8, "--ranks", "all", EXAMPLES / "semi_auto.py")


def test_a_semi_automatic_graph_on_8_cards_has_mindspore_s_own_figures_on_each(semi_auto):
    assert semi_auto.code == 0, semi_auto.text
    assert_as_mindspore_says(semi_auto, 8)
    assert semi_auto.report["mismatches"] == []
    assert {rank["steps"] for rank in semi_auto.report["ranks"]} == {3}


def test_a_graph_s_backward_belongs_to_the_layer_it_undoes(semi_auto):
    recording = semi_auto.recording(3)
    assert modules_of(recording, "ms.GeLUGrad") == {("BACKWARD", "blocks.0"), ("BACKWARD", "blocks.1")}
    assert {"blocks.0", "blocks.1"} <= {module for phase, module in modules_of(recording, "ms.MatMul")}


def test_every_card_of_a_transformer_has_mindspore_s_own_figures(tmp_path):
    ran = windtunnel(
        tmp_path, "--world-size", 2, EXAMPLES / "transformer.py", "--layers", 2, "--hidden", 256, "--heads", 4,
        "--vocab", 2048, "--seq", 512, "--steps", 2,
    )  # fmt: skip
    assert ran.code == 0, ran.text
    assert_as_mindspore_says(ran, 2)
    assert ran.report["mismatches"] == []
    layers = {module for _, module in modules_of(ran.recording(), "ms.FlashAttentionScoreGrad")}
    assert len(layers) == 2


def test_a_stage_of_qwen_needs_what_was_published(tmp_path):
    """TP 2 x PP 2, sequence 10,240, 14 layers: MindSpore's dry run with CANN said 55,389 MiB, a real run 55,405."""
    ran = windtunnel(
        tmp_path, "--world-size", 4, "--rank", 0, EXAMPLES / "qwen_stage.py", "--micro-batches", 2
    )
    assert ran.code == 0, ran.text
    assert_as_mindspore_says(ran, 1)
    assert ran.report["ranks"][0]["peak_bytes"] / MIB == pytest.approx(55_394, rel=0.005)


def test_a_strategy_that_does_not_fit_the_cards_fails_in_a_sentence(tmp_path):
    ran = windtunnel(tmp_path, "--world-size", 3, "--level", 0, EXAMPLES / "semi_auto.py", "--tp", 2)
    assert ran.code == 3
    (sentence,) = re.findall(r"^Failed: (.*?)\n\n", ran.text, re.DOTALL | re.MULTILINE)
    assert "3" in sentence
    assert len(sentence.split()) < 60


def test_ranks_whose_calls_do_not_meet_are_found(tmp_path):
    (tmp_path / "train.py").write_text(MISMATCH)
    ran = windtunnel(tmp_path, "--world-size", 2, "train.py")
    assert ran.code == 3, ran.text
    (mismatch,) = ran.report["mismatches"]
    text = json.dumps(mismatch)
    assert "8 float32" in text
    assert "7 float32" in text
    assert "train.py:8" in text
