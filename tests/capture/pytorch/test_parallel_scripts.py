"""Parallel programs, unmodified, on simulated cards: what a rank holds is what its shards add up to by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from torch.distributed.fsdp import FSDPModule

from tests.commands.cli import windtunnel
from windtunnel.events.file import read_recording
from windtunnel.events.model import Collective

_SCRIPTS = Path(__file__).parents[1] / "scripts"
_PROGRAMS = Path(__file__).parents[3] / "benchmarks" / "gloo_programs"
N = 4  # ranks
FLOAT = 4  # bytes


def run(folder: Path, script: Path, *arguments: str, ranks: str = f"0,{N - 1}") -> dict[int, dict]:
    """The report of each rank asked for, by its number."""
    options = ["--world-size", N, "--ranks", ranks, "--out", folder / "out"]
    done = windtunnel("run", *options, script, *arguments, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((folder / "out" / "report.json").read_text())
    found = {rank["rank"]: rank for rank in report["ranks"]}
    assert {found[rank]["status"] for rank in (0, N - 1)} == {"ok"}
    assert {found[rank]["steps"] for rank in (0, N - 1)} == {3}
    return found


def run_program(folder: Path, name: str, *arguments: str) -> dict[int, dict]:
    return run(folder, _PROGRAMS / f"{name}.py", "--device", "cuda", *arguments)


def held(rank: dict, role: str) -> int:
    return rank["at_peak_bytes"][role]


def blocks(shapes: list[tuple[int, ...]]) -> int:
    """Bytes of float32 tensors of these shapes as CUDA's allocator hands them out: whole blocks of 512."""
    return sum(-(-_numel(shape) * FLOAT // 512) * 512 for shape in shapes)


def _numel(shape: tuple[int, ...]) -> int:
    total = 1
    for size in shape:
        total *= size
    return total


def collectives(folder: Path, rank: int, name: str) -> list[tuple[int, int]]:
    """Elements that went in and came out of each call of this kind."""
    recording = read_recording(folder / "out" / f"rank{rank}" / "recording.arrows")
    found = []
    for event in recording.events():
        if isinstance(event, Collective):
            signature = recording.signatures[event.signature]
            if signature.name == name:
                found.append(
                    tuple(
                        sum(_numel(t.shape) for t in side) for side in (signature.inputs, signature.outputs)
                    )
                )
    return found


def linear(inputs: int, outputs: int) -> list[tuple[int, ...]]:
    return [(outputs, inputs), (outputs,)]


def test_fsdp2_holds_padded_shards_and_gathers_a_block_at_a_time(tmp_path):
    ranks = run_program(tmp_path, "fsdp2")
    block = [(251,), (251,), *linear(251, 1003), *linear(1003, 251)]
    shapes = [*linear(64, 251), *(4 * block), *linear(251, 10)]

    def padded(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (-(-shape[0] // N), *shape[1:])

    def local(shape: tuple[int, ...], rank: int) -> tuple[int, ...]:
        rows = -(-shape[0] // N)
        return (max(0, min(rows, shape[0] - rank * rows)), *shape[1:])

    for rank in (0, N - 1):
        assert held(ranks[rank], "weights") == blocks([padded(shape) for shape in shapes])
        assert held(ranks[rank], "optimizer") == 2 * blocks([local(shape, rank) for shape in shapes])
        gathered = sum(_numel(padded(shape)) for shape in block)
        assert (gathered, N * gathered) in collectives(tmp_path, rank, "c10d.all_gather")
        scattered = [
            sizes for sizes in collectives(tmp_path, rank, "c10d.reduce_scatter") if sizes[1] == gathered
        ]
        assert scattered == [(N * gathered, gathered)] * 4 * 3  # four blocks, three steps
        # at the peak: what one block was gathered into, and the gradients of one block on their way out; in torch 2.12
        # a variable of a loop that has ended still holds those of the block before
        n_leaving = 1 if hasattr(FSDPModule, "set_reduce_scatter_max_input_buffers") else 2
        assert held(ranks[rank], "communication") == (1 + n_leaving) * blocks([(N * gathered,)])


def test_tensor_parallel_weights_are_exact_shards(tmp_path):
    ranks = run_program(tmp_path, "tensor_parallel")
    dim, vocabulary = 256, 1024
    block = [
        *(4 * [(dim,)]),  # two norms, replicated
        *(4 * [(dim * dim // N,)]),  # q, k, v by columns, out by rows
        *((4 * dim * dim // N,), (4 * dim // N,)),  # up, by columns: so is its bias
        *((4 * dim * dim // N,), (dim,)),  # down, by rows: its bias is replicated
    ]
    shapes = [*(2 * block), (dim,), (dim,), *(2 * [(vocabulary * dim // N,)])]
    for rank in ranks.values():
        assert held(rank, "weights") == blocks(shapes)
        assert held(rank, "optimizer") == 2 * blocks(shapes)


def test_zero1_holds_its_part_of_the_optimizer_state(tmp_path):
    ranks = run_program(tmp_path, "zero1")
    shapes = 12 * linear(256, 256)
    for rank in ranks.values():
        assert held(rank, "weights") == blocks(shapes)
        assert held(rank, "optimizer") == 2 * blocks(shapes) // N


def test_pipeline_stages_hold_their_own_layers(tmp_path):
    ranks = run_program(tmp_path, "pipeline", "--schedule", "Interleaved1F1B")
    block = [(192,), (192,), *linear(192, 768), *linear(768, 192)]
    middle, first, last = 2 * block, [(2000, 192)], [(192,), (192,), *linear(192, 2000)]
    expected = {0: [*first, *middle, *middle], N - 1: [*middle, *middle, *last]}  # two stages a rank
    for rank, shapes in expected.items():
        assert held(ranks[rank], "weights") == blocks(shapes)
        assert held(ranks[rank], "optimizer") == 2 * blocks(shapes)
    sent = [sizes[0] for sizes in collectives(tmp_path, 0, "c10d.send")]
    activation = 2 * 64 * 192  # a micro-batch of two sequences of 64
    assert sent.count(activation) == 3 * (
        2 * 4 + 4
    )  # steps x (forward of both stages, backward of the second)


def test_a_two_dimensional_mesh_shards_twice(tmp_path):
    ranks = run_program(tmp_path, "fsdp2_tp")
    tp = dp = 2
    block = [
        *(2 * [(256 // dp,)]),
        *((1024 * 256 // tp // dp,), (1024 // tp // dp,)),
        *((256 * 1024 // tp // dp,), (256 // dp,)),
    ]
    shapes = [*(4 * block), (16 * 256 // dp,), (16 // dp,)]
    for rank in ranks.values():
        assert held(rank, "weights") == blocks(shapes)
        assert held(rank, "optimizer") == 2 * blocks(shapes)


def test_ring_attention_gathers_keys_and_values_and_passes_their_gradients_on(tmp_path):
    run_program(tmp_path, "context_parallel")
    both = 2 * 2 * 4 * (512 // N) * 32  # keys and values of this rank's part: batch, heads, length, width
    calls = 2 * 3  # layers, steps
    gathered = collectives(tmp_path, 0, "c10d.all_gather")
    assert gathered == [(both, N * both)] * calls * 2  # for forward, and again for backward
    assert collectives(tmp_path, 0, "c10d.all_to_all") == [(both, both)] * calls * N  # once round the ring


@pytest.mark.parametrize("version", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_hugging_face_trainer_with_fsdp(tmp_path, version):
    pytest.importorskip("accelerate")
    ranks = run(
        tmp_path, _SCRIPTS / "parallel_hf_fsdp.py", str(tmp_path / "checkpoints"), str(version), ranks="0,3"
    )
    n_parameters = 2 * 2000 * 256 + 256 + 3 * (2 * 256 * 256 + 2 * 128 * 256 + 3 * 688 * 256 + 2 * 256)
    for rank in ranks.values():
        # float32 shards and Adam's two moments of them; blocks of 512 and padding add a little
        assert held(rank, "weights") == pytest.approx(n_parameters * FLOAT / N, rel=0.02)
        assert held(rank, "optimizer") == pytest.approx(2 * n_parameters * FLOAT / N, rel=0.02)


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.thorough), 3])
def test_deepspeed_shards_by_stage(tmp_path, stage):
    pytest.importorskip("deepspeed")
    ranks = run(tmp_path, _SCRIPTS / "parallel_deepspeed.py", "--stage", str(stage))
    n_parameters = 8 * (512 * 512 + 512)
    for rank in ranks.values():
        assert held(rank, "optimizer") == 2 * FLOAT * n_parameters // N
