"""MindSpeed-LLM's own pretrain_gpt.py, unmodified, where its sources are given; skipped with a reason elsewhere.

The interfaces it needs have tests of their own that need no sources: tests/capture/pytorch/test_torch_npu_modules.py,
test_npu_experts.py, test_mindspeed_builders.py, test_fused_npu.py.
"""

from __future__ import annotations

import pytest

from benchmarks.mindspeed_llm import (
    NO_CLIPPING,
    RECOMPUTE,
    Sources,
    missing_sources,
    prepare,
    run_job,
)
from benchmarks.qwen_table import PUBLISHED

needs_sources = pytest.mark.skipif(bool(missing_sources()), reason=missing_sources() or "sources are given")
MICRO_BATCHES = 4  # of the published 64: the peak is the same, and fragments differ by less than 0.1 %


@needs_sources
@pytest.mark.parametrize("is_recomputed", [False, True])
def test_all_four_ranks_of_qwen_have_the_published_peaks(tmp_path, is_recomputed):
    sources = Sources.from_environment()
    prepare(sources, tmp_path)
    more = RECOMPUTE if is_recomputed else []
    peaks, text = run_job(sources, tmp_path, MICRO_BATCHES, *more, values=NO_CLIPPING)
    _, (used, with_fragments) = PUBLISHED[is_recomputed, 0]
    assert [peak.rank for peak in peaks] == [0, 1, 2, 3]
    for peak in peaks[:2]:  # stage 0, which is published
        assert peak.used_mib == pytest.approx(used, rel=0.001)
        assert peak.with_fragments_mib == pytest.approx(with_fragments, rel=0.01)
    assert peaks[2].used_mib == pytest.approx(peaks[3].used_mib, rel=0.001)
    assert "read no unknown value" not in text


def test_missing_sources_are_named(monkeypatch, tmp_path):
    monkeypatch.delenv("WINDTUNNEL_MINDSPEED_LLM", raising=False)
    assert missing_sources().startswith("set WINDTUNNEL_MINDSPEED_LLM to a folder")
    monkeypatch.setenv("WINDTUNNEL_MINDSPEED_LLM", str(tmp_path))
    assert missing_sources() == f"WINDTUNNEL_MINDSPEED_LLM is {tmp_path}, which has no pretrain_gpt.py"
