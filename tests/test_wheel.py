"""The wheel: what is in it, and that it works installed, away from the source tree.

    a copy of the source ──> wheel ──> an empty virtual environment ──> `windtunnel devices` in another folder

Without a compiler the wheel has no extensions and still works.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from zipfile import ZipFile

import pytest

import windtunnel

ROOT = Path(__file__).parents[1]
BUILD = "from setuptools import build_meta; build_meta.build_wheel('dist')"
FILES = ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE", "src")
EXTENSIONS = ("windtunnel/probe/measure/fused.", "windtunnel/probe/pytorch/eager/method_swap.")


def test_a_wheel_built_without_a_compiler_works(tmp_path):
    wheel = _built(tmp_path / "source", CC="/bin/false", CXX="/bin/false")
    names = ZipFile(wheel).namelist()
    assert [name for name in names if name.endswith((".so", ".cpp", ".h"))] == []
    for name in (
        "windtunnel/py.typed",
        "windtunnel/devices.toml",
        "windtunnel/memory/workspace/workspaces.toml",
        "windtunnel/timing/network/network.toml",
        "windtunnel/timing/roofline/calibration.toml",
        "windtunnel/capture/mindspore/cann/stubs.cc",
        "windtunnel/report/templates/shell/page.html",
        f"windtunnel-{windtunnel.__version__}.dist-info/licenses/LICENSE",
    ):
        assert name in names
    sources = {f"windtunnel/{path.relative_to(ROOT / 'src/windtunnel')}" for path in _sources()}
    assert sources == {name for name in names if name.endswith(".py")}
    _check_installed(wheel, tmp_path)


@pytest.mark.thorough
def test_a_wheel_has_stripped_extensions(tmp_path):
    wheel = _built(tmp_path / "source")
    with ZipFile(wheel) as archive:
        libraries = [name for name in archive.namelist() if name.endswith(".so")]
        assert sorted(name.split(".")[0] + "." for name in libraries) == sorted(EXTENSIONS)
        for name in libraries:
            assert b".symtab" not in archive.read(name)
    python = _check_installed(wheel, tmp_path)
    _run([python, "-c", "import windtunnel.probe.measure.fused"], tmp_path)


def test_the_version_is_the_same_everywhere():
    version = windtunnel.__version__
    assert f'\nversion = "{version}"\n' in (ROOT / "pyproject.toml").read_text()
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text()


def _sources() -> list[Path]:
    return list((ROOT / "src" / "windtunnel").rglob("*.py"))


def _built(source: Path, **environment: str) -> Path:
    """Build in a copy: setuptools leaves files beside what it builds."""
    source.mkdir()
    ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
    for name in FILES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=ignored)
        else:
            shutil.copy(ROOT / name, source)
    _run([sys.executable, "-c", BUILD], source, **environment)
    (wheel,) = (source / "dist").glob("*.whl")
    return wheel


def _check_installed(wheel: Path, folder: Path) -> str:
    """Install the wheel, run a command of it; returns the interpreter that has it."""
    home, elsewhere = folder / "venv", folder / "elsewhere"
    elsewhere.mkdir()
    venv.create(home, with_pip=False, symlinks=True)
    python = str(home / "bin" / "python")
    _run(
        [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", str(wheel)],
        elsewhere,
        PIP_DISABLE_PIP_VERSION_CHECK="1",
    )
    # numpy and the other dependencies come from the environment of this test, after our own.
    (site_packages,) = home.glob("lib/python*/site-packages")
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    found = _run([python, "-c", "import windtunnel; print(windtunnel.__file__)"], elsewhere)
    assert Path(found.strip()).is_relative_to(site_packages)
    assert "h100" in _run([str(home / "bin" / "windtunnel"), "devices"], elsewhere)
    return python


def _run(command: list[str], folder: Path, **environment: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env=inherited | environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
