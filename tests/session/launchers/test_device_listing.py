"""What `nvidia-smi` and `npu-smi` answer to a shell script that counts devices."""

from __future__ import annotations

import pytest

from windtunnel.session.launchers.device_listing import listing

DEVICE = {"name": "a100-80gb", "memory_bytes": 80 << 30, "capability": [8, 0], "count": 2}


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("nvidia-smi -L", "GPU 0: a100-80gb (UUID: GPU-0)\nGPU 1: a100-80gb (UUID: GPU-1)\n"),
        ("nvidia-smi --query-gpu=name --format=csv,noheader", "a100-80gb\na100-80gb\n"),
        (
            "nvidia-smi --query-gpu=index,memory.total --format=csv",
            "index, memory.total\n0, 81920 MiB\n1, 81920 MiB\n",
        ),
        ("nvidia-smi --query-gpu=memory.total,fan --format=csv,noheader,nounits", "81920, [N/A]\n" * 2),
    ],
)
def test_the_simulated_machine_is_listed(words, answer):
    name, *rest = words.split()
    said: list[str] = []
    assert listing(name, rest, DEVICE, said.append) == 0
    assert "".join(said) == answer


def test_npus_are_counted():
    said: list[str] = []
    assert listing("npu-smi", ["info", "-l"], DEVICE, said.append) == 0
    (count,) = [line for line in "".join(said).splitlines() if "Total Count" in line]
    assert count.split() == ["Total", "Count", ":", "2"]  # scripts take the fourth word
