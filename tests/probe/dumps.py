"""Dumps written by hand: a list of calls with numpy arrays becomes the files a probe would leave.

Call("Functional.relu.0.forward", inputs=[x], outputs=[y]) ──> write_dump(folder, calls) ──> step0/rank0/dump.json, ...
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from windtunnel.probe.files.tensor_file import write_pt
from windtunnel.probe.measure.statistics import array_statistics, statistics_json

__all__ = ["Call", "tensor", "write_dump"]

OURS = {"windtunnel": "0.1.0", "complete": True}


@dataclass
class Call:
    name: str
    inputs: list[Any] = field(default_factory=list)
    outputs: list[Any] = field(default_factory=list)
    parameters: dict[str, Any] = field(default_factory=dict)
    parent: str | None = None
    line: str = "File /home/me/train.py, line 7, in forward, \n y = f(x)"


def tensor(
    value: np.ndarray, *, crc: bool = False, sketch: bool = True, framework: str = "pytorch"
) -> dict[str, Any]:
    """What our probe writes about an array."""
    found = array_statistics(value, crc=crc)
    head, tail = statistics_json(found)
    text = f'{{"type": "torch.Tensor", "dtype": "torch.{value.dtype.name}", "shape": {list(value.shape)}, {head}, '
    text += (
        '"requires_grad": false'
        + (f', "md5": "{found.crc}"' if crc else "")
        + (f", {tail}" if tail else "")
        + "}"
    )
    element = json.loads(text)
    if not sketch:
        for key in ("sketch", "zero_count", "nan_count", "inf_count"):
            element.pop(key, None)
    if framework == "mindspore":
        element |= {"type": "mindspore.Tensor", "dtype": value.dtype.name.capitalize()}
        del element["requires_grad"]
    return element


def write_dump(
    folder: Path,
    calls: list[Call],
    *,
    level: str = "mix",
    ours: bool = True,
    crc: bool = False,
    sketch: bool = True,
    files: bool = False,
    indent: int | None = None,
    framework: str = "pytorch",
) -> Path:
    """Write one rank's folder. `files` also saves every tensor; `indent=1` is msProbe's layout."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dump_tensor_data").mkdir(exist_ok=True)

    def element(value: Any, stem: str) -> Any:
        if isinstance(value, np.ndarray):
            found = tensor(value, crc=crc, sketch=sketch, framework=framework)
            if files:
                found["data_name"] = f"{stem}.pt"
                path = folder / "dump_tensor_data" / f"{stem}.pt"
                write_pt(path, np.ascontiguousarray(value).tobytes(), value.dtype.name, value.shape)
            return found
        return (
            value
            if value is None or isinstance(value, (list, dict))
            else {"type": type(value).__name__, "value": value}
        )

    data: dict[str, Any] = {}
    for call in calls:
        ins = [element(value, f"{call.name}.input.{i}") for i, value in enumerate(call.inputs)]
        outs = [element(value, f"{call.name}.output.{i}") for i, value in enumerate(call.outputs)]
        if "parameters_grad" in call.name:
            data[call.name] = {
                key: [element(value, f"{call.name}.{key}")] for key, value in call.parameters.items()
            }
        elif ".backward" in call.name:
            data[call.name] = {"input": ins, "output": outs}
        else:
            data[call.name] = {"input_args": ins, "input_kwargs": {}, "output": outs}
            if call.parameters:
                data[call.name]["parameters"] = {
                    key: element(value, f"{call.name}.parameters.{key}")
                    for key, value in call.parameters.items()
                }
    header = {"task": "statistics", "level": level, "framework": framework, "dump_data_dir": None}
    document = {**header, **(OURS if ours else {}), "data": data}
    (folder / "dump.json").write_text(json.dumps(document, indent=indent))
    (folder / "stack.json").write_text(
        json.dumps({str(i): [[call.name], [call.line]] for i, call in enumerate(calls)})
    )
    (folder / "construct.json").write_text(json.dumps({call.name: call.parent for call in calls}))
    return folder
