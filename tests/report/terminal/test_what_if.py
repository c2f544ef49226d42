"""Which settings a replay recommends: only those that the recorded program can have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from windtunnel.memory.peak import Failure
from windtunnel.memory.tape import make_tape
from windtunnel.memory.what_if.other_allocators import AllocatorChoice, Outcome
from windtunnel.memory.what_if.recorded_file import ReplaySource
from windtunnel.report.terminal.what_if import WhatIf, answer, best_conf
from windtunnel.units import GIB

SOURCE = ReplaySource(Path("memory_block.csv"), "memory_block", make_tape([]), "mindspore", "", None, None, (),
                      lambda event: "", 0)  # fmt: skip
FULL = Failure(0, GIB, "out of memory")


def outcome(label, spec, conf, reserved, failure=None):
    return Outcome(AllocatorChoice(label, spec, conf), reserved * GIB, reserved * GIB, failure)


PLAIN = outcome("mindspore", "mindspore", "", 70)
VMM = outcome("mindspore enable_vmm:True", "mindspore", "enable_vmm:True", 66)
CUDA = outcome("cuda-expandable", "cuda-expandable", "", 60)


def test_a_mindspore_program_is_advised_mindspores_settings_although_torchs_would_take_less():
    result = WhatIf(SOURCE, (PLAIN, VMM, CUDA), "ascend", 80 * GIB)
    assert result.best is VMM
    assert best_conf(result) == "MS_ALLOC_CONF=enable_vmm:True"
    assert answer(result).startswith("mindspore enable_vmm:True needs least: 66.00 GiB")


def test_a_mindspore_program_that_fits_only_torchs_allocator_does_not_fit():
    full = [replace(each, failure=FULL) for each in (PLAIN, VMM)]
    result = WhatIf(SOURCE, (*full, CUDA), "ascend", 62 * GIB)
    assert not result.best.fits
    assert best_conf(result) is None
    assert answer(result).startswith("No MindSpore setting fits the 62.00 GiB usable on ascend: 66.00 GiB")


def test_a_torch_program_is_advised_the_variable_of_its_allocator():
    for family, variable in (("cuda", "PYTORCH_CUDA_ALLOC_CONF"), ("npu", "PYTORCH_NPU_ALLOC_CONF")):
        plain = outcome(family, family, "", 70)
        better = outcome(f"{family} expandable", family, "expandable_segments:True", 60)
        result = WhatIf(replace(SOURCE, allocator=family), (plain, better), family, 80 * GIB)
        assert best_conf(result) == f"{variable}=expandable_segments:True"
