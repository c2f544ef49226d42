"""The programs that are run under real msProbe and under ours, and the part of their files that is compared.

    CASES["mix md5 mlp"] ──> run_case(case, folder, PrecisionDebugger) ──> dump ──> extract(folder) ──> golden/*.json
    CASES["mix md5 mlp"] ──> run_program(case, debugger) ──> the same without a folder, with either probe

Needs MindSpore only, so that a Python with msProbe and without windtunnel can run it too.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, ops

from tests.mindspore.probe.models import build, train_step

__all__ = ["CASES", "Case", "extract", "file_name", "run_case", "run_program"]

_SECTION = ("scope", "list", "tensor_list", "data_mode", "summary_mode")


@dataclass(frozen=True)
class Case:
    """One run of some steps of a model."""

    model: str
    keys: dict[str, Any]
    n_steps: int = 1
    wraps: type | None = None  # the model is given in a list or tuple
    is_segmented: bool = False  # only the forward lies between start and stop


def _cases() -> dict[str, Case]:
    found = {}
    for model in ("mlp", "cnn", "transformer", "mint"):
        found[f"L0 {model}"] = Case(model, {"level": "L0", "task": "statistics"})
        found[f"L1 md5 {model}"] = Case(model, {"level": "L1", "task": "statistics", "summary_mode": "md5"})
        found[f"mix {model}"] = Case(model, {"level": "mix", "task": "statistics"}, n_steps=2)
        found[f"mix tensor {model}"] = Case(model, {"level": "mix", "task": "tensor"})
        found[f"debug {model}"] = Case(model, {"level": "debug", "task": "statistics"})
    found["L0 md5 mlp"] = Case("mlp", {"level": "L0", "task": "tensor", "summary_mode": "md5"})
    found["debug tensor md5"] = Case("mlp", {"level": "debug", "task": "tensor", "summary_mode": "md5"})
    found["structure"] = Case("transformer", {"level": "mix", "task": "structure"})
    found["list of models"] = Case("mlp", {"level": "mix", "task": "statistics"}, wraps=list)
    found["segment"] = Case("mlp", {"level": "L1", "task": "statistics"}, is_segmented=True)
    found["forward input"] = Case(
        "mlp", {"level": "mix", "task": "statistics", "data_mode": ["forward", "input"]}
    )
    found["backward"] = Case("mlp", {"level": "mix", "task": "statistics", "data_mode": ["backward"]})
    found["list relu"] = Case("mint", {"level": "mix", "task": "statistics", "list": ["relu"]})
    found["tensor_list"] = Case("mlp", {"level": "L1", "task": "statistics", "tensor_list": ["tanh"]})
    found["no extra_info"] = Case("mlp", {"level": "mix", "task": "statistics", "extra_info": False})
    return found


CASES = _cases()


def file_name(case: str) -> str:
    return f"{case.replace(' ', '_')}.json"


def run_case(case: Case, folder: Path, debugger_class: type) -> None:
    """Run the program of a case under a debugger, ours or msProbe's; the dump is in `folder`/dump."""
    folder.mkdir(parents=True, exist_ok=True)
    keys = {"rank": [], "step": [], **case.keys}
    section = {key: keys.pop(key) for key in _SECTION if key in keys}
    config = {"dump_path": str(folder / "dump"), **keys, keys["task"]: section}
    (folder / "config.json").write_text(json.dumps(config))
    run_program(case, debugger_class(config_path=str(folder / "config.json")))


def run_program(case: Case, debugger: Any) -> list[Parameter]:
    """Train the model of a case under a debugger; the weights it then has."""
    program = build(case.model)
    if case.keys["level"] == "debug":
        _save_points(program, debugger)
    if case.is_segmented:
        _stop_after_forward(program, debugger)
    model = program.network if case.wraps is None else case.wraps([program.network])
    step = train_step(program)
    for _ in range(case.n_steps):
        debugger.start(model)
        step()
        debugger.stop()
        debugger.step()
    return program.network.trainable_params()


def _save_points(program: Any, debugger: Any) -> None:
    construct = program.network.construct

    def saving(*inputs):
        output = construct(*inputs)
        debugger.save({"out": output, "n": 3}, "point")
        debugger.save([output * 2.0, (1.5, "text")], "many")
        debugger.save(output, "plain", save_backward=False)
        return output + ops.zeros_like(output)

    program.network.construct = saving


def _stop_after_forward(program: Any, debugger: Any) -> None:
    construct = program.network.construct

    def stopping(*inputs):
        output = construct(*inputs)
        debugger.stop()
        return output

    program.network.construct = stopping


def extract(dump: Path) -> dict[str, Any]:
    """What is compared of a dump: its entries with their figures, parents, stacks, and a checksum per tensor file."""
    found = {}
    for step in sorted(dump.glob("step*")):
        (rank,) = step.iterdir()
        files = sorted(path.name for path in rank.iterdir() if path.suffix == ".json")
        name = "debug.json" if "debug.json" in files else "dump.json"
        content = json.loads((rank / name).read_text())
        data = content.pop("data")
        one: dict[str, Any] = {
            "files": files,
            "header": {key: content[key] for key in ("task", "level", "framework")},
            "has_tensor_folder": content["dump_data_dir"] is not None,
            "data": {entry: dict(_flat(body)) for entry, body in data.items()},
        }
        if "construct.json" in files:
            one["construct"] = json.loads((rank / "construct.json").read_text())
            one["stack"] = _stacks(json.loads((rank / "stack.json").read_text()))
        tensors = {path.name: _crc(path) for path in sorted(rank.glob("dump_tensor_data/*.npy"))}
        if tensors:
            one["tensors"] = tensors
        found[step.name] = one
    return found


def _stacks(stacks: dict) -> dict[str, list[str]]:
    """The lines of the tests' own files in the stack of each entry: frameworks' and tools' frames are their own."""
    found = {}
    for names, frames in stacks.values():
        lines = [line for line in frames if "/tests/mindspore/probe/models.py" in line]
        lines = [line.split("models.py, ", 1)[1] for line in lines]
        found.update(dict.fromkeys(names, lines))
    return dict(sorted(found.items()))


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and "dtype" in value and "shape" in value:
        figures = {key: value[key] for key in value if key not in ("type", "dtype", "shape", *_OURS)}
        yield path, [value["dtype"], value["shape"], figures]
    elif isinstance(value, dict) and set(value) != {"type", "value"} and value:
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, item in enumerate(value):
            yield from _flat(item, f"{path}.{index}" if path else str(index))
    else:
        yield path, value


_OURS = ("nan_count", "inf_count", "zero_count", "sketch")


def _crc(path: Path) -> str:
    array = np.load(path)
    return f"{array.dtype.name} {list(array.shape)} {zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"


def use_cpu() -> None:
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
