"""The programs that are run under real msProbe and under ours, and the part of their files that is compared.

    CASES["mix md5 mlp"] ──> run_case(case, folder, PrecisionDebugger) ──> dump ──> extract(folder) ──> golden/*.json
    CASES["mix md5 mlp"] ──> run_program(case, debugger) ──> the same without a folder, with either probe

Needs torch only, so that a Python with msProbe and without windtunnel can run it too.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.probe.models import build

__all__ = ["CASES", "Case", "extract", "file_name", "run_case", "run_program"]

_SECTION = ("scope", "list", "tensor_list", "data_mode", "summary_mode")


@dataclass(frozen=True)
class Case:
    """One run. `keeps`: "figures" of every value, or only the "names" of entries and files."""

    model: str
    keys: dict[str, Any]
    keeps: str = "names"
    n_steps: int = 1
    wraps: type | None = None  # the model is given in a list or tuple
    is_inference: bool = False
    is_ordered: bool = True  # entries come in the same order
    extra: tuple[str, ...] = ()  # entries that only ours has, on purpose
    amplifies: float = 1.0  # how many times larger a rounding error of the first call is at the end


def _cases() -> dict[str, Case]:
    found = {}
    for model in ("mlp", "cnn", "transformer"):
        found[f"L0 {model}"] = Case(model, {"level": "L0", "task": "statistics"}, "figures")
        found[f"L1 {model}"] = Case(model, {"level": "L1", "task": "statistics"}, "figures")
        md5 = {"level": "mix", "task": "statistics", "summary_mode": "md5"}
        found[f"mix md5 {model}"] = Case(model, md5, "figures")
        found[f"mix tensor {model}"] = Case(model, {"level": "mix", "task": "tensor"})
        for risk in ("ALL", "CORE"):
            keys = {"level": "L1", "task": "statistics", "risk_level": risk}
            found[f"risk {risk} {model}"] = Case(model, keys)
    # It divides by what is left of 10 - 9.5.
    found["mix ALL md5 zoo"] = Case("zoo", md5 | {"risk_level": "ALL"}, "figures", amplifies=20)
    found["xor"] = Case("mlp", {"level": "mix", "task": "statistics", "summary_mode": "xor"}, "figures")
    found["structure"] = Case("transformer", {"level": "mix", "task": "structure", "risk_level": "ALL"})
    found["structure L0"] = Case("mlp", {"level": "L0", "task": "structure"})
    found["steps"] = Case("mlp", {"level": "L0", "task": "statistics", "step": [0, "2-3"]}, n_steps=5)
    found["two steps"] = Case("mlp", {"level": "mix", "task": "statistics"}, n_steps=2)
    found["model in a list"] = Case("mlp", {"level": "mix", "task": "statistics"}, wraps=list)
    found["model in a tuple"] = Case("mlp", {"level": "L0", "task": "statistics"}, wraps=tuple)
    found["no extra info"] = Case("mlp", {"level": "mix", "task": "statistics", "extra_info": False})
    found["inference"] = Case("transformer", {"level": "mix", "task": "statistics"}, is_inference=True)
    found["debug"] = Case("saving", {"level": "debug", "task": "statistics"}, "figures")
    found["debug tensor"] = Case(
        "saving", {"level": "debug", "task": "tensor", "summary_mode": "md5"}, "figures"
    )
    mix = {"level": "mix", "task": "statistics"}
    filters = {
        "list relu": {"list": ["relu"]},
        "list api": {"level": "L1", "list": ["Functional.linear.1.forward", "Functional.relu.0.backward"]},
        "list module": {"list": ["Module.2.Linear.forward.0"]},
        "list L0": {"level": "L0", "list": ["Module.2.Linear"]},
        "scope L0": {"level": "L0", "scope": ["Module.1.ReLU.forward.0", "Module.3.ReLU.forward.0"]},
        "scope L1": {"level": "L1", "scope": ["Functional.relu.0.forward", "Functional.linear.2.forward"]},
        "scope mix": {"scope": ["Module.2.Linear.forward.0", "Module.3.ReLU.forward.0"]},
        "tensor list": {"tensor_list": ["relu"]},
        "forward": {"data_mode": ["forward"]},
        "backward": {"data_mode": ["backward"]},
        "input": {"data_mode": ["input"]},
        "forward output": {"data_mode": ["forward", "output"]},
    }
    found |= {name: Case("mlp", {**mix, **keys}) for name, keys in filters.items()}
    # msProbe ends a scope as its last module begins, and writes the inputs of a module before those inside it.
    found["scope mix"] = replace(found["scope mix"], extra=("Functional.relu.1.forward",))
    found["input"] = replace(found["input"], is_ordered=False)
    return found


def file_name(name: str) -> str:
    """Where the extract of a case is kept."""
    return f"{name.replace(' ', '_')}.json"


def run_case(case: Case, folder: Path, debugger_class: Any) -> None:
    """Run one case in a folder; the dump goes to `folder`/dump."""
    keys = dict(case.keys)
    section = {"scope": [], "list": [], "data_mode": ["all"]}
    section |= {key: keys.pop(key) for key in _SECTION if key in keys}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "dump").mkdir(exist_ok=True)
    path = folder / "config.json"
    config = {"rank": [], "step": [], "dump_path": str(folder / "dump"), **keys, keys["task"]: section}
    path.write_text(json.dumps(config))
    run_program(case, debugger_class(config_path=str(path)))


def run_program(case: Case, debugger: Any) -> None:
    """Train the model of a case under a debugger, on one thread: more of them would add in an order of chance."""
    torch.set_num_threads(1)
    if case.model in ("zoo", "saving"):
        torch.manual_seed(0)
        model = _Zoo() if case.model == "zoo" else _Saving(debugger)
        x = torch.randn(4, 4)

        def loss(_: int) -> torch.Tensor:
            return model(x)
    else:
        model, loss = build(case.model)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for step in range(case.n_steps):
        debugger.start(model=case.wraps([model]) if case.wraps else model)
        if case.is_inference:
            with torch.no_grad():
                loss(step)
        else:
            loss(step).backward()
            optimizer.step()
            optimizer.zero_grad()
        debugger.stop()
        debugger.step()


def extract(dump_path: Path, keeps: str) -> dict[str, Any]:
    """The part of a dump that is compared, for each of its steps."""
    return {step.name: _extract_step(next(step.iterdir()), keeps) for step in sorted(dump_path.glob("step*"))}


def _extract_step(folder: Path, keeps: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "files": sorted(path.name for path in folder.iterdir() if path.suffix == ".json")
    }
    (main,) = [path for path in (folder / "dump.json", folder / "debug.json") if path.exists()][:1]
    dump = json.loads(main.read_text())
    found["header"] = {key: dump[key] for key in ("task", "level", "framework")}
    found["has_tensor_folder"] = dump["dump_data_dir"] is not None
    data = dump["data"]
    if keeps == "figures":
        found["data"] = {name: dict(_leaves(body)) for name, body in data.items()}
    else:
        found["names"] = list(data)
    for name in ("construct", "stack"):
        path = folder / f"{name}.json"
        if path.exists():
            content = json.loads(path.read_text())
            found[name] = content if name == "construct" else [names for names, _ in content.values()]
    tensors = folder / "dump_tensor_data"
    if tensors.exists():
        found["tensors"] = {path.name: _crc(path) for path in sorted(tensors.iterdir())}
    return found


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict) and "dtype" in value and "shape" in value:
        keys = ("Max", "Min", "Mean", "Norm", "requires_grad", "md5", "data_name")
        yield (
            path,
            [
                value["dtype"].removeprefix("torch."),
                value["shape"],
                {k: value[k] for k in keys if k in value},
            ],
        )
    elif isinstance(value, dict) and "type" not in value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}.{index}")
    else:
        yield path, value


def _crc(path: Path) -> str:
    tensor = torch.load(path, weights_only=True).detach().contiguous()
    if tensor.numel() == 0:
        return "00000000"
    return f"{zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy()):08x}"


class _Scale(nn.Module):
    def forward(self, mask, x, *, shift=None):
        return x * mask + (shift if shift is not None else 0), x * 2


class _Dictionary(nn.Module):
    def forward(self, values):
        return {"a": values["x"] * 2, "n": 3, "t": (values["x"],)}


class _Zoo(nn.Module):
    """Many ways to call torch: operators, keywords, structures, functions with several results."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.scale = _Scale()
        self.values = _Dictionary()
        self.relu = nn.ReLU()

    def forward(self, x):
        h = self.linear(x)
        a, b = self.scale(torch.ones(4), h, shift=torch.ones(4))
        h = self.relu(self.relu(self.values({"x": a + b})["a"]))
        z = 2 / ((1 - 2 * h) + 9)
        z += 1
        z -= h
        z *= 2
        z /= 2
        w = abs((z * -1) @ h) ** 2
        w = w.masked_fill((w > 0) & (w < 0), 0.0)
        w = torch.add(w.add(1), 1) / 3
        w = w.detach() // 1 + w % 5
        e = F.dropout(torch.einsum("ij,jk->ik", h, h), 0.5)
        v = F.scaled_dot_product_attention(h.unsqueeze(0), h.unsqueeze(0), h.unsqueeze(0))
        largest, _ = h.max(dim=1)
        top = torch.topk(h, 2)
        total = w.sum() + torch.norm(e) + e.norm() + v.mean() + largest.sum() + top.values.sum()
        total = total + F.mse_loss(h, torch.zeros_like(h), reduction="sum") + torch.clamp(h, min=0.1).sum()
        parts = (
            torch.cat([h.float(), h.to(torch.float32)]).view(-1).reshape(2, -1).transpose(0, 1).contiguous()
        )
        first, second = torch.split(torch.stack([parts, parts]), 1)
        return total + (first.squeeze() * second.mean()).sum() + F.softmax(h, dim=-1).log().sum()


class _Saving(nn.Module):
    """Saves single points."""

    def __init__(self, debugger: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.debugger = debugger

    def forward(self, x):
        h = self.linear(x)
        self.debugger.save({"h": h, "n": 3, "deep": [h * 2, {"s": "text"}]}, "hidden")
        self.debugger.save(x, "plain")
        self.debugger.save(h, "plain")
        self.debugger.save([1, 2.5, h.relu()], "list", save_backward=False)
        y = h.tanh()
        self.debugger.save((y, y * 2), "pair")
        return y.sum()


CASES = _cases()
