"""What both twins share: the sizes, the weights, one batch, and the mistakes that can be planted in either.

    numpy, a fixed seed ──> weights(), batch() ──> torch_twin.py, mindspore_twin.py

Names of weights are PyTorch's; the MindSpore twin finds its own by them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

__all__ = ["BATCH", "EPS", "HEADS", "LENGTH", "N_BLOCKS", "PLANTS", "VOCABULARY", "WIDTH", "arguments", "batch",
           "weights", "write_config"]  # fmt: skip

VOCABULARY, WIDTH, LENGTH, BATCH, HEADS, N_BLOCKS = 50, 32, 12, 4, 4, 2
EPS = 1e-5
# Mistakes, each in block 1, and where they show first: at level mix with sketches, and in modules with statistics alone.
PLANTS = {
    "eps": (
        "Functional.layer_norm.2.forward.output.0",
        "Module.blocks.1.norm1.LayerNorm.forward.0.output.0",
    ),
    "transposed": (
        "Module.blocks.1.proj.Linear.forward.0.parameters.weight",
        "Module.blocks.1.proj.Linear.forward.0.output.0",
    ),
    "residual": (
        "Functional.layer_norm.3.forward.input.0",
        "Module.blocks.1.norm2.LayerNorm.forward.0.input.0",
    ),
    "gelu": (
        "Functional.gelu.1.forward.output.0",
        "Module.blocks.1.mlp.1.GELU.forward.0.output.0",
    ),
}


def weights() -> dict[str, np.ndarray]:
    random = np.random.default_rng(7)

    def normal(*shape: int) -> np.ndarray:
        return (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)

    def norm(name: str) -> dict[str, np.ndarray]:
        return {f"{name}.weight": 1 + normal(WIDTH), f"{name}.bias": normal(WIDTH)}

    def linear(name: str, n_in: int, n_out: int) -> dict[str, np.ndarray]:
        return {f"{name}.weight": normal(n_out, n_in), f"{name}.bias": normal(n_out)}

    found = {"embed.weight": normal(VOCABULARY, WIDTH), "position.weight": normal(LENGTH, WIDTH)}
    for i in range(N_BLOCKS):
        block = f"blocks.{i}"
        found |= norm(f"{block}.norm1") | linear(f"{block}.qkv", WIDTH, 3 * WIDTH)
        found |= linear(f"{block}.proj", WIDTH, WIDTH) | norm(f"{block}.norm2")
        found |= linear(f"{block}.mlp.0", WIDTH, 4 * WIDTH) | linear(f"{block}.mlp.2", 4 * WIDTH, WIDTH)
    return found | norm("norm") | linear("head", WIDTH, VOCABULARY)


def batch() -> tuple[np.ndarray, np.ndarray]:
    """Tokens and targets."""
    random = np.random.default_rng(8)
    shape = (BATCH, LENGTH)
    return random.integers(0, VOCABULARY, shape), random.integers(0, VOCABULARY, shape)


def arguments(default_probe: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path, help="the dump_path")
    parser.add_argument("--level", default="mix")
    parser.add_argument("--task", default="statistics")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--plant", choices=sorted(PLANTS), default="")
    parser.add_argument("--probe", choices=["windtunnel", "msprobe"], default=default_probe)
    return parser.parse_args()


def write_config(out: Path, level: str, task: str) -> str:
    """The config.json of a dump, beside it."""
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.with_suffix(".json")
    section = {"scope": [], "list": [], "data_mode": ["all"], "summary_mode": "statistics"}
    path.write_text(
        json.dumps(
            {"task": task, "level": level, "dump_path": str(out), "rank": [], "step": [], task: section}
        )
    )
    return str(path)
