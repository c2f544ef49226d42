"""Dump as fast as possible until killed, telling on stdout what is done: "a" n entries added, "f" n flushed.

python dump_until_killed.py FOLDER SEED
"""

from __future__ import annotations

import os
import random
import struct
import sys

import numpy as np

from windtunnel.probe.files.step_writer import StepWriter
from windtunnel.probe.files.tensor_store import TensorStore


def main(path: str, seed: int) -> None:
    rng = random.Random(seed)
    tell(b"r", 0)
    header = {"task": "tensor", "level": "mix", "dump_data_dir": f"{path}/dump_tensor_data"}
    folder = StepWriter(path, header=header, flush_seconds=0.002)
    store = TensorStore(folder.path / "dump_tensor_data")
    n_added = 0
    while True:
        name = f"Tensor.{n_added}"
        array = np.full(rng.choice((3, 900, 5000)), n_added, np.float32)
        # Every third is seen again: a link. Every fifth is written by the other thread.
        data_name = store.save(name, memoryview(array), "float32", array.shape, same_as=n_added)
        if n_added % 3 == 0:
            store.save(f"{name}.again", memoryview(array), "float32", array.shape, same_as=n_added)
        if n_added % 5 == 0:
            store.save_later(f"{name}.later", memoryview(array), "float32", array.shape)
        body = f'{{"i": {n_added}, "data_name": "{data_name}", "filling": "{"x" * rng.randrange(3000)}"}}'
        folder.add_call(name, body, (f"frame {n_added % 7}", "main"), "parent", True)
        n_added += 1
        tell(b"a", n_added)
        if rng.random() < 0.03:
            folder.flush()
            tell(b"f", n_added)


def tell(kind: bytes, count: int) -> None:
    os.write(1, struct.pack("<cI", kind, count))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
