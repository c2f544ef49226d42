"""Level L2 of static graphs: kernels, written by MindSpore's own dump according to the user's config.

    config ──> kernel_kbyk_dump.json (jit levels O0, O1) or kernel_graph_dump.json (O2) ──> MINDSPORE_DUMP_CONFIG
    statistics on CPU, which MindSpore does not support: it writes tensors ──> our statistics ──> statistic.csv, tensors deleted

MindSpore reads the file when it compiles its first graph, so start() must come before the model is created.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import _c_expression as core

from windtunnel.errors import CorruptFile
from windtunnel.probe.collect.collector import Collector
from windtunnel.probe.config.merged_config import ProbeConfig
from windtunnel.probe.config.number_sets import NumberSet
from windtunnel.probe.files.notices import tell
from windtunnel.probe.files.tensor_file import read_tensor
from windtunnel.probe.measure.statistics import Statistics, array_statistics
from windtunnel.whole_file import replace_file

__all__ = ["KernelDump", "kernel_settings", "statistics_table", "write_kernel_config"]

_VARIABLE = "MINDSPORE_DUMP_CONFIG"
_OTHERS = ("MS_ACL_DUMP_CFG_PATH", "GRAPH_OP_RUN")  # other dumps of MindSpore's, that would take its place
_CATEGORIES = {
    "statistics": ["max", "min", "avg", "l2norm"],
    "md5": ["max", "min", "avg", "l2norm", "hash:md5"],
}
_COLUMNS = (
    *("Op Type", "Op Name", "Task ID", "Stream ID", "Timestamp", "IO", "Slot", "Data Size", "Data Type"),
    *("Shape", "Max Value", "Min Value", "Avg Value", "L2Norm Value"),
)


class KernelDump:
    """A part of the debugger at level L2: MindSpore's dump counts our steps."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self._path: Path | None = None
        self._before: str | None = None
        self._step: int | None = None  # as MindSpore counts
        self._is_on = False

    def prepare(self, model: Any = None, step: int = 0) -> None:
        """Called at every start, even of steps that are not collected: only the first can configure MindSpore."""
        if self._path is None:
            self._before = os.environ.get(_VARIABLE)
            self._path = write_kernel_config(self.collector.config, jit_level(), _device())
            if jit_level() == "O2":
                tell(
                    f"the kernel dump is configured in {self._path}; at jit level O2 only an Ascend device writes it: "
                    "run the same command there"
                )
                return
            core._dump_set_dynamic()  # steps are those of the debugger, however many graphs run in one
        if step != self._step and jit_level() != "O2":
            core._set_init_iter(step)
            self._step = step

    def install(self, model: Any = None) -> None:
        self._is_on = True
        if jit_level() != "O2":
            core._dump_start()

    def remove(self) -> None:
        if self._is_on and jit_level() != "O2":
            if _device() != "CPU":
                ms.runtime.synchronize()
            core._dump_stop()
        self._is_on = False

    def end_step(self) -> None:
        if self._path is None or jit_level() == "O2":
            return
        core._dump_step(1)
        if self._step is not None:
            self._step += 1
        config = self.collector.config
        if config.task == "statistics" and _device() == "CPU":
            for folder in _step_folders(config.dump_path):
                statistics_table(folder, with_md5=config.summary_mode == "md5")

    def close(self) -> None:
        """Reset the variable: MindSpore has read it, and processes started from here must not."""
        if self._path is not None and os.environ.get(_VARIABLE) == str(self._path):
            if self._before is None:
                del os.environ[_VARIABLE]
            else:
                os.environ[_VARIABLE] = self._before


def jit_level() -> str:
    """The level graphs are compiled at: "O0", "O1" (kernel by kernel) or "O2" (as a whole, on Ascend)."""
    found = ms.context.get_jit_config().get("jit_level") or ms.get_context("jit_level")
    return found or "O0"


def write_kernel_config(config: ProbeConfig, jit_level: str, device: str) -> Path:
    """Write the file that MindSpore wants, set its variable, and return where it is."""
    settings = kernel_settings(config, jit_level, device)
    config.dump_path.mkdir(parents=True, exist_ok=True)
    name = "kernel_graph_dump.json" if jit_level == "O2" else "kernel_kbyk_dump.json"
    path = config.dump_path / name
    replace_file(str(config.dump_path), name, (json.dumps(settings, indent=4).encode(),))
    os.environ[_VARIABLE] = str(path)
    for variable in _OTHERS:
        os.environ.pop(variable, None)
    return path


def kernel_settings(config: ProbeConfig, jit_level: str, device: str) -> dict[str, Any]:
    """The content of that file."""
    saves_tensors = config.task == "tensor" or device == "CPU"  # where MindSpore has no statistics
    common: dict[str, Any] = {
        "dump_mode": 1 if config.list else 0,
        "path": str(config.dump_path),
        "net_name": "Net",
        "iteration": _numbers(config.steps),
        "saved_data": "tensor" if saves_tensors else "statistic",
        "input_output": _sides(config.data_mode),
        "kernels": list(config.list),
        "support_device": list(range(8)) if config.ranks is None else list(config.ranks),
    }
    if jit_level == "O2":
        return {"common_dump_settings": {**common, "op_debug_mode": 0, "file_format": "npy"}}
    common["statistic_category"] = [] if saves_tensors else _CATEGORIES.get(config.summary_mode, ["hash:md5"])
    whole = {"enable": not config.async_dump, "trans_flag": True}
    return {"common_dump_settings": common, "e2e_dump_settings": whole}


def statistics_table(folder: Path, *, with_md5: bool = False) -> Path | None:
    """Turn the tensors of one step and graph into statistic.csv, as MindSpore writes it on devices that can.

    The table is complete before a tensor is deleted; a table of the same step from before is continued.
    """
    files = sorted(folder.glob("*.npy"), key=_time_of)
    if not files:
        return None
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    table = folder / "statistic.csv"
    before = table.read_text(encoding="utf-8") if table.is_file() else ""
    if not before:
        rows.writerow([*_COLUMNS, "MD5 Value"] if with_md5 else _COLUMNS)
    for path in files:
        try:
            array, _ = read_tensor(path)
        except CorruptFile:
            continue
        rows.writerow(_row(path, array, with_md5))
    replace_file(str(folder), table.name, ((before + text.getvalue()).encode(),))
    for path in files:
        path.unlink()
    return table


def _row(path: Path, array: np.ndarray, with_md5: bool) -> list[Any]:
    operator, task, stream, time, side, slot, _, dtype, _ = path.name.rsplit(".", 8)
    kind, _, name = operator.partition(".")
    found: Statistics = array_statistics(array)
    row = [
        kind,
        name,
        task,
        stream,
        time,
        side,
        slot,
        array.nbytes,
        dtype.lower(),
        f"({','.join(map(str, array.shape))})",
    ]
    row += [found.max, found.min, found.mean, found.norm]
    return [*row, hashlib.md5(np.ascontiguousarray(array).tobytes()).hexdigest()] if with_md5 else row


def _time_of(path: Path) -> tuple[str, str]:
    parts = path.name.rsplit(".", 8)
    return (parts[3] if len(parts) == 9 else "", path.name)


def _step_folders(dump_path: Path) -> Iterable[Path]:
    """rank_0/Net/<graph>/<step>, one for each graph and step that MindSpore has written."""
    return (path for path in dump_path.glob("rank_*/Net/*/*") if path.is_dir())


def _numbers(steps: NumberSet | None) -> str:
    if steps is None:
        return "all"
    return "|".join(str(first) if first == last else f"{first}-{last}" for first, last in steps.intervals)


def _sides(data_mode: frozenset[str]) -> int:
    """MindSpore's number for both (0), inputs (1) or outputs (2)."""
    has_inputs, has_outputs = "input" in data_mode, "output" in data_mode
    return 0 if has_inputs == has_outputs else 1 if has_inputs else 2


def _device() -> str:
    return ms.get_context("device_target")
