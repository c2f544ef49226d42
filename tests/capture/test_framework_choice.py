import pytest

from windtunnel.capture.framework_choice import framework_of


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        ("import torch\n", "torch"),
        ("import mindspore as ms\n", "mindspore"),
        ("from mindspore import nn\n", "mindspore"),
        ("import numpy\n", "torch"),
        ("from transformers import AutoTokenizer\nimport mindspore\n", "mindspore"),
        ("from mindformers import Trainer\n", "mindspore"),
        ("def main():\n    import mindspore\n", "mindspore"),
        ("import mindspore\nimport torch  # to read a checkpoint\n", "mindspore"),
        ("x = (\n", "torch"),
        ("# import mindspore\n'''import mindspore'''\n", "torch"),
    ],
)
def test_the_script_decides_by_its_imports(tmp_path, text, framework):
    script = tmp_path / "train.py"
    script.write_text(text)
    assert framework_of(str(script)) == framework


def test_modules_beside_the_script_are_read_nearest_first(tmp_path):
    (tmp_path / "train.py").write_text("from net import *\nimport data\n")
    (tmp_path / "net.py").write_text("import mindspore\n")
    (tmp_path / "data.py").write_text("import torch\n")
    assert framework_of(str(tmp_path / "train.py")) == "mindspore"


def test_a_package_is_followed_through_relative_imports(tmp_path):
    package = tmp_path / "pkg"
    (package / "models").mkdir(parents=True)
    (package / "train.py").write_text("from .models.net import *\n")
    (package / "models" / "net.py").write_text("from .. import layers\n")
    (package / "layers.py").write_text("from mindspore import nn\n")
    assert framework_of("pkg.train", is_module=True, folder=tmp_path) == "mindspore"
    assert framework_of("pkg.missing", is_module=True, folder=tmp_path) == "torch"


def test_modules_that_import_each_other_are_read_once(tmp_path):
    (tmp_path / "a.py").write_text("import b\nfrom ...... import c\n")
    (tmp_path / "b.py").write_text("import a\n")
    assert framework_of(str(tmp_path / "a.py")) == "torch"
