import pytest

from windtunnel.capture import framework_choice
from windtunnel.capture.framework_choice import framework_of, is_training


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


def test_a_module_that_is_installed_is_judged_by_the_files_among_its_arguments(tmp_path):
    (tmp_path / "test_ms.py").write_text("import mindspore\n")
    (tmp_path / "test_pt.py").write_text("import torch\n")
    for name, framework in (("test_ms.py", "mindspore"), ("test_pt.py", "torch")):
        arguments = ["-q", f"{tmp_path / name}::test_it"]
        assert framework_of("pytest", True, tmp_path, arguments) == framework


def test_where_only_mindspore_is_installed_nothing_else_is_assumed(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("print(1)\n")
    installed: set[str] = set()
    monkeypatch.setattr(framework_choice, "is_installed", lambda name: name in installed)
    assert framework_of(str(tmp_path / "train.py")) == "torch"
    installed.add("mindspore")
    assert framework_of(str(tmp_path / "train.py")) == "mindspore"
    installed.add("torch")
    assert framework_of(str(tmp_path / "train.py")) == "torch"


def test_a_training_script_names_a_framework_and_a_device(tmp_path):
    (tmp_path / "model.py").write_text("import torch\nnet = torch.nn.Linear(1, 1).cuda()\n")
    for name, text, is_one in [
        ("port.py", "print(1)", False),
        ("split.py", "import torch\ntorch.save([], 'x')", False),
        ("words.py", "print('cuda')", False),
        ("train.py", "import torch\ntorch.zeros(1).backward()", True),
        ("train_ms.py", "import mindspore\nmindspore.set_device('Ascend')", True),
        ("main.py", "import model\nmodel.net(1)", True),
    ]:
        (tmp_path / name).write_text(text + "\n")
        assert is_training(str(tmp_path / name)) is is_one
    assert not is_training(str(tmp_path / "main.py"), is_own_source_only=True)
    assert is_training(str(tmp_path / "train.py"), is_own_source_only=True)
    assert is_training("train", True, tmp_path)
    assert not is_training("pip", True, tmp_path)
