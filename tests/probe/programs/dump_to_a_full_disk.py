"""Dump more than a disk takes, then make room: python dump_to_a_full_disk.py FOLDER. Prints what it found as JSON."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

from windtunnel.probe.files.step_writer import StepWriter
from windtunnel.probe.files.tensor_store import TensorStore


def main(path: str) -> None:
    folder = StepWriter(path, header={"task": "tensor"}, flush_seconds=0.0)
    store = TensorStore(folder.path / "dump_tensor_data")
    data = memoryview(bytes(20_000))
    saved = [store.save(f"t{i}", data, "uint8", (20_000,)) for i in range(60)]
    for i in range(300):
        folder.add_call(f"A{i}", f'"{"x" * 300}"', ("frame",), None, True)
    folder.flush()
    found = {
        "saved": sum(name is not None for name in saved),
        "lost": store.n_lost,
        "files": len(os.listdir(store.path)),
        "sizes": sorted({os.stat(f"{store.path}/{name}").st_size for name in os.listdir(store.path)}),
        "in dump.json": len(json.loads(Path(path, "dump.json").read_text())["data"]),
    }
    shutil.rmtree(store.path)
    folder.add_entry("after", "1")
    folder.close()
    dump = json.loads(Path(path, "dump.json").read_text())
    found |= {"at last": len(dump["data"]), "complete": dump["complete"], "items": sorted(os.listdir(path))}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
