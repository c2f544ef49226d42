"""The public names of windtunnel, as an editor sees them."""

import ast
import subprocess
import sys
from pathlib import Path

import windtunnel


def test_dir_lists_the_public_names():
    assert dir(windtunnel) == sorted(windtunnel.__all__)


def test_a_type_checker_sees_the_names_that_load_on_first_use():
    assert windtunnel.__file__
    tree = ast.parse(Path(windtunnel.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    names = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert names == set(windtunnel.__all__) - {"__version__"}
    assert Path(windtunnel.__file__).with_name("py.typed").exists()


def test_importing_windtunnel_loads_nothing_else_of_it():
    program = "import sys, windtunnel; print([n for n in sys.modules if n.startswith('windtunnel.')])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
