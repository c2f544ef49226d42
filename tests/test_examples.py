"""Every example runs as its docstring says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.commands.cli import windtunnel
from tests.commands.warm import run_warm_python

_EXAMPLES = Path(__file__).parents[1] / "examples"


def run(tmp_path: Path, *command: str) -> str:
    done = run_warm_python(command, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def dry_run(tmp_path: Path, out: str, *arguments: str) -> str:
    done = windtunnel("run", "--out", tmp_path / out, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_largest_batch_is_found_from_python(tmp_path):
    output = run(tmp_path, str(_EXAMPLES / "largest_batch.py"))
    sizes = [float(gib) for gib in re.findall(r"batch +\d+: +([\d.]+) GiB", output)]
    assert len(sizes) == 5
    assert sizes == sorted(sizes)
    assert "largest batch that fits: 0" not in output


def test_allocator_models_answer_directly(tmp_path):
    output = run(tmp_path, str(_EXAMPLES / "allocator_what_if.py"))
    reserved = {
        line.split()[0]: int(re.search(r"reserved +(\d+)", line).group(1)) for line in output.splitlines()
    }
    assert reserved["cuda-expandable"] < reserved["cuda"]


def test_mocked_values_are_used_and_not_reported(tmp_path):
    output = dry_run(tmp_path, "out", str(_EXAMPLES / "known_values.py"))
    assert "tokens of this expert: 512" in output
    assert "cannot know" not in output


@pytest.mark.parametrize("device", ["h100", pytest.param("t4", marks=pytest.mark.thorough)])
def test_checkpointing_lowers_the_peak(tmp_path, device):
    script = str(_EXAMPLES / "checkpointing.py")
    plain = dry_run(tmp_path, "plain", "--device", device, script)
    checkpointed = dry_run(tmp_path, "checkpointed", "--device", device, script, "--checkpoint")
    peaks = [float(re.search(r"peak ([\d.]+) GiB", text).group(1)) for text in (plain, checkpointed)]
    assert peaks[1] < 0.6 * peaks[0]


def test_training_on_less_memory_gives_the_same_losses(tmp_path):
    output = run(tmp_path, str(_EXAMPLES / "rematerialise.py"))
    assert "the same as without: True" in output
    assert int(re.search(r"(\d+) tensors evicted", output).group(1)) > 0


def test_the_mistake_of_the_precision_example_is_named(tmp_path):
    script = str(_EXAMPLES / "precision.py")
    good = run(tmp_path, script, "--dump", "good")
    bad = run(tmp_path, script, "--dump", "bad", "--mistake")
    assert good == bad  # to two decimals the losses hide it
    done = windtunnel("compare", "good", "bad", "--json", cwd=tmp_path)
    assert done.returncode == 3, done.stdout + done.stderr
    assert "Functional.layer_norm.2.forward" in json.loads(done.stdout)["first_divergence"]["item"]
