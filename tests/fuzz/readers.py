"""Every reader of files from elsewhere: a valid file for it, the ways to make it odd, and how a user would read it.

    Reader.files(folder) ──> a valid tree        Reader.victim ──> the file in it that is damaged
    Reader.read(folder) ──> exit code or value; a WindtunnelError is one sentence, anything else a fault

Where a command reads the file, the command is run: what stands behind a reader has to bear what it lets through.
"""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.dtr.reference.op_log import op_logs_in, read_op_log
from tests.commands.snapshots import write_blocks, write_labelled_recording, write_torch_snapshot
from tests.fuzz import mutations
from tests.memory.mindspore_graph.graph_files import HAND_MADE, order_of, write_graph
from tests.probe.dumps import Call, write_dump
from tests.remat.chains import write_chain
from tests.remat.reference import written_log
from tests.report.runs import FILES, FITTING, LARGE, run_of
from windtunnel.commands.devices import _toml
from windtunnel.commands.main import main
from windtunnel.devices import find_device
from windtunnel.events.model import Signature, TensorSpec
from windtunnel.memory.workspace.table import WorkspaceTable
from windtunnel.probe.compare.mapping_file import read_mapping
from windtunnel.probe.compare.step_reader import read_part
from windtunnel.probe.config.api_list import read_api_list
from windtunnel.probe.config.merged_config import load_config
from windtunnel.probe.files.tensor_file import read_tensor, write_npy, write_pt
from windtunnel.report.json.run import write_report
from windtunnel.report.page.saved import read_page_document
from windtunnel.report.page.web_page import page_bytes, write_page
from windtunnel.timing.cost import CostTable
from windtunnel.timing.measured.costs import Fingerprint, HostSeconds, Measured, MeasuredCosts
from windtunnel.timing.network.links import network_of

__all__ = ["READERS", "Reader"]

Mutation = Callable[[bytes, Random], bytes]
CARD = "a100-80gb"


@dataclass(frozen=True)
class Reader:
    files: Callable[[Path], Any]
    victim: str
    read: Callable[[Path], Any]
    odd: Mutation

    def mutated(self, valid: bytes, random: Random) -> bytes:
        return (self.odd if random.random() < 0.6 else mutations.damaged)(valid, random)


def _replay(name: str) -> Callable[[Path], Any]:
    return lambda folder: main(["replay", str(folder / name), "--device", CARD])


def _compare(folder: Path) -> int:
    main(["compare", str(folder / "a"), str(folder / "b"), "--csv", "--out", str(folder / "out.csv")])
    return main(["compare", str(folder / "a"), str(folder / "b")])


def _dumps(folder: Path) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    for side, factor in (("a", 1), ("b", 3)):
        calls = [
            Call("Functional.relu.0.forward", [x, 3, "text"], [x * factor], {"weight": x}, "Module.fc.Linear.forward.0"),
            Call("Module.fc.Linear.forward.0", [x], [x * factor]),
        ]  # fmt: skip
        write_dump(folder / side, calls, crc=True, files=True)


def _read_dump(folder: Path) -> Any:
    from windtunnel.probe.compare.steps_and_ranks import find_parts
    from windtunnel.probe.compare.value_columns import Vocabulary

    data = [read_part(part, Vocabulary()) for part in find_parts(folder / "a")]
    return [(each.parents, each.stack_of("Functional.relu.0.forward")) for each in data]


def _report(folder: Path) -> None:
    for side in ("a", "b"):
        (folder / side).mkdir()
        write_report(
            folder / side / "report.json", replace(run_of(FITTING, replace(LARGE, rank=1)), files=FILES)
        )


def _view(folder: Path) -> int:
    main(["view", str(folder / "a"), str(folder / "b"), "--text"])
    return main(["view", str(folder / "a"), "--text"])


def _chain(folder: Path) -> None:
    write_chain(folder / "recording.arrows", 4, n_steps=2)
    table = CostTable({"aten.mm 2x3 3x4": 0.5, "aten.add 2x3": 0.25}).to_json()
    (folder / "costs.json").write_text(table)


def _remat(*more: str) -> Callable[[Path], Any]:
    def run(folder: Path) -> int:
        argv = ["remat", "--device", CARD, "--thresholds", "1MB", *(word.format(folder) for word in more)]
        return main([*argv, str(folder / "recording.arrows")])

    return run


def _text(name: str, text: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_text(text, encoding="utf-8")


_LOG = (
    "[WARNING] DEVICE(7,7f33719bbc40,python):2026-01-01-00:00:00.000.001 [a.cc:1] f] Process's RANK_ID: 0, RANK_SIZE: 8\n"
    "Device MOC memory size: 65536M\nMindSpore Used memory size: 59392M\n"
    "Used peak memory usage (without fragments): 100M\nActual peak memory usage (with fragments): 120M\n"
)
_MAPPING = '{"api_mapping": {"mint.add": "torch.add"}, "cell_mapping": {"fc.Dense": "fc.Linear"}}'
_CONFIG = json.dumps(
    {"task": "statistics", "dump_path": "./d", "rank": [0], "step": ["0-3"], "level": "mix",
     "statistics": {"scope": [], "list": ["relu"], "data_mode": ["all"], "summary_mode": "statistics"}}
)  # fmt: skip
_WORKSPACE = (
    '["mine.conv"]\ndevices = ["cuda"]\noperators = ["aten.convolution"]\nwhen = "n > 3"\nbytes = "4 * n"\n'
    'lifetime = "call"\naccuracy = "fitted"\nsource = "a test"\ncapability = "8.0-9.0"\n'
)
_OP_LOG = "\n".join(
    [*written_log.constant("x", 8), *written_log.call("y z", "x", 5, 16, 4), *written_log.release("y", "x")]
)


def _packed(folder: Path) -> None:
    write_blocks(folder / "blocks.csv")
    (folder / "blocks.csv.gz").write_bytes(gzip.compress((folder / "blocks.csv").read_bytes(), mtime=0))


def _odd_packed(data: bytes, random: Random) -> bytes:
    return gzip.compress(mutations.odd_table(gzip.decompress(data), random), mtime=0)


def _labelled(folder: Path) -> None:
    write_labelled_recording(folder / "recording.arrows")


def _odd_pt(data: bytes, random: Random) -> bytes:
    """Another pickle in an archive that is right."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(data)) as old, zipfile.ZipFile(out, "w") as new:
        for info in old.infolist():
            content = old.read(info)
            is_pickle = info.filename.endswith("data.pkl")
            new.writestr(info.filename, mutations.damaged(content, random) if is_pickle else content)
    return out.getvalue()


def _zip(folder: Path) -> None:
    with zipfile.ZipFile(folder / "o.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.log", _OP_LOG)


def _journal(folder: Path) -> None:
    _dumps(folder)
    lines = [
        ["header", "dump.json", {"task": "statistics", "level": "mix"}],
        ["frames", "0", ["File train.py, line 3, in main"]],
        ["entry", "Functional.relu.1.forward", {"input_args": [{"type": "int", "value": 3}]}],
        ["stack", "Functional.relu.1.forward", 0],
        ["parent", "Functional.relu.1.forward", None],
    ]
    (folder / "a" / "journal.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def _measured(folder: Path) -> None:
    signature = Signature("aten.mm.default", (TensorSpec((2, 3), (3, 1), "float32"),), (), "")
    fingerprint = Fingerprint("cpu", "model", 2, 1, "2.13")
    MeasuredCosts(
        fingerprint, {signature: Measured(*_figures(Measured))}, HostSeconds(*_figures(HostSeconds))
    ).save(folder / "m.json")


def _figures(kind: Any) -> list[Any]:
    return ["" if field.type == "str" else 1 if field.type == "int" else 0.5 for field in fields(kind)]


READERS: dict[str, Reader] = {
    "snapshot": Reader(
        lambda folder: write_torch_snapshot(
            folder / "s.pickle", max_split_size=1 << 28, roundup_power2_divisions={"1": 2, "2": 4}
        ),
        "s.pickle", _replay("s.pickle"), mutations.odd_pickle,
    ),
    "recording replayed": Reader(_labelled, "recording.arrows", _replay("recording.arrows"), mutations.odd_recording),
    "recording rematerialised": Reader(_chain, "recording.arrows", _remat(), mutations.odd_recording),
    "memory_block.csv": Reader(
        lambda folder: write_blocks(folder / "b.csv"), "b.csv", _replay("b.csv"), mutations.odd_table
    ),
    "memory_block.csv.gz": Reader(_packed, "blocks.csv.gz", _replay("blocks.csv.gz"), _odd_packed),
    "graph": Reader(
        lambda folder: write_graph(folder, HAND_MADE), "21_validate_0082.ir", _replay("21_validate_0082.ir"),
        mutations.odd_table,
    ),
    "execute order": Reader(
        lambda folder: write_graph(folder, HAND_MADE, order_of("Default/Load-op0", "Default/MatMul-op0")),
        "execute_order/execute_order.csv", _replay("21_validate_0082.ir"), mutations.odd_table,
    ),
    "log": Reader(_text("w.log", _LOG), "w.log", _replay("w.log"), mutations.odd_table),
    "report.json": Reader(_report, "a/report.json", _view, mutations.odd_json),
    "costs": Reader(_chain, "costs.json", _remat("--costs", "{}/costs.json"), mutations.odd_json),
    "device": Reader(
        _text("d.toml", _toml(find_device(CARD))), "d.toml",
        lambda folder: main(["devices", "--toml", str(folder / "d.toml")]), mutations.odd_toml,
    ),
    "network": Reader(
        _text("n.toml", '[net]\nlatency = "5us"\nbandwidth = "50GB/s"\nnics = 8\nlink = "400Gb/s"\n'), "n.toml",
        lambda folder: network_of(find_device(CARD), 8, str(folder / "n.toml")), mutations.odd_toml,
    ),
    "workspace": Reader(
        _text("w.toml", _WORKSPACE), "w.toml",
        lambda folder: WorkspaceTable().with_file(folder / "w.toml"), mutations.odd_toml,
    ),
    "mapping.toml": Reader(
        _text("m.toml", '[cell_mapping]\n"fc.Dense" = "fc.Linear"\n'), "m.toml",
        lambda folder: read_mapping(folder / "m.toml"), mutations.odd_toml,
    ),
    "mapping.json": Reader(
        _text("m.json", _MAPPING), "m.json", lambda folder: read_mapping(folder / "m.json"), mutations.odd_json
    ),
    "mapping.yaml": Reader(
        _text("m.yaml", "fc.Dense: fc.Linear\n- ms_api: mint.add\n  pt_api: torch.add\n  ms_args: [0, 1]\n  pt_args: [1, 0]\n"),
        "m.yaml", lambda folder: read_mapping(folder / "m.yaml"), mutations.odd_table,
    ),
    "config.json": Reader(
        _text("c.json", _CONFIG), "c.json", lambda folder: load_config("pytorch", folder / "c.json"), mutations.odd_json
    ),
    "api list": Reader(
        _text("a.yaml", "functional:\n  - conv2d\ntorch:\n  - linalg.norm  # remark\n"), "a.yaml",
        lambda folder: read_api_list(folder / "a.yaml"), mutations.odd_table,
    ),
    "op log": Reader(
        _text("o.log", _OP_LOG), "o.log", lambda folder: read_op_log(folder / "o.log"), mutations.odd_table
    ),
    "dump.json": Reader(_dumps, "b/dump.json", _compare, mutations.odd_json),
    "stack.json": Reader(_dumps, "a/stack.json", _compare, mutations.odd_json),
    "construct.json": Reader(_dumps, "a/construct.json", _read_dump, mutations.odd_json),
    ".pt": Reader(
        lambda folder: write_pt(folder / "t.pt", bytes(24), "float32", (2, 3)), "t.pt",
        lambda folder: read_tensor(folder / "t.pt"), mutations.damaged,
    ),
    "pickle of a .pt": Reader(
        lambda folder: write_pt(folder / "t.pt", bytes(24), "float32", (2, 3)), "t.pt",
        lambda folder: read_tensor(folder / "t.pt"), _odd_pt,
    ),
    "journal": Reader(_journal, "a/journal.jsonl", _read_dump, mutations.odd_table),
    "report.html": Reader(
        lambda folder: write_page(folder / "report.html", page_bytes("run", {"title": "t", "ranks": [{"rank": 0}]})),
        "report.html", lambda folder: read_page_document(folder / "report.html"), mutations.damaged,
    ),
    "measured operators": Reader(
        _measured, "m.json", lambda folder: MeasuredCosts.load(folder / "m.json"), mutations.odd_json
    ),
    "zip of op logs": Reader(
        _zip, "o.zip", lambda folder: [read_op_log(folder / "o.zip", name) for name in op_logs_in(folder / "o.zip")],
        mutations.damaged,
    ),
    ".npy": Reader(
        lambda folder: write_npy(folder / "t.npy", bytes(24), "float32", (2, 3)), "t.npy",
        lambda folder: read_tensor(folder / "t.npy"), mutations.damaged,
    ),
}  # fmt: skip
