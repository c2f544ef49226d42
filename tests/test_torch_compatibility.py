"""The installed torch is checked by name before anything of it is touched, and the list of names is our sources'."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from windtunnel.errors import UnsupportedFramework
from windtunnel.frameworks import load
from windtunnel.torch_compatibility import FIRST, LAST, NEEDED, require, unfamiliar

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "windtunnel"
# Looking for these would import the compiler, or registers operators; a program that needs none should not wait for it.
NOT_LOOKED_FOR = tuple(
    "_dynamo _functorch _guards _higher_order_ops _inductor _library nn.attention ops.".split()
)


@pytest.mark.parametrize("room", NEEDED)
def test_every_private_name_a_room_uses_is_looked_for(room):
    used = set().union(*(private_names(path) for path in (PACKAGE / room).glob("pytorch/**/*.py")))
    used = {name for name in used if not name.startswith(NOT_LOOKED_FOR)}
    leaves = {name for name in used if not any(other.startswith(f"{name}.") for other in used)}
    assert set(NEEDED[room].split()) == leaves


@pytest.mark.parametrize("room", NEEDED)
def test_the_installed_torch_has_everything(room):
    assert require(room, importlib.import_module) is None  # or it raises, with what is missing


def test_a_missing_name_is_one_sentence_with_the_versions_and_the_next_step(monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.16.0+cu132")
    monkeypatch.setitem(NEEDED, "remat", "_C._storage_Use_Count _C._gone")
    with pytest.raises(UnsupportedFramework) as caught:
        load("windtunnel.remat.pytorch.runtime", "torch")
    assert str(caught.value) == (
        "torch 2.16.0+cu132 is installed; windtunnel was tested with 2.12 to 2.15; torch._C._gone is missing"
        " (pip install 'torch>=2.12,<2.16')"
    )
    assert caught.value.exit_code == 2


def test_of_several_missing_names_the_first_is_reported_and_the_others_counted(monkeypatch):
    monkeypatch.setitem(NEEDED, "probe", "_gone.with_all _C._gone nn.nothing")
    with pytest.raises(UnsupportedFramework, match=r"torch\._gone\.with_all and 2 more are missing"):
        load("windtunnel.probe.pytorch.debugger", "torch")


@pytest.mark.parametrize("version", ["2.12.0", "2.13.1+cpu", "2.15.0a0+git123", "2.15.7+cu132"])
def test_versions_that_were_tried_need_no_note(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    assert unfamiliar() is None


@pytest.mark.parametrize("version", ["2.11.0", "2.16.0", "3.0.0.dev20270101"])
def test_other_versions_that_have_everything_get_a_note(monkeypatch, version):
    monkeypatch.setattr(torch, "__version__", version)
    assert unfamiliar() == (
        f"torch {version} is installed; windtunnel was tested with 2.12 to 2.15: everything it needs is present, but"
        " its numbers were not validated with this version"
    )


def test_the_range_is_that_of_the_extra():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'torch = ["torch>={FIRST[0]}.{FIRST[1]},<{LAST[0]}.{LAST[1] + 1}"]' in text


def test_a_dry_run_says_so_and_ends_with_2(tmp_path):
    done = _run(tmp_path, "del torch._C._swap_tensor_impl; torch.__version__ = '2.16.0'")
    said = re.sub(r"\s+", " ", done.stdout + done.stderr)
    assert done.returncode == 2, said
    assert (
        "torch 2.16.0 is installed; windtunnel was tested with 2.12 to 2.15; torch._C._swap_tensor_impl is missing"
        in said
    )
    assert "Traceback" not in said


def test_a_dry_run_with_a_newer_torch_that_has_everything_has_a_note_in_its_report(tmp_path):
    done = _run(tmp_path, "torch.__version__ = '2.16.0'")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "torch 2.16.0 is installed" in (tmp_path / "out" / "report.json").read_text(encoding="utf-8")


def _run(folder: Path, change: str) -> subprocess.CompletedProcess:
    """A dry run in interpreters whose torch is another."""
    (folder / "sitecustomize.py").write_text(f"import torch\n{change}\n", encoding="utf-8")
    script = folder / "train.py"
    script.write_text("import torch\ntorch.ones(3, device='cuda').sum()\n", encoding="utf-8")
    command = [sys.executable, "-m", "windtunnel.commands.main", "run", "--device", "h100", "--no-html"]
    paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(
        [*command, "--out", str(folder / "out"), str(script)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


def private_names(path: Path) -> set[str]:
    """Names below torch with a private part, as a file imports or reads them."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    known, found = {"torch": "torch"}, set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            known |= {name.asname: name.name for name in node.names if name.asname}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            known |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
            found |= {f"{node.module}.{name.name}" for name in node.names}
    for node in ast.walk(tree):
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.insert(0, node.attr)
            node = node.value
        if parts and isinstance(node, ast.Name) and known.get(node.id, "").split(".")[0] == "torch":
            found.add(".".join([known[node.id], *parts]))
    plain = {name.partition(".__")[0].partition(".")[2] for name in found}
    return {name for name in plain if any(part.startswith("_") for part in name.split("."))}


def test_the_scanner_sees_imports_aliases_and_attributes(tmp_path):
    (tmp_path / "torch_example.py").write_text(
        "import torch\nimport torch.distributed as dist\nfrom torch.utils import _device\nfrom torch import nn\n"
        "torch._C._gone.__doc__\ndist._Work()\nnn.Linear\n_device.DeviceContext\ntorch.ones(2)._version\n"
    )
    assert private_names(tmp_path / "torch_example.py") == {
        "_C",
        "_C._gone",
        "distributed._Work",
        "utils._device",
        "utils._device.DeviceContext",
    }
