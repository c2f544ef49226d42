"""Level 2 against published peaks of Megatron-LM's own tests: an extract of benchmarks/published/megatron.py."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.published import megatron
from benchmarks.published.megatron import Case, run_case, summary
from tests.commands.warm import WARM_SUBPROCESS

needs_megatron = pytest.mark.skipif(
    importlib.util.find_spec("megatron") is None, reason="megatron-core is not installed"
)
ARGS = {
    "num-layers": 12, "hidden-size": 512, "num-attention-heads": 8, "micro-batch-size": 4, "global-batch-size": 32,
    "seq-length": 1024, "max-position-embeddings": 1024, "deterministic-mode": True,
    "no-gradient-accumulation-fusion": True, "bf16": True,
}  # fmt: skip
LOCAL = {"transformer-impl": "local", "tensor-model-parallel-size": 4, "pipeline-model-parallel-size": 1}
ENGINE = {
    "transformer-impl": "transformer_engine", "attention-backend": "unfused", "swiglu": True,
    "tensor-model-parallel-size": 1, "pipeline-model-parallel-size": 4,
}  # fmt: skip
MIB = 1 << 20
QWEN = Path(__file__).parents[3] / "examples" / "megatron" / "qwen25_7b.sh"


@pytest.fixture(autouse=True)
def _warm(monkeypatch):
    monkeypatch.setattr(megatron, "subprocess", WARM_SUBPROCESS)


def case(name, n_bytes, args):
    return Case(name, "DGX A100 80GB", "dev", n_bytes, 8, ARGS | args, ":4096:8")


@needs_megatron
def test_the_local_layers_on_four_cards_to_half_a_percent():
    published = 1_629_265_408
    found = run_case(case("gpt3_mcore_tp4_pp1", published, LOCAL))
    assert found.reason == ""
    assert found.peak_bytes == pytest.approx(published, rel=0.005)
    # cuBLAS keeps two of 32 MiB by the test's own configuration; a reduction needs a little at the peak
    assert 64 * MIB <= found.workspace_bytes <= 65 * MIB


@needs_megatron
@pytest.mark.thorough
def test_transformer_engine_keeps_its_own_workspace():
    published = 2_684_785_152
    found = run_case(case("gpt3_mcore_te_tp1_pp4_swiglu", published, ENGINE))
    assert found.peak_bytes == pytest.approx(published, rel=0.005)
    assert 68 * MIB <= found.workspace_bytes <= 69 * MIB


def test_the_summary_has_the_median_of_absolute_errors():
    assert summary({"all": [-3.0, 1.0, 0.5], "none": []}) == [
        "all: 3 values, median absolute error 1.00 %, 2 within 1 %, 2 within 2 %, 3 within 5 %"
    ]


@needs_megatron
@pytest.mark.thorough
def test_qwen_on_four_ascend_cards_is_within_one_percent(tmp_path):
    launch = (
        f"{sys.executable} -W ignore -m windtunnel.commands.main run --level 2 --device ascend-910b-64gb --world-size 4"
        f" --ranks 0 --out {tmp_path} --force"
    )
    # As many micro-batches as are ever in flight, and some: the published 64 take longer and reach the same peak.
    env = os.environ | {"LAUNCH": launch, "GLOBAL_BATCH": "8"}
    subprocess.run(["sh", str(QWEN)], env=env, check=True, capture_output=True)
    rank = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))["ranks"][0]
    assert rank["peak_bytes"] / MIB == pytest.approx(55_405, rel=0.01)
    assert rank["peak_with_fragments_bytes"] / MIB == pytest.approx(57_400, rel=0.01)
    assert rank["at_peak_bytes"]["workspace"] == 16 * MIB + 512  # one kernel's 16 MiB, as the pool rounds it
