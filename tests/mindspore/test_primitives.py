"""The list of primitives that levels 2 and 3 are tested against is the installed MindSpore's own."""

from __future__ import annotations

import re
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from windtunnel.timing.operators.operator_classes import class_of, is_known

LISTED = Path(__file__).parents[1] / "timing" / "data" / "mindspore_primitives.txt"
LISTED_VERSION = "2.10.0"


def installed_primitives() -> set[str]:
    headers = Path(find_spec("mindspore").origin).parent / "include/mindspore/ops/include/primitive"
    files = [*headers.glob("*_op_name.h"), *headers.glob("auto_generate/gen_ops_name_*.h")]
    return {
        name for file in files for name in re.findall(r'= "([A-Z]\w+)"', file.read_text(encoding="utf-8"))
    }


def test_nearly_all_primitives_of_this_wheel_have_a_class():
    names = installed_primitives()
    assert len(names) > 1000
    known = {name for name in names if is_known(f"ms.{name}")}
    assert len(known) > 0.9 * len(names)
    gradients = {
        name
        for name in names
        if re.fullmatch(r"(MatMul|RmsNorm|LayerNorm|FlashAttention|Swiglu|SiLU)\w*", name)
    }
    assert {name for name in gradients if not is_known(f"ms.{name}")} == set()
    assert class_of("ms.FlashAttentionScoreGrad").value == "attention backward"


@pytest.mark.skipif(
    version("mindspore") != LISTED_VERSION, reason=f"the list is MindSpore {LISTED_VERSION}'s"
)
def test_the_list_is_this_wheels():
    assert set(LISTED.read_text(encoding="utf-8").split()) == installed_primitives()
