"""The data that public MindSpore programs read: the formats and sizes they expect, made here, few samples.

python -m benchmarks.mindspore_runs.public_data FOLDER
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path

import numpy as np

__all__ = ["make_data"]

N_IMAGES = 256  # a step of 32 on each of 8 devices that share the images, eight steps if they do not


def make_data(folder: Path) -> Path:
    """Make every data set below the folder, once."""
    if not (folder / "complete").exists():
        rng = np.random.default_rng(0)
        for part in ("train", "test"):
            _mnist(folder / "MNIST_Data" / part, rng, "train" if part == "train" else "t10k")
        _cifar10(folder / "cifar-10-batches-bin", rng)
        _image_folders(folder / "images", rng)
        _text(folder / "text", rng)
        (folder / "complete").touch()
    return folder


def _mnist(folder: Path, rng: np.random.Generator, prefix: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    images = rng.integers(0, 256, (N_IMAGES, 28, 28), np.uint8)
    labels = rng.integers(0, 10, N_IMAGES, np.uint8)
    header = struct.pack(">IIII", 2051, N_IMAGES, 28, 28)
    (folder / f"{prefix}-images-idx3-ubyte").write_bytes(header + images.tobytes())
    header = struct.pack(">II", 2049, N_IMAGES)
    (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())


def _cifar10(folder: Path, rng: np.random.Generator) -> None:
    """A file has 10,000 images: MindSpore refuses another size."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]:
        rows = rng.integers(0, 256, (10_000, 1 + 3 * 32 * 32), np.uint8)
        rows[:, 0] %= 10
        (folder / name).write_bytes(rows.tobytes())


def _image_folders(folder: Path, rng: np.random.Generator) -> None:
    """As ImageNet is unpacked: train and val, a folder a class."""
    from PIL import Image

    for part in ("train", "val"):
        for label in range(4):
            place = folder / part / f"class{label}"
            place.mkdir(parents=True, exist_ok=True)
            for number in range(16):
                pixels = rng.integers(0, 256, (256, 256, 3), np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.jpg")


def _text(folder: Path, rng: np.random.Generator) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    words = ["the", "ship", "sails", "north", "and", "nobody", "knows", "why", "it", "turns"]
    with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
        for number in range(256):
            text = " ".join(words[i] for i in rng.integers(0, len(words), 24))
            file.write(json.dumps({"text": text, "label": number % 2}) + "\n")


if __name__ == "__main__":
    print(make_data(Path(sys.argv[1])))
