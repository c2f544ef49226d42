"""The public scripts that are run, as their readme or example starts them, on little data."""

from __future__ import annotations

from benchmarks.public_programs.cases import basics, hugging_face, language, parallel, vision

__all__ = ["CASES"]

CASES = (*parallel.CASES, *language.CASES, *hugging_face.CASES, *vision.CASES, *basics.CASES)
